"""The curves as numbers for the page's script: averaged over seeds, thinned, ready to draw."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import cycle
from math import ceil, isnan
from statistics import fmean
from typing import Any, NamedTuple

from pushsum.drawing.svg import PALETTE
from pushsum.measures import LOSS, Measure
from pushsum.methods import NAMES
from pushsum.report import paper
from pushsum.report.results import Cell, Results
from pushsum.report.runs import Record, Run

DASHES = 3  # kinds of lines that the script can draw
MOST_POINTS = 400  # of a curve; beyond that they are closer than pixels
ALL_POINTS = 15_000  # of all curves together, so that the page stays small


class Curve(NamedTuple):
    """What can be drawn upwards.

    Attributes:
        key: its name on the page.
        field: its name in a `Record`.
        label: its name on the page.
        log: whether its axis starts out logarithmic.
        percent: whether it is a share.
        own: the name of the same for the nodes' own models.
    """

    key: str
    field: str
    label: str
    log: bool = False
    percent: bool = False
    own: str = ""


def measured(by: Measure) -> list[Curve]:
    """What can be drawn of runs that are measured so."""
    name, words, percent = by.name, by.words, by.percent
    return [
        Curve(name, "main", f"test {words}", percent=percent, own="nodes"),
        *[Curve("loss", "loss", "test loss", own="nodes_loss")] * (by != LOSS),
        Curve(f"local {name}", "local", f"{words} on the nodes' own test data", percent=percent),
        Curve(
            f"personal {name}",
            "personal",
            f"{words} of personal models on the nodes' own test data",
            percent=percent,
        ),
        Curve(f"validation {name}", "validation", f"validation {words}", percent=percent),
        Curve("train_loss", "train_loss", "train loss"),
        Curve("theorem", "theorem", "consensus distance, max over nodes of the L1 norm", log=True),
        Curve("mean_square", "mean_square", "consensus distance, mean square", log=True),
    ]


AXES = {"steps": "steps", "epochs": "epochs", "bytes": "bytes pushed", "time": "modelled time"}


def curves(results: Results) -> dict[str, Any]:
    """Everything the script draws, as JSON-ready objects; None where there is no value."""
    numbers = {method: k for k, method in enumerate(results.methods)}
    most = max(2, min(MOST_POINTS, ALL_POINTS // len(results.cells)))
    settings: list[dict[str, Any]] = [
        {
            "name": setting.name,
            "panels": [
                {
                    "topology": topology,
                    "series": [
                        {"method": numbers[cell.method]} | series
                        for cell in setting.cells.values()
                        if cell.topology == topology
                        for series in (_series(cell, most), *_authors(cell.runs[0]))
                    ],
                }
                for topology in setting.topologies
            ],
        }
        for setting in results.settings
    ]
    drawn = {
        key
        for setting in settings
        for panel in setting["panels"]
        for series in panel["series"]
        for key in series["y"]
    }
    known = {curve.key: curve for by in results.measures for curve in measured(by)}
    return {
        "methods": list(results.methods),
        "looks": _looks(results),
        "measures": [c._asdict() for c in known.values() if c.key in drawn]
        or [next(iter(known.values()))._asdict()],
        "axes": [{"key": key, "label": label} for key, label in AXES.items()],
        "settings": settings,
    }


def _looks(results: Results) -> list[tuple[int, int]]:
    """(colour, dashes) of every method.

    The first row of an algorithm has the algorithm's own colour, in this report as in any other;
    further rows take what is left.
    """
    algorithms = {cell.method: cell.runs[0].algorithm for cell in results.cells}
    looks: dict[str, tuple[int, int]] = {}
    for method in results.methods:
        name = algorithms[method]
        if name not in NAMES:
            continue
        dashes, colour = divmod(NAMES.index(name), len(PALETTE))
        if (own := (colour, dashes)) not in looks.values():
            looks[method] = own
    every = [(colour, dashes) for dashes in range(DASHES) for colour in range(len(PALETTE))]
    free = cycle([look for look in every if look not in looks.values()])
    return [looks.get(method) or next(free) for method in results.methods]


def _series(cell: Cell, most: int) -> dict[str, Any]:
    """At most so many points: means over seeds at one epoch; those that ended before are left out.

    Where one that goes on was not tested, there is no point: the mean would jump to the others.
    """
    at: dict[float, list[Record]] = defaultdict(list)
    for run in cell.runs:
        for record in run.records:
            at[round(record.epoch, 6)].append(record)
    ends = [round(run.last.epoch, 6) for run in cell.runs]
    shared = [e for e in sorted(at) if len(at[e]) >= sum(end >= e for end in ends)]
    points = _thinned([at[epoch] for epoch in shared], most)
    xs = {
        "steps": [_mean(r.step for r in records) for records in points],
        "epochs": [_mean(r.epoch for r in records) for records in points],
        "bytes": [_mean(r.bytes for r in records) for records in points],
        "time": [_mean(r.modelled for r in records) for records in points],
    }
    ys = {}
    drawn = measured(cell.measure)
    fields = {c.key: c.field for c in drawn} | {c.own: c.own for c in drawn if c.own}
    for key, field in fields.items():
        spreads = [[record.spread(field) for record in records] for records in points]
        mean = [_mean(s.mean for s in group) for group in spreads]
        if any(value is not None for value in mean):
            low = [_rounded(min((s.low for s in group), default=0)) for group in spreads]
            high = [_rounded(max((s.high for s in group), default=0)) for group in spreads]
            ys[key] = [mean] if low == high else [mean, low, high]
    return {"x": xs, "y": ys}


def _authors(run: Run) -> Iterator[dict[str, Any]]:
    """The published curve of the same experiment, as far as ours goes."""
    if theirs := paper.curve(run)[: ceil(run.last.epoch) + 1]:
        epochs = list(range(len(theirs)))
        steps = run.meta.get("steps_per_epoch")
        xs = {"epochs": epochs, "steps": [e * steps for e in epochs] if type(steps) is int else []}
        yield {"authors": True, "x": xs, "y": {"accuracy": [list(theirs)]}}


def _thinned(points: list[list[Record]], most: int) -> list[list[Record]]:
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(k * step)] for k in range(most)]


def _mean(values: Iterable[float]) -> float | None:
    """NaN, and so None, if one of the values is: a mean of the survivors would flatter."""
    return _rounded(fmean(values))


def _rounded(value: float) -> float | None:
    return None if isnan(value) else float(f"{value:.6g}")
