"""The simulator under a plan of faults: who is there, what gets through, and what is under way.

With `keep`, a sender knows at once what did not get through, and keeps it (`mail`). With `outbox`
every link has parcels, which are sent again until they are acknowledged (`parcels`). Nodes come and
go between exchanges (`roster`).
"""

from pushsum.engines.failing.exchange import Failing, Faults, check
from pushsum.engines.failing.standing import (
    Messages,
    Standing,
    UnderWay,
    optimizer_rows,
    restored,
    rows_of,
)

__all__ = [
    "Failing",
    "Faults",
    "Messages",
    "Standing",
    "UnderWay",
    "check",
    "optimizer_rows",
    "restored",
    "rows_of",
]
