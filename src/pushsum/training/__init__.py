"""Running an experiment: one stream of records; stops and goes on bit for bit.

A run directory holds `config.yaml` (resolved), `meta.json`, `records.jsonl` and `checkpoints/`.
"""

from pushsum.engines.runtime import Stopped
from pushsum.training.loop import Progress, in_memory, measured, run
from pushsum.training.memory import arrays, planned
from pushsum.training.records import Diverged, last_record
from pushsum.training.saving import newest, resuming
from pushsum.training.testing import Tested, own_copy, present, tested, trained

__all__ = [
    "Diverged",
    "Progress",
    "Stopped",
    "Tested",
    "arrays",
    "in_memory",
    "last_record",
    "measured",
    "newest",
    "own_copy",
    "planned",
    "present",
    "resuming",
    "run",
    "tested",
    "trained",
]
