"""Rounding over 12 000 steps without gradients: does the network's average drift?

In exact arithmetic it would stay where it is, and nodes that start alike would stay alike.
"""

import sys

import torch
from rich.console import Console
from rich.table import Table

import pushsum as ps
from pushsum.engines.engine import Setup, average
from pushsum.engines.simulator import Network
from pushsum.protocol import Known

STEPS, ALIKE, D = 12_000, 3_000, 200
WEIGHTINGS = ("uniform", f"lazy:c={1 / 3}", "moreau:k=1,v=0.1", "far-first", "scale-free-moreau")
TOPOLOGIES = {
    "full(6)": ps.topology.full(6),
    "divide(6)": ps.topology.divide(6),
    "random(6)": ps.topology.random(6),
    "exponential(300)": ps.topology.exponential(300),
}


def drift(
    topology: ps.topology.Topology, weighting: str, steps: int, wire: torch.dtype | None = None
) -> tuple[float, float, float]:
    """Of the average, relative: largest and median over coordinates; and its trend per step."""
    generator = torch.Generator().manual_seed(0)
    x0 = 100 + torch.randn(topology.n, D, generator=generator)
    network = Network(Setup(ps.algorithms.sgap(0.1, weighting), topology, wire=wire))
    now, nothing = network.begin(x0), Known(torch.zeros_like(x0))
    start = x0.double().mean(0)
    means = []
    for t in range(1, steps + 1):
        now = network.advance(now, nothing)
        if t % (steps // 12) == 0:
            mean = average(now.state.x.double(), now.state.a)
            means.append((mean / start - 1).mean().item())
    off = (average(now.state.x.double(), now.state.a) / start - 1).abs()
    times = torch.arange(1.0, len(means) + 1, dtype=torch.float64) * (steps // 12)
    values = torch.tensor(means, dtype=torch.float64)
    centred = times - times.mean()
    trend = float((centred * (values - values.mean())).sum() / centred.square().sum())
    return float(off.max()), float(off.median()), trend


def apart(topology: ps.topology.Topology, weighting: str, steps: int) -> float:
    """max |y - 1| within so many steps from an identical start."""
    x0 = torch.ones(topology.n, 4)
    network = Network(Setup(ps.algorithms.sgap(0.1, weighting), topology))
    now, nothing, worst = network.begin(x0), Known(torch.zeros_like(x0)), 0.0
    for _ in range(steps):
        now = network.advance(now, nothing)
        y = now.state.x.double() / now.state.a[:, None]
        worst = max(worst, float((y - 1).abs().max()))
    return worst


def main(steps: int = STEPS) -> None:
    table = Table(title=f"float32, {steps:,} steps without gradients", title_justify="left")
    for heading in ("graphs", "weights", "largest", "median", "trend x steps", "max |y - 1|"):
        table.add_column(heading, justify="left" if heading in ("graphs", "weights") else "right")
    for name, graphs in TOPOLOGIES.items():
        for weighting in WEIGHTINGS:
            largest, median, trend = drift(graphs, weighting, steps)
            alike = apart(graphs, weighting, min(ALIKE, steps))
            numbers = (largest, median, abs(trend) * steps, alike)
            table.add_row(name, weighting, *(f"{value:.1e}" for value in numbers))
    for name in ("full(6)", "divide(6)"):
        largest, median, trend = drift(
            TOPOLOGIES[name], "uniform", min(ALIKE, steps), torch.bfloat16
        )
        off = (largest, median, abs(trend) * min(ALIKE, steps))
        shown = (f"{value:.1e}" for value in off)
        table.add_row(name, f"uniform, bfloat16 wire, {min(ALIKE, steps):,} steps", *shown, "")
    Console(width=120).print(table)
    print("Goals: largest 5e-6, median 1.5e-6, no trend; max |y - 1| 2.5e-6; on the wire 1e-6.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
