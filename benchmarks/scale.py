"""From a thousand to a million nodes: time and memory per edge.

Each size runs in a process of its own. Memory is what the run adds to the process at its peak,
after a small run has loaded everything there is to load; it is read from Linux's /proc.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.timing import memory

SIZES = (10**3, 10**4, 10**5, 10**6)
DIMENSIONS = 8
GOAL = 1.5
LIMIT_GIB = 8


def measure(n: int) -> dict[str, float]:
    run_steps(64, 5)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    times = run_steps(n, max(14, 400_000 // n))
    return {"seconds": median(times[2:]), "peak": memory("VmHWM"), "before": before}


def run_steps(n: int, steps: int) -> list[float]:
    import torch

    import pushsum as ps

    algorithm = ps.algorithms.sgap(0.1, ps.weighting.moreau(k=1.0, v=0.1))
    x0 = torch.randn(n, DIMENSIONS, generator=torch.Generator().manual_seed(0))
    times = []
    start = perf_counter()
    for _ in ps.iterate(algorithm, ps.topology.exponential(n), lambda y, t: y, x0, steps):
        now = perf_counter()
        times.append(now - start)
        start = now
    return times


def main() -> None:
    if not Path("/proc/self/clear_refs").exists():
        print("scale: peak memory is read from Linux's /proc; skipped on this system")
        return
    table = Table(
        title=f"SGAP with Moreau weights on exponential(n), d = {DIMENSIONS}, float32",
        title_justify="left",
    )
    for heading in ("nodes", "step", "ns per edge", "bytes per edge", "peak"):
        table.add_column(heading, justify="right")
    costs: list[tuple[float, float]] = []
    for n in SIZES:
        command = [sys.executable, "-m", "benchmarks.scale", str(n)]
        m = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        edges = 2 * n
        here = (1e9 * m["seconds"] / edges, (m["peak"] - m["before"]) / edges)
        costs.append(here)
        table.add_row(
            f"{n:,}",
            f"{1e3 * m['seconds']:.2f} ms",
            f"{here[0]:.0f}",
            f"{here[1]:.0f}",
            f"{m['peak'] / 2**30:.2f} GiB",
        )
    Console().print(table)
    times, sizes = zip(*costs, strict=True)
    print(
        f"largest / smallest per edge: time {max(times) / min(times):.2f}, of which from 10,000 "
        f"nodes on {max(times[1:]) / min(times[1:]):.2f} (below, the fixed cost of a step shows); "
        f"memory {max(sizes) / min(sizes):.2f}, from 10,000 nodes on "
        f"{max(sizes[1:]) / min(sizes[1:]):.2f} (goal: at most {GOAL}). "
        f"Limit at {SIZES[-1]:,} nodes: {LIMIT_GIB} GiB."
    )


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
