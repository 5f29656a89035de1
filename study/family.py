"""All methods on one problem over one directed graph: distance to the optimum by step and bytes.

    python -m study.family

A quadratic whose nodes differ, exact gradients, eight nodes on a strongly connected digraph with
out-degrees from 2 to 4. Each method has the step size of a grid that brings it closest in the end.
"""

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from pushsum import algorithms, faults, iterate, problems, topology
from pushsum.algorithms import Algorithm
from pushsum.config import Link
from pushsum.engines.engine import Setup
from pushsum.experiment.costs import Costs
from pushsum.protocol import what_is_sent
from study.collect import write

NODES, DIMENSIONS, STEPS, EVERY = 8, 10, 400, 5
RATES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
HOPS = {0: (1, 3), 1: (2,), 2: (3, 5, 7), 3: (4,), 4: (5, 0), 5: (6,), 6: (7, 1), 7: (0,)}
EDGES = [(i, j) for i, others in HOPS.items() for j in others]
CLOSE = 1e-13  #: as close as rounding lets them come

METHODS: dict[str, Callable[[float], Algorithm]] = {
    "SGP": algorithms.sgp,
    "OSGP, delay 1": algorithms.osgp,
    "QGM, 0.5": lambda lr: algorithms.qgm(lr, 0.5, "uniform"),
    "ADD-OPT": algorithms.add_opt,
    "Push-DIGing": algorithms.push_diging,
    "DEXTRA": algorithms.dextra,
    "AB": algorithms.ab,
    "Push-Pull": algorithms.push_pull,
    "ABm, 0.5": lambda lr: algorithms.abm(lr, 0.5),
    "ABN, 0.5": lambda lr: algorithms.abn(lr, 0.5),
    "FROST": lambda lr: algorithms.frost(lr / NODES),
}


def main() -> None:
    """Run all, and write the rows."""
    rows: list[dict[str, Any]] = []
    for name, make in METHODS.items():
        lr, distances = min(((lr, run(make(lr))) for lr in RATES), key=lambda found: _end(found[1]))
        best = make(lr)
        sent, rate = kilobytes(best), best.optimizer.rate(1)  # FROST's is smaller than the grid's
        for t in range(0, len(distances), EVERY):
            rows.append(
                {
                    "method": name,
                    "lr": rate,
                    "step": t,
                    "distance": float(f"{distances[t]:.4g}"),
                    "kilobytes": round(t * sent, 3),
                }
            )
    write("family", rows)


def run(algorithm: Algorithm) -> list[float]:
    """max_i ||y_i - x*|| at step 0, 1, ...; it ends where nothing more can be gained, or lost."""
    problem = problems.quadratic(NODES, DIMENSIONS, mu=0.2, kappa=3.0)
    x0 = torch.zeros(NODES, DIMENSIONS, dtype=torch.float64)
    found = [float((x0 - problem.minimizer).norm(dim=1).max())]
    for r in iterate(algorithm, graph(), problem.gradient, x0, STEPS):
        found.append(float((r.y - problem.minimizer).norm(dim=1).max()))
        if not CLOSE < found[-1] < 1e6:
            break
    return found


def graph() -> topology.Topology:
    """The graph of all methods."""
    return topology.from_edges(NODES, EDGES)


def kilobytes(algorithm: Algorithm) -> float:
    """What all nodes send in a step."""
    vectors = what_is_sent(algorithm, NODES, DIMENSIONS)
    setup = Setup(algorithm, graph())
    costs = Costs(lambda step: setup, vectors, 8 * DIMENSIONS, Link(), faults.plan(0))
    return costs.bytes_in(1) / 1000


def _end(distances: list[float]) -> tuple[float, int]:
    """Smaller is better: where it ends, or the sooner it is as close as can be."""
    last = distances[-1]
    return (inf, 0) if last >= 1e6 else (max(last, CLOSE), len(distances))


if __name__ == "__main__":
    main()
