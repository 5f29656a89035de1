"""One SGAP step at the size of ResNet-18, against one copy of the same array.

What a step does with zero gradients is x + 0, mixing, distances and y = x / a, column block by
column block. A local move (W = I) is the same without mixing and distances, so the difference is
what these cost. The process keeps the memory it has freed, as `pushsum` does on the command line;
the last row is without that.
"""

import torch
from rich.console import Console
from rich.table import Table

import pushsum as ps
from benchmarks.timing import interleaved
from pushsum.engines.engine import Setup
from pushsum.engines.memory import keep_freed_memory
from pushsum.engines.simulator import Network
from pushsum.protocol import Known, corrected

NODES, PARAMETERS = 6, 11_173_962
GOAL = 4.0


def main() -> None:
    weighting = ps.weighting.moreau(k=1e-7, v=0.1)
    algorithm = ps.algorithms.sgap(0.1, weighting)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, PARAMETERS, generator=generator)
    y, g = torch.empty_like(x), Known(torch.zeros_like(x))
    a = torch.rand(NODES, generator=generator, dtype=torch.float64) + 0.5
    network = Network(Setup(algorithm, ps.topology.full(NODES)))
    seldom = Network(Setup(algorithm, ps.topology.full(NODES), every=1000))
    now, alone = network.advance(network.begin(x), g), seldom.begin(x)
    pieces = {
        "copy": lambda: y.copy_(x),
        "de-bias": lambda: corrected(x, a),
        "local move": lambda: seldom.advance(alone, g),
        "whole step": lambda: network.advance(now, g),
    }
    ordinary = interleaved(pieces, rounds=5)
    kept = keep_freed_memory(x.nbytes)
    seconds = interleaved(pieces, rounds=9)

    def together(times: dict[str, float]) -> float:
        return (times["whole step"] - times["local move"] + times["de-bias"]) / times["copy"]

    copy = seconds["copy"]
    table = Table(
        title=f"SGAP step, N = {NODES}, d = {PARAMETERS:,}, float32, "
        f"{torch.get_num_threads()} threads; one copy = {1e3 * copy:.0f} ms",
        title_justify="left",
    )
    table.add_column("piece")
    table.add_column("x one copy", justify="right")
    table.add_row("whole step", f"{seconds['whole step'] / copy:.2f}")
    table.add_row("a local move: x - lr g, y", f"{seconds['local move'] / copy:.2f}")
    table.add_row("de-bias alone", f"{seconds['de-bias'] / copy:.2f}")
    table.add_section()
    table.add_row("mixing, distances, de-bias", f"{together(seconds):.2f}  (goal: {GOAL:g})")
    note = "with freed memory returned to the kernel" if kept else "(this system has no glibc)"
    table.add_row(f"the same, {note}", f"{together(ordinary):.2f}")
    Console().print(table)
