import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from pushsum import topology
from pushsum.drawing import (
    Panel,
    Series,
    chart_svg,
    check_target,
    graphs_svg,
    graphs_text,
    save,
)
from pushsum.drawing.svg import PALETTE
from pushsum.topology import Topology

SVG = "{http://www.w3.org/2000/svg}"
SEQUENCES = [
    topology.ring(1),
    topology.exponential(2),
    topology.full(6),
    topology.divide(6),
    topology.exponential(6),
    topology.random(6),
    topology.ring(12),
    topology.exponential(20),
    topology.random(40),
    topology.exponential(41),
    topology.exponential(100),
]


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if name in (element.get("class") or "").split()]


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def points(
    element: ElementTree.Element, x: float = 0, y: float = 0
) -> Iterator[tuple[float, float]]:
    """Every absolute coordinate of a drawing, translations applied; matrix cells left out."""
    transform = element.get("transform", "")
    if "scale" in transform or "rotate" in transform:
        return
    if transform:
        dx, dy = numbers(transform)
        x, y = x + dx, y + dy
    for kx, ky in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
        if kx in element.attrib:
            yield x + float(element.attrib[kx]), y + float(element.attrib[ky])
    flat = numbers(element.get("d", "") + element.get("points", ""))
    yield from ((x + a, y + b) for a, b in zip(flat[::2], flat[1::2], strict=True))
    for child in element:
        yield from points(child, x, y)


def assert_inside(svg: str) -> None:
    root = parse(svg)
    _, _, width, height = numbers(root.attrib["viewBox"])
    assert (float(root.attrib["width"]), float(root.attrib["height"])) == (width, height)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points(root))


# --------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("sequence", SEQUENCES, ids=str)
def test_a_drawing_is_well_formed_and_nothing_sticks_out(sequence: Topology) -> None:
    svg = graphs_svg(sequence)
    assert_inside(svg)
    root = parse(svg)
    panels = min(sequence.cycle or 8, 8)
    assert len(of_class(root, "panel")) == panels
    assert [text for text in texts(root) if text.startswith("step")] == [
        f"step {t}" for t in range(1, panels + 1)
    ]
    assert texts(root)[0] == sequence.name


@pytest.mark.parametrize(
    ("sequence", "arrows", "lines"),
    [
        (topology.full(6), [0], [15]),
        (topology.divide(6), [0], [7]),
        (topology.ring(12), [12], [0]),
        (topology.exponential(6), [6, 6, 6], [0, 0, 0]),
        (topology.exponential(4), [4, 0], [0, 2]),
        (topology.ring(1), [0], [0]),
    ],
    ids=str,
)
def test_one_arrow_per_one_way_channel_and_one_line_per_two_way(
    sequence: Topology, arrows: list[int], lines: list[int]
) -> None:
    panels = of_class(parse(graphs_svg(sequence)), "panel")
    heads = [len(of_class(panel, "head")) for panel in panels]
    assert heads == arrows
    assert [
        len(of_class(panel, "line")) - h for panel, h in zip(panels, heads, strict=True)
    ] == lines
    assert all(len(of_class(panel, "node")) == sequence.n for panel in panels)


def test_an_arrow_starts_at_its_sender_and_points_at_its_receiver() -> None:
    (panel,) = of_class(parse(graphs_svg(topology.from_graphs([[[0, 1], [0, 0]]]))), "panel")
    sender, receiver = (
        complex(float(node.attrib["cx"]), float(node.attrib["cy"]))
        for node in of_class(panel, "node")
    )
    x, y, *_ = numbers(of_class(panel, "line")[0].attrib["d"])
    assert abs(complex(x, y) - sender) < 0.1
    x, y, *_ = numbers(of_class(panel, "head")[0].attrib["d"])
    assert abs(complex(x, y) - receiver) == pytest.approx(11 + 1.5, abs=0.1)  # at its rim


def test_the_key_explains_only_what_is_drawn() -> None:
    def key(sequence: Topology) -> list[str]:
        (element,) = of_class(parse(graphs_svg(sequence)), "key")
        return texts(element)

    assert key(topology.ring(3)) == ["one way"]
    assert key(topology.full(3)) == ["both ways"]
    assert key(topology.exponential(4)) == ["one way", "both ways"]
    assert key(topology.ring(1)) == []
    assert key(topology.ring(1000)) == [
        "a cell is 17 × 17 nodes; the stronger the blue, the more channels"
    ]


def test_a_large_graph_is_a_matrix_of_shaded_cells() -> None:
    (panel,) = of_class(parse(graphs_svg(topology.ring(41))), "panel")
    (cells,) = of_class(panel, "cells")
    wanted = {(i, (i + 1) % 41) for i in range(41)}
    assert {
        (int(i), int(j)) for j, i in re.findall(r"M(\d+) (\d+)h1v", cells.attrib["d"])
    } == wanted
    (panel,) = of_class(parse(graphs_svg(topology.full(1000))), "panel")
    (cells,) = of_class(panel, "cells")
    assert cells.attrib["d"] == "".join(f"M0 {i}h59v1h-59z" for i in range(59))  # all of them
    assert cells.attrib["fill-opacity"] == "1.0"


def test_a_thousand_nodes_stay_small() -> None:
    random = graphs_svg(topology.random(1000))
    assert len(random) < 50_000
    first, *_, last = of_class(parse(random), "panel")
    assert {cell.get("fill-opacity") for cell in of_class(first, "cells")} == {"0.5", "0.25"}
    assert {cell.get("fill-opacity") for cell in of_class(last, "cells")} == {"1.0"}


@pytest.mark.parametrize(
    ("sequence", "said"),
    [
        (topology.full(6), "the same graph at every step"),
        (topology.exponential(6), "repeats every 3 steps"),
        (topology.exponential(1000), "repeats every 10 steps; the first 8"),
        (topology.random(6), "never repeats; the first 8 steps"),
    ],
    ids=str,
)
def test_the_subtitle_says_how_the_sequence_goes_on(sequence: Topology, said: str) -> None:
    assert texts(parse(graphs_svg(sequence)))[1] == said


# --------------------------------------------------------------------------- the terminal


def printed(sequence: Topology, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(graphs_text(sequence, width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_terminal_shows_the_adjacency_of_each_step() -> None:
    assert printed(topology.exponential(4), 80) == [
        "exponential(4): repeats every 2 steps (row sends to column)",
        "",
        "step 1      step 2",
        "  0 1 2 3     0 1 2 3",
        "0 ╲ ● · ·   0 ╲ · ● ·",
        "1 · ╲ ● ·   1 · ╲ · ●",
        "2 · · ╲ ●   2 ● · ╲ ·",
        "3 ● · · ╲   3 · ● · ╲",
    ]


@pytest.mark.parametrize("width", [20, 80, 120])
@pytest.mark.parametrize("sequence", [s for s in SEQUENCES if s.n <= 20], ids=str)
def test_pictures_wrap_to_the_width(sequence: Topology, width: int) -> None:
    lines = printed(sequence, width)
    assert max(map(len, lines)) <= width
    edges = sum(
        sequence.edges(t).shape[1] - sequence.n for t in range(1, (sequence.cycle or 8) + 1)
    )
    assert "".join(lines).count("●") == edges


def test_rows_of_pictures_are_balanced() -> None:
    captions = [line.split() for line in printed(topology.random(6), 120) if "step 1" in line]
    assert captions == [["step", "1", "step", "2", "step", "3", "step", "4"]]  # 4 + 4, not 7 + 1


def test_numbers_go_first_when_there_is_little_room() -> None:
    assert printed(topology.ring(30), 80)[2:4] == ["step 1", "╲●" + "·" * 28]
    assert printed(topology.ring(12), 20)[-1] == "●" + "·" * 10 + "╲"


@pytest.mark.parametrize(("n", "width"), [(41, 200), (30, 29)])
def test_what_does_not_fit_is_said_in_one_line(n: int, width: int) -> None:
    assert " ".join(printed(topology.ring(n), width)) == (
        f"ring({n}) is too large to draw as text: use --plot"
    )


# --------------------------------------------------------------------------- charts


def chart(*series: Series, log_y: bool = True) -> ElementTree.Element:
    svg = chart_svg("Title", [Panel("Panel", "step", "error", series, log_y)])
    assert_inside(svg)
    return parse(svg)


def ticks(root: ElementTree.Element, anchor: str) -> dict[str, float]:
    """Label -> position of the ticks of the x axis (anchor middle) or the y axis (end)."""
    axis = "x" if anchor == "middle" else "y"
    (panel,) = of_class(root, "panel")
    return {
        "".join(text.itertext()): float(text.attrib[axis]) - (4 if axis == "y" else 0)
        for text in panel.findall(f"{SVG}text")
        if text.get("text-anchor") == anchor and text.get("font-size") == "11"
    }


def curve(root: ElementTree.Element) -> list[tuple[float, float]]:
    (panel,) = of_class(root, "panel")
    (line,) = of_class(panel, "curve")
    return list(points(line))


def test_a_log_axis_puts_powers_of_ten_at_equal_distances() -> None:
    root = chart(Series("a", [0, 1, 2, 3], [1, 1e-2, 1e-4, 1e-5]))
    labels = ticks(root, "end")
    assert list(labels) == ["10−5", "10−4", "10−3", "10−2", "10−1", "100"]
    heights = list(labels.values())
    gaps = [a - b for a, b in pairwise(heights)]
    assert gaps == pytest.approx([gaps[0]] * 5, abs=0.02)
    assert [y for _, y in curve(root)] == pytest.approx(
        [labels["100"], labels["10−2"], labels["10−4"], labels["10−5"]], abs=0.02
    )
    across = ticks(root, "middle")
    assert [x for x, _ in curve(root)] == pytest.approx(
        [across["0"], across["1.0"], across["2.0"], across["3.0"]], abs=0.02
    )


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1e-16, 1e300], ["100", "1050", "10100", "10150", "10200", "10250", "10300"]),
        ([1e-16, 1], ["10−15", "10−10", "10−5", "100"]),
        ([0.1, 2], ["0.1", "0.2", "0.5", "1", "2"]),
        ([1e-7, 2e-6], ["10−7", "2×10−7", "5×10−7", "10−6", "2×10−6"]),
        ([0.3, 1.2], ["0.4", "0.6", "0.8", "1.0", "1.2"]),
        ([5, 5], ["2", "5", "10"]),
    ],
)
def test_log_ticks(values: list[float], labels: list[str]) -> None:
    assert list(ticks(chart(Series("a", [0, 1], values)), "end")) == labels


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([-3, 120_000], ["0", "20000", "40000", "60000", "80000", "100000", "120000"]),
        ([0, 2e6], ["0", "0.5×106", "1.0×106", "1.5×106", "2.0×106"]),
        ([-1e300, 1e300], ["−1.0×10300", "−0.5×10300", "0", "0.5×10300", "1.0×10300"]),
        ([5, 5], ["4.6", "4.8", "5.0", "5.2", "5.4"]),
        ([0, 0], ["−1.0", "−0.5", "0", "0.5", "1.0"]),
        ([0, 1e-310], ["−1.0", "−0.5", "0", "0.5", "1.0"]),
    ],
)
def test_linear_ticks(values: list[float], labels: list[str]) -> None:
    assert list(ticks(chart(Series("a", [0, 1], values), log_y=False), "end")) == labels


def test_values_without_a_place_leave_a_gap() -> None:
    values = [1, 0.1, nan, 0.1, 0, 0.1, 0.1, -1, inf]
    (panel,) = of_class(chart(Series("a", range(9), values)), "panel")
    assert [(c.tag, len(list(points(c)))) for c in of_class(panel, "curve")] == [
        (f"{SVG}polyline", 2),
        (f"{SVG}circle", 1),
        (f"{SVG}polyline", 2),
    ]
    assert "nothing to draw" in texts(chart(Series("a", [0, 1], [0, nan])))
    assert "nothing to draw" in texts(chart())


def test_many_points_are_thinned_without_losing_a_peak() -> None:
    values = [1.0] * 100_000
    values[54_321] = 100.0
    root = chart(Series("a", range(100_000), values))
    assert len(curve(root)) < 4000
    x, y = min(curve(root), key=lambda point: point[1])
    assert y == pytest.approx(ticks(root, "end")["102"], abs=0.02)
    (left, _), (right, _) = curve(root)[0], curve(root)[-1]
    assert (x - left) / (right - left) == pytest.approx(0.54321, abs=0.002)


def test_one_legend_with_one_colour_per_name() -> None:
    a, b = Series("a", [0, 1], [1, 2]), Series("b & <c>", [0, 1], [2, 3], dashed=True)
    own = Series("own", [0, 1], [2, 3], colour="#123456")
    late = Series("late", [0, 1], [3, 4])
    panels = [Panel(str(i), "x", "y", s) for i, s in enumerate([[a, b], [b, own, late, a]])]
    svg = chart_svg("Title", panels)
    assert_inside(svg)
    root = parse(svg)
    legend = of_class(root, "legend")
    assert [text for item in legend for text in texts(item)] == ["a", "b & <c>", "own", "late"]
    colours = [PALETTE[0], PALETTE[1], "#123456", PALETTE[2]]
    assert [of_class(item, "curve")[0].get("stroke") for item in legend] == colours
    drawn = [
        [(line.get("stroke"), line.get("stroke-dasharray")) for line in of_class(panel, "curve")]
        for panel in of_class(root, "panel")
    ]
    assert drawn == [
        [(PALETTE[0], None), (PALETTE[1], "6 3")],
        [(PALETTE[1], "6 3"), ("#123456", None), (PALETTE[2], None), (PALETTE[0], None)],
    ]


def test_more_names_than_colours_are_told_apart_by_dots() -> None:
    root = chart(*(Series(f"{i}", [0, 1], [1, i + 2]) for i in range(9)))
    lines = [of_class(item, "curve")[0] for item in of_class(root, "legend")]
    looks = {(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}
    assert len(looks) == 9


def test_a_chart_is_900_wide_with_two_panels_to_a_row_and_wraps_its_legend() -> None:
    series = [Series(f"a rather long name, number {i}", [0, 1], [1, 10]) for i in range(12)]
    panels = [Panel("long " * 100, "x" * 200, "y" * 200, series)] * 3
    svg = chart_svg("title " * 100, panels)
    assert_inside(svg)
    root = parse(svg)
    assert root.attrib["width"] == "900"
    places = [numbers(panel.attrib["transform"]) for panel in of_class(root, "panel")]
    assert places == [[0, 48], [450, 48], [0, 328]]
    assert len({numbers(item.attrib["transform"])[1] for item in of_class(root, "legend")}) > 1
    assert texts(root)[0].endswith("…")


def test_what_a_chart_refuses() -> None:
    with pytest.raises(ValueError, match="chart_svg: no panels: give at least one Panel"):
        chart_svg("Title", [])
    with pytest.raises(ValueError, match="series 'a': 2 values of x but 1 of y"):
        chart(Series("a", [0, 1], [1]))


def test_text_is_escaped() -> None:
    title = "a < b & \"c\" \x00 'd'"
    root = parse(chart_svg(title, [Panel(title, title, title, [Series(title, [0], [1])])]))
    assert texts(root).count(title.replace("\x00", "\ufffd")) == 5


# --------------------------------------------------------------------------- files


def test_svg_is_written_as_it_is_and_replaces_the_old_one(tmp_path: Path) -> None:
    svg = graphs_svg(topology.ring(3))
    for _ in range(2):
        save(svg, tmp_path / "ring.svg")
    assert (tmp_path / "ring.svg").read_text(encoding="utf-8") == svg
    assert list(tmp_path.iterdir()) == [tmp_path / "ring.svg"]  # no draft is left behind


def test_png_has_twice_the_size(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    pytest.importorskip("font_source_sans_pro")
    save(
        chart_svg("Title", [Panel("", "x", "y", [Series("a", [0, 1], [1, 2])])]), tmp_path / "a.PNG"
    )
    content = (tmp_path / "a.PNG").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (1800, 924)


@pytest.mark.parametrize("refuse", [check_target, partial(save, "<svg/>")], ids=["check", "save"])
def test_what_is_refused_before_any_work(
    refuse: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"a\.pdf': a picture is a \.svg or a \.png file"):
        refuse(tmp_path / "a.pdf")
    with pytest.raises(ValueError, match=r"there is no directory '.*missing'"):
        refuse(tmp_path / "missing" / "a.svg")
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    message = r"PNG needs the extra: pip install -c constraints\.txt '\.\[png\]', or give"
    with pytest.raises(ValueError, match=message):
        refuse(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(ValueError, match=r"a\.svg': this is a directory; give the path of a file"):
        refuse(tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.svg"]


def test_a_good_target_passes_and_is_left_alone(tmp_path: Path) -> None:
    check_target(tmp_path / "new.SVG")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.svg").write_text("old")
    check_target(tmp_path / "old.svg")
    assert (tmp_path / "old.svg").read_text() == "old"
    pytest.importorskip("resvg_py")
    pytest.importorskip("font_source_sans_pro")
    check_target(tmp_path / "new.png")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("old", tmp_path / "a.svg")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("pushsum.files.os.fsync", fail)
    with pytest.raises(ValueError, match=r"a\.svg': cannot be written: disk full"):
        save("new", tmp_path / "a.svg")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_importing_is_light() -> None:
    heavy = "('torch', 'numpy', 'rich', 'networkx', 'jinja2', 'resvg_py')"
    code = f"import sys, pushsum.drawing; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
