"""`pushsum evaluate`: test saved runs again, with every BatchNorm policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pushsum.cli.common import show


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR ...", help="Runs, or directories of runs.")
    ],
) -> None:
    """Test the average model of each run's newest checkpoint with every BatchNorm policy."""
    from rich.table import Table

    from pushsum.report import load
    from pushsum.training import tested

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "step", "BatchNorm", "accuracy", "loss"):
        table.add_column(
            heading, justify="right" if heading in ("step", "accuracy", "loss") else "left"
        )
    # a pattern such as runs/a/* also finds the report
    found = [run.path for directory in runs if directory.is_dir() for run in load(directory)]
    if not found:
        raise ValueError(f"{runs[0]} holds no run")
    for run in found:
        step, results = tested(run)
        for policy, result in results.items():
            shown = f"{100 * result['accuracy']:.2f} %", f"{result['loss']:.4f}"
            table.add_row(str(run), str(step), policy if len(results) > 1 else "none", *shown)
    show(table)
