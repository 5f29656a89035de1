"""What a fault plan costs: a step with lost and late messages beside one without, interleaved."""

import torch
from rich.console import Console
from rich.table import Table

import pushsum as ps
from benchmarks.timing import interleaved
from pushsum.engines.engine import Setup
from pushsum.engines.memory import keep_freed_memory
from pushsum.engines.simulator import Network
from pushsum.faults import Plan, as_plan
from pushsum.protocol import Known

NODES, DIMENSIONS = 10**5, 8
HOPS = (1, -1, 316, -316)  #: both ways, so that distances count
GOALS = {"empty plan": 1.03, "30 % lost": 3.0, "30 % lost, up to 3 late": 3.0}


def main() -> None:
    plans: dict[str, Plan | None] = {
        "none": None,
        "empty plan": as_plan(ps.faults.plan(0)),
        "30 % lost": ps.faults.plan(0, loss=0.3),
        "30 % lost, up to 3 late": ps.faults.plan(0, loss=0.3, delay=3),
    }
    x = torch.randn(NODES, DIMENSIONS, generator=torch.Generator().manual_seed(0))
    keep_freed_memory(x.nbytes)  # as runs do: else steps differ by 1.5 times in what the heap does
    g = Known(torch.zeros_like(x))
    title = f"{NODES:,} nodes, d = {DIMENSIONS}; SGP on Exponential, Moreau on hops of 1 and 316"
    pairs = ((i, (i + hop) % NODES) for i in range(NODES) for hop in HOPS)
    methods = {
        "SGP": (ps.algorithms.sgp(0.1), ps.topology.exponential(NODES)),
        "SGAP, Moreau": (ps.algorithms.sgap(0.1), ps.topology.from_edges(NODES, pairs)),
    }
    table = Table(title=title, title_justify="left")
    for heading in ("method", "plan", "step", "x without", "goal"):
        table.add_column(heading, justify="right")
    for method, (algorithm, graphs) in methods.items():
        steps = {}
        for name, plan in plans.items():
            network = Network(Setup(algorithm, graphs, faults=plan))
            now = network.begin(x)
            for _ in range(4):
                now = network.advance(now, g)
            steps[name] = lambda network=network, now=now: network.advance(now, g)
        seconds = interleaved(steps, rounds=9, repeats=3)
        for name, spent in seconds.items():
            goal = f"{GOALS[name]:g}" if name in GOALS else ""
            ratio = f"{spent / seconds['none']:.2f}"
            table.add_row(method, name, f"{1e3 * spent:.1f} ms", ratio, goal)
    Console().print(table)
