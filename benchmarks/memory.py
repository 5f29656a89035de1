"""What a dry run says of memory, beside what the steps take.

Each case runs in a process of its own; the peak is read from Linux's /proc.
"""

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

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


def memory(field: str) -> int:
    """Bytes, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def measure(words: list[str]) -> None:
    from torch.nn.functional import cross_entropy

    from pushsum import config, training
    from pushsum.engines.engine import Known
    from pushsum.engines.gradients import gradients, stacked_buffers
    from pushsum.engines.simulator import Network
    from pushsum.experiment import Experiment

    small = ["model.hidden=[20000]", "batch=2", "gradients=loop", "topology.name=full"]
    built = Experiment(config.read(None, [*small, *words]))
    planned, size = training.arrays(built), 4 * built.n * built.layout.d
    compute = gradients("loop", built.model, cross_entropy, stacked_buffers(built.model, built.n))

    def run(steps: int) -> None:
        network = Network(built.setup(0))
        now = network.begin(built.start())
        for _ in range(steps):
            g, _ = compute(now.y, built.batch(now.t + 1, range(built.n)))
            now = network.advance(now, Known(g))

    run(3)  # torch imports some things late, and so on: that is not the method's
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    run(12)
    print(planned, (memory("VmHWM") - before) / size)


def main() -> None:
    table = Table(title="arrays of the size of all parameters", title_justify="left")
    for heading in ("case", "dry run", "measured", "difference"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", *case.split()]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        planned, measured = map(float, answer.stdout.split())
        row = (case, f"{planned:g}", f"{measured:.2f}", f"{100 * (planned / measured - 1):+.0f} %")
        table.add_row(*row)
    Console(width=120).print(table)
    print(f"Goal: at most {100 * GOAL:.0f} % apart.")


if __name__ == "__main__":
    measure(sys.argv[1:])
