"""The pictures of the evidence pages."""

from statistics import fmean

from benchmarks.wallclock import Measured, picture
from pushsum.drawing import svg
from pushsum.drawing.charts import Panel, Series, chart_svg
from study import RESULTS
from study.collect import read
from study.numbers import METHODS, TOPOLOGIES, Ended, of, spread
from study.texts import methods
from study.texts.faults import WHERE, under_loss

ROWS = {  #: in the picture -> in `METHODS` and `OTHERS`
    "SGP": "SGP",
    "SGAP, lazy c=0.5": "SGAP, lazy",
    "SGAP, Moreau": "SGAP",
    "SGAP, scale-free": "SGAP, scale-free",
    "SGAP, far-first": "SGAP, far-first",
    "MSGP": "MSGP",
    "MSGAP, lazy c=0.5": "MSGAP, lazy",
    "MSGAP, Moreau": "MSGAP",
    "MSGAP, scale-free": "MSGAP, scale-free",
    "MSGAP, far-first": "MSGAP, far-first",
    "S-ADDOPT": "S-ADDOPT",
}
COLOURS = {"SGP": 0, "SGAP": 0, "MSGP": 1, "MSGAP": 1, "S-ADDOPT": 2}


def all_of(found: list[Ended]) -> dict[str, str]:
    """Name -> SVG."""
    measured = Measured.kept(RESULTS / "wallclock.csv")
    return {
        "evidence": _dots(found),
        "evidence-bytes": _bytes(found),
        "consensus-n": _consensus(),
        "methods": _methods(),
        "wallclock": picture(measured, "links of 1 Gbit/s"),
        **({"faults": _faults(found)} if any(run.sweep == "faults" for run in found) else {}),
        **(
            {"methods-images": _images(found)}
            if any(methods.counted(found, row) for row in methods.ROWS)
            else {}
        ),
    }


def _faults(found: list[Ended]) -> str:
    """Accuracy over the part of the messages that is lost."""
    panels = []
    for topology in WHERE:
        lines = [Series(*line) for line in under_loss(found, topology)]
        title = topology.capitalize()
        panels.append(Panel(title, "messages lost, %", "accuracy, %", lines, log_y=False))
    return chart_svg("Accuracy of the average model under loss", panels)


def _images(found: list[Ended]) -> str:
    """Accuracy of the methods over what they use, a row of panels for each."""
    panels = []
    for axis in methods.AXES:
        for topology in methods.WHERE:
            series = [Series(*line) for line in methods.lines(found, topology, axis)]
            title = topology.capitalize()
            panels.append(Panel(title, axis, "accuracy, %", series, log_y=False))
    return chart_svg("Accuracy of the average model, by method", panels)


def _dots(found: list[Ended]) -> str:
    """One dot per seed, a stroke at the mean; a column per topology, a row per method."""
    accuracies = [100 * run["accuracy"] for method in ROWS.values() for run in of(found, method)]
    low, high = min(accuracies, default=0) - 0.5, max(accuracies, default=100) + 0.5
    width, left, top, row = 900, 150, 86, 26
    panel = (width - left - 24) / len(TOPOLOGIES)
    title = "Test accuracy of the average model, %: CIFAR-10, two clusters of labels, six nodes"
    body = [svg.text(24, 31, svg.fit(title, width - 48, 17), 17, weight=600)]
    bottom = top + row * len(ROWS)
    for column, topology in enumerate(TOPOLOGIES):
        x0 = left + column * panel + 10
        room = panel - 20

        def across(value: float, x0: float = x0, room: float = room) -> float:
            return x0 + room * (value - low) / (high - low)

        body.append(svg.text(x0, top - 22, topology.capitalize(), 13, weight=600))
        step = next(s for s in (1, 2, 5, 10, 20, 50) if (high - low) / s <= 5)
        tick = step * (int(low / step) + 1)
        while tick < high:
            body.append(svg.line(across(tick), top - 12, across(tick), bottom, svg.GRID))
            body.append(svg.text(across(tick), bottom + 16, f"{tick}", 11, svg.SOFT, "middle"))
            tick += step
        for line, method in enumerate(ROWS.values()):
            y = top + row * line + row / 2
            here = of(found, method, topology=topology)
            colour = svg.PALETTE[COLOURS[method.partition(",")[0]]]
            for run in here:
                body.append(_dot(across(100 * run["accuracy"]), y, colour))
            mean = spread(here, "accuracy")
            if mean is not None:
                x = across(100 * mean[0])
                body.append(svg.line(x, y - 9, x, y + 9, colour))
    for line, name in enumerate(ROWS):
        body.append(svg.text(left - 8, top + row * line + row / 2 + 4, name, 13, anchor="end"))
    return svg.document(width, bottom + 32, title, body)


def _dot(x: float, y: float, colour: str) -> str:
    place = f'cx="{svg.number(x)}" cy="{svg.number(y)}"'
    return f'<circle {place} r="4" fill="{colour}" fill-opacity="0.6"/>'


def _consensus() -> str:
    panels = []
    for graph in ("exponential", "full"):
        rows = [row for row in read("consensus") if row["topology"] == graph]
        lines = []
        for rule in dict.fromkeys(row["weighting"] for row in rows):
            here = [row for row in rows if row["weighting"] == rule]
            nodes = sorted({int(row["nodes"]) for row in here})
            by = {n: [row for row in here if int(row["nodes"]) == n] for n in nodes}
            distance = [fmean(float(row["distance"]) for row in by[n]) for n in nodes]
            bound = [10 ** max(float(row["log10 bound"]) for row in by[n]) for n in nodes]
            if max(distance) > 1e-9:  # uniform weights on Full leave none
                lines.append(Series(rule, nodes, distance))
            lines.append(Series(f"Theorem 1, {rule}", nodes, bound, dashed=True))
        panels.append(Panel(graph.capitalize(), "number of nodes", "distance (L1)", lines))
    return chart_svg("Distance to the average parameter, and Theorem 1's bound", panels)


def _methods() -> str:
    """Distance to the optimum, over steps and over bytes."""
    rows = read("family")
    panels = []
    for column, label in (("step", "steps"), ("kilobytes", "kilobytes sent by all nodes")):
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            here = [row for row in rows if row["method"] == method]
            x = [float(row[column]) for row in here]
            lines.append(Series(method, x, [float(row["distance"]) for row in here]))
        panels.append(Panel(f"Over {column.rstrip('s')}s", label, "distance", lines))
    return chart_svg("Distance to the optimum: nodes that differ, one directed graph", panels)


def _bytes(found: list[Ended]) -> str:
    """Accuracy over what was pushed, on two topologies."""
    curves = read("curves")
    panels = []
    for topology in ("full", "exponential"):
        lines = []
        for method in METHODS:
            some = of(found, method, topology=topology)
            names = {run.values["run"] for run in some}
            here = [row for row in curves if row["run"] in names]
            steps = sorted({int(row["step"]) for row in here})
            at = {s: [row for row in here if int(row["step"]) == s] for s in steps}
            x = [fmean(float(row["gigabytes"]) for row in at[s]) for s in steps]
            y = [100 * fmean(float(row["accuracy"]) for row in at[s]) for s in steps]
            lines.append(Series(method, x, y))
        label = "gigabytes pushed by all nodes"
        panels.append(Panel(topology.capitalize(), label, "accuracy, %", lines, log_y=False))
    return chart_svg("Accuracy of the average model for what was pushed", panels)
