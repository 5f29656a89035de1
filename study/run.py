"""Run what the study lacks: the cells that have no row in study/results/runs.csv.

    python -m study.run [--jobs N] [--dry-run] [PATTERN ...]

A pattern chooses sweeps, or cells of them: finetune-seeds, 'finetune-*/full_*'. What the first
one matches is run first. A cell goes into runs/study/SWEEP. To measure one again, remove its row.
"""

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pushsum import data, sweep, training
from pushsum.names import counted, unknown
from pushsum.sweep import Cell
from study import HERE, collect, pretrained

FINE_TUNING = ("table1", "controls", "seldom", "random", "seeds", "end", "again")
#: in the order in which they are run; files of study/sweeps, but `table1` is a recipe
SWEEPS = (
    *(f"finetune-{name}" for name in FINE_TUNING),
    *("table1", "centralized", "iid", "far-first", "fresh", "lazy", "momentum", "rates"),
    *("groupnorm", "dials", "published", "budget", "quickdraw", "longer", "again"),
    *("faults", "methods"),
)


def main(words: Sequence[str] | None = None) -> None:
    """Run the missing cells that were chosen, by default all, or list them."""
    parser = ArgumentParser(prog="python -m study.run")
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", default=["*"], help=", ".join(SWEEPS)
    )
    parser.add_argument("--jobs", type=int, default=1, help="cells at the same time")
    parser.add_argument("--dry-run", action="store_true", help="list the missing cells only")
    options = parser.parse_args(words)
    for pattern in options.patterns:
        if not any(_matches(name, cell, pattern) for name in SWEEPS for cell in cells(name)):
            parser.error(unknown("sweep", pattern, SWEEPS))
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least one is needed")
    lacking = list(chosen(options.patterns))
    if options.dry_run:
        listed = [f"{name}/{cell.name}" for name, waiting in lacking for cell in waiting]
        print(*listed, counted(len(listed), "cell"), sep="\n")
        return
    failed = []
    for name, waiting in lacking:
        prepare(waiting)
        failed += run(name, waiting, options.jobs)
    if failed:
        raise SystemExit(f"not finished: {', '.join(failed)}")


def cells(name: str) -> list[Cell]:
    """All cells of a sweep."""
    if name == "table1":
        return sweep.read("table1-small", ["seed=0,1,2"])
    return sweep.read(str(HERE / "sweeps" / f"{name}.yaml"))


def missing(name: str) -> list[Cell]:
    """The cells of a sweep that have no row."""
    rows = {row["run"] for row in collect.read("runs")}
    return [cell for cell in cells(name) if f"{name}/{cell.name}" not in rows]


def chosen(patterns: Iterable[str]) -> Iterator[tuple[str, list[Cell]]]:
    """Sweeps with those of their missing cells that a pattern matches and none before it did."""
    left = {name: missing(name) for name in SWEEPS}
    for pattern in patterns:
        for name, waiting in left.items():
            found = [cell for cell in waiting if _matches(name, cell, pattern)]
            left[name] = [cell for cell in waiting if cell not in found]
            if found:
                yield name, found


def _matches(name: str, cell: Cell, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f"{name}/{cell.name}", pattern)


def prepare(waiting: Iterable[Cell]) -> None:
    """Get the data sets and the weights that cells begin with."""
    for name, root in {(cell.config.data.name, cell.config.data.root) for cell in waiting}:
        data.prepare(name, root)
    for path in {cell.config.model.pretrained for cell in waiting}:
        if path is not None and not path.exists():
            pretrained.main(path)


def run(name: str, waiting: Sequence[Cell], jobs: int) -> list[str]:
    """Run cells of a sweep; those that failed."""

    def progress(cell: Cell, what: str) -> None:
        print(f"{name}/{cell.name}: {what}", flush=True)

    try:
        failed = sweep.run(waiting, Path("runs/study", name), jobs, progress)
    except (training.Stopped, KeyboardInterrupt):
        raise SystemExit("stopped; the same command goes on") from None
    return [f"{name}/{cell}" for cell in failed]


if __name__ == "__main__":
    main()
