"""Published or corrected: one switch at a time."""

from dataclasses import replace

from study.numbers import Ended, difference, of
from study.words import Text, percent, points, table

SWITCHES = {  #: what a run says that it changed -> in words
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


def switches(found: list[Ended]) -> str:
    """MSGAP on Random, changed and not changed."""
    base = of(found, "MSGAP", topology="random")
    rows = []
    for changed, meaning in SWITCHES.items():
        here = [r for r in found if r.sweep == "published" and r.changed == changed]
        rows.append([meaning, percent(here), points(difference(here, base, "accuracy"))])
    for policy, meaning in (
        ("test-batch", "tested with the statistics of the test batch"),
        ("averaged", "tested with averaged statistics"),
    ):
        here = [_as_tested(run, f"{policy} accuracy") for run in base]
        rows.append([meaning, percent(here), points(difference(here, base, "accuracy"))])
    return table([f"changed (else: {percent(base)} %)", "accuracy, %", "points"], rows)


def _as_tested(run: Ended, column: str) -> Ended:
    return replace(run, values=run.values | {"accuracy": run.values[column]})


TEXTS: dict[str, Text] = {"switches": switches}
