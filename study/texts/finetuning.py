"""The paper's own experiment: ResNet-18 from ImageNet weights, beside the authors' curves."""

from collections.abc import Iterable
from statistics import fmean

from pushsum.report.paper import authors
from study.collect import read
from study.numbers import METHODS, TOPOLOGIES, Ended, difference
from study.words import TITLES, Text, percent, points, table

EPOCHS = ("1.0", "2.0", "3.0")
TABLE1 = ("finetune-table1", "finetune-seeds")
CONTROLS = {  #: row -> sweep, algorithm, weighting, and what `changed` holds
    "SGAP, lazy weights that give as much": ("SGAP", "lazy(c=0.088)", "", 0.01),
    "SGAP, far-first weights": ("SGAP", "far-first(c=1, v=0.1)", "", 0.01),
    "SGP, a third of the step size": ("SGP", "uniform", "", 0.0033333333),
    "SGAP, a third of the step size": ("SGAP", "moreau(k=0.1, v=0.1)", "", 0.0033333333),
    "SGP, three times the step size": ("SGP", "uniform", "", 0.03),
    "SGAP, three times the step size": ("SGAP", "moreau(k=0.1, v=0.1)", "", 0.03),
    "SGP, frozen BatchNorm": ("SGP", "uniform", "model.norm=frozen", 0.01),
    "SGAP, frozen BatchNorm": ("SGAP", "moreau(k=0.1, v=0.1)", "model.norm=frozen", 0.01),
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
    """The controls on Full: accuracy of the average, of the nodes, and with fresh statistics."""
    usual = {run.seed: run for run in of(found, TABLE1, "SGP", "full")}
    groups = {name: of(found, TABLE1, name, "full") for name in ("SGP", "SGAP")}
    for name, (algorithm, weighting, changed, lr) in CONTROLS.items():
        groups[name] = [
            run
            for run in of(found, ["finetune-controls"], algorithm, "full")
            if run.weighting == weighting
            and changed in run.changed
            and (changed or "frozen" not in run.changed)
            and abs(run["algorithm.lr"] - lr) < 1e-9
        ]
    groups |= {
        f"SGP, an exchange every {H} steps": [
            run
            for run in of(found, ["finetune-seldom"], "SGP", "full")
            if f"algorithm.every={H}" in run.changed.split()
        ]
        for H in (4, 12, 32)
    }
    rows = []
    for name, some in groups.items():
        gaps = [run["accuracy"] - usual[run.seed]["accuracy"] for run in some if run.seed in usual]
        against = f"{100 * fmean(gaps):+.2f} ({len(gaps)})" if gaps else "–"
        traffic = f"{fmean(run['gigabytes'] for run in some):.0f}" if some else "–"
        columns = ("accuracy", "nodes' accuracy", "recomputed accuracy")
        rows.append([name, *(percent(some, column) for column in columns), against, traffic])
    headings = ["on Full, after epoch 3", "accuracy, %", "nodes' own", "recomputed"]
    return table([*headings, "− SGP (pairs)", "GB"], rows)


TEXTS: dict[str, Text] = {
    "finetuning": curves,
    "finetuning-pairs": pairs,
    "finetuning-controls": controls,
}
