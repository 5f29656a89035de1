"""`pushsum sweep`: a grid of experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pushsum.cli.common import (
    Pace,
    Trust,
    complain,
    integer,
    is_source,
    progress_bar,
    refuse_bare_keys,
    say,
    tell,
    warn,
)
from pushsum.names import counted, listed

if TYPE_CHECKING:
    from rich.progress import TaskID

    from pushsum.sweep import Cell


def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE,VALUE ...]",
            help="A recipe (digits, table1-small, table1-published, table1-corrected, wallclock, "
            "faults) or a file, then a grid.",
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="The directory of the sweep; each cell gets one inside.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="How many cells run at the same time.", parser=integer, metavar="N")
    ] = 1,
    slurm: Annotated[
        str | None,
        typer.Option(
            help="Submit each cell to Slurm with these parameters of submitit, e.g. "
            "slurm_partition=gpu,timeout_min=600.",
            metavar="KEY=VALUE,...",
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            help="Choose the best of these values for every cell on validation data, with its "
            "first seed, e.g. algorithm.lr=0.1,0.3.",
            metavar="KEY=A,B,C",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print JSON for programs.")
    ] = False,
    trust: Trust = False,
) -> None:
    """Run a grid: KEY=A,B,C tries every value. A rerun skips finished cells."""
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: at least one is needed")
    words = words or []
    refuse_bare_keys(words)
    if into is None and not dry_run:
        raise ValueError("name the sweep's directory: --into runs/NAME")
    if as_json and not dry_run:
        raise ValueError("--json goes with --dry-run; results are in --into: pushsum report")
    from pushsum import config
    from pushsum import sweep as sweeps

    source = words.pop(0) if words and is_source(words[0]) else None
    cells = sweeps.read(source, words, trust, tune)
    tries = sweeps.trials(cells)
    if as_json:
        typer.echo(json.dumps([_described(cell) for cell in (*tries, *cells)], indent=2))
        return
    if dry_run:
        for cell in cells:
            tell(cell.name)
        first = f", after {counted(len(tries), 'trial')}" * bool(tries)
        typer.echo(counted(len(cells), "cell") + first)
        return
    assert into is not None
    odd = [text for cell in (*tries, *cells) for text in config.warnings(cell.config)]
    for text in (*dict.fromkeys(odd), *sweeps.warnings(cells)):
        warn(text)
    failed = run_cells(cells, into, jobs, slurm=_parameters(slurm))
    _tell_choices(cells, into)
    tell(f"{len(cells) - len(failed)} of {len(cells)} cells are finished: {into}")
    if failed:
        raise ValueError(f"not finished: {listed(failed)}")


def _described(cell: Cell) -> dict[str, Any]:
    tune = None if cell.tune is None else {cell.tune.key: cell.tune.values}
    return {"name": cell.name, "config": cell.config.model_dump(mode="json"), "tune": tune}


def _tell_choices(cells: list[Cell], into: Path) -> None:
    """What every cell has chosen; one at the end of its grid might want to go further."""
    from pushsum import sweep as sweeps

    told = set()
    for cell, chosen in zip(cells, sweeps.tuned(cells, into), strict=True):
        note = {} if isinstance(chosen, str) else chosen.notes.get("tune", {})
        if not note or note["seed"] != cell.config.seed:
            continue
        values = [value for value, _ in note["tried"]]
        measured = ", ".join(f"{value}: {_measured(v)}" for value, v in note["tried"])
        tell(f"{cell.name}: {note['key']}={note['chosen']} (validation {measured})")
        if len(values) > 1 and note["chosen"] in (min(values), max(values)):
            told.add(cell.name)
    if told:
        warn(
            f"{', '.join(sorted(told))}: the best value lies at the end of what was tried, and a "
            "better one may lie beyond: widen --tune"
        )


def _measured(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4g}"


def run_cells(
    cells: list[Cell],
    into: Path,
    jobs: int,
    slurm: dict[str, Any] | None = None,
) -> list[str]:
    """Run a sweep with a progress bar, or lines where there is no terminal; who failed."""
    from pushsum import sweep as sweeps
    from pushsum.engines.runtime import STOPPED
    from pushsum.training import Stopped

    with progress_bar() as bar:
        task = bar.add_task("sweep", total=len(cells) + len(sweeps.trials(cells)))
        inner: TaskID | None = None
        paces: dict[str, Pace] = {}
        said: dict[str, str] = {}  # an outcome, and the first cell that had it

        def progress(cell: Cell, what: str) -> None:
            if what == "started":
                return
            bar.advance(task)
            first = said.setdefault(what, cell.name)
            if what not in ("finished", "skipped") and first != cell.name:
                what = f"failed like {first}"
            if not bar.console.is_terminal or what not in ("finished", "skipped"):
                say(bar, f"{cell.name}: {what}")

        def within(cell: Cell, step: int, steps: int) -> None:
            nonlocal inner
            if inner is None:
                inner = bar.add_task("")
            bar.update(inner, description=cell.name, completed=step, total=steps)
            paces.setdefault(cell.name, Pace(bar, f"{cell.name}: step"))(step, steps)

        try:
            return sweeps.run(cells, into, jobs, progress, slurm, within)
        except (Stopped, KeyboardInterrupt):
            bar.stop()
            complain("stopped; the same command goes on")
            raise typer.Exit(STOPPED) from None


def _parameters(text: str | None) -> dict[str, Any] | None:
    """`a=1,b=x` -> {'a': 1, 'b': 'x'}."""
    if text is None:
        return None
    from pushsum.reading import yaml_value

    pairs = [part.partition("=") for part in text.split(",") if part]
    wrong = [key for key, equals, _ in pairs if not equals or not key]
    if wrong:
        raise ValueError(f"--slurm {text!r}: write KEY=VALUE,KEY=VALUE")
    try:
        return {key: yaml_value(value) for key, _, value in pairs}
    except ValueError as error:
        raise ValueError(f"--slurm {text!r}: {error}") from None
