"""The full-size networks really start: two steps, time and peak memory in (N, d) arrays.

Each network runs in a process of its own; memory is read from Linux's /proc.
"""

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.scale import memory

NODES, BATCH, STEPS = 6, 2, 2
GOAL = 8


def measure(name: str) -> dict[str, float]:
    import torch
    import torch.nn.functional as F

    import pushsum as ps
    from pushsum import models
    from pushsum.engines.gradients import Batch, Layout, gradients, stacked_buffers

    classes = 100 if name == "resnet50" else 10
    model = models.build(name, (3, 32, 32), classes)
    layout = Layout.of(model)
    row = layout.flatten(dict(model.named_parameters()))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, BATCH, 3, 32, 32, generator=generator)
    batch = Batch(x, torch.randint(classes, (NODES, BATCH), generator=generator))
    compute = gradients("loop", model, F.cross_entropy, stacked_buffers(model, NODES))
    compute(row[None].expand(1, -1), Batch(x[:1], batch.targets[:1]))  # activations of one node
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    run = ps.iterate(
        ps.algorithms.sgap(0.01, ps.weighting.moreau(1e-3, 0.1)),
        ps.topology.full(NODES),
        lambda y, t: compute(y, batch)[0],
        row.repeat(NODES, 1),
        STEPS,
    )
    start = perf_counter()
    for record in run:
        assert bool(record.y.isfinite().all())
    array = NODES * layout.d * 4
    return {
        "d": layout.d,
        "seconds": (perf_counter() - start) / STEPS,
        "arrays": (memory("VmHWM") - before) / array,
        "peak": memory("VmHWM"),
    }


def main() -> None:
    if not Path("/proc/self/clear_refs").exists():
        print("fullsize: peak memory is read from Linux's /proc; skipped on this system")
        return
    table = Table(
        title=f"SGAP on full({NODES}), batch {BATCH}, {STEPS} steps, float32", title_justify="left"
    )
    for heading in ("network", "parameters", "step", "(N, d) arrays", "peak of the process"):
        table.add_column(heading, justify="right")
    for name in ("resnet18", "resnet50"):
        command = [sys.executable, "-m", "benchmarks.fullsize", name]
        m = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        table.add_row(
            name,
            f"{m['d']:,.0f}",
            f"{m['seconds']:.2f} s",
            f"{m['arrays']:.1f}  (goal: {GOAL})",
            f"{m['peak'] / 2**30:.2f} GiB",
        )
    Console().print(table)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
