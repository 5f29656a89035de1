"""Decentralized learning over directed, time-varying networks.

>>> import pushsum as ps
>>> ps.topology.exponential(6).certificate().horizon
3
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes as long to import as Python takes to start
if TYPE_CHECKING:
    from typing import Any

    from pushsum import (
        algorithms,
        data,
        faults,
        models,
        problems,
        protocol,
        theory,
        topology,
        weighting,
    )
    from pushsum.engines.distributed.node import PushSum
    from pushsum.engines.iterate import Iterate, iterate
    from pushsum.simulation import Simulation, simulate
    from pushsum.training.testing import trained

__version__ = "0.2.0"

__all__ = [
    "Iterate",
    "PushSum",
    "Simulation",
    "algorithms",
    "data",
    "faults",
    "iterate",
    "models",
    "problems",
    "protocol",
    "simulate",
    "theory",
    "topology",
    "trained",
    "weighting",
]

_HOME = {
    "Iterate": "pushsum.engines.iterate",
    "iterate": "pushsum.engines.iterate",
    "PushSum": "pushsum.engines.distributed.node",
    "Simulation": "pushsum.simulation",
    "simulate": "pushsum.simulation",
    "trained": "pushsum.training.testing",
}


def __getattr__(name: str) -> Any:
    """Import parts on first use: `import pushsum` alone must not wait for torch."""
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in __all__:
        return import_module(f"pushsum.{name}")
    raise AttributeError(f"module 'pushsum' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
