"""Figures as ratios measured within one run: `make bench BENCH_ARGS=step` or without for all.

`wallclock` takes eight minutes, and root to do it well: it runs only when named.
"""

import sys

from benchmarks import failing, family, fullsize, memory, report, scale, step, training, wallclock

BENCHMARKS = {
    "step": step.main,
    "scale": scale.main,
    "family": family.main,
    "failing": failing.main,
    "training": training.main,
    "fullsize": fullsize.main,
    "memory": memory.main,
    "report": report.main,
    "wallclock": wallclock.main,
}

if __name__ == "__main__":
    names = sys.argv[1:] or [name for name in BENCHMARKS if name != "wallclock"]
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown benchmark {', '.join(unknown)}: choose from {', '.join(BENCHMARKS)}")
    for name in names:
        BENCHMARKS[name]()
