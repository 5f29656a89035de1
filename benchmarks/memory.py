"""What a dry run says of memory, beside what the steps take.

Each case runs in a process of its own; the peak is read from Linux's /proc. Freed memory is kept,
as for arrays of less than 0.5 GB, or returned to the system, as for larger ones.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.timing import memory

CASES = (
    "algorithm.name=SGP",
    "algorithm.name=SGAP algorithm.weighting=moreau:k=1,v=0.1",
    "algorithm.name=MSGAP algorithm.weighting=far-first",
    "algorithm.name=SGAP algorithm.weighting=moreau:k=1,v=0.1 topology.name=exponential",
    "algorithm.name=MSGAP algorithm.weighting=far-first topology.name=random",
    "algorithm.name=S-ADDOPT",
    "algorithm.name=QGM",
    "algorithm.name=SGP algorithm.optimizer=Adam",
    "algorithm.name=AllReduce",
)
GOAL = 0.15


def measure(words: list[str], keeps: bool) -> None:
    from pushsum import config, training
    from pushsum.experiment import Experiment
    from pushsum.training import loop

    small = ["batch=2", "gradients=loop", "evaluation.nodes=false", "evaluation.batch=20"]
    if not keeps:
        loop.keep_freed_memory = lambda array: False  # type: ignore[attr-defined]

    def run(*more: str) -> Experiment:
        built = Experiment(config.read(None, [*small, "topology.name=full", *words, *more]))
        with TemporaryDirectory() as folder:
            training.run(built, Path(folder, "run"))
        return built

    run("steps=2", "model.hidden=[10]")  # torch imports some things late: that is not the method's
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    built = run("steps=8", "model.hidden=[20000]")
    bytes_planned, count, size = training.planned(built)
    print(bytes_planned / size if keeps else count, (memory("VmHWM") - before) / size)


def main() -> None:
    table = Table(title="arrays of the size of all parameters", title_justify="left")
    for heading in ("case", "freed memory", "dry run", "measured", "difference"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in CASES:
        for how in ("kept", "returned"):
            command = [sys.executable, "-m", "benchmarks.memory", how, *case.split()]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            planned, measured = map(float, answer.stdout.split())
            off = f"{100 * (planned / measured - 1):+.0f} %"
            table.add_row(case, how, f"{planned:.1f}", f"{measured:.1f}", off)
    Console(width=120).print(table)
    print(f"Goal: at most {100 * GOAL:.0f} % apart.")


if __name__ == "__main__":
    measure(sys.argv[2:], sys.argv[1] == "kept")
