"""Numbers as the pages show them."""

from collections.abc import Callable, Iterable, Sequence

from study.numbers import TOPOLOGIES, Difference, Ended, spread

Text = Callable[..., str]  #: (runs, *arguments) -> Markdown

SEEDS = 3  #: what a cell has, unless it says otherwise
TITLES = [name.capitalize() for name in TOPOLOGIES]


def percent(some: Iterable[Ended], column: str = "accuracy") -> str:
    """55.31 ± 0.42, and the number of seeds where it is not three."""
    found = spread(some, column)
    if found is None:
        return "–"
    mean, deviation, count = found
    if count == 1:
        return f"{100 * mean:.2f} (1 seed)"
    return f"{100 * mean:.2f} ± {100 * deviation:.2f}" + f" ({count} seeds)" * (count != SEEDS)


def points(gap: Difference | None) -> str:
    """+1.20 ± 0.40, in bold where the interval leaves out 0, and the seeds where not three."""
    if gap is None:
        return "–"
    text = f"{100 * gap.mean:+.2f} ± {100 * gap.half:.2f}"
    return (f"**{text}**" if gap.clear else text) + f" ({gap.pairs} seeds)" * (gap.pairs != SEEDS)


def short(rule: str) -> str:
    """A weighting without its dials; of lazy ones there are several."""
    return rule if rule.startswith("lazy") else rule.partition("(")[0]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers stand to the right."""
    aligned = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, aligned, *rows))
