"""The paper's table, how sure the differences are, what to start from, what it cost."""

from collections.abc import Iterable
from itertools import combinations
from statistics import fmean

from pushsum.report.paper import authors as authors_curves
from pushsum.report.paper import table1 as paper_table
from study.numbers import METHODS, OTHERS, TOPOLOGIES, Ended, among, chosen, difference, of, spread
from study.words import TITLES, Text, percent, points, table

AUTHORS_LAST = "24"  #: they test before each epoch
PAIRS = (("SGAP", "SGP"), ("MSGAP", "MSGP"), ("MSGP", "SGP"), ("S-ADDOPT", "SGP"))


def paper(method: str, topology: str) -> float:
    """The paper's accuracy with ResNet-18 on CIFAR-10, in percent."""
    return paper_table()["resnet18", "cifar10", method, topology].accuracy


def results(found: list[Ended]) -> str:
    """Accuracies, with the paper's in brackets."""
    rows = [
        [m, *(f"{percent(of(found, m, topology=t))} ({paper(m, t):.2f})" for t in TOPOLOGIES)]
        for m in METHODS
    ]
    return table(["accuracy, %", *TITLES], rows)


def pairs(found: list[Ended]) -> str:
    """Differences of methods over the same seeds, with the paper's in brackets."""
    rows = []
    for one, other in PAIRS:
        gaps = [
            f"{gap(found, one, other, t)} ({paper(one, t) - paper(other, t):+.2f})"
            for t in TOPOLOGIES
        ]
        rows.append([f"{one} − {other}", *gaps, gap(found, one, other)])
    return table(["points", *TITLES, "all four"], rows)


def gap(found: list[Ended], one: str, other: str, topology: str = "") -> str:
    """Two methods on one topology, or on all that both have: `gap:SGAP:SGP:full`."""
    where = {"topology": topology} if topology else {}
    return points(difference(of(found, one, **where), of(found, other, **where), "accuracy"))


def order(found: list[Ended]) -> str:
    """How many pairs of methods stand in the paper's order, over the topologies."""
    agreed = both = 0
    for t in TOPOLOGIES:
        ours = {m: spread(of(found, m, topology=t), "accuracy") for m in METHODS}
        for one, other in combinations(METHODS, 2):
            a, b = ours[one], ours[other]
            if a is not None and b is not None:
                both += 1
                agreed += (a[0] > b[0]) == (paper(one, t) > paper(other, t))
    return f"{agreed} of {both}"


def clear(found: list[Ended]) -> str:
    """How many of these differences are larger than the noise, and have the paper's sign."""
    gaps = [
        (difference(of(found, a, topology=t), of(found, b, topology=t), "accuracy"), a, b, t)
        for t in TOPOLOGIES
        for a, b in combinations(METHODS, 2)
    ]
    sure = [(g, paper(a, t) > paper(b, t)) for g, a, b, t in gaps if g is not None and g.clear]
    agreed = sum((g.mean > 0) == theirs for g, theirs in sure)
    return f"{len(sure)} are larger than the noise, and {agreed} of these in the paper's order"


def authors(found: list[Ended]) -> str:
    """Differences in the runs that the authors published, by the epochs trained."""
    rows = []
    for one, other in PAIRS[:2]:
        for epochs in ("1", "2", AUTHORS_LAST):
            ours, theirs = _authors(one, epochs), _authors(other, epochs)
            gaps = (f"{100 * (ours[t] - theirs[t]):+.2f}" for t in TOPOLOGIES)
            rows.append(
                [f"{one} − {other}, {epochs} epochs".replace(" 1 epochs", " 1 epoch"), *gaps]
            )
    return table(["points, the authors' runs", *TITLES], rows)


def authors_level(found: list[Ended]) -> str:
    """Between which accuracies all of the authors' runs are, early and at the end."""
    early, late = (
        [100 * x for m in METHODS for x in _authors(m, epochs).values()]
        for epochs in ("1", AUTHORS_LAST)
    )
    return (
        f"{min(early):.0f} to {max(early):.0f} % after one epoch, "
        f"{min(late):.0f} to {max(late):.0f} % after {AUTHORS_LAST}"
    )


def _authors(method: str, epochs: str) -> dict[str, float]:
    """Topology -> accuracy."""
    return {
        topology: accuracies[int(epochs)]
        for (name, topology), accuracies in authors_curves().items()
        if name == method
    }


def start(found: list[Ended]) -> str:
    """What was tried where nodes cannot average exactly, the best first."""
    where = ("divide", "exponential", "random")
    paper = [run for run in of(found, "MSGAP") if run.topology in where]
    rows = []
    for method in METHODS | OTHERS:
        here = [run for run in of(found, method) if run.topology in where]
        cells = [chosen(here, topology=t) for t in where]
        if all(cells):
            mean = fmean(fmean(run["accuracy"] for run in cell) for cell in cells)
            worst = min(run["accuracy"] for run in here)
            more = points(difference(here, paper, "accuracy")) if method != "MSGAP" else ""
            shown = [f"{100 * mean:.2f}", *map(percent, cells), f"{100 * worst:.2f}", more]
            rows.append((mean, [method, *shown]))
    headings = ["mean", *(t.capitalize() for t in where), "worst run", "− MSGAP"]
    return table(["accuracy, %", *headings], [row for _, row in sorted(rows, reverse=True)])


def hundred_classes(found: list[Ended]) -> str:
    """Quick Draw: accuracies, and differences over the same seeds."""
    pairs = (*PAIRS, ("MSGAP, far-first", "MSGP"), ("MSGAP, far-first", "MSGAP"))
    methods = (*METHODS, "MSGAP, far-first")
    return _two_graphs(found, "quickdraw", methods, pairs, changed="data.name=quickdraw")


def fresh(found: list[Ended]) -> str:
    """With seeds that had no part in finding far-first weights."""
    methods = ("MSGAP, far-first", "MSGAP, scale-free", "MSGAP", "MSGP")
    return _two_graphs(found, "fresh", methods, combinations(methods, 2))


def fresh_gap(found: list[Ended], one: str, other: str, topology: str) -> str:
    """Two methods with these seeds: `fresh-gap:MSGAP, far-first:MSGP:divide`."""
    here, there = (of(found, method, "fresh", topology=topology) for method in (one, other))
    return points(difference(here, there, "accuracy"))


def _two_graphs(
    found: list[Ended],
    sweep: str,
    methods: Iterable[str],
    pairs: Iterable[tuple[str, str]],
    changed: str = "",
) -> str:
    """Accuracies on Divide and Random, where weights matter most, and their differences."""
    where = ("divide", "random")
    runs = {
        (m, t): of(found, m, sweep, topology=t, changed=changed) for m in methods for t in where
    }
    rows = [[m, *(percent(runs[m, t]) for t in where)] for m in methods]
    for one, other in pairs:
        gaps = (difference(runs[one, t], runs[other, t], "accuracy") for t in where)
        rows.append([f"{one} − {other}", *map(points, gaps)])
    return table(["accuracy, %", *(t.capitalize() for t in where)], rows)


def cost(found: list[Ended]) -> str:
    """Runs and hours of one core: as recorded, and if each took what the fastest of its kind did.

    Runs of a kind differ in nothing but the seed; others' work on the machine is in the first.
    """
    rows = []
    sweeps = dict.fromkeys(run.sweep for run in found)
    for name, some in [(n, [r for r in found if r.sweep == n]) for n in sweeps] + [("all", found)]:
        kinds: dict[tuple[str | float, ...], list[float]] = {}
        for run in some:
            kind = (run.sweep, *_cell(run)[:3], run.momentum, run.changed)
            kinds.setdefault(kind, []).append(run["seconds"])
        recorded = sum(run["seconds"] for run in some) / 3600
        least = sum(len(seconds) * min(seconds) for seconds in kinds.values()) / 3600
        rows.append([name, str(len(some)), f"{recorded:.1f}", f"{least:.1f}"])
    return table(["sweep", "runs", "hours of one core", "undisturbed"], rows)


def again(found: list[Ended]) -> str:
    """Of the repeated runs, how many ended in the same accuracy, loss and distance."""
    compared = ("accuracy", "loss", "distance", "mean square")
    first = {_cell(run): run for run in among(found, "table1", "far-first")}
    second = chosen(found, sweep="again")
    same = [all(run[c] == first[_cell(run)][c] for c in compared) for run in second]
    return f"{sum(same)} of {len(same)}"


def _cell(run: Ended) -> tuple[str, str, str, int]:
    """What tells the runs of Table 1 apart."""
    return run.algorithm, run.weighting, run.topology, run.seed


def parameters(found: list[Ended]) -> str:
    """Of the network that was trained."""
    return f"{int(of(found, 'SGP')[0]['parameters']):,}"


TEXTS: dict[str, Text] = {
    "table1": results,
    "pairs": pairs,
    "gap": gap,
    "order": order,
    "clear": clear,
    "authors": authors,
    "authors-level": authors_level,
    "start": start,
    "quickdraw": hundred_classes,
    "fresh": fresh,
    "fresh-gap": fresh_gap,
    "cost": cost,
    "again": again,
    "parameters": parameters,
}
