"""Many runs from one file: a recipe, a grid, or both; finished cells are never run again.

A recipe is a configuration with a section `sweep`:

    sweep:
      cells: [{algorithm.name: SGP}, {algorithm.name: SGAP, algorithm.weighting: "lazy:c=0.5"}]
      grid: {topology.name: [full, divide], seed: [0, 1, 2]}

Every cell is tried with every combination of the grid, whose last key changes fastest. An override
of a key in which the cells differ chooses among them; any other changes the grid, or all cells.
`sweep: NAME` takes the section of a recipe that comes with the package.

    sweep:
      tune: {algorithm.lr: [0.01, 0.03, 0.1]}

tries every value with the first seed of every cell, and runs all of its seeds with the one that is
best on samples that nobody trains on (`data.validation`). Methods compare by what each of them can
do, not by which of them likes a step size that all share.
"""

from pushsum.sweep.cell import TRIALS, Cell, Tune
from pushsum.sweep.reading import alternatives, read, recipes
from pushsum.sweep.running import run, run_cell
from pushsum.sweep.tuning import trials, tuned, warnings

__all__ = [
    "TRIALS",
    "Cell",
    "Tune",
    "alternatives",
    "read",
    "recipes",
    "run",
    "run_cell",
    "trials",
    "tuned",
    "warnings",
]
