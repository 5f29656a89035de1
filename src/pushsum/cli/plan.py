"""`pushsum run --dry-run`: what would run, and what it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pushsum.cli.common import short, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pushsum.experiment import Experiment

MOST_LABELS = 20  #: that get a column each


def show_plan(built: Experiment, as_json: bool) -> None:
    """To be read by people, or as JSON."""
    if as_json:
        typer.echo(json.dumps({"config": built.config.model_dump(mode="json"), **built.meta()}))
    else:
        show(_plan(built))


def _plan(built: Experiment) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    from pushsum.training import planned

    meta = built.meta()
    rows = Table(box=None, show_header=False)
    rows.add_column(style="bold")
    rows.add_column()
    certificate = meta["certificate"]
    memory, count, array = planned(built)
    facts = {
        "data": f"{Path(built.config.data.name).name}: {built.dataset.size}",
        "algorithm": f"{meta['algorithm']}, {meta['weighting']} weights",
        "topology": f"{built.graphs.name}: B = {certificate['period']}, "
        f"Delta = {certificate['diameter']}, H = {certificate['horizon']}",
        **({} if built.faults is None else {"faults": _faults(built)}),
        "model": f"{Path(built.config.model.name).name}, {meta['d']:,} parameters",
        "steps": f"{built.steps:,} ({short(built.steps / built.steps_per_epoch)} epochs of "
        f"{built.steps_per_epoch:,})",
        "pushed": f"{_bytes(meta['bytes_per_step'])} per step, "
        f"{_bytes(meta['bytes_per_step'] * meta['steps'])} in all",
        "memory": f"about {_bytes(memory)} ({count} arrays of {_bytes(array)}) and activations",
    }
    for name, fact in facts.items():
        rows.add_row(name, fact)
    group = "label" if meta["classes"] else "tenth of the targets"
    return Group(rows, "", f"samples of each {group} at each node", _split_table(meta["split"]))


def _faults(built: Experiment) -> str:
    """The plan, and what gets through under it."""
    from pushsum.faults import certificate

    assert built.faults is not None
    if built.n > 64:  # it would take longer than a glance
        return str(built.faults)
    try:
        found = certificate(built.faults, built.graphs, min(built.steps, 300))
    except ValueError as error:
        return str(error)
    return (
        f"{built.faults}: what gets through has B = {found.period}, H = {found.horizon}, "
        "as measured"
    )


def _split_table(histogram: list[list[int]]) -> RenderableType:
    """Who holds what, by label (or tenth of the target), or by ranges where there are many."""
    from rich.table import Table

    classes = len(histogram[0])
    size = 1 if classes <= MOST_LABELS else -(-classes // 10)
    ranges = [range(first, min(first + size, classes)) for first in range(0, classes, size)]
    table = Table(box=None, pad_edge=False)
    table.add_column("node", justify="right")
    for some in ranges:
        name = f"{some[0]}-{some[-1]}" if len(some) > 1 else str(some[0])
        table.add_column(name, justify="right", style="dim")
    table.add_column("all", justify="right")
    for node, counts in enumerate(histogram):
        sums = [sum(counts[label] for label in some) for some in ranges]
        table.add_row(str(node), *(str(c) if c else "·" for c in sums), str(sum(counts)))
    return table


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
