"""Pieces that the commands share."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress


def integer(text: str | int) -> int:
    """For options: names what is not an integer, unlike typer's own message."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not an integer") from None


def number(text: str | float) -> float:
    """For options: names what is not a number."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a number") from None


def big(log_value: float) -> str:
    """A number given by its natural logarithm, which may be far beyond a float."""
    exponent = log_value / math.log(10)
    return f"{math.exp(log_value):.1e}" if abs(exponent) < 300 else f"10^{exponent:.0f}"


def show(renderable: RenderableType) -> None:
    """Print a table or a drawing; a narrow terminal wraps it rather than losing digits."""
    from rich.console import Console

    console = Console()
    Console(width=max(console.width, 80)).print(renderable)


def progress_bar(counts: bool = True, hidden: bool = False) -> Progress:
    """A bar on standard error that leaves nothing behind; without a terminal there is none."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *([progress.MofNCompleteColumn()] if counts else []),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    )


def fail(message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    print(f"pushsum: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
