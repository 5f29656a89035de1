"""`pushsum demo`: all algorithms on the paper's four topologies, beside Theorem 1."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pushsum.cli.common import big, integer, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pushsum.demo import Outcome


def demo(
    plot: Annotated[Path, typer.Option(help="Where to draw the distances, .svg or .png.")] = Path(
        "pushsum-demo.svg"
    ),
    steps: Annotated[int, typer.Option(help="Steps per run.", parser=integer, metavar="T")] = 400,
    seed: Annotated[
        int,
        typer.Option(help="Seed of problem, start and noise.", parser=integer, metavar="SEED"),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run consensus and the five algorithms on the paper's four topologies, beside Theorem 1."""
    if steps < 1:
        raise ValueError(f"--steps {steps}: at least one step is needed")
    from pushsum.drawing import check_target, save

    check_target(plot)
    outcomes = _run_demo(steps, seed)
    from pushsum.demo import chart

    if as_json:
        typer.echo(json.dumps([_outcome_json(o) for o in outcomes], indent=2))
        save(chart(outcomes), plot)
        return
    show(_demo_table(outcomes, steps))
    broken = sum(o.violations for o in outcomes)
    checked = sum(len(o.log_bounds) for o in outcomes)
    typer.echo(
        "f(x̄) - f*: the objective at the average parameter; worst node: at the worst y_i;\n"
        "distance: max_i ‖y_i - x̄‖₁, largest of the last 8 steps, beside Theorem 1's bound,\n"
        f"which held in {checked - broken} of {checked} steps. Step size 0.05, momentum 0.8,\n"
        "Moreau weights with k = 0.1 and v = 0.1 (consensus, too, uses them)."
    )
    save(chart(outcomes), plot)
    typer.echo(f"Distances over time: {plot}")


def _run_demo(steps: int, seed: int) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting PyTorch", total=None)
        from pushsum import demo as runs

        total = len(runs.topologies()) * len(runs.methods())
        bar.update(task, total=total)

        def progress(where: str, label: str) -> None:
            bar.update(task, description=f"{label} on {where}")

        outcomes = []
        for outcome in runs.run(progress, steps, seed):
            outcomes.append(outcome)
            bar.advance(task)
        return outcomes


def _demo_table(outcomes: list[Outcome], steps: int) -> RenderableType:
    from rich.table import Table

    table = Table(
        title=f"Six nodes, a quadratic each, κ = 3; after {steps} steps", title_justify="left"
    )
    table.add_column("topology")
    table.add_column("algorithm")
    for heading in ("f(x̄) - f*", "worst node", "distance", "Theorem 1"):
        table.add_column(heading, justify="right")
    previous = outcomes[0].topology
    for o in outcomes:
        if o.topology != previous:
            table.add_section()
        first = o is outcomes[0] or o.topology != previous
        previous = o.topology
        table.add_row(
            o.topology if first else "",
            o.algorithm,
            *("" if math.isnan(v) else f"{v:.1e}" for v in (o.gap, o.worst)),
            f"{o.distances[-1]:.1e}",
            big(o.log_bounds[-1]) if o.log_bounds else "not covered",
        )
    return table


def _outcome_json(o: Outcome) -> dict[str, Any]:
    bound = o.log_bounds[-1] / math.log(10) if o.log_bounds else None
    return {
        "topology": o.topology,
        "algorithm": o.algorithm,
        "gap": None if math.isnan(o.gap) else o.gap,
        "worst": None if math.isnan(o.worst) else o.worst,
        "distance": o.distances[-1],
        "log10_bound": bound,
        "violations": o.violations,
    }
