"""Pieces that the commands share."""

from __future__ import annotations

import math
import os
import sys
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pushsum.names import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Run the files that a configuration names as FILE.py:name. Read them first."
    ),
]

NARROWEST = 60  #: columns of a terminal for which tables are laid out
EVERY = 30.0  #: seconds between two lines about progress, where there is no terminal


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


def is_source(word: str) -> bool:
    """Whether a first word is a file or a recipe, not KEY=VALUE; a path may have `=` in it."""
    return "=" not in word or Path(word).is_file()


def refuse_bare_keys(words: list[str]) -> None:
    """For those who write `pushsum run epochs 3`."""
    bare = [word for word in words if "=" not in word and not Path(word).is_file()]
    if bare:
        from pushsum.config import bare_key

        if meant := bare_key(words[words.index(bare[0]) :]):
            raise ValueError(meant)


def big(log_value: float) -> str:
    """A number given by its natural logarithm, which may be far beyond a float."""
    exponent = log_value / math.log(10)
    return f"{math.exp(log_value):.1e}" if abs(exponent) < 300 else f"10^{exponent:.0f}"


def decimal(value: float) -> str:
    """Four decimals, or what is too large for them as 1.2e31.

    >>> decimal(2.3026), decimal(1.2345e31)
    ('2.3026', '1.2e31')
    """
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.1e}".replace("e+", "e")


def short(number: float) -> str:
    """One decimal, or three digits of what is small.

    >>> [short(x) for x in (300 / 7, 10.0, 1.25, 2 / 47)]
    ['42.9', '10', '1.25', '0.0426']
    """
    return f"{number:.1f}".removesuffix(".0") if number >= 10 else f"{number:.3g}"


def show(renderable: RenderableType, wrapped: bool = False) -> None:
    """Print a table or a drawing; a narrow terminal wraps it rather than losing digits.

    What is no terminal has no width: nothing is wrapped, so that lines can be searched; unless
    `wrapped`, for what is mostly text: at COLUMNS, or 100.
    """
    from rich.console import Console

    console = Console(markup=False, emoji=False)  # names are shown as they are
    if console.is_terminal:
        console.width = max(console.width, NARROWEST)
        console.print(_plain(console, renderable), end="")
        return
    text_width = console.width if "COLUMNS" in os.environ else 100
    console.width = max(text_width, 80 if wrapped else 250)
    with console.capture() as printed:
        console.print(_plain(console, renderable), end="")
    typer.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _plain(console: Console, renderable: RenderableType) -> RenderableType:
    """The same, without the control characters that names may hold."""
    from rich.segment import Segment, Segments

    return Segments(
        Segment("\n".join(map(plain, text.split("\n"))), style)
        for text, style, _ in console.render(renderable)
    )


def tell(text: object) -> None:
    """One line on standard output."""
    typer.echo(plain(str(text)))


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


@contextmanager
def reported() -> Iterator[Callable[[str, int, int | None], None]]:
    """What to tell of progress with files: (what is being done, done, of how many)."""
    with progress_bar(counts=False) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield progress


def say(bar: Progress, text: str) -> None:
    """A line above the bar, in one piece however wide the terminal is.

    Whoever stops reading does not stop what is told: rich would end the program.
    """
    with suppress(SystemExit):
        bar.console.print(plain(text), highlight=False, markup=False, soft_wrap=True)


class Pace:
    """Says now and then how far something is and how long it will take, where there is no bar."""

    def __init__(self, bar: Progress, what: str) -> None:
        self.bar, self.what = bar, what
        self.said = monotonic()
        self.start: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        now = monotonic()
        if self.start is None:  # a run that goes on does not begin with nothing
            self.start = now, done
        if self.bar.console.is_terminal or now - self.said < EVERY:
            return
        self.said = now
        began, already = self.start
        left = (total - done) * (now - began) / max(1, done - already)
        say(self.bar, f"{self.what} {done}/{total}  {timedelta(seconds=round(left))} left")


def warn(message: str) -> None:
    """One line on standard error; everything goes on."""
    print(f"pushsum: warning: {one_line(message)}", file=sys.stderr, flush=True)


def fail(message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    complain(message)
    sys.exit(2)


def complain(text: str) -> None:
    """One line on standard error, whole: other processes may write there at the same time."""
    sys.stderr.write(f"pushsum: {one_line(text)}\n")
    sys.stderr.flush()
