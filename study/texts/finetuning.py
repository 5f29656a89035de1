"""The paper's own experiment: ResNet-18 from ImageNet weights, beside the authors' curves."""

from collections.abc import Iterable
from statistics import fmean

from pushsum.report.paper import authors
from pushsum.report.paper import table1 as paper_table
from study.collect import read
from study.numbers import METHODS, TOPOLOGIES, Ended, difference
from study.words import TITLES, Text, percent, points, table

EPOCHS = ("1.0", "2.0", "3.0")
TABLE1 = ("finetune-table1", "finetune-seeds")
MOREAU, FAR_FIRST = "moreau(k=0.1, v=0.1)", "far-first(c=1, v=0.1)"
CONTROLS = {  #: row -> algorithm, weighting, step size, and whether BatchNorm is frozen
    "SGAP, lazy weights that give as much": ("SGAP", "lazy(c=0.088)", 0.01, False),
    "SGAP, far-first weights": ("SGAP", FAR_FIRST, 0.01, False),
    "SGP, a third of the step size": ("SGP", "uniform", 0.0033333333, False),
    "SGAP, a third of the step size": ("SGAP", MOREAU, 0.0033333333, False),
    "SGP, three times the step size": ("SGP", "uniform", 0.03, False),
    "SGAP, three times the step size": ("SGAP", MOREAU, 0.03, False),
    "SGP, frozen BatchNorm": ("SGP", "uniform", 0.01, True),
    "SGAP, frozen BatchNorm": ("SGAP", MOREAU, 0.01, True),
}


def of(found: Iterable[Ended], sweeps: Iterable[str], algorithm: str, topology: str) -> list[Ended]:
    """The runs of a method on a topology, in some sweeps."""
    return [
        run
        for run in found
        if run.sweep in sweeps and (run.algorithm, run.topology) == (algorithm, topology)
    ]


def curves(found: list[Ended], topology: str) -> str:
    """Accuracy after each epoch, seed 0, with the authors' in brackets: `finetuning:full`."""
    records = {(row["run"], row["epoch"]): row for row in read("curves")}
    rows = []
    for method in METHODS:
        theirs = authors().get((method, topology), ())
        here = [run for run in of(found, TABLE1, method, topology) if run.seed == 0]
        cell = []
        for epoch in EPOCHS:
            place = int(float(epoch))
            known = f" ({100 * theirs[place]:.1f})" if len(theirs) > place else ""
            row = records.get((here[0].values["run"], epoch)) if here else None
            cell.append((f"{100 * float(row['accuracy']):.2f}" if row else "–") + known)
        own = f"{100 * here[0]['''nodes' accuracy''']:.2f}" if here else "–"
        rows.append([method, *cell, own])
    headings = ["accuracy, %", *(f"epoch {e[0]}" for e in EPOCHS), "nodes' own, epoch 3"]
    return table(headings, rows)


def pairs(found: list[Ended]) -> str:
    """Adaptive weights against uniform ones, paired over seeds, after epoch 3."""
    rows = []
    for one, other in (("SGAP", "SGP"), ("MSGAP", "MSGP")):
        gaps = [
            points(difference(of(found, TABLE1, one, t), of(found, TABLE1, other, t), "accuracy"))
            for t in TOPOLOGIES
        ]
        rows.append([f"{one} − {other}", *gaps])
    return table(["points", *TITLES], rows)


def controls(found: list[Ended]) -> str:
    """The controls on Full: what they are, and exchanges that come less often."""
    groups = {}
    for name, wanted in CONTROLS.items():
        groups[name] = [
            run
            for run in found
            if run.sweep == "finetune-controls"
            and (run.algorithm, run.weighting, run["algorithm.lr"], "frozen" in run.changed)
            == wanted
        ]
    for H in (4, 12, 32):
        groups[f"SGP, an exchange every {H} steps"] = [
            run
            for run in found
            if run.sweep == "finetune-seldom" and f"algorithm.every={H}" in run.changed.split()
        ]
    return _beside_sgp(found, "full", groups)


def on_random(found: list[Ended]) -> str:
    """The controls on Random."""
    far = of(found, ["finetune-random"], "SGAP", "random")
    return _beside_sgp(found, "random", {"SGAP, far-first weights": far})


def _beside_sgp(found: list[Ended], topology: str, groups: dict[str, list[Ended]]) -> str:
    """The average, the nodes' own models, fresh statistics, and pairs with SGP of Table 1."""
    usual = {name: of(found, TABLE1, name, topology) for name in ("SGP", "SGAP")}
    uniform = {run.seed: run["accuracy"] for run in usual["SGP"]}
    rows = []
    for name, some in (usual | groups).items():
        gaps = [run["accuracy"] - uniform[run.seed] for run in some if run.seed in uniform]
        against = f"{100 * fmean(gaps):+.2f} ({len(gaps)})" if gaps and name != "SGP" else "–"
        traffic = f"{fmean(run['gigabytes'] for run in some):.0f}" if some else "–"
        columns = ("accuracy", "nodes' accuracy", "recomputed accuracy")
        rows.append([name, *(percent(some, column) for column in columns), against, traffic])
    headings = ["after epoch 3", "accuracy, %", "nodes' own", "recomputed"]
    return table([*headings, "− SGP (pairs)", "GB"], rows)


def to_the_end(found: list[Ended]) -> str:
    """SGP and SGAP on Full after 24 epochs, with the paper's figure in brackets."""
    rows = []
    for method in ("SGP", "SGAP"):
        here = of(found, ["finetune-end"], method, "full")
        theirs = paper_table()["resnet18", "cifar10", method, "full"].accuracy
        reached, own = (percent(here, column) for column in ("accuracy", "nodes' accuracy"))
        rows.append([method, f"{reached} ({theirs:.2f})", own])
    return table(["after 24 epochs", "accuracy, %", "nodes' own"], rows)


TEXTS: dict[str, Text] = {
    "finetuning": curves,
    "finetuning-pairs": pairs,
    "finetuning-controls": controls,
    "finetuning-random": on_random,
    "finetuning-end": to_the_end,
}
