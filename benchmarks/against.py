"""This tree against another commit, in one run: `python -m benchmarks.against COMMIT [CASE ...]`.

The commit is checked out beside (into build/against). Both run the same scripts, which use the
public interface alone, in processes of their own and in turns; what is shown are the least times,
and their ratios: by the clock, and of the processor (user and system), which counts on a machine
that does other things, too.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from pushsum.names import unknown

ROOT = Path(__file__).parent.parent
ROUNDS = 3

CLOCK = """
import json, time
clocks = lambda: (time.perf_counter(), time.process_time())
def least(times, first):
    steps = [[b - a for a, b in zip(*both)] for both in zip(times[first:], times[first + 1 :])]
    return dict(zip(("seconds", "processor"), map(min, zip(*steps))))
"""

STEP = """
import torch, pushsum as ps
x = torch.randn(6, 11_173_962, generator=torch.Generator().manual_seed(0))
sgap = ps.algorithms.sgap(0.1, ps.weighting.moreau(k=1e-7, v=0.1))
zeros, times = torch.zeros_like(x), []
for _ in ps.iterate(sgap, ps.topology.full(6), lambda y, t: zeros, x, 10):
    times.append(clocks())
print(json.dumps(least(times, 2)))
"""

MILLION = """
import torch, pushsum as ps
from pathlib import Path
sgap = ps.algorithms.sgap(0.1, ps.weighting.moreau(k=1.0, v=0.1))
x = torch.randn(10**6, 8, generator=torch.Generator().manual_seed(0))
times = []
for _ in ps.iterate(sgap, ps.topology.exponential(10**6), lambda y, t: y, x, 14):
    times.append(clocks())
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps(least(times, 1) | {"GiB": peak / 2**20}))
"""

TRAINING = """
import sys
from tempfile import TemporaryDirectory
from pushsum.cli import main
words = ["model.name=resnet-small", "model.width=8", "batch=32", "gradients=loop"]
words += ["algorithm.name=SGAP", "algorithm.weighting=moreau:k=1,v=0.1"]
words += ["evaluation.nodes=false"]
times = [clocks()]
for steps in (10, 70):  # what both do but once is no part of their difference
    with TemporaryDirectory() as place:
        sys.argv = ["pushsum", "run", *words, f"steps={steps}", "--into", f"{place}/run"]
        try:
            main()
        except SystemExit:
            pass
    times.append(clocks())
short, long = least(times[:2], 0), least(times[1:], 0)
print()
print(json.dumps({name: (long[name] - short[name]) / 60 for name in long}))
"""

PROCESSES = """
import os, torch, pushsum as ps
torch.set_num_threads(1)
model = torch.nn.Linear(2048, 2048)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
node = ps.PushSum(model, optimizer, "exponential", "WEIGHTING")
for p in model.parameters():
    p.grad = torch.randn_like(p)  # nodes that agree to the last bit look twice
times = []
for _ in range(30):
    optimizer.step()
    times.append(clocks())
node.close()
if os.environ["RANK"] == "0":
    print(json.dumps(least(times, 5)))
"""

CASES = {
    "step": STEP,
    "million": MILLION,
    "training": TRAINING,
    "processes": PROCESSES.replace("WEIGHTING", "uniform"),
    "processes, moreau": PROCESSES.replace("WEIGHTING", "moreau:k=1,v=0.1"),
}


def main(commit: str, names: list[str]) -> None:
    other = ROOT / "build" / "against" / commit
    if not other.exists():
        command = ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(other), commit]
        subprocess.run(command, check=True, capture_output=True)
    table = Table(title=f"this tree / {commit}", title_justify="left")
    figures = ("here", "there", "ratio", "processor here", "there", "ratio")
    for heading in ("case", *figures, "peak here", "there"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for name in names:
        found: dict[Path, list[dict[str, float]]] = {ROOT: [], other: []}
        for _ in range(ROUNDS):
            for tree, results in found.items():
                results.append(measured(tree, name))
        shown: list[str] = []
        for clock in ("seconds", "processor"):
            here, there = (min(r[clock] for r in found[tree]) for tree in (ROOT, other))
            shown += [f"{1e3 * here:.1f} ms", f"{1e3 * there:.1f} ms", f"{here / there:.2f}"]
        peaks = [max(r.get("GiB", 0.0) for r in found[tree]) for tree in (ROOT, other)]
        table.add_row(name, *shown, *(f"{peak:.2f} GiB" if peak else "" for peak in peaks))
    Console(width=120).print(table)


def measured(tree: Path, name: str) -> dict[str, float]:
    with TemporaryDirectory() as place:
        script = Path(place) / "case.py"
        script.write_text(CLOCK + CASES[name])
        command = [sys.executable, str(script)]
        if name.startswith("processes"):
            command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
        environment = os.environ | {"PYTHONPATH": str(tree / "src"), "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m benchmarks.against", description="this tree / COMMIT")
    parser.add_argument("commit")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    for case in options.cases:
        if case not in CASES:
            parser.error(unknown("case", case, CASES))
    main(options.commit, options.cases or list(CASES))
