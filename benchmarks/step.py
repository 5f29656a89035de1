"""One SGAP step at the size of ResNet-18, against one copy of the same array.

Measured as `iterate` calls the pieces: every one of them returns a new array. The process keeps
the memory it has freed, as `pushsum` does on the command line; the last row is without that.
"""

import torch
from rich.console import Console
from rich.table import Table

import pushsum as ps
from benchmarks.timing import interleaved
from pushsum.engines import simulator
from pushsum.engines.memory import keep_freed_memory
from pushsum.engines.simulator import Graph, Snapshot
from pushsum.protocol import corrected

NODES, PARAMETERS = 6, 11_173_962
GOAL = 4.0


def main() -> None:
    graphs = ps.topology.full(NODES)
    weighting = ps.weighting.moreau(k=1e-7, v=0.1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, PARAMETERS, generator=generator)
    y = torch.empty_like(x)
    a = torch.rand(NODES, generator=generator, dtype=torch.float64) + 0.5
    senders, receivers = graphs.edges(2)
    heard, snapshots = graphs.last_heard(2), (Snapshot(1, x),)
    d2 = simulator.squared_distances(senders, receivers, heard, snapshots)
    W = weighting.matrix(graphs.adjacency(2), d2.reshape(NODES, NODES))
    mix = simulator.mixer(Graph(NODES, senders, receivers), W[receivers, senders])
    network = simulator.Network(graphs)
    algorithm = ps.algorithms.sgap(0.1, weighting)
    state = algorithm.step(algorithm.init(x), x, 1, network)
    pieces = {
        "copy": lambda: y.copy_(x),
        "mixing": lambda: mix(x),
        "distances": lambda: simulator.squared_distances(senders, receivers, heard, snapshots),
        "de-bias": lambda: corrected(x, a),
        "whole step": lambda: algorithm.step(state, x, 2, network),
    }
    ordinary = interleaved(pieces, rounds=5)
    kept = keep_freed_memory()
    seconds = interleaved(pieces, rounds=9)

    copy = seconds["copy"]
    table = Table(
        title=f"SGAP step, N = {NODES}, d = {PARAMETERS:,}, float32, "
        f"{torch.get_num_threads()} threads; one copy = {1e3 * copy:.0f} ms",
        title_justify="left",
    )
    table.add_column("piece")
    table.add_column("x one copy", justify="right")
    three = ("mixing", "distances", "de-bias")
    for name in three:
        table.add_row(name, f"{seconds[name] / copy:.2f}")
    table.add_section()
    together = sum(seconds[name] for name in three) / copy
    table.add_row("together", f"{together:.2f}  (goal: {GOAL:g})")
    table.add_row("whole step: also x - lr g", f"{seconds['whole step'] / copy:.2f}")
    table.add_section()
    without = sum(ordinary[name] for name in three) / ordinary["copy"]
    note = "with freed memory returned to the kernel" if kept else "(this system has no glibc)"
    table.add_row(f"together, {note}", f"{without:.2f}")
    Console().print(table)
