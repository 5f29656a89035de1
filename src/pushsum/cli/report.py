"""`pushsum report`: records -> tables and one page."""

from __future__ import annotations

import json
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from pushsum.cli.common import tell, warn

if TYPE_CHECKING:
    from pushsum.report import Skipped

MOST_NAMED = 10  #: runs that are left out


def report(
    directory: Annotated[Path, typer.Argument(help="A run, or a directory with runs in it.")],
    into: Annotated[
        Path | None, typer.Option(help="Where to write.  [default: the directory itself]")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Rewrite whenever a run records; ends after the runs, or with Ctrl-C."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON; write nothing.")
    ] = False,
) -> None:
    """Write report.html, one page, and the tables as Markdown, CSV and LaTeX."""
    from pushsum.report import data, follow, write

    if as_json and (watch or into is not None):
        raise ValueError("--json writes nothing: leave out --into and --watch")
    if as_json:
        typer.echo(json.dumps(data(directory), indent=1, allow_nan=False))
    elif watch:
        follow(directory, into, sleep, lambda paths: tell(paths["html"]))
    else:
        for path in write(directory, into, _warn).values():
            tell(path)


def _warn(left_out: tuple[Skipped, ...]) -> None:
    for path, reason in left_out[:MOST_NAMED]:
        warn(f"{path} is left out: {reason}")
    if len(left_out) > MOST_NAMED:
        warn(f"{len(left_out) - MOST_NAMED} more are left out: the page names them")
