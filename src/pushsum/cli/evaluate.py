"""`pushsum evaluate`: test saved runs again, with every BatchNorm policy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pushsum.cli.common import Trust, decimal, show, warn

if TYPE_CHECKING:
    from pushsum.measures import Measure


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR ...", help="Runs, or directories of runs.")
    ],
    trust: Trust = False,
) -> None:
    """Test the models of each run's newest checkpoint with every BatchNorm policy."""
    from rich.table import Table

    from pushsum.report import load
    from pushsum.training import tested

    missing = [path for path in runs if not path.exists()]
    if missing:
        raise ValueError(f"{missing[0]}: there is no such directory")
    found = []
    for path in runs:
        with suppress(ValueError):  # a pattern such as runs/b/* also finds the report, and logs
            found += [run.path for run in load(path)]
    if not found:
        load(runs[0])  # says why there is none
    lines, names = [], dict[str, None]()
    for run in found:
        step, results, own, refused, measure = tested(run, trust)
        names[measure.name] = None
        rows = {
            policy: (
                measure.shown(found[measure.name]),
                decimal(found["loss"]),
                _mean(own[policy], measure),
            )
            for policy, found in results.items()
        }
        rows |= dict.fromkeys(refused, ("–", "–", "–"))
        for policy, shown in rows.items():
            what = policy if len(rows) > 1 else "none"
            lines.append((str(run), str(step), what, *shown))
        for policy, why in refused.items():
            warn(f"{run}, {policy}: {why}")
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "step", "BatchNorm", " or ".join(names), "loss", "nodes' own"):
        table.add_column(heading, justify="left" if heading in ("run", "BatchNorm") else "right")
    for line in lines:
        table.add_row(*line)
    show(table)


def _mean(own: list[dict[str, float]], measure: Measure) -> str:
    """What the nodes' own models reach on average, where they were tested."""
    return measure.shown(sum(node[measure.name] for node in own) / len(own)) if own else "–"
