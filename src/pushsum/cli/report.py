"""`pushsum report`: records -> tables and one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pushsum.cli.common import warn

if TYPE_CHECKING:
    from pushsum.report import Skipped

MOST_NAMED = 10  #: runs that are left out


def report(
    directory: Annotated[Path, typer.Argument(help="A run, or a directory with runs in it.")],
    into: Annotated[
        Path | None, typer.Option(help="Where to write; the directory itself if not given.")
    ] = None,
) -> None:
    """Write report.html (one page, no network) and the table as Markdown, CSV and LaTeX."""
    from pushsum.report import write

    for path in write(directory, into, _warn).values():
        typer.echo(path)


def _warn(left_out: tuple[Skipped, ...]) -> None:
    for path, reason in left_out[:MOST_NAMED]:
        warn(f"{path} is left out: {reason}")
    if len(left_out) > MOST_NAMED:
        warn(f"{len(left_out) - MOST_NAMED} more are left out: the page names them")
