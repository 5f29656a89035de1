"""One SGAP step at the size of ResNet-18, against one copy of the same array."""

import torch
from rich.console import Console
from rich.table import Table

import pushsum as ps
from benchmarks.timing import interleaved
from pushsum.engines import simulator
from pushsum.engines.simulator import Snapshot

NODES, PARAMETERS = 6, 11_173_962
GOAL = 4.0


def main() -> None:
    graphs = ps.topology.full(NODES)
    weighting = ps.weighting.moreau(k=1e-7, v=0.1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, PARAMETERS, generator=generator)
    y, held = torch.empty_like(x), torch.empty_like(x)
    a = torch.rand(NODES, 1, generator=generator) + 0.5
    edges = graphs.edges(2)
    senders, receivers = edges
    snapshots = (Snapshot(1, x),)
    d2 = simulator.squared_distances(senders, receivers, graphs.last_heard(2), snapshots)
    weights = weighting.matrix(graphs.adjacency(2), d2.reshape(NODES, NODES))[receivers, senders]
    network = simulator.Network(graphs)
    algorithm = ps.algorithms.sgap(0.1, weighting)
    state = algorithm.step(algorithm.init(x), x, 1, network)

    seconds = interleaved(
        {
            "copy": lambda: y.copy_(x),
            "clone": x.clone,
            "mixing": lambda: simulator.mix(edges, weights, x, out=held),
            "distances": lambda: simulator.squared_distances(
                senders, receivers, graphs.last_heard(2), snapshots
            ),
            "de-bias": lambda: torch.div(x, a, out=y),
            "whole step": lambda: algorithm.step(state, x, 2, network),
        },
        rounds=9,
    )
    copy = seconds["copy"]
    table = Table(
        title=f"SGAP step, N = {NODES}, d = {PARAMETERS:,}, float32, "
        f"{torch.get_num_threads()} threads; one copy = {1e3 * copy:.0f} ms",
        title_justify="left",
    )
    table.add_column("piece")
    table.add_column("x one copy", justify="right")
    for name in ("mixing", "distances", "de-bias"):
        table.add_row(name, f"{seconds[name] / copy:.2f}")
    together = sum(seconds[name] for name in ("mixing", "distances", "de-bias")) / copy
    table.add_section()
    table.add_row("together, into arrays that exist", f"{together:.2f}  (goal: {GOAL:g})")
    table.add_row("a copy into a new array (page faults)", f"{seconds['clone'] / copy:.2f}")
    table.add_row("whole step of iterate, 5 new arrays", f"{seconds['whole step'] / copy:.2f}")
    Console().print(table)
