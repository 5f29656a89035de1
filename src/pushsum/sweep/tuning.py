"""What is tried before cells run, and what they choose by it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pushsum import measures, training
from pushsum.checks import is_number
from pushsum.config import changed
from pushsum.methods import MOMENTUM
from pushsum.sweep.cell import TRIALS, Cell, Tune, meta, stored, word


def trials(cells: Sequence[Cell]) -> list[Cell]:
    """What is tried before the cells run, each once."""
    return list({trial.name: trial for cell in cells for trial in cell.trials}.values())


def tuned(cells: Sequence[Cell], into: Path) -> Iterator[Cell | str]:
    """The cells with what the finished trials have chosen; the reason instead, if they have not."""
    for cell in cells:
        if cell.tune is None:
            yield cell
            continue
        yield _chosen(cell, cell.tune, into)


def with_trials(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Each value, with the first seed of cells that differ in their seeds only.

    A cell has its trials from the whole sweep, so that they are the same if some of it is run.
    """
    known: dict[str, tuple[Cell, ...]] = {}
    for cell in cells:
        if cell.tune is None:
            yield cell
            continue
        alike = cell.config.model_copy(update={"seed": 0}).model_dump_json()
        if alike not in known:
            key = cell.tune.key
            known[alike] = tuple(
                Cell(f"{cell.name}_{word(key, value)}", changed(cell.config, key, value))
                for value in cell.tune.values
            )
        yield replace(cell, trials=known[alike])


def _chosen(cell: Cell, tune: Tune, into: Path) -> Cell | str:
    """A cell with the value that is best by its trials; or why there is none."""
    tried: list[tuple[Any, dict[str, float] | None]] = []
    directories = [into / TRIALS / trial.name for trial in cell.trials]
    for value, directory in zip(tune.values, directories, strict=True):
        if meta(directory, "finished"):
            tried.append((value, _validation(directory)))
        elif meta(directory, "diverged"):
            tried.append((value, None))
        else:
            return f"{tune.key}={value} was not tried to the end"
    found = [validation for _, validation in tried if validation is not None]
    if not found:
        return f"no value of {tune.key} that was tried ends in finite numbers: try smaller ones"
    measure = measures.told(meta(directories[0], "measure"))

    def worth(position: int) -> tuple[float, float]:
        v = tried[position][1] or {}
        value, loss = v.get(measure.name), v.get("loss")
        if value is None or loss is None:
            return -math.inf, -math.inf
        return measure.better * value, -loss

    best = max(range(len(tried)), key=worth)  # the first of equals
    note = {
        "key": tune.key,
        "tried": [[value, None if v is None else v.get(measure.name)] for value, v in tried],
        "measure": measure.name,
        "chosen": tried[best][0],
        "seed": cell.trials[0].config.seed,
    }
    config, begun = changed(cell.config, tune.key, tried[best][0]), stored(directories[best])
    if begun is None:
        return f"{directories[best]}: its config.yaml is damaged: remove the trial"
    if config.gradients == "auto":  # computed as in the trial, for they may round
        config = config.model_copy(update={"gradients": begun.gradients})
    return Cell(cell.name, config, notes={"tune": note})


def _validation(directory: Path) -> dict[str, float]:
    """What a finished trial has reached on the samples to choose by, where that is a number."""
    match training.last_record(directory):
        case {"validation": dict(found)}:
            return {key: value for key, value in found.items() if is_number(value)}
    raise ValueError(f"{directory}: its last record has no validation: remove the trial")


def warnings(cells: Sequence[Cell]) -> list[str]:
    """What is allowed in a comparison, but probably not meant."""
    farthest: dict[float, dict[float, str]] = {}  # step size -> momentum -> a method
    for cell in cells:
        c = cell.config.algorithm
        if cell.tune is None and c.optimizer is None:
            momentum = c.momentum if c.name in MOMENTUM else 0.0
            farthest.setdefault(c.lr, {}).setdefault(momentum, c.name)
    found = []
    for lr, methods in farthest.items():
        low, high = min(methods), max(methods)
        if low != high:
            times = (1 - low) / (1 - high)
            found.append(
                f"{methods[low]} and {methods[high]} share algorithm.lr={lr:g}, and momentum "
                f"{high:g} moves {times:.3g} times as far: give {methods[high]} {lr / times:.3g}, "
                "or each its own by --tune algorithm.lr=A,B,C"
            )
    return found
