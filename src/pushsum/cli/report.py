"""`pushsum report`: records -> tables and one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(help="A run, or a directory with runs in it.")],
    into: Annotated[
        Path | None, typer.Option(help="Where to write; the directory itself if not given.")
    ] = None,
) -> None:
    """Write report.html (one page, no network) and the table as Markdown, CSV and LaTeX."""
    from pushsum.report import write

    for path in write(directory, into).values():
        typer.echo(path)
