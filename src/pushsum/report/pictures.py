"""The page's pictures: topologies, weight matrices over time, who holds which samples.

What is SVG has the colours of `pushsum.drawing.svg`; the page's style sheet maps those to its own,
light or dark.
"""

import re
from html import escape
from math import ceil, isnan, sqrt
from statistics import fmean
from typing import Any, NamedTuple

from pushsum.drawing.svg import cells
from pushsum.report.results import Results, Setting
from pushsum.report.runs import Run, shown

MOST_NODES = 1000  # of a graph that is drawn; one with more has too many edges to count
MOST_DRAWN = 30  # topologies
MOST_MATRICES = 300  # cells whose weight matrices are drawn
MOST_CELLS = 40  # along each side of a weight matrix, or of a split
MOST_SPLITS = 10
SHADES = 10

Matrix = tuple[tuple[float, ...], ...]


class Drawing(NamedTuple):
    """A picture, the words beside it and, for graphs, how wide it should be drawn."""

    title: str
    note: str
    svg: str
    width: int = 0


# --------------------------------------------------------------------------- topologies


def topologies(results: Results) -> list[Drawing]:
    """The first topologies, each once, with the certificate its runs recorded."""
    drawings: dict[tuple[str, int], Drawing] = {}
    for cell in results.cells:
        run = cell.runs[0]
        key = (cell.topology, run.nodes)
        if key not in drawings and len(drawings) < MOST_DRAWN:
            drawn = _topology(run)
            title = f"{cell.topology}, {run.nodes} nodes"
            drawings[key] = Drawing(title, _certificate(run), drawn, _width(drawn, run.nodes))
    return list(drawings.values())


def _certificate(run: Run) -> str:
    found = run.meta.get("certificate")
    if not isinstance(found, dict):
        return ""
    known = (("B", "period"), ("Δ", "diameter"), ("H", "horizon"))
    words = [f"{letter} = {found[key]}" for letter, key in known if type(found.get(key)) is int]
    if run.config["topology.name"] == "random":
        words.append(f"seed {shown(_graph_seed(run))}")
    return ", ".join(words)


def _topology(run: Run) -> str:
    """Its graphs, or nothing: neither unknown names nor very many nodes can be drawn."""
    if run.nodes > MOST_NODES:
        return ""
    from pushsum import topology  # torch: only when there is something to draw
    from pushsum.drawing import graphs_svg

    config, name = run.config, run.config["topology.name"]
    if name not in topology.MAKERS:  # a run may name any file: none is opened here
        return ""
    try:
        chances = {key: config[f"topology.{key}"] for key in ("inner", "inter", "period")}
        if config.get("published.per_receiver"):
            chances["per_receiver"] = True
        return graphs_svg(topology.parse(name, run.nodes, seed=_graph_seed(run), **chances))
    except (ValueError, TypeError, KeyError, OverflowError):
        return ""


def _width(drawn: str, nodes: int) -> int:
    """Graphs of many nodes are drawn large; on this page they need not be."""
    natural = re.search(r'width="([\d.]+)"', drawn)
    return round(float(natural[1]) * (0.88 if nodes <= 12 else 0.6)) if natural else 240


def _graph_seed(run: Run) -> Any:
    own = run.config.get("topology.seed")
    return run.seed if own is None else own


# --------------------------------------------------------------------------- weights


class WeightCell(NamedTuple):
    """The weight matrices of one method on one topology at a few steps."""

    constant: bool
    maps: list[Drawing]


def weights(setting: Setting, most: int = MOST_MATRICES) -> dict[tuple[str, str], WeightCell]:
    """First, middle and last weight matrix of the first run of each cell that has any."""
    found: dict[tuple[str, str], WeightCell] = {}
    for key, cell in setting.cells.items():
        if len(found) == most:
            break
        matrices = next((kept for run in cell.runs if (kept := _matrices(run))), [])
        if not matrices:
            continue
        constant = len(matrices) > 1 and all(m == matrices[0][1] for _, m in matrices)
        drawn = [_weight_map(step, m) for step, m in (matrices[:1] if constant else matrices)]
        found[key] = WeightCell(constant, drawn)
    return found


def block(nodes: int) -> int:
    """How many nodes one cell of a weight matrix stands for."""
    return ceil(nodes / MOST_CELLS)


def _matrices(run: Run) -> list[tuple[int, Matrix]]:
    """The first, the middle and the last that a run has, with their steps."""
    records = [record for record in run.records if record.weights]
    chosen = sorted({0, len(records) // 2, len(records) - 1}) if records else []
    return [(record.step, m) for record, m in run.weights(records[k] for k in chosen)]


def _weight_map(step: int, matrix: Matrix) -> Drawing:
    n = len(matrix)
    own = [matrix[i][i] for i in range(n)]
    given = [w for j, row in enumerate(matrix) for i, w in enumerate(row) if i != j and w > 0]
    return heat_map(f"step {step}", f"kept {_range(own)}; given {_range(given)}", matrix)


def _range(values: list[float]) -> str:
    if not values:
        return "nothing"
    low, high = min(values), max(values)
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"


# --------------------------------------------------------------------------- the split


class Split(NamedTuple):
    """Who holds which samples.

    Attributes:
        title: the settings with this split.
        note: what the rest stands for.
        size: how many nodes and labels a cell stands for; their mean is in it.
        rows: the first node and the samples of every row, and its counts with their shares (%) of
            the largest.
    """

    title: str
    note: str
    size: tuple[int, int]
    rows: list[tuple[int, float, list[tuple[float, float]]]]


def splits(results: Results) -> list[Split]:
    """One table for each of the first distinct splits."""
    groups: dict[tuple[Matrix, bool], list[str]] = {}
    for setting in results.settings:
        seen = {run.split: run.seed for run in reversed(setting.runs) if run.split}
        for table, seed in list(seen.items())[-1:]:
            other = f", seed {seed} of {len(seen)} different ones" if len(seen) > 1 else ""
            key = table, setting.runs[0].meta.get("classes") == 0  # floats are split by tenths
            if key in groups or len(groups) < MOST_SPLITS:
                groups.setdefault(key, []).append(setting.name + other)
    return [_split(*key, names) for key, names in groups.items()]


def _split(table: Matrix, tenths: bool, names: list[str]) -> Split:
    high, wide = ceil(len(table) / MOST_CELLS), ceil(len(table[0]) / MOST_CELLS)
    totals = [sum(row) for row in table]
    low, most = f"{min(totals):,.0f}", f"{max(totals):,.0f}"
    note = f"{low if low == most else f'{low} to {most}'} training samples per node"
    if tenths:
        note += "; column k: targets in the k-th tenth, from 0, the smallest"
    if high > 1 or wide > 1:
        note += f"; a cell is the mean over {high} nodes and {wide} labels"
    small = _blocks(table, high, wide)
    largest = max(max(row) for row in small) or 1
    rows = [
        (k * high, sum(totals[k * high :][:high]), [(v, 100 * v / largest) for v in row])
        for k, row in enumerate(small)
    ]
    return Split("; ".join(names), note, (high, wide), rows)


# --------------------------------------------------------------------------- heat maps


def heat_map(title: str, note: str, matrix: Matrix, **look: int) -> Drawing:
    """A square matrix of numbers in [0, 1]."""
    small = _blocks(matrix, block(len(matrix)), block(len(matrix)))
    shades = [[_shade(sqrt(min(1, max(0, w)))) for w in row] for row in small]
    size = len(small)
    body = (
        f'<svg viewBox="0 0 {size} {size}" role="img" shape-rendering="crispEdges">'
        f"<title>{escape(f'{title}: {note}')}</title>{cells(shades, SHADES)}</svg>"
    )
    return Drawing(title, note, body, **look)


def _blocks(matrix: Matrix, height: int, width: int) -> Matrix:
    """Means over blocks of cells."""
    if height == width == 1:
        return matrix
    return tuple(
        tuple(
            fmean([v for row in matrix[i : i + height] for v in row[j : j + width]])
            for j in range(0, len(matrix[0]), width)
        )
        for i in range(0, len(matrix), height)
    )


def _shade(share: float) -> int:
    """Darker for larger shares of 1; what is there at all can be seen."""
    return 0 if isnan(share) or share <= 0 else min(SHADES, max(1, round(share * SHADES)))
