"""What the pages ask for by name: functions of the finished runs that return Markdown.

A module per page, with its names in `TEXTS`.
"""

from study.texts import (
    batchnorm,
    consensus,
    family,
    faults,
    finetuning,
    methods,
    plans,
    published,
    table1,
    time,
    weights,
)
from study.words import Text

TEXTS: dict[str, Text] = (
    table1.TEXTS
    | weights.TEXTS
    | batchnorm.TEXTS
    | published.TEXTS
    | consensus.TEXTS
    | family.TEXTS
    | time.TEXTS
    | finetuning.TEXTS
    | plans.TEXTS
    | faults.TEXTS
    | methods.TEXTS
)
