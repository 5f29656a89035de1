"""Everything into files."""

from collections.abc import Callable
from pathlib import Path

from pushsum import files
from pushsum.report import formats
from pushsum.report.page import html
from pushsum.report.results import collect
from pushsum.report.runs import Skipped, find


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
    target = directory if target is None else target
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target}: this is a file; give a directory for the report")
    contents = {
        "report.html": html(results, directory),
        "table.md": formats.markdown(results),
        "table.csv": formats.comma_separated(results),
        "table.tex": formats.latex(results),
    }
    target.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        files.write(target / name, content.encode(errors="replace"))
    return {Path(name).suffix[1:]: target / name for name in contents}
