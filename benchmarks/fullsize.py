"""The full-size recipe really runs: two steps, evaluated and saved; peak memory in (N, d) arrays.

Cells of table1-corrected (SGAP, full), as `pushsum run` does them, but with batches of two and a
few random images. Each network runs in a process of its own; memory is read from Linux's /proc.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.timing import memory

BATCH, STEPS = 2, 2
GOAL = 8  # for ResNet-50; smaller arrays are kept when they are freed, and may leave holes


def measure(name: str, directory: Path) -> dict[str, float]:
    import numpy as np

    from pushsum import sweep, training
    from pushsum.config import parse, set_value
    from pushsum.experiment import Experiment

    chosen = [f"model.name={name}", "algorithm.name=SGAP", "topology.name=full"]
    (cell,) = sweep.read("table1-corrected", chosen)
    content = cell.config.model_dump(mode="json")
    classes = 100 if content["data"]["name"] == "cifar100" else 10
    draw = np.random.default_rng(0)
    images = draw.integers(256, size=(2 * classes, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(2 * classes) % classes
    own = directory / "images.npz"
    np.savez(own, x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    changes = {
        "data.name": str(own),
        "batch": BATCH,
        "evaluation.batch": BATCH,
        "steps": STEPS,
        "gradients": "loop",
    }
    for key, value in changes.items():
        set_value(content, key, value)
    before = memory("VmRSS")
    built = Experiment(parse(content))
    array = built.n * built.layout.d * 4
    record = training.run(built, directory / "run")
    return {
        "d": built.layout.d,
        "loss": record["test"]["loss"],
        "step": record["seconds"]["total"] / STEPS,
        "planned": training.arrays(built),
        "arrays": (memory("VmHWM") - before) / array,
        "peak": memory("VmHWM"),
    }


def main() -> None:
    if not Path("/proc/self/status").exists():
        print("fullsize: peak memory is read from Linux's /proc; skipped on this system")
        return
    table = Table(
        title=f"table1-corrected, SGAP on full(6), batch {BATCH}, {STEPS} steps, float32",
        title_justify="left",
    )
    for heading in ("network", "parameters", "step", "test loss", "(N, d) arrays", "peak"):
        table.add_column(heading, justify="right")
    for name in ("resnet18", "resnet50"):
        with TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "benchmarks.fullsize", name, directory]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
        m = json.loads(answer.stdout)
        goal = f", goal: {GOAL}" * (name == "resnet50")
        table.add_row(
            name,
            f"{m['d']:,.0f}",
            f"{m['step']:.2f} s",
            f"{m['loss']:.2f}",
            f"{m['arrays']:.1f}  (planned: {m['planned']}{goal})",
            f"{m['peak'] / 2**30:.2f} GiB",
        )
    Console().print(table)
    print(
        "arrays: at the peak of the whole run, with the network itself, activations, evaluations\n"
        "and checkpoints; planned: what `pushsum run --dry-run` says."
    )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
