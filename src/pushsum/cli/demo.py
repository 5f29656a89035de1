"""`pushsum demo`: all algorithms on the paper's four topologies, beside Theorem 1."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pushsum.cli.common import big, integer, progress_bar, say, show, tell
from pushsum.names import counted, listed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from pushsum.demo import Outcome


def demo(
    into: Annotated[Path, typer.Option(help="Directory for the runs and the report.")] = Path(
        "pushsum-demo"
    ),
    plot: Annotated[
        Path | None,
        typer.Option(help="Where to draw the distances.  [default: into the directory]"),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Steps per run on the quadratic.", parser=integer, metavar="T")
    ] = 400,
    epochs: Annotated[
        int, typer.Option(help="Epochs per run on the digits.", parser=integer, metavar="E")
    ] = 15,
    training: Annotated[bool, typer.Option(help="Train networks on the digits, or not.")] = True,
    seed: Annotated[
        int, typer.Option(help="The seed of everything.", parser=integer, metavar="SEED")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Compare five algorithms on the paper's four topologies.

    First consensus and a heterogeneous quadratic, every step beside Theorem 1's bound; then
    networks on handwritten digits, half of the labels at half of the nodes, and a report.
    """
    if steps < 1:
        raise ValueError(f"--steps {steps}: at least one step is needed")
    if epochs < 1:
        raise ValueError(f"--epochs {epochs}: at least one epoch is needed")
    from pushsum.drawing import check_target, save

    if plot is None:
        into.mkdir(parents=True, exist_ok=True)
        plot = into / "distances.svg"
    check_target(plot)
    outcomes = _run_demo(steps, seed)
    from pushsum import demo as runs

    answer: dict[str, Any] = {"quadratic": [_outcome_json(o) for o in outcomes]}
    if not as_json:
        show(_demo_table(outcomes, steps))
        broken = sum(o.violations for o in outcomes)
        checked = sum(len(o.log_bounds) for o in outcomes)
        show(
            "f(x̄) - f*: the objective at the average parameter; worst node: at the worst y_i; "
            "distance: max_i ‖y_i - x̄‖₁, largest of the last 8 steps, beside Theorem 1's bound, "
            f"which held in {checked - broken} of {checked} steps and does not cover S-ADDOPT. "
            f"Step size {runs.LR:g}; momentum {runs.MOMENTUM:g} has {runs.MOMENTUM_LR:g}, which "
            f"moves as far. moreau: {runs.WEIGHTING}; these weights are smaller than uniform ones, "
            "so the nodes stay further apart. consensus: no gradients.",
            wrapped=True,
        )
    save(runs.chart(outcomes), plot)
    if not as_json:
        tell(f"Distances over time: {plot}")
        typer.echo()
    if training:
        cells = _train(into, epochs, seed)
        answer["digits"] = cells
        if not as_json:
            show(_digits_table(cells, epochs))
            show(
                f"lr: step size; moreau: {runs.WEIGHTING}. One seed on easy data does not "
                "rank the methods; README says what we measured.",
                wrapped=True,
            )
            tell(f"Report: {into / 'report.html'}")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))


def _train(into: Path, epochs: int, seed: int) -> list[dict[str, Any]]:
    """The recipe `digits`: accuracy and loss of every cell."""
    from pushsum import report, sweep
    from pushsum.cli.sweep import run_cells
    from pushsum.training import last_record
    from pushsum.weighting import parse

    cells = sweep.read("digits", [f"epochs={epochs}", f"seed={seed}"])
    runs = into / f"digits-{epochs}-epochs-seed-{seed}"
    failed = run_cells(cells, runs, jobs=1)
    if failed:
        raise ValueError(f"not finished: {listed(failed)}")
    report.write(runs, into)
    rows = []
    for cell in cells:
        test = last_record(runs / cell.name)["test"]
        c = cell.config
        about = {
            "algorithm": c.algorithm.name,
            "topology": c.topology.name,
            "weighting": str(parse(c.algorithm.weighting)),
            "lr": c.algorithm.lr,
        }
        rows.append({**about, **test})
    return rows


def _digits_table(cells: list[dict[str, Any]], epochs: int) -> RenderableType:
    title = f"Digits, labels 0-4 | 5-9; accuracy in % after {counted(epochs, 'epoch')}"
    table = _narrow_table(title, "algorithm", "weights")
    table.add_column("lr", justify="right")
    topologies = list(dict.fromkeys(cell["topology"] for cell in cells))
    for topology in topologies:
        table.add_column(topology.capitalize(), justify="right")
    for row in dict.fromkeys((cell["algorithm"], cell["weighting"], cell["lr"]) for cell in cells):
        accuracy = {
            cell["topology"]: cell["accuracy"]
            for cell in cells
            if (cell["algorithm"], cell["weighting"], cell["lr"]) == row
        }
        algorithm, weighting, lr = row
        shown = (f"{100 * accuracy[t]:.1f}" for t in topologies)
        table.add_row(algorithm, _kind(weighting), f"{lr:g}", *shown)
    return table


def _run_demo(steps: int, seed: int) -> list[Outcome]:
    with progress_bar() as bar:
        task = bar.add_task("starting PyTorch", total=None)
        from pushsum import demo as runs

        total = len(runs.topologies()) * len(runs.methods())
        bar.update(task, total=total)

        def progress(where: str, label: str) -> None:
            bar.update(task, description=f"{label} on {where}")
            if not bar.console.is_terminal and label == "consensus":  # the first of each
                say(bar, f"quadratic on {where}")

        outcomes = []
        for outcome in runs.run(progress, steps, seed):
            outcomes.append(outcome)
            bar.advance(task)
        return outcomes


def _demo_table(outcomes: list[Outcome], steps: int) -> RenderableType:
    title = f"Six nodes, a quadratic each, κ = 3; after {steps} steps"
    table = _narrow_table(title, "algorithm", "weights")
    for heading in ("f(x̄)\n- f*", "worst\nnode", "distance", "Theorem\n1"):
        table.add_column(heading, justify="right")
    for where in dict.fromkeys(o.topology for o in outcomes):
        table.add_row()
        table.add_row(where, style="bold")
        for o in outcomes:
            if o.topology == where:
                table.add_row(
                    o.algorithm,
                    _kind(o.weighting),
                    *("" if math.isnan(v) else f"{v:.1e}" for v in (o.gap, o.worst)),
                    f"{o.distances[-1]:.1e}",
                    big(o.log_bounds[-1]) if o.log_bounds else "–",
                )
    return table


def _narrow_table(title: str, *headings: str) -> Table:
    """One that 60 columns are enough for."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _kind(weighting: str) -> str:
    """Without its parameters, which the text below a table tells."""
    return weighting.partition("(")[0]


def _outcome_json(o: Outcome) -> dict[str, Any]:
    bound = o.log_bounds[-1] / math.log(10) if o.log_bounds else None
    return {
        "topology": o.topology,
        "algorithm": o.algorithm,
        "weighting": o.weighting,
        "gap": None if math.isnan(o.gap) else o.gap,
        "worst": None if math.isnan(o.worst) else o.worst,
        "distance": o.distances[-1],
        "log10_bound": bound,
        "violations": o.violations,
    }
