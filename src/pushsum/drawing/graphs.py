"""A topology as graphs: SVG, or text for a terminal."""

from __future__ import annotations

from cmath import rect
from math import ceil, pi, tan
from typing import TYPE_CHECKING

from pushsum.drawing import svg
from pushsum.drawing.svg import BLUE, FAINT, INK, SOFT

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pushsum.topology import Topology

MOST_STEPS = 8
MOST_NODES = 40  # beyond that, nodes on a circle turn into a ball of wool
MOST_NUMBERED = 20  # nodes that get their numbers in the terminal
MOST_CELLS = 60  # along each side of an adjacency matrix


def graphs_svg(topology: Topology) -> str:
    """The graphs of one cycle (at most 8 steps) as an SVG, one panel per step.

    Up to 40 nodes stand on a circle; an arrow is a one-way channel, a plain line a two-way one.
    Larger graphs are adjacency matrices. Self-loops are always there and never drawn.
    """
    draw = _circles if topology.n <= MOST_NODES else _matrices
    side, panels, key = draw(topology)
    margin, header, caption, footer = 18, 64, 28, 32 if key else 8
    across = _columns(len(panels), min(4, int(960 / side)))
    width = max(across * side + 2 * margin, 340)
    height = header + ceil(len(panels) / across) * (side + caption) + footer
    room = width - 2 * margin
    body = [
        svg.text(margin, 30, svg.fit(topology.name, room, 17), 17, weight=600),
        svg.text(margin, 49, svg.fit(_repetition(topology), room, 12), 12, SOFT),
        svg.group("key", margin, height - 14, key),
    ]
    for position, panel in enumerate(panels):
        row, column = divmod(position, across)
        x = (width - across * side) / 2 + column * side
        y = header + row * (side + caption)
        body.append(svg.group("panel", x, y, panel))
        step = f"step {position + 1}"
        body.append(svg.text(x + side / 2, y + side + 8, step, 12, SOFT, anchor="middle"))
    return svg.document(width, height, f"The graphs of {topology.name}", body)


def graphs_text(topology: Topology, width: int) -> RenderableType:
    """The same for a terminal `width` characters wide: rows send, columns receive."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    n = topology.n
    digits = len(str(n - 1))
    numbered = n <= MOST_NUMBERED and digits + n * (digits + 1) <= width
    head, cell = (digits, digits + 1) if numbered else (0, 1)
    if n > MOST_NODES or n > width:
        return Text(f"{topology.name} is too large to draw as text: use --plot")

    def picture(t: int) -> Text:
        sends = topology.adjacency(t).tolist()
        text = Text(f"step {t}", no_wrap=True)
        if numbered:
            text.append("\n" + " " * head + "".join(f"{j:>{cell}}" for j in range(n)), "dim")
        for i in range(n):
            text.append(f"\n{i:>{head}}" if numbered else "\n", "dim")
            for j in range(n):
                mark, style = ("╲", "dim") if i == j else ("●", "") if sends[i][j] else ("·", "dim")
                text.append(f"{mark:>{cell}}", style)
        return text

    gap = 3
    block = max(head + n * cell, len("step 1"))
    pictures = [picture(t) for t in _steps(topology)]
    across = _columns(len(pictures), (width + gap) // (block + gap))
    grid = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
    for start in range(0, len(pictures), across):
        if start > 0:
            grid.add_row("")
        grid.add_row(*pictures[start : start + across])
    legend = Text(f"{topology.name}: {_repetition(topology)} (row sends to column)")
    return Group(legend, "", grid)


def _steps(topology: Topology) -> range:
    return range(1, min(topology.cycle or MOST_STEPS, MOST_STEPS) + 1)


def _columns(panels: int, most: int) -> int:
    """How many panels go side by side so that the rows are equally long, as far as possible."""
    rows = ceil(panels / max(1, most))
    return ceil(panels / rows)


def _repetition(topology: Topology) -> str:
    match topology.cycle:
        case None:
            return f"never repeats; the first {MOST_STEPS} steps"
        case 1:
            return "the same graph at every step"
        case cycle if cycle > MOST_STEPS:
            return f"repeats every {cycle} steps; the first {MOST_STEPS}"
        case cycle:
            return f"repeats every {cycle} steps"


def _circles(topology: Topology) -> tuple[float, list[str], str]:
    """The side of a panel, the panels and the key, with the nodes on circles.

    Points of the plane are complex numbers.
    """
    n = topology.n
    radius = 0 if n == 1 else 46 + 4 * n
    dot, weight = (11, 1.3) if n <= 12 else (9.5, 0.9) if n <= 20 else (8, 0.7)
    side = 2 * (radius + dot + 12)
    centre = complex(side / 2, side / 2)
    places = [centre + rect(radius, 2 * pi * i / n - pi / 2) for i in range(n)]

    def channel(i: int, j: int, two_way: bool) -> str:
        start, end = places[i], places[j]
        length, middle = abs(end - start), (start + end) / 2
        depth = abs(centre - middle)
        inwards = (centre - middle) / depth if depth > 1e-6 else 1j * (end - start) / length
        hops = min((i - j) % n, (j - i) % n)
        # Arrows to neighbours follow the circle. The others turn towards the centre, the less the
        # nearer they pass to it: so no two arrows at a node ever come to lie on each other.
        angle = -min(0.6 * pi / n, 0.32) if hops == 1 else 0.3 * (pi / 2 - pi * hops / n)
        bend = 0 if two_way else length * tan(angle) / 4
        if hops > 1:  # keep clear of the nodes between the two
            bend = max(bend, depth - (radius - dot - 6))
        control = middle + 2 * bend * inwards
        return _line(start, control, end) if two_way else _arrow(start, control, end, dot + 1.5)

    nodes = "".join(
        f'<circle class="node" cx="{svg.number(p.real)}" cy="{svg.number(p.imag)}" r="{dot}" '
        f'fill="{INK}" stroke="#FFFFFF" stroke-width="1.5"/>'
        + svg.text(p.real, p.imag + 0.35 * dot, str(i), dot, "#FFFFFF", "middle", 600)
        for i, p in enumerate(places)
    )
    steps = [_channels(topology, t) for t in _steps(topology)]
    panels = []
    for one_way, two_way in steps:
        lines = _inked([channel(i, j, True) for i, j in two_way], FAINT, weight)
        arrows = _inked([channel(i, j, False) for i, j in one_way], BLUE, weight)
        panels.append(lines + arrows + nodes)

    ends = (complex(0, -4), complex(13, -4), complex(26, -4))
    samples = []
    if any(one_way for one_way, _ in steps):
        arrow = _inked([_arrow(*ends, 0)], BLUE, 1.3)
        samples.append(arrow + svg.text(32, 0, "one way", 12, SOFT))
    if any(two_way for _, two_way in steps):
        line = _inked([_line(*ends)], FAINT, 1.3)
        samples.append(line + svg.text(32, 0, "both ways", 12, SOFT))
    key = [svg.group("sample", 100 * x, 0, sample) for x, sample in enumerate(samples)]
    return side, panels, "".join(key)


def _channels(topology: Topology, t: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The one-way channels (sender, receiver) of step t, and the two-way ones, each once."""
    senders, receivers = topology.edges(t).tolist()
    edges = {(i, j) for i, j in zip(senders, receivers, strict=True) if i != j}
    one_way = [(i, j) for i, j in sorted(edges) if (j, i) not in edges]
    two_way = [(i, j) for i, j in sorted(edges) if (j, i) in edges and i < j]
    return one_way, two_way


def _inked(drawn: list[str], colour: str, weight: float) -> str:
    if not drawn:
        return ""
    return f'<g fill="{colour}" stroke="{colour}" stroke-width="{weight}">{"".join(drawn)}</g>'


def _line(start: complex, control: complex, end: complex) -> str:
    return f'<path class="line" fill="none" d="M{_p(start)}Q{_p(control)} {_p(end)}"/>'


def _arrow(start: complex, control: complex, end: complex, short: float) -> str:
    """A curve with a head whose tip lies `short` before the end of the curve."""

    def at(u: float) -> complex:
        return (1 - u) ** 2 * start + 2 * u * (1 - u) * control + u**2 * end

    def before(distance: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(20):
            u = (low + high) / 2
            low, high = (u, high) if abs(at(u) - end) > distance else (low, u)
        return low

    tip, neck = at(before(short)), before(short + 6)
    along = (tip - at(neck)) / abs(tip - at(neck))
    wings = [tip - 8.5 * along * rect(1, angle) for angle in (0.34, -0.34)]
    shaft = _line(start, start + neck * (control - start), at(neck))
    head = f"M{_p(tip)}L{_p(wings[0])}L{_p(at(neck))}L{_p(wings[1])}Z"
    return f'{shaft}<path class="head" stroke="none" d="{head}"/>'


def _p(point: complex) -> str:
    return f"{point.real:.1f} {point.imag:.1f}"


def _matrices(topology: Topology) -> tuple[float, list[str], str]:
    """The same as adjacency matrices, whose cells stand for blocks of nodes when there are many."""
    block = ceil(topology.n / MOST_CELLS)
    cells = ceil(topology.n / block)
    sizes = [min(block, topology.n - block * i) for i in range(cells)]
    tables = []  # of the share of the possible channels that are there
    for t in _steps(topology):
        edges = topology.edges(t)
        senders, receivers = edges[:, edges[0] != edges[1]] // block
        counts = (senders * cells + receivers).bincount(minlength=cells * cells).tolist()
        pairs = (
            max(1, a * (b - (i == j))) for i, a in enumerate(sizes) for j, b in enumerate(sizes)
        )
        tables.append([count / most for count, most in zip(counts, pairs, strict=True)])
    fullest = max(max(table) for table in tables) or 1

    side, left, top = 236, 24, 20
    scale = (side - left - 12) / cells
    panels = []
    for table in tables:
        shades = [max(share > 0, round(4 * share / fullest)) for share in table]
        rows = (shades[i * cells : (i + 1) * cells] for i in range(cells))
        filled = svg.cells(rows, 4, 'class="cells" ')
        panels.append(
            f'<g transform="translate({left} {top}) scale({scale:.4f})" '
            f'shape-rendering="crispEdges">{filled}<rect width="{cells}" height="{cells}" '
            f'fill="none" stroke="{FAINT}" stroke-width="{1 / scale:.4f}"/></g>'
            + svg.text(left, top - 6, "receiver →", 11, SOFT)
            + svg.text(-top, left - 8, "← sender", 11, SOFT, "end", turn=-90)
        )
    key = f"a cell is {block} × {block} nodes; the stronger the blue, the more channels"
    return side, panels, svg.text(0, 0, key, 12, SOFT) if block > 1 else ""
