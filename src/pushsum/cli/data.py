"""`pushsum data`: which data sets there are, and getting them ready."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pushsum.cli.common import reported, show, tell

app = typer.Typer(help="List and prepare data sets.", no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option("--root", help="Where prepared data sets are kept.  [default: your cache]"),
]


@app.command("list", epilog="Example: pushsum data list")
def list_(
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List data sets, and which are ready."""
    from rich.table import Table

    from pushsum.data import catalogue

    entries = catalogue(root)
    if as_json:
        typer.echo(json.dumps([asdict(e) | {"where": str(e.where)} for e in entries], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what", "size", "licence", "ready"):
        table.add_column(heading, no_wrap=heading == "name", overflow="fold")
    for e in entries:
        table.add_row(e.name, e.what, e.size, e.licence, "yes" if e.ready else "no")
    show(table)
    typer.echo("Prepare one with: pushsum data prepare NAME")


@app.command(epilog="Example: pushsum data prepare cifar10 --source ~/cifar-10-binary.tar.gz")
def prepare(
    name: Annotated[str, typer.Argument(help="A name of `pushsum data list`.")],
    source: Annotated[
        Path | None, typer.Option(help="The archive, or the directory it lies in.")
    ] = None,
    root: Root = None,
) -> None:
    """Read a data set from its archive, check it, and keep it ready."""
    from pushsum import data

    with reported() as progress:
        path = data.prepare(name, root, source, progress)
    tell(f"{name} is ready: {path}")
