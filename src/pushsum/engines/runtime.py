"""Where the nodes of a run live: all in this process, or one per process.

A run asks six things of it: which nodes are here, an engine between all of them, one
place where something is done once, what all processes hold, agreement, and when to stop.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol, TypeVar

from torch import Tensor

from pushsum.engines.engine import Engine, Setup
from pushsum.engines.simulator import Network

Answer = TypeVar("Answer")


STOPPED = 130  #: the exit code of a run that a signal has stopped


class Abandoned(Exception):
    """Something that takes long was told to stop."""


class Stopped(Exception):
    """SIGINT or SIGTERM arrived; everything is saved."""


class Runtime(Protocol):
    """Where the nodes of a run live; a context manager, within which it listens for signals."""

    nodes: Sequence[int]  #: the nodes of this process, in order
    name: str  #: of the engine

    def __enter__(self) -> "Runtime": ...

    def __exit__(self, *problem: Any) -> None: ...

    def engine(self, setup: Setup) -> Engine:
        """What carries a run from step to step."""
        ...

    def on_leader(self, action: Callable[[], Answer]) -> Answer:
        """Done by one process for all; what it returns (or raises) reaches every one. As JSON."""
        ...

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]] | None:
        """What every process holds, in the order of the nodes, at the one that acts for all."""
        ...

    def all_gather(self, own: Sequence[int]) -> list[list[int]]:
        """What every process says, at every process."""
        ...

    def agree_to_start(self, t: int) -> bool:
        """Whether step t, computed, is to change anything; after a signal all processes agree."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether a signal has arrived."""
        ...


class OneProcess:
    """All nodes in this process, by the simulator.

    SIGINT and SIGTERM ask the run to stop at the next step; a second SIGINT stops at once. A second
    SIGTERM does not: a sweep passes on what its processes may have got themselves.
    """

    name = "simulator"

    def __init__(self, n: int) -> None:
        self.nodes: Sequence[int] = range(n)
        self.stopping = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "OneProcess":
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        except ValueError:  # not the main thread: the caller handles signals
            pass
        return self

    def __exit__(self, *problem: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stopping = True

    def engine(self, setup: Setup) -> Engine:
        return Network(setup)

    def on_leader(self, action: Callable[[], Answer]) -> Answer:
        return action()

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]] | None:
        return [dict(tensors)]

    def all_gather(self, own: Sequence[int]) -> list[list[int]]:
        return [list(own)]

    def agree_to_start(self, t: int) -> bool:
        return not self.stopping
