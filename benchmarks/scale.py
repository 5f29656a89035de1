"""From a thousand to a million nodes: time and memory per edge.

Each size runs in a process of its own, so that its peak memory is its own.
"""

import json
import resource
import subprocess
import sys
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

SIZES = (10**3, 10**4, 10**5, 10**6)
DIMENSIONS = 8
LIMIT_GIB = 8


def measure(n: int) -> dict[str, float]:
    import torch

    import pushsum as ps

    graphs = ps.topology.exponential(n)
    algorithm = ps.algorithms.sgap(0.1, ps.weighting.moreau(k=1.0, v=0.1))
    x0 = torch.randn(n, DIMENSIONS, generator=torch.Generator().manual_seed(0))
    steps = max(12, 200_000 // n)
    run = ps.iterate(algorithm, graphs, lambda y, t: y, x0[:, :], steps)
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        next(run)
    times = []
    start = perf_counter()
    for _ in run:
        now = perf_counter()
        times.append(now - start)
        start = now
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": median(times), "peak": peak * 1024, "grown": (peak - baseline) * 1024}


def main() -> None:
    table = Table(
        title=f"SGAP with Moreau weights on exponential(n), d = {DIMENSIONS}, float32",
        title_justify="left",
    )
    for heading in ("nodes", "step", "ns per edge", "bytes per edge", "peak of the process"):
        table.add_column(heading, justify="right")
    per_edge, bytes_per_edge = [], []
    for n in SIZES:
        output = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale", str(n)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        m = json.loads(output)
        edges = 2 * n
        per_edge.append(1e9 * m["seconds"] / edges)
        bytes_per_edge.append(m["grown"] / edges)
        table.add_row(
            f"{n:,}",
            f"{1e3 * m['seconds']:.2f} ms",
            f"{per_edge[-1]:.0f}",
            f"{bytes_per_edge[-1]:.0f}",
            f"{m['peak'] / 2**30:.2f} GiB",
        )
    Console().print(table)
    print(
        f"largest / smallest: time per edge {max(per_edge) / min(per_edge):.2f}, "
        f"memory per edge {max(bytes_per_edge) / min(bytes_per_edge):.2f} (goal: 1.5 each); "
        f"a million nodes must fit into {LIMIT_GIB} GiB"
    )


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
