"""What failed in runs under a fault plan: a row for each cell, and charts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import isnan, nan
from typing import NamedTuple

from pushsum.drawing.charts import Panel, Series, chart_svg
from pushsum.drawing.svg import PALETTE
from pushsum.measures import Measure
from pushsum.report.pictures import Drawing, heat_map
from pushsum.report.results import Cell, Results, over
from pushsum.report.runs import Run, shown

MOST_LINES = len(PALETTE)  # of a chart
MOST_ROWS = 200
WIDTH = 340  # of a chart, in pixels: what a phone has
MOST_MAPS = 6  # of links
MAP = 160  # pixels


class Row(NamedTuple):
    """The runs of one method on one topology under one plan; NaN where nothing was recorded.

    Attributes:
        cell: of these runs.
        plan: what fails.
        lost, late: of all messages, in percent.
        alive: the fewest nodes that were there.
        smallest_a: of all nodes and records.
        held: the most nodes that gave nothing away.
    """

    cell: Cell
    plan: str
    lost: float
    late: float
    alive: float
    smallest_a: float
    held: float


def rows(results: Results) -> list[Row]:
    """One for each cell whose runs recorded faults."""
    return [_row(cell) for cell in results.cells if _has_faults(cell)]


def _has_faults(cell: Cell) -> bool:
    return any(record.faults for run in cell.runs for record in run.records)


def _row(cell: Cell) -> Row:
    every = [record.faults for run in cell.runs for record in run.records if record.faults]
    last = [run.last.faults for run in cell.runs if run.last.faults]
    sent = sum(found.sent for found in last)
    lost, late = sum(found.lost for found in last), sum(found.late for found in last)
    return Row(
        cell,
        plan_of(cell.runs[0]),
        100 * lost / sent if sent else nan,
        100 * late / sent if sent else nan,
        min(found.alive for found in every),
        min(found.smallest_a for found in every),
        max(found.held for found in every),
    )


def plan_of(run: Run) -> str:
    """What failed, as in "loss=0.3, crash='2@30-60'"; the seed stands elsewhere.

    Of a plan from a file, its name.
    """
    plan = re.sub(r"faults\(seed=\d+(?:, )?(.*?)\)(?= \||$)", r"\1", shown(run.meta.get("faults")))
    return plan if len(plan) <= 200 else f"{plan[:200]}…"


# --------------------------------------------------------------------------- charts


def charts(results: Results) -> list[Drawing]:
    """What is reached under loss, nodes that are there, the smallest a, lost messages, if known."""
    found: dict[str, tuple[str, str, list[Series], bool]] = {
        f"{m.name.capitalize()} under loss": (
            "messages lost (%)",
            m.words,
            list(under_loss(results, m)),
            False,
        )
        for m in results.measures
    } | {
        "Nodes that are there": ("steps", "nodes", list(_alive(results)), False),
        "Smallest a": ("steps", "a", list(_smallest(results)), True),
    }
    return [
        Drawing(
            title,
            f"the first {MOST_LINES} of {len(lines)}" * (len(lines) > MOST_LINES),
            chart_svg(title, [Panel("", x, y, lines[:MOST_LINES], log_y=log)], WIDTH),
            WIDTH,
        )
        for title, (x, y, lines, log) in found.items()
        if lines
    ] + list(islice(_links(results), MOST_MAPS))


def _links(results: Results) -> Iterator[Drawing]:
    """Where messages were lost, in the first run of every cell that lost any."""
    for cell in results.cells:
        counts = cell.runs[0].lost_on() if _has_faults(cell) else None
        most = max(map(max, counts)) if counts else 0
        if counts and most > 0:
            shares = tuple(tuple(count / most for count in row) for row in counts)
            where = f"{cell.method}, {cell.topology}, {plan_of(cell.runs[0])}"
            note = f"{where}: rows send, columns receive; at most {most:.0f} lost on a link"
            yield heat_map("Messages lost per link", note, shares, width=MAP)


def _alive(results: Results) -> Iterator[Series]:
    """Of every plan under which it changes, from the first run."""
    seen = set()
    for cell in results.cells:
        run = cell.runs[0]
        points = [(r.step, r.faults.alive) for r in run.records if r.faults]
        plan = plan_of(run)
        if plan not in seen and any(alive != run.nodes for _, alive in points):
            seen.add(plan)
            yield _line([plan], points)


def _smallest(results: Results) -> Iterator[Series]:
    """Of every cell, from the first run."""
    several = len({cell.topology for cell in results.cells}) > 1
    for cell in results.cells:
        run = cell.runs[0]
        if points := [(r.step, r.faults.smallest_a) for r in run.records if r.faults]:
            yield _line([cell.method, *[cell.topology] * several, plan_of(run)], points)


def under_loss(results: Results, measure: Measure) -> Iterator[Series]:
    """Of every method that ran with several probabilities of loss, all else equal."""
    groups = over(results, "faults.loss")
    several = len({topology for _, topology, _ in groups}) > 1
    for (method, topology, _), cells in groups.items():
        known = sorted(
            (loss, cell.estimate().mean, plan_of(cell.runs[0]))
            for loss, cell in cells
            if cell.measure == measure and type(loss) in (int, float) and 0 <= loss <= 1
        )
        if len({loss for loss, reached, _ in known if not isnan(reached)}) > 1:
            others = re.sub(r"loss=[^,]*(, )?", "", known[-1][2]).rstrip(", ")  # but for the loss
            words = [method, *[topology] * several, *[others] * bool(others)]
            yield _line(words, [(100 * loss, reached) for loss, reached, _ in known])


def _line(words: Iterable[str], points: Sequence[tuple[float, float]]) -> Series:
    return Series(", ".join(words), [x for x, _ in points], [y for _, y in points])
