"""Published or corrected: one switch at a time."""

from collections.abc import Iterable
from dataclasses import replace

from study.collect import read
from study.numbers import Difference, Ended, among, difference, of
from study.words import Text, percent, points, table

Row = tuple[str, list[Ended], Difference | None]

STEPS = "algorithm.schedule.kind=steps"
SWITCHES = {  #: what a run says that it changed -> in words
    "published.same_batches=True": "all nodes of a cluster see the same batches",
    "published.per_receiver=True": "Random draws one number per receiver",
    "model.fresh_last_layer=True": "the last layer starts differently at every node",
    "model.stem=imagenet": "the ImageNet stem (7 x 7, stride 2, and pooling)",
    "data.augment=True": "with augmentation (the published runs had none)",
    "algorithm.schedule.kind=constant": "a constant step size, as the paper has it",
    STEPS: "step size / 10 for the second half",
    f"{STEPS} published.restart=True": "*from that row:* all starts anew there",
    f"{STEPS} published.average_of_y=True": "*from that row:* the average of y is tested",
    "published.average_of_y=True": "the average of y is tested, not that of x",
}
POLICIES = {  #: a column of the base's own runs -> in words
    "test-batch accuracy": "tested with the statistics of the test batch",
    "averaged accuracy": "tested with averaged statistics",
}


def switches(found: list[Ended]) -> str:
    """MSGAP on Random, changed and not changed."""
    rows = [
        [meaning, percent(here), points(gap)]
        for meaning, here, gap in _compared(found, SWITCHES) + _tested(found)
    ]
    base = percent(of(found, "MSGAP", topology="random"))
    return table([f"changed (else: {base} %)", "accuracy, %", "points"], rows)


def clear(found: list[Ended]) -> str:
    """How many of the changes of training leave 0 outside their intervals."""
    trained = [changed for changed in SWITCHES if "average_of_y" not in changed]
    gaps = [gap for _, _, gap in _compared(found, trained)]
    return f"{sum(gap is not None and gap.clear for gap in gaps)} of {len(gaps)}"


def halfway(found: list[Ended]) -> str:
    """What the base had reached before its last epoch, less where it ended."""
    base = of(found, "MSGAP", topology="random")
    at_half = {
        row["run"]: row["accuracy"] for row in read("curves") if round(float(row["epoch"]), 1) == 1
    }
    half = [replace(r, values=r.values | {"accuracy": at_half[r.values["run"]]}) for r in base]
    return points(difference(half, base, "accuracy"))


def _compared(found: list[Ended], switched: Iterable[str]) -> list[Row]:
    """Each switch against the runs that differ in it alone."""
    base = of(found, "MSGAP", topology="random")
    rows = []
    for changed in switched:
        here = among(found, "published", changed=changed)
        before = among(found, "published", changed=STEPS) if f"{STEPS} " in changed else base
        rows.append((SWITCHES[changed], here, difference(here, before, "accuracy")))
    return rows


def _tested(found: list[Ended]) -> list[Row]:
    """The base, tested in other ways."""
    base = of(found, "MSGAP", topology="random")
    rows = []
    for column, meaning in POLICIES.items():
        here = [replace(r, values=r.values | {"accuracy": r.values[column]}) for r in base]
        rows.append((meaning, here, difference(here, base, "accuracy")))
    return rows


TEXTS: dict[str, Text] = {"switches": switches, "switches-clear": clear, "halfway": halfway}
