"""BatchNorm or the optimizer: three ways to test, GroupNorm, and the ceiling."""

from statistics import fmean

from study.numbers import METHODS, TOPOLOGIES, Ended, among, difference, of
from study.words import Text, percent, points, table

POLICIES = ("averaged accuracy", "recomputed accuracy", "test-batch accuracy")  #: columns
ALL_LABELS, GROUP = "split.kind=iid", "model.norm=group"  #: what a run says that it changed


def policies(found: list[Ended]) -> str:
    """Every method as it was tested, and trained again with GroupNorm."""
    rows = []
    for t in TOPOLOGIES:
        for method in METHODS:
            here = of(found, method, topology=t)
            normed = of(found, method, "groupnorm", topology=t, changed=GROUP)
            rows.append([f"{method}, {t.capitalize()}", *_tested(here), percent(normed)])
    for name, momentum, split in (
        ("centralized SGD", 0.0, ""),
        ("centralized momentum SGD", 0.8, ""),
        ("centralized SGD, all labels everywhere", 0.0, ALL_LABELS),
    ):
        here = centralized(found, momentum, split)
        normed = centralized(found, momentum, split, GROUP)
        rows.append([name, *_tested(here), percent(normed)])
    return table(["accuracy, %", "averaged", "recomputed", "test batch", "GroupNorm"], rows)


def all_labels(found: list[Ended], norm: str = "") -> str:
    """What centralized SGD gains where every node has all labels: `all-labels:group`."""
    changed = GROUP if norm == "group" else ""
    half, every = (centralized(found, 0.0, split, changed) for split in ("", ALL_LABELS))
    return points(difference(every, half, "accuracy"))


def centralized(found: list[Ended], momentum: float, *switches: str) -> list[Ended]:
    """The runs of centralized SGD; switches in the order of `collect.USUAL`."""
    changed = " ".join(filter(None, switches))
    return among(found, "centralized", "iid", momentum=momentum, changed=changed)


def _tested(some: list[Ended]) -> list[str]:
    return [percent(some, column) for column in POLICIES]


def widest(found: list[Ended]) -> str:
    """The largest difference that the test policy makes, to a mean of Table 1 and to a run."""
    cells = [of(found, m, topology=t) for m in METHODS for t in TOPOLOGIES]
    means = [[fmean(run[c] for run in cell) for c in POLICIES] for cell in cells if cell]
    runs = [[run[c] for c in POLICIES] for cell in cells for run in cell]
    mean, single = (100 * max(max(some) - min(some) for some in every) for every in (means, runs))
    return f"{mean:.1f} points in a mean over seeds, {single:.1f} in a single run"


def group(found: list[Ended], one: str, other: str, topology: str) -> str:
    """Two methods with GroupNorm: `group:SGAP:SGP:full`."""
    here, there = (
        of(found, method, "groupnorm", topology=topology, changed=GROUP) for method in (one, other)
    )
    return points(difference(here, there, "accuracy"))


TEXTS: dict[str, Text] = {
    "batchnorm": policies,
    "policies": widest,
    "all-labels": all_labels,
    "group": group,
}
