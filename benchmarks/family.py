"""What an exchange costs by method, relative to SGP's: as much as the vectors that it sends.

`python -m benchmarks family`. Seconds are those of processor time that the simulator spends on
mixing, the least of seven rounds, interleaved: a busy machine interrupts long exchanges more often.
"""

from functools import partial
from time import process_time
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

import pushsum as ps
from benchmarks.timing import interleaved
from pushsum.engines import simulator
from pushsum.engines.engine import Setup
from pushsum.engines.memory import keep_freed_memory
from pushsum.engines.simulator import Network
from pushsum.protocol import what_is_sent

NODES, PARAMETERS, GOAL = 6, 2_000_000, 0.15
METHODS = ("SGP", "OSGP", "S-ADDOPT", "Push-DIGing", "DEXTRA", "AB", "Push-Pull", "ABm", "FROST")


class _Zeros:
    """Gradients that cost nothing."""

    def __init__(self, g: torch.Tensor) -> None:
        self.g = g

    def __call__(self, point: torch.Tensor | None = None) -> torch.Tensor:
        return self.g

    full = __call__


def main() -> None:
    keep_freed_memory(4 * NODES * PARAMETERS)
    x0, graphs = torch.randn(NODES, PARAMETERS), ps.topology.ring(NODES)
    gradient = _Zeros(torch.zeros_like(x0))
    spent: dict[str, list[float]] = {name: [] for name in METHODS}

    def once(name: str) -> None:
        network, before = networks[name], networks[name].seconds["mixing"]
        moments[name] = network.advance(moments[name], gradient)
        spent[name].append(network.seconds["mixing"] - before)

    networks = {name: Network(Setup(ps.algorithms.parse(name, lr=0.1), graphs)) for name in METHODS}
    moments = {name: network.begin(x0) for name, network in networks.items()}
    with patch.object(simulator, "perf_counter", process_time):
        interleaved({name: partial(once, name) for name in METHODS}, rounds=7)
    least = {name: min(times[1:]) for name, times in spent.items()}  # without the first touch
    table = Table(title=f"Exchange, N = {NODES}, d = {PARAMETERS:,}, float32, ring")
    for column in ("method", "vectors", "x SGP", "off by"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in METHODS:
        vectors = sum(what_is_sent(networks[name].setup.algorithm, NODES, PARAMETERS))
        ratio = least[name] / least["SGP"]
        off = ratio / vectors - 1
        table.add_row(name, str(vectors), f"{ratio:.2f}", f"{off:+.0%}  (goal: {GOAL:.0%})")
    Console().print(table)
