"""Results -> the numbers, tables and pictures of README and docs.

    python -m study.publish

A page says where something belongs, and its name: `<!-- study NAME -->...<!-- end -->`, within a
line or around a block. What stands between is replaced. `NAME:ONE:TWO` has arguments.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import inf, log
from pathlib import Path
from statistics import fmean

from benchmarks.wallclock import PAPER_HOURS, Measured
from pushsum.drawing import save
from pushsum.report.paper import table1 as paper_table
from study import RESULTS, figures
from study.collect import read
from study.numbers import (
    LAZY,
    MOREAU,
    SCALE_FREE,
    TOPOLOGIES,
    Difference,
    Ended,
    chosen,
    difference,
    runs,
    spread,
)

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
REPORT = ROOT / "docs" / "evidence" / "report.html"
MARK = re.compile(r"<!-- study ([^<>]+) -->(.*?)<!-- end -->", flags=re.DOTALL)
RESNET18 = 11_173_962  #: parameters
METHODS = {  #: of the paper: the name in the table -> algorithm and weighting
    "SGP": ("SGP", "uniform"),
    "MSGP": ("MSGP", "uniform"),
    "SGAP": ("SGAP", MOREAU),
    "MSGAP": ("MSGAP", MOREAU),
    "S-ADDOPT": ("S-ADDOPT", "uniform"),
}
OTHERS = {  #: what else was tried at the paper's setting
    "SGAP, lazy": ("SGAP", LAZY),
    "MSGAP, lazy": ("MSGAP", LAZY),
    "SGAP, scale-free": ("SGAP", SCALE_FREE),
    "MSGAP, scale-free": ("MSGAP", SCALE_FREE),
    "QGM": ("QGM", "uniform"),
    "QGM, Moreau": ("QGM", MOREAU),
}

Text = Callable[..., str]
_texts: dict[str, Text] = {}


def main() -> None:
    """Write pictures, the report, and what the pages ask for."""
    found = runs()
    REPORT.write_bytes((RESULTS / "report" / "report.html").read_bytes())
    for name, picture in figures.all_of(found).items():
        save(picture, IMAGES / f"{name}.svg")
    for page in pages():
        before = page.read_text()
        after = filled(before, found)
        if after != before:
            page.write_text(after)
            print(page.relative_to(ROOT))


def pages() -> list[Path]:
    """The pages that may hold results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(page: str, found: list[Ended]) -> str:
    """A page with the present results in it."""

    def put(match: re.Match[str]) -> str:
        asked, before = match.groups()
        name, *arguments = asked.split(":")
        if name not in _texts:
            raise ValueError(f"study {name}: choose from {', '.join(sorted(_texts))}")
        text = _texts[name](found, *arguments)
        inner = f"\n\n{text}\n\n" if before.startswith("\n") or "\n" in text else text
        return f"<!-- study {asked} -->{inner}<!-- end -->"

    return MARK.sub(put, page)


def _named(name: str) -> Callable[[Text], Text]:
    def keep(text: Text) -> Text:
        _texts[name] = text
        return text

    return keep


# --------------------------------------------------------------------------- writing numbers


def _percent(some: Iterable[Ended], column: str = "accuracy") -> str:
    """55.31 ± 0.42, and the number of seeds where it is not three."""
    found = spread(some, column)
    if found is None:
        return "–"
    mean, deviation, count = found
    if count == 1:
        return f"{100 * mean:.2f} (1 seed)"
    return f"{100 * mean:.2f} ± {100 * deviation:.2f}" + f" ({count} seeds)" * (count != 3)


def _points(gap: Difference | None) -> str:
    """+1.20 ± 0.40, in bold where the interval leaves out 0."""
    if gap is None:
        return "–"
    text = f"{100 * gap.mean:+.2f} ± {100 * gap.half:.2f}"
    return f"**{text}**" if gap.clear else text


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, aligned, *rows))


def _of(found: list[Ended], method: str, **more: str | float) -> list[Ended]:
    algorithm, weighting = (METHODS | OTHERS)[method]
    some = found if "changed" in more else _among(found, "table1", "momentum")
    return chosen(some, algorithm=algorithm, weighting=weighting, **more)


def _among(found: list[Ended], *sweeps: str, **wanted: str | float) -> list[Ended]:
    return [run for run in chosen(found, **wanted) if run.sweep in sweeps]


def _paper(method: str, topology: str) -> float:
    return paper_table()["resnet18", "cifar10", method, topology].accuracy


# --------------------------------------------------------------------------- Table 1


@_named("table1")
def _table1(found: list[Ended]) -> str:
    rows = [
        [
            method,
            *(
                f"{_percent(_of(found, method, topology=t))} ({_paper(method, t):.2f})"
                for t in TOPOLOGIES
            ),
        ]
        for method in METHODS
    ]
    return _table(["accuracy, %", *(t.capitalize() for t in TOPOLOGIES)], rows)


@_named("pairs")
def _pairs(found: list[Ended]) -> str:
    """Differences of methods over the same seeds, beside the paper's."""
    rows = []
    for one, other in (("SGAP", "SGP"), ("MSGAP", "MSGP"), ("MSGP", "SGP"), ("S-ADDOPT", "SGP")):
        gaps = []
        for t in TOPOLOGIES:
            here, there = _of(found, one, topology=t), _of(found, other, topology=t)
            theirs = _paper(one, t) - _paper(other, t)
            gaps.append(f"{_points(difference(here, there, 'accuracy'))} ({theirs:+.2f})")
        everywhere = difference(_of(found, one), _of(found, other), "accuracy")
        rows.append([f"{one} − {other}", *gaps, _points(everywhere)])
    return _table(["points", *(t.capitalize() for t in TOPOLOGIES), "all four"], rows)


@_named("order")
def _order(found: list[Ended]) -> str:
    """How many pairs of methods stand in the paper's order, over the topologies."""
    agreed = pairs = 0
    for t in TOPOLOGIES:
        ours = {m: spread(_of(found, m, topology=t), "accuracy") for m in METHODS}
        for one, other in combinations(METHODS, 2):
            a, b = ours[one], ours[other]
            if a is not None and b is not None:
                pairs += 1
                agreed += (a[0] > b[0]) == (_paper(one, t) > _paper(other, t))
    return f"{agreed} of {pairs}"


@_named("gap")
def _gap(found: list[Ended], one: str, other: str, topology: str = "") -> str:
    """Two methods on one topology, or on all that both have: `gap:SGAP:SGP:full`."""
    where = {"topology": topology} if topology else {}
    return _points(difference(_of(found, one, **where), _of(found, other, **where), "accuracy"))


@_named("reached")
def _reached(found: list[Ended], method: str, topology: str) -> str:
    return _percent(_of(found, method, topology=topology))


@_named("spent")
def _spent(found: list[Ended], method: str, topology: str, as_much_as: str = "") -> str:
    """Accuracy and gigabytes at the end, or as soon as another topology's whole run is matched."""
    some = _of(found, method, topology=topology)
    budget = max((r["gigabytes"] for r in _of(found, method, topology=as_much_as)), default=inf)
    names = {run.values["run"] for run in some}
    reached: dict[str, dict[str, str]] = {}
    for row in read("curves"):
        if row["run"] in names and float(reached.get(row["run"], row)["gigabytes"]) < budget:
            reached[row["run"]] = row
    if not reached:
        return "–"
    percent = 100 * fmean(float(row["accuracy"]) for row in reached.values())
    pushed = fmean(float(row["gigabytes"]) for row in reached.values())
    return f"{percent:.1f} % with {pushed:.2f} GB"


@_named("cost")
def _cost(found: list[Ended]) -> str:
    """Runs, what the fastest took (others shared the machine), and what that makes in all."""
    rows, hours = [], 0.0
    for name in dict.fromkeys(run.sweep for run in found):
        seconds = [run["seconds"] for run in found if run.sweep == name]
        hours += len(seconds) * min(seconds) / 3600
        rows.append([name, str(len(seconds)), f"{min(seconds) / 60:.1f}"])
    rows.append(["all", str(len(found)), f"{hours:.1f} hours"])
    return _table(["sweep", "runs", "minutes of one core each"], rows)


# --------------------------------------------------------------------------- weights


@_named("weights")
def _weights(found: list[Ended]) -> str:
    """Every weighting at the same communication, with the distance that it leaves."""
    rules = ["uniform", LAZY, "lazy(c=0.25)", "lazy(c=0.1)", MOREAU, SCALE_FREE]
    rows = []
    for family, original in (("SGAP", "SGP"), ("MSGAP", "MSGP")):
        for rule in rules:
            algorithm = original if rule == "uniform" else family
            here = _among(found, "table1", "lazy", algorithm=algorithm, weighting=rule)
            if not here:
                continue
            cells = [_percent(chosen(here, topology=t)) for t in TOPOLOGIES]
            rows.append([f"{algorithm}, {rule}", *cells])
    return _table(["accuracy, %", *(t.capitalize() for t in TOPOLOGIES)], rows)


@_named("distances")
def _distances(found: list[Ended]) -> str:
    rows = []
    for rule in ("uniform", LAZY, "lazy(c=0.25)", "lazy(c=0.1)", MOREAU, SCALE_FREE):
        algorithm = "SGP" if rule == "uniform" else "SGAP"
        here = _among(found, "table1", "lazy", algorithm=algorithm, weighting=rule)
        means = [spread(chosen(here, topology=t), "distance") for t in TOPOLOGIES]
        rows.append([rule, *("–" if m is None else f"{m[0]:.3g}" for m in means)])
    return _table(["distance", *(t.capitalize() for t in TOPOLOGIES)], rows)


@_named("adaptive")
def _adaptive(found: list[Ended]) -> str:
    """Moreau and scale-free against uniform and against the lazy control, all topologies."""
    rows = []
    for family, original in (("SGAP", "SGP"), ("MSGAP", "MSGP")):
        some = chosen(found, sweep="table1")
        by = {
            rule: chosen(some, algorithm=original if rule == "uniform" else family, weighting=rule)
            for rule in ("uniform", LAZY, MOREAU, SCALE_FREE)
        }
        for one, other in (
            (LAZY, "uniform"),
            (MOREAU, "uniform"),
            (MOREAU, LAZY),
            (SCALE_FREE, LAZY),
            (SCALE_FREE, MOREAU),
        ):
            gap = difference(by[one], by[other], "accuracy")
            pairs = "–" if gap is None else str(gap.pairs)
            rows.append([f"{family}: {one} − {other}", _points(gap), pairs])
    return _table(["points, mean of the topologies", "difference", "seeds"], rows)


@_named("dials")
def _dials(found: list[Ended]) -> str:
    rows = []
    some = _among(found, "table1", "dials", algorithm="SGAP", topology="exponential")
    for value in ("0.01", "0.1", "1", "10", "100"):
        rules = (f"moreau(k={value}, v=0.1)", f"scale-free-moreau(c={value}, v=0.1)")
        rows.append([value, *(_percent(chosen(some, weighting=rule)) for rule in rules)])
    return _table(["k or c", "Moreau", "scale-free Moreau"], rows)


@_named("rates")
def _rates(found: list[Ended]) -> str:
    """SGP and SGAP with the step size of table1-small, and with a quarter of it."""
    rows = []
    for sweep, rate in (("table1", "0.2"), ("rates", "0.05")):
        for t in ("full", "divide", "exponential"):
            some = chosen(found, sweep=sweep, topology=t)
            one = chosen(some, algorithm="SGP", weighting="uniform")
            other = chosen(some, algorithm="SGAP", weighting=MOREAU)
            gap = _points(difference(other, one, "accuracy"))
            rows.append([f"{rate}, {t.capitalize()}", _percent(one), _percent(other), gap])
    return _table(["step size", "SGP", "SGAP, Moreau", "SGAP − SGP"], rows)


@_named("longer")
def _longer(found: list[Ended]) -> str:
    """The same with five times as many epochs."""
    rules = {
        "SGP": ("SGP", "uniform"),
        "SGAP, Moreau": ("SGAP", MOREAU),
        "SGAP, lazy": ("SGAP", LAZY),
    }
    rows = []
    for t in ("divide", "exponential"):
        for sweep, epochs in (("table1", "2"), ("longer", "10")):
            some = chosen(found, sweep=sweep, topology=t)
            reached = [
                _percent(chosen(some, algorithm=algorithm, weighting=rule))
                for algorithm, rule in rules.values()
            ]
            rows.append([f"{t.capitalize()}, {epochs} epochs", *reached])
    return _table(["accuracy, %", *rules], rows)


@_named("momentum")
def _momentum(found: list[Ended]) -> str:
    """A node's own momentum and the quasi-global one, at equal communication."""
    where = ("divide", "exponential", "random")
    rows = [
        [name, *(_percent(_of(found, name, topology=t)) for t in where)]
        for name in ("MSGP", "QGM", "MSGAP", "QGM, Moreau")
    ]
    for one, other in (("QGM", "MSGP"), ("QGM, Moreau", "MSGAP")):
        rows.append([f"{one} − {other}", *(_gap(found, one, other, t) for t in where)])
    return _table(["accuracy, %", *(t.capitalize() for t in where)], rows)


@_named("start")
def _start(found: list[Ended]) -> str:
    """What was tried where nodes cannot average exactly, the best first."""
    where = ("divide", "exponential", "random")
    paper_best = [run for run in _of(found, "MSGAP") if run.topology in where]
    rows = []
    for method in METHODS | OTHERS:
        here = [run for run in _of(found, method) if run.topology in where]
        cells = [chosen(here, topology=t) for t in where]
        if not all(cells):
            continue
        mean = fmean(fmean(run["accuracy"] for run in cell) for cell in cells)
        worst = min(run["accuracy"] for run in here)
        gap = _points(difference(here, paper_best, "accuracy")) if method != "MSGAP" else ""
        shown = [f"{100 * mean:.2f}", *map(_percent, cells), f"{100 * worst:.2f}", gap]
        rows.append((mean, [method, *shown]))
    headings = ["mean", *(t.capitalize() for t in where), "worst run", "− MSGAP"]
    return _table(["accuracy, %", *headings], [row for _, row in sorted(rows, reverse=True)])


# --------------------------------------------------------------------------- BatchNorm


POLICIES = ("averaged accuracy", "recomputed accuracy", "test-batch accuracy")  #: columns


@_named("batchnorm")
def _batchnorm(found: list[Ended]) -> str:
    rows = []
    for t in ("full", "exponential"):
        for method in METHODS:
            here = _of(found, method, topology=t)
            group = _of(found, method, topology=t, changed="model.norm=group")
            policies = [_percent(here, column) for column in POLICIES]
            rows.append([f"{method}, {t.capitalize()}", *policies, _percent(group)])
    for momentum, name in ((0.0, "centralized SGD"), (0.8, "centralized momentum SGD")):
        here = chosen(found, algorithm="AllReduce", momentum=momentum)
        group = chosen(found, algorithm="AllReduce", momentum=momentum, changed="model.norm=group")
        rows.append([name, *(_percent(here, column) for column in POLICIES), _percent(group)])
    return _table(["accuracy, %", "averaged", "recomputed", "test batch", "GroupNorm"], rows)


@_named("policies")
def _policies(found: list[Ended]) -> str:
    """The largest difference that the test policy makes to a mean of Table 1."""
    cells = [_of(found, m, topology=t) for m in METHODS for t in TOPOLOGIES]
    means = [[fmean(run[c] for run in cell) for c in POLICIES] for cell in cells if cell]
    return f"{100 * max(max(some) - min(some) for some in means):.2f}"


@_named("group")
def _group(found: list[Ended], one: str, other: str, topology: str) -> str:
    """Two methods with GroupNorm: `group:SGAP:SGP:full`."""
    here, there = (
        _of(found, method, topology=topology, changed="model.norm=group") for method in (one, other)
    )
    return _points(difference(here, there, "accuracy"))


# --------------------------------------------------------------------------- published


SWITCHES = {
    "published.same_batches=True": "all nodes of a cluster see the same batches",
    "published.per_receiver=True": "Random draws one number per receiver",
    "model.fresh_last_layer=True": "the last layer starts differently at every node",
    "model.stem=imagenet": "the ImageNet stem (7 x 7, stride 2, and pooling)",
    "data.augment=True": "with augmentation (the published runs had none)",
    "algorithm.schedule.kind=constant": "a constant step size, as the paper has it",
    "algorithm.schedule.kind=steps": "step size / 10 for the second half",
    "algorithm.schedule.kind=steps published.restart=True": "the same, and all starts anew there",
    "published.average_of_y=True": "the average of y is tested, not that of x",
}


@_named("switches")
def _switches(found: list[Ended]) -> str:
    base = _of(found, "MSGAP", topology="random")
    rows = []
    for changed, meaning in SWITCHES.items():
        here = [r for r in found if r.sweep == "published" and r.changed == changed]
        rows.append([meaning, _percent(here), _points(difference(here, base, "accuracy"))])
    for column, meaning in (
        ("test-batch accuracy", "tested with the statistics of the test batch"),
        ("averaged accuracy", "tested with averaged statistics"),
    ):
        gaps = [run[column] - run["accuracy"] for run in base]
        shown = f"{100 * fmean(gaps):+.2f}" if gaps else "–"
        rows.append([meaning, _percent(base, column), shown])
    return _table([f"changed (else: {_percent(base)} %)", "accuracy, %", "points"], rows)


# --------------------------------------------------------------------------- consensus


@_named("consensus")
def _consensus(found: list[Ended]) -> str:
    """Exponential: the distance and the bound; Full: Moreau's distance (uniform has none)."""
    rows = []
    for nodes in dict.fromkeys(row["nodes"] for row in read("consensus")):
        cells = [nodes]
        for graph, rule in DISTANCES:
            here = _distances_of(graph, rule, nodes)
            bound = max(float(row["log10 bound"]) for row in here)
            cells += [
                f"{fmean(float(row['distance']) for row in here):.2f}",
                f"10<sup>{bound:.1f}</sup>",
            ]
        rows.append(cells)
    names = [f"{graph.capitalize()}, {rule.partition('(')[0]}" for graph, rule in DISTANCES]
    return _table(["N", *(h for name in names for h in (name, "allowed"))], rows)


DISTANCES = (("exponential", "uniform"), ("exponential", MOREAU), ("full", MOREAU))


def _distances_of(graph: str, rule: str, nodes: str) -> list[dict[str, str]]:
    wanted = (graph, rule, nodes)
    return [
        row
        for row in read("consensus")
        if (row["topology"], row["weighting"], row["nodes"]) == wanted
    ]


@_named("consensus-slopes")
def _consensus_slopes(found: list[Ended]) -> str:
    """distance ~ N^slope, by least squares over the logarithms, for N >= 4."""
    many = [n for n in dict.fromkeys(row["nodes"] for row in read("consensus")) if int(n) >= 4]
    slopes = []
    for graph, rule in DISTANCES:
        points = [
            (log(int(n)), log(float(row["distance"])))
            for n in many
            for row in _distances_of(graph, rule, n)
        ]
        mx, my = fmean(x for x, _ in points), fmean(y for _, y in points)
        slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
        slopes.append(f"{slope:+.2f} ({graph.capitalize()}, {rule.partition('(')[0]})")
    return ", ".join(slopes)


@_named("consensus-gap")
def _consensus_gap(found: list[Ended]) -> str:
    """How many orders of magnitude the bound is above a distance: fewest and most."""
    gaps = [
        float(row["log10 bound"]) - log(float(row["distance"])) / log(10)
        for row in read("consensus")
        if float(row["distance"]) > 1e-9
    ]
    return f"{min(gaps):.1f} to {max(gaps):.1f}"


@_named("consensus-broken")
def _consensus_broken(found: list[Ended]) -> str:
    return str(sum(int(row["broken"]) for row in read("consensus")))


@_named("moreau-over-uniform")
def _moreau_over_uniform(found: list[Ended]) -> str:
    """Ratios of mean distances on Exponential, the lowest and the highest over N."""
    ratios = []
    for nodes in dict.fromkeys(row["nodes"] for row in read("consensus")):
        far, near = (
            fmean(float(row["distance"]) for row in _distances_of("exponential", rule, nodes))
            for rule in (MOREAU, "uniform")
        )
        ratios += [far / near] if near > 0 else []
    return f"{min(ratios):.0f} to {max(ratios):.0f}"


@_named("horizon")
def _horizon(found: list[Ended]) -> str:
    """In how many sequences a statement breaks (`tests/theory_sweep.py`)."""
    kept = read("horizon")
    rows = [[row["statement"], row["broken with H"], row["broken with Delta B"]] for row in kept]
    first = f"{kept[0]['sequences']} sequences, {kept[0]['H > Delta B']} with H > Δ·B"
    return _table([first, "broken with H", "broken with the paper's Δ·B"], rows)


# --------------------------------------------------------------------------- bytes and time


@_named("bytes")
def _bytes(found: list[Ended]) -> str:
    """What a run pushed, and its accuracy for that."""
    rows = []
    for method in METHODS:
        cells = []
        for t in TOPOLOGIES:
            here = _of(found, method, topology=t)
            pushed, reached = spread(here, "gigabytes"), spread(here, "accuracy")
            if pushed is None or reached is None:
                cells.append("–")
            else:
                cells.append(f"{100 * reached[0]:.1f} % for {pushed[0]:.2f} GB")
        rows.append([method, *cells])
    return _table(["", *(t.capitalize() for t in TOPOLOGIES)], rows)


def _kept(file: str) -> Measured:
    return Measured.kept(RESULTS / f"{file}.csv")


def _ratio(found: Measured, one: str, other: str) -> str:
    """The median of the rounds' ratios, and their range."""
    lowest, middle, highest = found.ratio(one, other)
    return f"{middle:.2f} ({lowest:.2f} to {highest:.2f})"


@_named("wallclock")
def _wallclock(found: list[Ended]) -> str:
    measured, rows = _kept("wallclock"), []
    for method in measured.names:
        hours = PAPER_HOURS.get(method)
        rows.append(
            [
                "no exchange" if method == "alone" else method,
                f"{measured.typical(method, 'step'):.2f}",
                f"{1e-6 * measured.typical(method, 'bytes'):.0f}",
                _ratio(measured, method, "SGP"),
                f"{hours / PAPER_HOURS['SGP']:.1f}" if hours else "",
            ]
        )
    return _table(["method", "seconds per step", "MB sent", "/ SGP", "paper's hours / SGP's"], rows)


@_named("wallclock-pairs")
def _wallclock_pairs(found: list[Ended]) -> str:
    """Step times on links of two speeds; the slower were measured once."""
    pairs = (
        ("SGAP", "SGP"),
        ("MSGAP", "MSGP"),
        ("SGAP +", "SGP +"),
        ("MSGAP +", "MSGP +"),
        ("S-ADDOPT", "SGP"),
        ("SGP exponential", "DDP"),
        ("SGP exponential +", "DDP"),
    )
    fast, slow = _kept("wallclock"), _kept("wallclock-slow")
    rows = [
        [f"{one} / {other}", _ratio(fast, one, other), f"{slow.ratio(one, other)[1]:.2f}"]
        for one, other in pairs
    ]
    rows += [
        [f"{m} / bound", *(f"{kept.over_bound(m)[1]:.2f}" for kept in (fast, slow))]
        for m in fast.overlapped
    ]
    return _table(["step times", "1 Gbit/s", "0.25 Gbit/s"], rows)


@_named("decent-dp")
def _decent_dp(found: list[Ended]) -> str:
    measured, rows = _kept("decent-dp"), []
    for graph in ("ring", "complete"):
        theirs = f"{graph}: decent-dp"
        rows.append(
            [
                graph,
                f"{measured.typical(theirs, 'step'):.2f}",
                *(_ratio(measured, f"{graph}: pushsum{end}", theirs) for end in ("", " +")),
            ]
        )
    return _table(["graph", "decent-dp, s", "pushsum / decent-dp", "with overlap"], rows)


@_named("transfer")
def _transfer(found: list[Ended]) -> str:
    """Accuracy and what sending takes, if the vectors were as long as ResNet-18's."""
    rows = []
    for method in METHODS:
        some = _of(found, method)
        vectors = 2 if method == "S-ADDOPT" else 1
        sending = vectors * 32 * RESNET18 / 1e9 * max((r["steps"] for r in some), default=0)
        reached = [_percent(chosen(some, topology=t)) for t in TOPOLOGIES]
        rows.append([method, f"{sending / 60:.1f}" if some else "–", *reached])
    return _table(["", "minutes", *(t.capitalize() for t in TOPOLOGIES)], rows)


@_named("quickdraw")
def _quickdraw(found: list[Ended]) -> str:
    here = chosen(found, sweep="quickdraw", changed="data.name=quickdraw")
    names = list(dict.fromkeys((run.algorithm, run.weighting) for run in here))
    rows = []
    for algorithm, rule in names:
        some = [r for r in here if (r.algorithm, r.weighting) == (algorithm, rule)]
        rows.append([f"{algorithm}, {rule}", _percent(some)])
    return _table(["100 classes", "accuracy, %"], rows)


if __name__ == "__main__":
    main()
