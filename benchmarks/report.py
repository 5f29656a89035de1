"""`pushsum report` of two thousand runs and of 300 MB of records: time, memory, size of the page.

Each report is made in a process of its own, whose peak memory is read from Linux's /proc. A page
that draws topologies or compares with the paper imports torch, which alone takes 200 MB.
"""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

from benchmarks.timing import memory
from tests import fake_runs

RUNS = 2000
LONG = 205_000  # records of one run: 300 MB
SECONDS, MEMORY, PAGE = 20, 0.5e9, 6e6  # goals


def seeds(place: Path) -> None:
    """20 methods on 4 topologies in 5 settings with 5 seeds, 100 records each."""
    names = product(("cifar10", "cifar100", "fashion-mnist", "quickdraw"), range(1, 6))
    for data, rate in names:
        config = {"data.name": data, "algorithm.lr": rate / 100}
        where = place / f"{data}-{rate}"
        fake_runs.grid(where, seeds=range(5), records=100, config=config)


def methods(place: Path) -> None:
    """As many step sizes on one topology."""
    for k in range(RUNS):
        fake_runs.run(place / f"{k}", records=25, config={"algorithm.lr": k / RUNS})


def settings(place: Path) -> None:
    """As many settings of one run."""
    for k in range(RUNS):
        fake_runs.run(place / f"{k}", records=25, config={"batch": k + 1})


def long(place: Path) -> None:
    """One run that recorded much."""
    fake_runs.run(place / "run", records=LONG)


CASES = {
    f"{RUNS} runs, 5 seeds each": seeds,
    f"{RUNS} runs, a method each": methods,
    f"{RUNS} runs, a setting each": settings,
    "1 run, 300 MB of records": long,
}


def measure(place: Path) -> dict[str, float]:
    from pushsum.report import write

    start = perf_counter()
    page = write(place, place / "report")["html"]
    return {
        "seconds": perf_counter() - start,
        "processor": process_time(),
        "memory": memory("VmHWM"),
        "page": page.stat().st_size,
    }


def main() -> None:
    if not Path("/proc/self/status").exists():
        print("report: peak memory is read from Linux's /proc; skipped on this system")
        return
    table = Table(title="pushsum report", title_justify="left")
    for heading in ("", "seconds", "of processor time", "peak memory", "page"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, make in CASES.items():
        with TemporaryDirectory() as directory:
            make(Path(directory))
            command = [sys.executable, "-m", "benchmarks.report", directory]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        m = json.loads(done.stdout)
        times = (f"{m['seconds']:.1f}", f"{m['processor']:.1f}")
        table.add_row(name, *times, f"{m['memory'] / 1e6:.0f} MB", f"{m['page'] / 1e6:.1f} MB")
    Console().print(table)
    print(
        f"Goals: at most {SECONDS} s on a machine that does nothing else, "
        f"{MEMORY / 1e6:.0f} MB and a page of {PAGE / 1e6:.0f} MB."
    )


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
