"""The paper's Table 1 and the authors' curves, in our units, and how a run's set-up differs."""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from pushsum.methods import ADAPTIVE
from pushsum.names import flat
from pushsum.report.runs import HOW, Run, shown

_CELL = ("model.name", "data.name", "algorithm.name", "topology.name")
_NO_MATTER = (  # to what Table 1 shows; or compared in words of their own
    *HOW,
    *("seed", "topology.seed", "link.gigabits", "link.latency", "link.overlap"),
    *("link.uneven", "link.far"),
    *("split.alpha", "split.per_node", "split.minimum", "evaluation.recompute_batches"),
    *("steps", "algorithm.weighting", "model.pretrained", "model.width", "model.blocks"),
)
_ONLY_WITH = {  # key -> another key and the values of it with which the first has an effect
    "algorithm.momentum": ("algorithm.name", ("MSGP", "MSGAP")),
    "algorithm.schedule.milestones": ("algorithm.schedule.kind", ("steps",)),
    "algorithm.schedule.factor": ("algorithm.schedule.kind", ("steps",)),
    "split.clusters": ("split.kind", ("clusters",)),
    "split.shared": ("split.kind", ("clusters",)),
    "topology.inner": ("topology.name", ("random",)),
    "topology.inter": ("topology.name", ("random",)),
    "topology.period": ("topology.name", ("random",)),
    "published.per_receiver": ("topology.name", ("random",)),
    "evaluation.batch": ("evaluation.batchnorm", ("test-batch",)),
}


class Figure(NamedTuple):
    """One cell of Table 1: accuracy in percent, mean cross-entropy."""

    accuracy: float
    loss: float


def figure(run: Run) -> Figure | None:
    """What the paper reports for such a run, or None if it has no such cell."""
    whole = run.config.get("model.width") in (None, 64) and run.config.get("model.blocks") is None
    moreau = run.algorithm not in ADAPTIVE or run.weighting.startswith("moreau(")
    return table1().get(_cell(run.config)) if whole and moreau else None


def differences(run: Run) -> list[str]:
    """Every key in which this run differs from the published one, in words."""
    theirs = _published().get(_cell(run.config))
    if theirs is None:
        return []
    ours = {**_usual(), **run.config}
    found = []
    for key, value in theirs.items():
        other, values = _ONLY_WITH.get(key, (key, (ours.get(key),)))
        if key not in _NO_MATTER and ours.get(key) != value and ours.get(other) in values:
            found.append(f"{key} = {_word(ours.get(key))} (paper: {_word(value)})")
    if run.algorithm in ADAPTIVE and ours["algorithm.weighting"] != theirs["algorithm.weighting"]:
        found.append(f"{run.algorithm} with {run.weighting} (paper: k and v chosen per cell)")
    if ours["model.pretrained"] is None:
        found.append("model.pretrained = not set (paper: ImageNet weights)")
    planned, per_epoch = ours["steps"], run.meta.get("steps_per_epoch")
    if isinstance(planned, int) and isinstance(per_epoch, int):
        whole = theirs["epochs"] * per_epoch
        if planned < whole:
            found.append(f"steps = {planned} (paper: {whole})")
    return found


def curve(run: Run) -> Sequence[float]:
    """The authors' accuracies after 0, 1, ... epochs, if they are of such a run; else none.

    A run may be shorter than theirs, and have another seed.
    """
    shorter = ("epochs = ", "steps = ")
    known = figure(run) is not None and _cell(run.config)[:2] == ("resnet18", "cifar10")
    if not known or any(not text.startswith(shorter) for text in differences(run)):
        return ()
    return authors().get((run.algorithm, run.config["topology.name"]), ())


def _cell(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(config[key] for key in _CELL)


def _word(value: Any) -> str:
    if value is None:
        return "not set"
    return shown(value)


@cache
def authors() -> dict[tuple[str, str], tuple[float, ...]]:
    """Accuracies of ResNet-18 on CIFAR-10 after 0, 1, ... epochs, by (algorithm, topology).

    They were published with the authors' code.
    """
    text = files("pushsum.report").joinpath("authors.csv").read_text(encoding="utf-8")
    return {
        (row["algorithm"], row["topology"]): tuple(map(float, row["accuracies"].split()))
        for row in csv.DictReader(text.splitlines())
    }


@cache
def table1() -> dict[tuple[Any, ...], Figure]:
    """The whole table by (model, data, algorithm, topology)."""
    text = files("pushsum.report").joinpath("table1.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    # The unit of loss is 1e-3 of (mean cross-entropy / 100), as the authors' code computes it.
    return {
        _cell(row): Figure(float(row["accuracy_percent"]), float(row["loss_e-3"]) / 10)
        for row in rows
    }


@cache
def _published() -> dict[tuple[Any, ...], dict[str, Any]]:
    """The recipe, resolved: cell -> its flat configuration."""
    from pushsum import sweep  # torch: only when there is something to compare

    configs = (cell.config.model_dump(mode="json") for cell in sweep.read("table1-published"))
    resolved = [flat(config) for config in configs]
    return {_cell(config): config for config in resolved}


@cache
def _usual() -> dict[str, Any]:
    """What a key that a run does not mention stands for."""
    from pushsum.config import Config

    return flat(Config().model_dump(mode="json"))
