"""Everything into files, once or again and again."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from pushsum import files
from pushsum.report import formats
from pushsum.report.page import html
from pushsum.report.results import Results, collect
from pushsum.report.runs import EMPTY, META, RECORDS, Skipped, candidates, find

REFRESH = 5  #: seconds after which a page that is followed loads itself again
IDLE = 30  #: seconds without news after which runs that are all finished are all there are


def write(
    directory: Path,
    target: Path | None = None,
    left_out: Callable[[tuple[Skipped, ...]], None] = lambda runs: None,
) -> dict[str, Path]:
    """Write the report of all runs in `directory`; returns the files by their suffix.

    Args:
        directory: where to look for run directories, itself included.
        target: where `report.html`, `table.md`, `table.csv` and `table.tex` go; by default
            `directory`. Made if it does not exist; each file appears complete or not at all.
        left_out: called with the runs that could not be read, or are copies of others.
    """
    results = collect(*find(directory))
    left_out(results.skipped)
    return _write(results, directory, target)


def follow(
    directory: Path,
    target: Path | None,
    wait: Callable[[float], None],
    written: Callable[[dict[str, Path]], None] = lambda paths: None,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Write the report whenever records change, until all runs are finished and nothing is new.

    The page loads itself again meanwhile, and no more in the end, also after an interrupt.

    Args:
        directory: as in `write`; at least one run must have begun.
        target: as in `write`.
        wait: called with seconds to wait between two looks.
        written: called with the files each time.
        clock: what the time is, in seconds.
    """
    seen: dict[Path, tuple[int, int]] = {}
    results, changed, took = None, clock(), 0.0
    try:
        while results is None or not _ended(results) or clock() - changed < IDLE:
            now = _state(directory)
            if now != seen:
                seen, changed = now, clock()
                results = collect(*find(directory))
                written(_write(results, directory, target, REFRESH))
                took = clock() - changed
            wait(max(1, took))
    finally:
        if results is not None:
            written(_write(results, directory, target))


def data(directory: Path) -> dict[str, Any]:
    """The tables of the report as objects for JSON."""
    return formats.data(collect(*find(directory)), directory)


def _write(
    results: Results, directory: Path, target: Path | None, refresh: int = 0
) -> dict[str, Path]:
    target = directory if target is None else target
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target}: this is a file; give a directory for the report")
    contents = {
        "report.html": html(results, directory, refresh),
        "table.md": formats.markdown(results),
        "table.csv": formats.comma_separated(results),
        "table.tex": formats.latex(results),
    }
    target.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        files.write(target / name, content.encode(errors="replace"))
    return {Path(name).suffix[1:]: target / name for name in contents}


def _state(directory: Path) -> dict[Path, tuple[int, int]]:
    """What would change a report: time and size of every file it reads."""
    state = {}
    for folder in candidates(directory):
        for name in (META, RECORDS):
            with suppress(OSError):
                about = os.stat(folder / name, follow_symlinks=False)
                state[folder / name] = (about.st_mtime_ns, about.st_size)
    return state


def _ended(results: Results) -> bool:
    began = any(reason == EMPTY for _, reason in results.skipped)
    return not began and all(run.finished or run.diverged for run in results.runs)
