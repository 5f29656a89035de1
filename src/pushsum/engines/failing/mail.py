"""`keep`: a sender knows at once what did not get through, and keeps it; and what is pulled.

The weight of a lost message moves to the sender's diagonal, so that columns still sum to 1. Late
messages are sums by receiver and time of arrival, (D + 1, n, d), never by edge; what waits for a
sleeping node is among them.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pushsum.engines.arithmetic import BLOCK
from pushsum.engines.failing.links import Links
from pushsum.engines.mixing import FEW_NODES, Graph, mixer

#: (n, k) values, (D + 1, n, k) under way before -> (D + 1, n, k) float64, for as long as no other
#: sums are asked for
Spread = Callable[[Tensor, Tensor | None], Tensor]


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

    def __init__(self, links: Links, before: Mail, depth: int, d: int, room: "Room") -> None:
        self.links, self.before, self.depth, self.d, self.room = links, before, depth, d, room
        self.rooms: dict[str, list[Tensor]] = {"a": [], "heard": [], "push": [], "pull": []}
        self._push: Spread | None = None
        self._pull: Spread | None = None

    def scalars(self, weights: Tensor, a: Tensor) -> Tensor:
        """(n,) what the nodes hold of a; the weights are those of what is given."""
        f = self.links
        given = torch.where(f.through, weights, 0.0)
        given[f.graph.loops] = torch.where(f.awake, weights[f.graph.loops], 0.0)
        self._push = self._spread(given)
        return self._of_scalars(self._push, "a", a)

    def vector(self, k: int, sent: Tensor, some: slice, kind: torch.dtype) -> Tensor:
        """(n, width) float64, what they hold of the k-th pushed value."""
        assert self._push is not None
        return self._of_columns(self._push, "push", k, sent, some, kind)

    def mean(self, k: int, sent: Tensor, some: slice, kind: torch.dtype) -> Tensor:
        """(n, width) float64, the mean of what they heard of the k-th pulled one, and their own."""
        if self._pull is None:
            self._pull = self._spread(self.links.through.double())
            every = torch.ones(self.links.graph.n, dtype=torch.float64)
            self._heard = self._of_scalars(self._pull, "heard", every)
        total = self._of_columns(self._pull, "pull", k, sent, some, kind)
        return (total + sent.double()) / (self._heard.to(sent.device)[:, None] + 1)

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
        f = self.links
        slots = torch.where(f.through, f.fate, 0)
        return spread(f.graph, weights, slots, max(1, self.depth), self.room)

    def _of_scalars(self, spread: Spread, name: str, sent: Tensor) -> Tensor:
        before = getattr(self.before, name)[..., None] if self.depth else None
        sums = spread(sent[:, None], before)
        if self.depth:
            self.rooms[name].append(torch.empty_like(sums))
            self._leave(sums, self.rooms[name][0])
        return sums[0, :, 0].clone()

    def _of_columns(
        self, spread: Spread, name: str, k: int, sent: Tensor, some: slice, kind: torch.dtype
    ) -> Tensor:
        held, rooms = getattr(self.before, name), self.rooms[name]
        sums = spread(sent, held[k][..., some] if len(held) > k else None)
        if self.depth:
            if len(rooms) <= k:
                rooms.append(sums.new_empty(*sums.shape[:2], self.d, dtype=kind))
            self._leave(sums, rooms[k][..., some])
        return sums[0]

    def _leave(self, sums: Tensor, room: Tensor) -> None:
        """Of (D + 1, n, width) sums the first arrive, if their receivers are awake."""
        room[1:] = sums[1:]
        room[0] = 0
        if not self.links.everybody:
            awake = self.links.awake.to(sums.device)[:, None]
            room[0] = torch.where(awake, 0.0, sums[0])


class Room:
    """Memory for sums, used again in every exchange: a new array costs more than the sums in it."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.float64)

    def empty(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """(rows, columns) float64, until the next call."""
        if self.memory.numel() < rows * columns or self.memory.device != device:
            self.memory = torch.empty(rows * columns, dtype=torch.float64, device=device)
        return self.memory[: rows * columns].view(rows, columns)


def spread(graph: Graph, weights: Tensor, slots: Tensor, depth: int, room: Room) -> Spread:
    """What is given is added, by receiver and time of arrival, to what was under way before."""
    n = graph.n

    def of_few(sent: Tensor, before: Tensor | None) -> Tensor:
        sums = mix(sent.double()).view(depth, n, -1)
        if before is not None:
            before = before.to(sent.device)
            sums[0] += before[0]
            sums[:-1] += before[1:]
        return sums

    def by_edge(sent: Tensor, before: Tensor | None) -> Tensor:
        held = room.empty(depth * n, sent.shape[1], sent.device)
        sums = held.view(depth, n, -1)
        sums[-1] = 0
        if before is None:
            sums[:-1] = 0
        else:
            before = before.to(sent.device)
            sums[:-1] = before[1:]
            sums[0] += before[0]
        sums[0].addcmul_(sent.double(), own)
        for first in range(0, len(given), BLOCK):
            some = slice(first, first + BLOCK)
            shares = sent.index_select(0, senders[some]).double().mul_(given[some])
            held.index_add_(0, target[some], shares)
        return sums

    if n <= FEW_NODES:
        mix: Callable[[Tensor], Tensor] = mixer(graph, weights)
        if depth > 1:
            W = torch.zeros(depth * n, n, dtype=torch.float64)
            W[slots * n + graph.receivers, graph.senders] = weights
            mix = lambda sent: torch.mm(W.to(sent.device), sent)
        return of_few
    places, senders, receivers = graph.messages
    own, given = weights[graph.loops, None], weights[places, None]
    target = slots[places] * n + receivers
    return by_edge
