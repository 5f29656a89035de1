"""`keep`: a sender knows at once what did not get through, and keeps it; and what is pulled.

The weight of a lost message moves to the sender's diagonal, so that columns still sum to 1. Late
messages are sums by receiver and time of arrival, (D + 1, n, d), never by edge; what waits for a
sleeping node is among them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pushsum.engines.arithmetic import BLOCK
from pushsum.engines.mixing import FEW_NODES, Graph, mixer

if TYPE_CHECKING:
    from pushsum.engines.failing.exchange import Failing

Spread = Callable[[Tensor], Tensor]  #: (n, k) -> (depth, n, k) float64


class Mail(NamedTuple):
    """What is under way: [k] arrives in k steps, [0] waits for a sleeping receiver."""

    a: Tensor  #: (D + 1, n) float64
    heard: Tensor  #: (D + 1, n) float64, how many messages
    push: tuple[Tensor, ...] = ()  #: (D + 1, n, d) each; none before the first exchange
    pull: tuple[Tensor, ...] = ()

    @property
    def under_way_a(self) -> float:
        return float(self.a.sum())

    @property
    def under_way_x(self) -> Tensor | float:
        """(d,) float64, or 0 before the first exchange; where x is pushed."""
        return self.push[0].sum((0, 1), dtype=torch.float64) if self.push else 0.0

    def changed(
        self, scalar: Callable[[Tensor], Tensor], vector: Callable[[int, Tensor], Tensor]
    ) -> "Mail":
        """See `Standing.changed`."""
        push = tuple(vector(k, value) for k, value in enumerate(self.push))
        return self._replace(a=scalar(self.a), push=push)

    def inherit(self, node: int, heir: int) -> None:
        """In place: what is under way to the one is under way to the other."""
        for part in (self.a, *self.push[:1]):
            part[:, heir] += part[:, node]

    def clear(self, node: int) -> None:
        """In place: nothing is under way to a node."""
        for part in (self.a, self.heard, *self.push, *self.pull):
            part[:, node] = 0


class Post:
    """One exchange: what is sent is added to what was under way, and some of it arrives."""

    def __init__(self, failing: "Failing") -> None:
        self.failing, self.before = failing, failing.standing.mail
        self.depth = failing.faults.depth
        self.rooms: dict[str, list[Tensor]] = {"a": [], "heard": [], "push": [], "pull": []}
        self._push: Spread | None = None
        self._pull: Spread | None = None

    def scalars(self, weights: Tensor, a: Tensor) -> Tensor:
        """(n,) what the nodes hold of a; the weights are those of what is given."""
        f = self.failing
        stays = torch.where(f.awake[f.graph.senders], weights, 0.0)
        self._push = self._spread(torch.where(f.loops, stays, torch.where(f.through, weights, 0.0)))
        return self._arrived(self._push(a[:, None]), "a", self.before.a[:, :, None])[:, 0]

    def vector(self, k: int, sent: Tensor, some: slice, kind: torch.dtype) -> Tensor:
        """(n, width) float64, what they hold of the k-th pushed value."""
        assert self._push is not None
        return self._of_columns("push", k, self._push(sent), some, kind)

    def mean(self, k: int, value: Tensor, sent: Tensor, some: slice) -> Tensor:
        """(n, width) float64, the mean of what they heard of the k-th pulled one, and their own."""
        if self._pull is None:
            self._pull = self._spread(self.failing.through.double())
            every = torch.ones(self.failing.graph.n, 1, dtype=torch.float64)
            before = self.before.heard[:, :, None]
            self._heard = self._arrived(self._pull(every), "heard", before)
        total = self._of_columns("pull", k, self._pull(sent), some, value.dtype)
        return (total + value.double()) / (self._heard.to(value.device) + 1)

    def finished(self) -> Mail:
        """What it leaves for the next exchange."""
        a, heard = (self.rooms[kind] for kind in ("a", "heard"))
        return Mail(
            a[0][..., 0] if a else self.before.a,
            heard[0][..., 0] if heard else self.before.heard,
            tuple(self.rooms["push"]),
            tuple(self.rooms["pull"]),
        )

    def _spread(self, weights: Tensor) -> Spread:
        f = self.failing
        return spread(f.graph, weights, torch.where(f.through, f.fate, 0), max(1, self.depth))

    def _of_columns(
        self, name: str, k: int, sums: Tensor, some: slice, kind: torch.dtype
    ) -> Tensor:
        held: tuple[Tensor, ...] = getattr(self.before, name)
        before = held[k][..., some] if len(held) > k else None
        rooms, d = self.rooms[name], self.failing.now.state.x.shape[1]
        if self.depth and len(rooms) <= k:
            rooms.append(sums.new_empty(*sums.shape[:2], d, dtype=kind))
        return self._arrived(sums, name, before, k, some)

    def _arrived(
        self, sums: Tensor, name: str, before: Tensor | None, k: int = 0, some: slice = slice(None)
    ) -> Tensor:
        """What arrives of (D + 1, n, width) sums; the rest stays under way, one step nearer."""
        if not self.depth:
            return sums[0]
        if before is not None:
            before = before.to(sums.device)
            sums[0] += before[0]
            sums[:-1] += before[1:]
        if len(self.rooms[name]) <= k:
            self.rooms[name].append(torch.empty_like(sums))
        room = self.rooms[name][k][..., some]
        room[0] = 0
        if not self.failing.everybody:
            awake = self.failing.awake.to(sums.device)[:, None]
            room[0] = torch.where(awake, 0.0, sums[0])
        room[1:] = sums[1:]
        return sums[0]


def spread(graph: Graph, weights: Tensor, slots: Tensor, depth: int) -> Spread:
    """value (n, k) -> (depth, n, k) float64, sums by receiver and time of arrival."""
    n = graph.n
    if depth == 1:
        mix = mixer(graph, weights)
        return lambda sent: mix(sent.double())[None]
    target = slots * n + graph.receivers
    if n <= FEW_NODES:
        W = torch.zeros(depth * n, n, dtype=torch.float64)
        W[target, graph.senders] = weights
        return lambda sent: torch.mm(W.to(sent.device), sent.double()).view(depth, n, -1)

    def add_up(sent: Tensor) -> Tensor:
        held = torch.zeros(depth * n, sent.shape[1], dtype=torch.float64, device=sent.device)
        for first in range(0, len(weights), BLOCK):
            some = slice(first, first + BLOCK)
            given = sent[graph.senders[some]].double().mul_(weights[some, None])
            held.index_add_(0, target[some], given)
        return held.view(depth, n, -1)

    return add_up
