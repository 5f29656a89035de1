"""What happens to messages and nodes, each rule by itself: functions of a key, the step and who.

A rule of links has `fates`, one of who sleeps `asleep`, one of who is away `status`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pushsum.faults.values import Values, Window

LOST = -1  #: the fate of a message that never arrives; others are how many steps it is late

#: What a node is at a step; the largest of several plans counts.
HERE, PAUSED, CRASHED, LEFT = 0, 1, 2, 3


class LinkRule(Protocol):
    """What happens to messages."""

    @property
    def longest(self) -> int:
        """The largest delay that can occur."""
        ...

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        """(E,) int64: `LOST`, or by how many steps each is late; `acks`: acknowledgements."""
        ...


@dataclass(frozen=True)
class Loss:
    """Every message is lost with a probability; in bursts, with the others of so many steps."""

    key: int
    probability: Values
    burst: int = 1
    longest: int = 0

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        drawn = chances(self.key, 2 * ((t - 1) // self.burst) + acks, senders, receivers)
        return torch.where(drawn < self.probability.of_edges(senders, receivers), LOST, 0)


@dataclass(frozen=True)
class Delay:
    """Every message takes 0 .. D steps more, by chance."""

    key: int
    most: Values

    @property
    def longest(self) -> int:
        return int(self.most.largest)

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        drawn = chances(self.key, 2 * t + acks, senders, receivers)
        return (drawn * (self.most.of_edges(senders, receivers) + 1)).long()


@dataclass(frozen=True)
class Partition:
    """Some nodes are cut off from the others for a while: nothing crosses."""

    windows: tuple[Window, ...]
    longest: int = 0

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        cut = torch.zeros(len(senders), dtype=torch.bool)
        for window in self.windows:
            if window.holds(t):
                nodes = torch.tensor(window.nodes)
                cut |= torch.isin(senders, nodes) ^ torch.isin(receivers, nodes)
        return torch.where(cut, LOST, 0)


@dataclass(frozen=True)
class Own:
    """A user's function."""

    function: Callable[[int, Tensor, Tensor], Any]
    longest: int

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        found = self.function(t, senders, receivers)
        try:
            given = torch.as_tensor(found)
            fates = given.long()
        except (TypeError, ValueError, RuntimeError):
            given = fates = torch.empty(0)
        numbers = given.shape == senders.shape and given.dtype != torch.bool
        if not numbers or not bool((given == fates).all()):
            raise ValueError(
                f"faults at step {t}: the function returned {found!r} for {len(senders)} messages: "
                "one whole number for each, -1 (lost) or its delay"
            )
        if len(fates) and not LOST <= int(fates.min()) <= int(fates.max()) <= self.longest:
            raise ValueError(
                f"faults at step {t}: the function returned {int(fates.min())} .. "
                f"{int(fates.max())}: -1 is lost, 0 .. {self.longest} a delay (raise longest)"
            )
        return fates


@dataclass(frozen=True)
class Listed:
    """Messages by the step at which they were sent, with their fates; the others arrive."""

    messages: tuple[tuple[int, int, int, int], ...]  #: step, sender, receiver, fate

    @property
    def longest(self) -> int:
        return max((fate for *_, fate in self.messages), default=0)

    @cached_property
    def _by_step(self) -> dict[int, dict[tuple[int, int], int]]:
        found: dict[int, dict[tuple[int, int], int]] = {}
        for t, i, j, fate in self.messages:
            found.setdefault(t, {})[i, j] = fate
        return found

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        here = {} if acks else self._by_step.get(t, {})
        if not here:
            return torch.zeros_like(senders)
        pairs = zip(senders.tolist(), receivers.tolist(), strict=True)
        return torch.tensor([here.get(pair, 0) for pair in pairs])


class NodeRule(Protocol):
    """Which nodes sleep: they neither compute nor send, and what is sent to them waits."""

    def asleep(self, t: int, n: int) -> Tensor:
        """(n,) bool."""
        ...


@dataclass(frozen=True)
class Sleep:
    """Every node sleeps through a step with a probability."""

    key: int
    probability: Values

    def asleep(self, t: int, n: int) -> Tensor:
        nodes = torch.arange(n)
        return chances(self.key, t, nodes, nodes) < self.probability.of_nodes(nodes)


@dataclass(frozen=True)
class Naps:
    """Some nodes sleep for a while."""

    windows: tuple[Window, ...]

    def asleep(self, t: int, n: int) -> Tensor:
        return _inside(self.windows, t, n)


@dataclass(frozen=True)
class Stragglers:
    """Nodes that are k times slower: their clock fires in every k-th step."""

    slower: Values

    def asleep(self, t: int, n: int) -> Tensor:
        k = self.slower.of_nodes(torch.arange(n))
        return (t / k).floor() == ((t - 1) / k).floor()


class RosterRule(Protocol):
    """Which nodes are away."""

    def status(self, t: int, n: int) -> Tensor:
        """(n,) int64: `HERE`, `PAUSED`, `CRASHED` or `LEFT`."""
        ...


@dataclass(frozen=True)
class Away:
    """Some nodes are away for a while."""

    windows: tuple[Window, ...]
    how: int

    def status(self, t: int, n: int) -> Tensor:
        return torch.where(_inside(self.windows, t, n), self.how, HERE)


def _inside(windows: tuple[Window, ...], t: int, n: int) -> Tensor:
    found = torch.zeros(n, dtype=torch.bool)
    for window in windows:
        if window.holds(t):
            found[list(window.nodes)] = True
    return found


@dataclass(frozen=True)
class Churn:
    """Every node is away once in `every` steps, for `down` of them, at a time of its own."""

    key: int
    every: int
    down: int
    how: int

    def status(self, t: int, n: int) -> Tensor:
        nodes = torch.arange(n)
        shifted = t + (chances(self.key, 0, nodes, nodes) * self.every).long()
        number, place = shifted // self.every, shifted % self.every
        begins = (chances(self.key, 1, nodes, number) * (self.every - self.down + 1)).long()
        away = (begins <= place) & (place < begins + self.down)
        away &= number > (shifted - t + 1) // self.every  # nobody is away at the start
        return torch.where(away, self.how, HERE)


# --------------------------------------------------------------------------- chance

_MIX1, _MIX2, _STEP = (
    np.uint64(c) for c in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15)
)


def chances(named: int, t: int, i: Tensor, j: Tensor) -> Tensor:
    """(E,) float64 uniform in [0, 1), a function of (key, t, i, j): splitmix64 of a counter.

    >>> one, again = (chances(7, 1, torch.arange(3), torch.arange(3)) for _ in range(2))
    >>> torch.equal(one, again)
    True
    """
    with np.errstate(over="ignore"):
        at = _mixed(np.array([named], dtype=np.uint64) + np.uint64(t) * _STEP)
        counter = i.numpy().astype(np.uint64) << np.uint64(32)
        counter |= j.numpy().astype(np.uint64)
        counter *= _STEP
        counter += at
        drawn = _mixed(counter)
    drawn >>= np.uint64(11)
    return torch.from_numpy(drawn.astype(np.float64)).mul_(2.0**-53)


def _mixed(z: np.ndarray) -> np.ndarray:
    z ^= z >> np.uint64(30)
    z *= _MIX1
    z ^= z >> np.uint64(27)
    z *= _MIX2
    z ^= z >> np.uint64(31)
    return z
