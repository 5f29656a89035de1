"""Theorem 1 beside measured distances, and both against the number of nodes.

    python -m study.consensus

Quadratics whose nodes differ by the same amount whatever N is, SGAP with a constant step size. The
distance is that of the theorem, max_i ||y_i - mean of x||_1, and beside it the mean over i instead
of the largest; of both the largest value in the second half of the run.
"""

from itertools import product
from math import log

import torch

from pushsum import algorithms, iterate, problems, theory, topology, weighting
from study.collect import write

NODES = (2, 4, 8, 16, 32, 64)
DIMENSIONS, STEPS, SEEDS, LR = 10, 200, 5, 0.05
GRAPHS = (topology.exponential, topology.full)
WEIGHTINGS = (weighting.uniform(), weighting.moreau(k=1, v=0.1))


def main() -> None:
    """Run all, and write the rows."""
    rows = []
    for n, build, rule in product(NODES, GRAPHS, WEIGHTINGS):
        graphs = build(n)
        c = theory.constants(graphs, rule)
        for seed in range(SEEDS):
            problem = problems.quadratic(n, DIMENSIONS, kappa=3.0, sigma=0.1, seed=seed)
            x0 = torch.zeros(n, DIMENSIONS, dtype=torch.float64)
            run = list(iterate(algorithms.sgap(LR, rule), graphs, problem.gradient, x0, STEPS))
            beside = list(theory.theorem1(c, x0, run))[STEPS // 2 :]
            worst = max(beside, key=lambda row: row.distance)
            apart = max((r.y - r.average).abs().sum(1).mean() for r in run[STEPS // 2 :])
            rows.append(
                {
                    "topology": build.__name__,
                    "nodes": n,
                    "weighting": rule.name,
                    "seed": seed,
                    "distance": float(f"{worst.distance:.6g}"),
                    "mean distance": float(f"{apart:.6g}"),
                    "log10 bound": round(worst.log_bound / log(10), 4),
                    "broken": sum(not row.holds for row in beside),
                }
            )
    write("consensus", rows)


if __name__ == "__main__":
    main()
