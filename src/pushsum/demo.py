"""The demonstration: consensus and five algorithms on a heterogeneous quadratic.

Six nodes, the paper's four topologies; every run is laid beside Theorem 1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor

from pushsum import algorithms, theory, topology, weighting
from pushsum.algorithms import Algorithm
from pushsum.drawing import Panel, Series, chart_svg
from pushsum.drawing.svg import PALETTE
from pushsum.engines.iterate import iterate
from pushsum.methods import MOREAU, NAMES
from pushsum.problems import quadratic
from pushsum.randomness import stream
from pushsum.topology import Topology

NODES, DIMENSIONS = 6, 20
LR, MOMENTUM, WEIGHTING = 0.05, 0.8, weighting.parse(MOREAU)
MOMENTUM_LR = LR * (1 - MOMENTUM)  #: with which momentum SGD moves as far in the long run

_BOUND = "Theorem 1 for SGAP"
_ROUNDING = 1e-12  #: distances below are rounding, and not the same on every processor
# As in reports, of which it has the first five; what it has besides takes the colours of the rest.
_COLOURS = dict(zip((*NAMES[:5], "consensus", _BOUND), PALETTE, strict=True))


@dataclass(frozen=True)
class Outcome:
    """One run, beside what theory says of it.

    Attributes:
        topology, algorithm, weighting: what ran.
        gap: f(mean of x) - f* at the end; NaN for pure consensus, which has no objective.
        worst: max_i f(y_i) - f*, the same for the node that is worst off.
        distances: max_i ||y_i - mean of x||_1, the largest of the last 8 steps.
        log_bounds: natural logarithm of Theorem 1's bound on it; empty for S-ADDOPT, whose
            perturbation enters after the exchange.
        violations: in how many steps the distance exceeds the bound: 0 unless theory is wrong.
    """

    topology: str
    algorithm: str
    weighting: str
    gap: float
    worst: float
    distances: list[float]
    log_bounds: list[float]
    violations: int


def topologies() -> dict[str, Topology]:
    """The paper's four."""
    return {
        "Full": topology.full(NODES),
        "Divide": topology.divide(NODES),
        "Exponential": topology.exponential(NODES),
        "Random": topology.random(NODES),
    }


def methods() -> list[tuple[str, Algorithm, bool]]:
    """(label, algorithm, whether gradients are taken)."""
    consensus = algorithms.sgap(LR, WEIGHTING)
    named = [
        algorithms.sgp(LR),
        algorithms.msgp(MOMENTUM_LR, MOMENTUM),
        algorithms.sgap(LR, WEIGHTING),
        algorithms.msgap(MOMENTUM_LR, MOMENTUM, WEIGHTING),
        algorithms.s_addopt(LR),
    ]
    return [("consensus", consensus, False), *((a.name, a, True) for a in named)]


def run(progress: Callable[[str, str], Any], steps: int, seed: int) -> Iterator[Outcome]:
    """Run all; `progress(topology, algorithm)` is called before each run."""
    problem = quadratic(NODES, DIMENSIONS, L=1.0, mu=0.1, kappa=3.0, sigma=0.1, seed=seed)
    x0 = torch.from_numpy(stream(seed, "start").standard_normal((NODES, DIMENSIONS)))
    for where, graphs in topologies().items():
        for label, algorithm, descends in methods():
            progress(where, label)
            gradient = problem.gradient if descends else _no_gradient
            records = list(iterate(algorithm, graphs, gradient, x0, steps))
            constants = theory.constants(graphs, algorithm.weighting)
            covered = label != "S-ADDOPT"
            beside = list(theory.theorem1(constants, x0, records)) if covered else []
            last = records[-1]
            yield Outcome(
                where,
                label,
                algorithm.weighting.name,
                float(problem.value(last.average)) if descends else nan,
                float(problem.value(last.y).max()) if descends else nan,
                _recent_largest([theory.consensus(r.x, r.a, r.y).largest for r in records]),
                [row.log_bound for row in beside],
                sum(not row.holds for row in beside),
            )


def chart(outcomes: list[Outcome]) -> str:
    """The distances of all runs, one panel per topology, as SVG; rounding is drawn as such."""
    panels = []
    for where in dict.fromkeys(o.topology for o in outcomes):
        here = [o for o in outcomes if o.topology == where]
        steps = [float(t) for t in range(1, len(here[0].distances) + 1)]
        lines = [
            Series(
                o.algorithm,
                steps,
                [max(distance, _ROUNDING) for distance in o.distances],
                colour=_COLOURS[o.algorithm],
            )
            for o in here
        ]
        for o in here:
            if o.algorithm == "SGAP":
                bound = [theory.from_log(b) for b in o.log_bounds]
                lines.append(Series(_BOUND, steps, bound, dashed=True, colour=_COLOURS[_BOUND]))
        panels.append(Panel(where, "step", "largest of the last 8 steps", lines))
    return chart_svg("Distance to the average parameter, largest over the nodes (L1)", panels)


def _recent_largest(values: list[float]) -> list[float]:
    """On Random, uniform weights agree exactly on every eighth step, which says little."""
    return [max(values[max(0, t - 7) : t + 1]) for t in range(len(values))]


def _no_gradient(y: Tensor, t: int) -> Tensor:
    return torch.zeros_like(y)
