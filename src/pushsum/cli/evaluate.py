"""`pushsum evaluate`: test saved runs again, with every BatchNorm policy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pushsum.cli.common import Trust, decimal, show, warn
from pushsum.names import plain


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR ...", help="Runs, or directories of runs.")
    ],
    trust: Trust = False,
) -> None:
    """Test the models of each run's newest checkpoint with every BatchNorm policy."""
    from rich.markup import escape
    from rich.table import Table

    from pushsum.report import load
    from pushsum.training import tested

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "step", "BatchNorm", "accuracy", "loss", "nodes' own"):
        left = heading in ("run", "BatchNorm")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    missing = [path for path in runs if not path.exists()]
    if missing:
        raise ValueError(f"{missing[0]}: there is no such directory")
    found = []
    for path in runs:
        with suppress(ValueError):  # a pattern such as runs/b/* also finds the report, and logs
            found += [run.path for run in load(path)]
    if not found:
        load(runs[0])  # says why there is none
    for run in found:
        step, results, own, refused = tested(run, trust)
        rows = {
            policy: (_percent(found["accuracy"]), decimal(found["loss"]), _mean(own[policy]))
            for policy, found in results.items()
        }
        rows |= dict.fromkeys(refused, ("–", "–", "–"))
        for policy, shown in rows.items():
            table.add_row(
                escape(plain(str(run))), str(step), policy if len(rows) > 1 else "none", *shown
            )
        for policy, why in refused.items():
            warn(f"{run}, {policy}: {why}")
    show(table)


def _mean(own: list[dict[str, float]]) -> str:
    """The mean accuracy of the nodes' own models, where they were tested."""
    return _percent(sum(node["accuracy"] for node in own) / len(own)) if own else "–"


def _percent(accuracy: float) -> str:
    return f"{100 * accuracy:.2f} %"
