"""The page's pictures: topologies, weight matrices over time, who holds which labels.

All are SVG in the colours of `pushsum.drawing.svg`; the page's style sheet maps those to its own,
light or dark.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from math import ceil, isnan, sqrt
from typing import Any, NamedTuple

from pushsum.drawing import svg
from pushsum.drawing.axes import round_up
from pushsum.drawing.svg import BLUE, FAINT, SOFT
from pushsum.report.results import Results, Setting
from pushsum.report.runs import Run, shown

MOST_NODES = 1000  # of a graph that is drawn; one with more has too many edges to count
MOST_DRAWN = 30  # topologies, and splits
MOST_MATRICES = 300  # cells whose weight matrices are drawn
MOST_CLASSES = 500  # of a split that is drawn
MOST_CELLS = 40  # along each side of a weight matrix
MOST_ROWS = 120  # nodes that get a row of their own in the picture of the split
MOST_COUNTS = 12  # classes up to which the counts are written out
SHADES = 10

Matrix = Sequence[Sequence[float]]


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
    for setting in results.settings:
        for (_, label), cell in setting.cells.items():
            run = cell.runs[0]
            key = (label, run.nodes)
            if key not in drawings and len(drawings) < MOST_DRAWN:
                drawn = _topology(run)
                title = f"{label}, {run.nodes} nodes"
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
    try:
        if name != "random":
            return graphs_svg(topology.parse(name, run.nodes))
        chances = {key: config[f"topology.{key}"] for key in ("inner", "inter", "period")}
        if config.get("published.per_receiver"):
            chances["per_receiver"] = True
        return graphs_svg(topology.random(run.nodes, seed=_graph_seed(run), **chances))
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
    records = [record for record in run.records if record.weights is not None]
    chosen = sorted({0, len(records) // 2, len(records) - 1}) if records else []
    return [(record.step, m) for record, m in run.weights(records[k] for k in chosen)]


def _weight_map(step: int, matrix: Matrix) -> Drawing:
    n = len(matrix)
    own = [matrix[i][i] for i in range(n)]
    given = [w for j, row in enumerate(matrix) for i, w in enumerate(row) if i != j and w > 0]
    note = f"kept {_range(own)}; given {_range(given)}"
    small = _blocks(matrix, block(n), block(n))
    shades = [[sqrt(min(1, max(0, w))) for w in row] for row in small]
    size = len(small)
    body = (
        f'<svg viewBox="0 0 {size} {size}" role="img" shape-rendering="crispEdges">'
        f"<title>step {step}: {note}</title>{_cells(shades)}</svg>"
    )
    return Drawing(f"step {step}", note, body)


def _range(values: list[float]) -> str:
    if not values:
        return "nothing"
    low, high = min(values), max(values)
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"


# --------------------------------------------------------------------------- the split


def splits(results: Results) -> list[Drawing]:
    """Who holds which labels: one picture for each of the first distinct splits."""
    groups: dict[tuple[tuple[float, ...], ...], list[str]] = {}
    for setting in results.settings:
        seen = {}
        for run in setting.runs:
            if run.split and run.split not in seen:
                seen[run.split] = run.seed
        for table, seed in list(seen.items())[: len(groups) < MOST_DRAWN]:
            other = f", seed {seed} of {len(seen)} different ones" if len(seen) > 1 else ""
            groups.setdefault(table, []).append(setting.name + other)
    return [
        Drawing("; ".join(names), _split_note(table), _split_map(table))
        for table, names in groups.items()
    ]


def _split_note(table: Matrix) -> str:
    totals = [sum(row) for row in table]
    size = ceil(len(table) / MOST_ROWS)
    rows = f"; a row is the mean of {size} nodes" if size > 1 else ""
    low, high = f"{min(totals):,.0f}", f"{max(totals):,.0f}"
    return f"{low if low == high else f'{low} to {high}'} training samples per node{rows}"


def _split_map(table: Matrix) -> str:
    if len(table[0]) > MOST_CLASSES:
        return ""
    size = ceil(len(table) / MOST_ROWS)
    totals = _blocks([[sum(row)] for row in table], size, 1)
    table = _blocks(table, size, 1)
    rows, across = len(table), len(table[0])
    left, top, right, bottom = 46, 24, 66, 10
    wide = max(5.0, min(52.0, 760 / across))
    high = max(3.0, min(24.0, 400 / rows))
    most = max(max(row) for row in table) or 1
    body = [
        f'<g transform="translate({left} {top}) scale({svg.number(wide)} {svg.number(high)})" '
        f'shape-rendering="crispEdges">{_cells([[v / most for v in row] for row in table])}</g>',
        f'<rect x="{left}" y="{top}" width="{svg.number(across * wide)}" '
        f'height="{svg.number(rows * high)}" fill="none" stroke="{FAINT}"/>',
        svg.text(left - 6, 14, "node", 11, SOFT, "end"),
        svg.text(left + across * wide + right - 4, 14, "samples", 11, SOFT, "end"),
    ]
    for k in _labelled(across, wide, 30):
        label = f"label {k}" if k == 0 and wide > 40 else str(k)
        body.append(svg.text(left + (k + 0.5) * wide, 14, label, 11, SOFT, "middle"))
    for i in _labelled(rows, high, 12):
        y = top + (i + 0.5) * high + 4
        body.append(svg.text(left - 6, y, str(i * size), 11, SOFT, "end"))
        total = f"{totals[i][0]:,.0f}"
        body.append(svg.text(left + across * wide + right - 4, y, total, 11, SOFT, "end"))
        for k, value in enumerate(table[i] if across <= MOST_COUNTS else ()):
            ink = "#FFFFFF" if value > 0.55 * most else SOFT
            count = svg.text(left + (k + 0.5) * wide, y, f"{value:.0f}", 11, ink, "middle")
            body.append(count if value > 0 else "")
    width, height = left + across * wide + right, top + rows * high + bottom
    return (
        f'<svg viewBox="0 0 {svg.number(width)} {svg.number(height)}" '
        f'width="{svg.number(width)}" font-family="{svg.FONT}" role="img">'
        f"<title>samples per node and label</title>{''.join(body)}</svg>"
    )


def _labelled(count: int, size: float, room: float) -> range:
    """Which rows or columns of this size get their numbers so that these do not touch."""
    return range(0, count, max(1, round(round_up(room / size))))


# --------------------------------------------------------------------------- heat maps


def _blocks(matrix: Matrix, height: int, width: int) -> Matrix:
    """Means over blocks of cells."""
    if height == width == 1:
        return matrix
    return [
        [
            _mean([v for row in matrix[i : i + height] for v in row[j : j + width]])
            for j in range(0, len(matrix[0]), width)
        ]
        for i in range(0, len(matrix), height)
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _cells(shares: Matrix) -> str:
    """Unit squares, darker for larger shares of 1: one path per shade, neighbours joined."""
    shapes: dict[int, str] = {}
    for y, row in enumerate(shares):
        x = 0
        for shade, run in groupby(map(_shade, row)):
            width = len(list(run))
            if shade > 0:
                shapes[shade] = shapes.get(shade, "") + f"M{x} {y}h{width}v1h-{width}z"
            x += width
    return "".join(
        f'<path d="{shape}" fill="{BLUE}" fill-opacity="{shade / SHADES}"/>'
        for shade, shape in sorted(shapes.items())
    )


def _shade(share: float) -> int:
    """What is there at all can be seen."""
    return 0 if isnan(share) or share <= 0 else min(SHADES, max(1, round(share * SHADES)))
