"""`pushsum sweep`: a grid of experiments."""

from __future__ import annotations

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
    warn_of,
)
from pushsum.names import counted

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
        Path | None, typer.Option(help="A directory; each cell gets one below it.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Cells at the same time.", parser=integer, metavar="N")
    ] = 1,
    slurm: Annotated[
        str | None,
        typer.Option(
            help="Submit each cell to Slurm with these parameters of submitit, e.g. "
            "slurm_partition=gpu,timeout_min=600.",
            metavar="KEY=VALUE,...",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells only.")] = False,
    trust: Trust = False,
) -> None:
    """A grid of runs: KEY=A,B,C tries every value. Finished cells are skipped on a rerun."""
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: at least one is needed")
    words = words or []
    refuse_bare_keys(words)
    if into is None and not dry_run:
        raise ValueError("name the sweep's directory: --into runs/NAME")
    from pushsum import sweep as sweeps

    source = words.pop(0) if words and is_source(words[0]) else None
    cells = sweeps.read(source, words, trust)
    if dry_run:
        for cell in cells:
            typer.echo(cell.name)
        typer.echo(counted(len(cells), "cell"))
        return
    assert into is not None
    warn_of(cell.config for cell in cells)
    failed = run_cells(cells, into, jobs, slurm=_parameters(slurm))
    typer.echo(f"{len(cells) - len(failed)} of {len(cells)} cells are finished: {into}")
    if failed:
        raise ValueError(f"not finished: {', '.join(failed)}")


def run_cells(
    cells: list[Cell],
    into: Path,
    jobs: int,
    quiet: bool = False,
    slurm: dict[str, Any] | None = None,
) -> list[str]:
    """Run a sweep with a progress bar; the names of the cells that failed.

    Without a terminal there are lines instead, unless `quiet`.
    """
    from pushsum import sweep as sweeps
    from pushsum.engines.runtime import STOPPED
    from pushsum.training import Stopped

    with progress_bar() as bar:
        task = bar.add_task("sweep", total=len(cells))
        inner: TaskID | None = None
        paces: dict[str, Pace] = {}

        def progress(cell: Cell, what: str) -> None:
            if what == "started":
                return
            bar.advance(task)
            plain = not (bar.console.is_terminal or quiet)
            if plain or what not in ("finished", "skipped"):
                say(bar, f"{cell.name}: {what}")

        def within(cell: Cell, step: int, steps: int) -> None:
            nonlocal inner
            if inner is None:
                inner = bar.add_task("")
            bar.update(inner, description=cell.name, completed=step, total=steps)
            if not quiet:
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
