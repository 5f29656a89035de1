"""Line charts as SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil, floor, log10

from pushsum.drawing import svg
from pushsum.drawing.axes import axis
from pushsum.drawing.svg import FAINT, GRID, PALETTE, SOFT


@dataclass(frozen=True)
class Series:
    """One line; the same name has the same colour in every panel.

    Values without a place on the chart leave a gap: those that are not finite or beyond 1e300,
    and on a logarithmic axis those that are not positive (or below 1e-300).
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    colour: str | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes with its lines."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_y: bool = True


def chart_svg(title: str, panels: Sequence[Panel], width: int = 900) -> str:
    """Line charts side by side, two to a row, with one legend below them all."""
    if not panels:
        raise ValueError("chart_svg: no panels: give at least one Panel")
    looks = _looks(panels)
    header, margin = 48, 24
    across = min(2, len(panels))
    size = (width / across, 380 if width / across > 600 else 280)
    bottom = header + ceil(len(panels) / across) * size[1]
    body = [svg.text(margin, 31, svg.fit(title, width - 2 * margin, 17), 17, weight=600)]
    for position, panel in enumerate(panels):
        row, column = divmod(position, across)
        drawn = _axes(panel, looks, *size)
        body.append(svg.group("panel", column * size[0], header + row * size[1], drawn))

    lines: list[list[tuple[float, str]]] = [[]]  # the legend: its lines of (width, drawing)
    for name, (colour, dash) in looks.items():
        room = width - 2 * margin - 54
        wide = 54 + min(room, svg.text_width(name, 13))
        if sum(w for w, _ in lines[-1]) + wide > width - 2 * margin:
            lines.append([])
        sample = svg.curve([(0, -4), (24, -4)], colour, dash)
        lines[-1].append((wide, sample + svg.text(30, 0, svg.fit(name, room, 13), 13)))
    for row, line in enumerate(lines):
        x = (width - sum(w for w, _ in line) + 24) / 2
        for wide, item in line:
            body.append(svg.group("legend", x, bottom + 18 + 22 * row, item))
            x += wide
    return svg.document(width, bottom + 22 * len(lines) + 12, title, body)


def _looks(panels: Sequence[Panel]) -> dict[str, tuple[str, str]]:
    """The colour and dashes of every name, in order of first appearance."""
    looks: dict[str, tuple[str, str]] = {}
    automatic = 0
    for series in (s for panel in panels for s in panel.series):
        if series.name in looks:
            continue
        dash = "6 3" if series.dashed else "1.5 2.5" if automatic >= len(PALETTE) else ""
        colour = series.colour or PALETTE[automatic % len(PALETTE)]
        looks[series.name] = (escape(colour), dash)
        automatic += series.colour is None
    return looks


def _axes(panel: Panel, looks: dict[str, tuple[str, str]], width: float, height: float) -> str:
    left, right, top, bottom = 74, width - 26, 30, height - 46
    runs = [(series, list(_runs(series, panel.log_y))) for series in panel.series]
    points = [point for _, parts in runs for part in parts for point in part]
    (x_low, x_high), x_ticks = axis([x for x, _ in points], False, 0)
    (y_low, y_high), y_ticks = axis([y for _, y in points], panel.log_y, 0.04)

    def across(x: float) -> float:
        return left + (right - left) * ((x - x_low) / (x_high - x_low))

    def down(y: float) -> float:
        return bottom - (bottom - top) * ((y - y_low) / (y_high - y_low))

    middle = ((left + right) / 2, (top + bottom) / 2)
    title = svg.fit(panel.title, right - left, 13)
    x_label = svg.fit(panel.x_label, right - left, 12)
    y_label = svg.fit(panel.y_label, bottom - top, 12)
    parts = [
        svg.text(left, top - 11, title, 13, weight=600),
        svg.text(middle[0], height - 12, x_label, 12, SOFT, "middle"),
        svg.text(-middle[1], 20, y_label, 12, SOFT, "middle", turn=-90),
    ]
    for value, label in x_ticks:
        x = across(value)
        parts.append(svg.line(x, top, x, bottom, GRID))
        parts.append(svg.text(x, bottom + 16, label, 11, SOFT, "middle"))
    for value, label in y_ticks:
        y = down(value)
        parts.append(svg.line(left, y, right, y, GRID))
        parts.append(svg.text(left - 7, y + 4, label, 11, SOFT, "end"))
    parts.append(svg.line(left, bottom, right, bottom, FAINT))
    parts.append(svg.line(left, top, left, bottom, FAINT))
    if not points:
        parts.append(svg.text(*middle, "nothing to draw", 12, FAINT, "middle"))
    for series, pieces in runs:
        colour, dash = looks[series.name]
        for piece in pieces:
            pixels = _thin([(across(x), down(y)) for x, y in piece])
            parts.append(svg.curve(pixels, colour, "6 3" if series.dashed else dash))
    return "".join(parts)


def _runs(series: Series, log_y: bool) -> Iterator[list[tuple[float, float]]]:
    """The unbroken stretches of a line; y as its logarithm on a logarithmic axis."""
    if len(series.x) != len(series.y):
        raise ValueError(
            f"series {series.name!r}: {len(series.x)} values of x but {len(series.y)} of y"
        )

    def has_place(point: tuple[float, float]) -> bool:
        x, y = point
        return abs(x) <= 1e300 and (1e-300 if log_y else -1e300) <= y <= 1e300

    points = ((float(x), float(y)) for x, y in zip(series.x, series.y, strict=True))
    for drawn, run in groupby(points, has_place):
        if drawn:
            yield [(x, log10(y) if log_y else y) for x, y in run]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """First, lowest, highest and last point of each pixel column: the same picture, but small."""
    kept = []
    for _, group in groupby(points, lambda point: floor(point[0])):
        column = list(group)
        by_height = sorted(range(len(column)), key=lambda i: column[i][1])
        extremes = {0, by_height[0], by_height[-1], len(column) - 1}
        kept += [column[i] for i in sorted(extremes)]
    return kept
