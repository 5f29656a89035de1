"""`pushsum evaluate`: test saved runs again, with every BatchNorm policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pushsum.cli.common import show


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="Directories of runs.")],
) -> None:
    """Test the average model of each run's newest checkpoint with every BatchNorm policy."""
    from rich.table import Table

    from pushsum.training import tested

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "step", "BatchNorm", "accuracy", "loss"):
        table.add_column(
            heading, justify="right" if heading in ("step", "accuracy", "loss") else "left"
        )
    for run in runs:
        step, results = tested(run)
        for policy, result in results.items():
            shown = f"{100 * result['accuracy']:.2f} %", f"{result['loss']:.4f}"
            table.add_row(str(run), str(step), policy, *shown)
    show(table)
