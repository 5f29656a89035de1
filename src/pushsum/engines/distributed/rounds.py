"""One exchange under way: buckets leave as they become ready, and arrive from last to first.

Sums are in the order of the senders, as the simulator's: in float64 both agree bit for bit. Only
where everybody gives the same to everybody nodes exchange by all-reduce, which sends less; it adds
up in an order of its own.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pushsum.engines.arithmetic import float32_rounds_once
from pushsum.engines.distributed.buffers import Buffers, Heard, Memory
from pushsum.engines.distributed.messages import SUM, Mail
from pushsum.engines.distributed.peers import PeerLost
from pushsum.engines.engine import refuse_tiny
from pushsum.protocol import Got, Sent, State

if TYPE_CHECKING:
    from pushsum.engines.distributed.exchange import Exchange

MOST = 64  #: vectors that a method may send
PIECE = 2**16  #: elements of a vector that stay in a core's cache while they are added up


class SumRound:
    """Everybody gives the same to everybody: sums over all nodes, divided by their number.

    Its methods are those of `MessageRound`.
    """

    def __init__(
        self,
        exchange: "Exchange",
        t: int,
        number: int,
        state: State,
        memory: Memory | None,
        in_place: bool,
    ) -> None:
        self.t, self.n, self.memory = t, exchange.peers.n, memory
        self.mail = Mail(exchange.peers, t, exchange.ledger)
        self.tag = _tags(exchange.buckets(state.x.shape[1]))
        self.weights = exchange.weights(number, memory)
        self.in_place = in_place
        self._head = _head(state, t, float(state.a))
        self._sums: dict[int, tuple[Sent, dict[int, Tensor]]] = {}

    def send(self, bucket: slice, sent: Sent) -> None:
        if self.mail.unused:
            self.mail.post_sum(0, self._head)
        values = enumerate((*sent.push, *sent.pull))
        sums = {
            self.tag(bucket, place): value[0] if self.in_place else value[0].clone()
            for place, value in values
        }
        self._sums[bucket.start] = sent, sums
        for tag, value in sums.items():
            self.mail.post_sum(tag, value)

    def arrive(self, bucket: slice) -> Got:
        sent, sums = self._sums.pop(bucket.start)
        for tag in sums:
            self.mail.wait(SUM, tag)
        kept = torch.tensor([1 / self.n], dtype=torch.float64)
        return _got(self.a, sent, [value.div_(self.n)[None] for value in sums.values()], kept)

    @cached_property
    def a(self) -> Tensor:
        self.mail.wait(SUM, 0)
        steps, total = self._head.tolist()
        if steps != self.t * self.n:
            raise PeerLost(
                f"this node is at step {self.t}, others are not: all must take the same steps"
            )
        return torch.tensor([total / self.n], dtype=torch.float64)

    def finish(self) -> Memory | None:
        return self.memory


class MessageRound:
    """Messages along the edges of a graph: a and w travel in front of x.

    Args:
        exchange: between whom.
        t: the step.
        number: which exchange that is.
        state: what this node holds before it.
        memory: what the exchange before left.
        last: whether the memory's tensors may be written over.
        in_place: whether what arrives is written over what was sent.
    """

    def __init__(
        self,
        exchange: "Exchange",
        t: int,
        number: int,
        state: State,
        memory: Memory | None,
        last: bool,
        in_place: bool,
    ) -> None:
        self.in_place = in_place
        self.t, self.number, self.ledger = t, number, exchange.ledger
        self.node, self.own_a = exchange.peers.rank, state.a
        self.dtype = state.x.dtype
        self.wire = exchange.setup.wire or self.dtype
        self.mail = Mail(exchange.peers, t, exchange.ledger)
        self.tag = _tags(exchange.buckets(state.x.shape[1]))
        self.pushes, pulls, _ = exchange.vectors(state.x.shape[1])
        self.compared = self.pushes if pulls else 0  #: the place of x among the vectors
        senders, receivers = exchange.topology.edges(number)
        self.sources = [j for j in senders[receivers == self.node].tolist() if j != self.node]
        given = receivers[senders == self.node].tolist()
        self.weights = torch.empty(0, dtype=torch.float64)
        if self.pushes:
            with self.ledger.spend("weighting", "weighting_exposed"):
                self.weights = exchange.weights(number, memory)
        self.given = dict(zip(given, self.weights.tolist() or [0.0] * len(given), strict=True))
        self.targets = [j for j in given if j != self.node]
        before = memory or Memory({}, {})
        self.buffers = Buffers(exchange, number, before, self.sources, last)
        self._in = [
            {j: self.buffers.inbox(state.x, self.wire) for j in self.sources}
            for _ in range(self.pushes + pulls)
        ]
        self._heads = {j: _head(state, 0, 0, 0) for j in self.sources}
        a = float(state.a)
        self._own_heads = {j: _head(state, t, a, self.given[j]) for j in self.targets}
        self._own: dict[int, tuple[Sent, list[Tensor]]] = {}

    # ----------------------------------------------------------------- line 4

    def send(self, bucket: slice, sent: Sent) -> None:
        """Send these columns. They must stay as they are until the bucket has arrived."""
        if self.mail.unused:
            self.mail.post(0, self._own_heads, self._heads)
        outs = [value[0].to(self.wire).contiguous() for value in (*sent.push, *sent.pull)]
        self._own[bucket.start] = sent, outs
        for place, out in enumerate(outs):
            boxes = {j: box[bucket] for j, box in self._in[place].items()}
            self.mail.post(self.tag(bucket, place), dict.fromkeys(self.targets, out), boxes)

    # ----------------------------------------------------------------- lines 5-7

    def arrive(self, bucket: slice) -> Got:
        """Wait for these columns: what the node then holds."""
        sent, outs = self._own.pop(bucket.start)
        for place, j in product(range(len(outs)), self.sources):
            self.mail.wait(j, self.tag(bucket, place))
        known = self.buffers.heard | self._heard_now
        exposed = ["weighting_exposed"] if self.mail.complete else []
        with self.ledger.spend("weighting", *exposed):
            self.buffers.look(bucket, outs[self.compared], float(self.own_a), known)
        for place in range(len(outs)):
            self.mail.wait_for_sent(self.tag(bucket, place))
        with self.ledger.spend("mixing"):
            values = (*sent.push, *sent.pull)
            held = [self._held(k, values[k], out, bucket) for k, out in enumerate(outs)]
        kept = torch.tensor([self.given[self.node]], dtype=torch.float64)
        return _got(self.a, sent, held, kept)

    @cached_property
    def _heard_now(self) -> dict[int, Heard]:
        boxes = self._in[self.compared]
        return {j: Heard(self.number, self.scalars[j][0], boxes[j]) for j in self.sources}

    @cached_property
    def scalars(self) -> dict[int, tuple[float, float]]:
        """Of every node that gives to this one, itself included, in order: a and w."""
        known = {self.node: (float(self.own_a), self.given[self.node])}
        for j in self.sources:
            self.mail.wait(j, 0)
            t, a, w = self._heads[j].tolist()
            if t != self.t:
                raise PeerLost(
                    f"node {j} is at step {t:g}, this node at step {self.t}: "
                    "all nodes must take the same steps"
                )
            known[j] = a, w
        return dict(sorted(known.items()))

    @cached_property
    def a(self) -> Tensor:
        """a^(t) = sum_j w_ij a_j, (1,)."""
        if not self.pushes:
            return self.own_a
        total = 0.0
        for a, w in self.scalars.values():
            total += a * w
        held = torch.tensor([total], dtype=torch.float64)
        refuse_tiny(held, self.dtype, [self.node], self.t)
        return held

    def _held(self, place: int, value: Tensor, out: Tensor, bucket: slice) -> Tensor:
        """What the node holds of one vector's bucket, (1, k)."""
        pushed, nodes = place < self.pushes, sorted([self.node, *self.sources])
        weights = [self.scalars[j][1] if pushed else 1 / len(nodes) for j in nodes]
        parts = [out if j == self.node else self._in[place][j][bucket] for j in nodes]
        held = value if self.in_place else torch.empty_like(value)
        if value.dtype == out.dtype == torch.float32 and float32_rounds_once(len(weights), weights):
            _add_two(parts, weights, held[0], out)
            return held
        room = torch.empty(2, min(PIECE, len(out)), dtype=torch.float64, device=out.device)
        vectors = (held[0], value[0], out, *parts)
        for piece, own, sent, *some in zip(*(v.split(PIECE) for v in vectors), strict=True):
            total, given = room[:, : len(piece)]
            total.copy_(some[0]).mul_(weights[0])
            for part, w in zip(some[1:], weights[1:], strict=True):
                total.add_(given.copy_(part).mul_(w))
            if own.dtype != sent.dtype:  # what rounding took stays here
                total += own.double() - sent.double()
            piece.copy_(total)
        return held

    def finish(self) -> Memory:
        """When everything has arrived: what the next exchange needs."""
        self.mail.wait_for_sent(0)
        for place, boxes in enumerate(self._in):
            self.buffers.pool += boxes.values() if place != self.compared else ()
        return self.buffers.after(self._heard_now)


def _head(state: State, *numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=state.x.device)


def _tags(buckets: Sequence[slice]) -> Callable[[slice, int], int]:
    """Of a vector's bucket, given its place among the vectors; heads have 0."""
    width = buckets[0].stop
    return lambda bucket, place: 1 + MOST * int(bucket.start // width) + place


def _got(a: Tensor, sent: Sent, held: Sequence[Tensor], kept: Tensor) -> Got:
    """The method's averages over all nodes are still to be taken."""
    pushed = len(sent.push)
    return Got(a, tuple(held[:pushed]), tuple(held[pushed:]), sent.mean, kept)


def _add_two(parts: list[Tensor], weights: list[float], held: Tensor, own: Tensor) -> None:
    """The sum of one or two; `held` may be the node's own."""
    if parts[0] is not own:  # two add up alike either way
        parts, weights = parts[::-1], weights[::-1]
    for total, first, *other in zip(*(v.split(PIECE) for v in (held, *parts)), strict=True):
        torch.mul(first, weights[0], out=total)
        for part in other:
            total.add_(part, alpha=weights[1])
