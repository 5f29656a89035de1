"""`pushsum weights`: which ImageNet weights there are, and getting them ready."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pushsum.cli.common import reported, show, tell

app = typer.Typer(help="List and prepare ImageNet weights.", no_args_is_help=True)


@app.command("list", epilog="Example: pushsum weights list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List weights, and which are ready."""
    from rich.table import Table

    from pushsum.pretrained import catalogue

    entries = catalogue()
    if as_json:
        rows = [asdict(e) | {"where": str(e.where)} for e in entries]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "ready", "source", "BatchNorm statistics"):
        table.add_column(heading)
    for e in entries:
        statistics = f"of {e.statistics}: recompute them" if e.statistics else ""
        table.add_row(e.name, "yes" if e.ready else "no", e.source, statistics)
    show(table)
    typer.echo("Prepare one with: pushsum weights prepare NAME")


@app.command(epilog="Example: pushsum weights prepare resnet18 --from resnet18-f37072fd.pth")
def prepare(
    name: Annotated[str, typer.Argument(help="A name of `pushsum weights list`.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A file.pth or file.safetensors to convert instead."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="The file.safetensors to write.  [default: one in your cache]"),
    ] = None,
) -> None:
    """Download torchvision's weights or convert a file."""
    from pushsum import pretrained

    with reported() as progress:
        entry = pretrained.prepare(name, into, source, progress)
    tell(f"{name} is ready: {entry.where}")
    tell(f"Use it with: model.name={name} model.stem=imagenet model.pretrained={into or name}")
    if entry.statistics:
        tell(
            f"Its BatchNorm statistics are of {entry.statistics}: recompute them, with "
            "evaluation.batchnorm=recomputed or model.norm=frozen"
        )
