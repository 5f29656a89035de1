"""The exchange between processes: every process is one node and holds one row.

Weights of step t come from the buffers as step t-1 left them. A node looks at what it receives
block by block while the rest is under way, so that the squared distances for the weights of
step t+1 are known as soon as the last block of step t has arrived. That is the paper's arrangement
(Fig. 1: weights are computed while parameters are on the wire) one step earlier, and it has three
merits: w travels in front of x, a block is added up as it arrives, and one buffer per in-neighbour
is enough, since nothing of step t-1 is needed while step t arrives.

Sums are in the order of the senders, as the simulator's: in float64 both agree bit for bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum.engines.arithmetic import (
    BLOCK,
    LONG,
    block_distances,
    distances,
    float32_grain,
    float32_weights,
    ring_bytes,
)
from pushsum.engines.distributed.messages import Mail, Message
from pushsum.engines.distributed.peers import PeerLost, Peers
from pushsum.protocol import Pushed
from pushsum.topology import NEVER, Topology
from pushsum.weighting import Shares, Weighting

BUCKET = 4 * BLOCK  #: elements that travel as one message


class Heard(NamedTuple):
    """What a peer pushed when it was last heard."""

    step: int
    x: Tensor  #: (d,)
    a: float


class Memory(NamedTuple):
    """A node's buffers, and how far they are from what it pushed itself: for the next step.

    Spare vectors hold nothing: they are there to be received into.
    """

    heard: dict[int, Heard]
    d2: dict[int, float]
    spare: tuple[Tensor, ...] = ()


@dataclass
class Ledger:
    """Where the time of the exchanges went, in seconds, and the bytes that were sent.

    `transfer` is how long messages were under way, and `waiting` the part of it in which the
    process could do nothing else. `weighting_exposed` is the part of `weighting` for which no
    message was under way.
    """

    bytes: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("weighting", "weighting_exposed", "mixing", "transfer", "waiting"), 0.0
        )
    )

    @contextmanager
    def spend(self, *names: str) -> Iterator[None]:
        """Add the time of a block under these names."""
        start = perf_counter()
        yield
        spent = perf_counter() - start
        for name in names:
            self.seconds[name] += spent


class Exchange:
    """Lines 3-7 of Algorithm 1 by messages; see `pushsum.protocol.Exchange`.

    Args:
        peers: the processes; they have agreed on everything that sizes depend on.
        topology: who sends to whom.
        wire: the dtype that parameters travel in; None: their own. A sender keeps what rounding
            took from the receivers, so that the network's sum stays what it was.
        start: the step after which the sequence of graphs begins.
    """

    def __init__(
        self, peers: Peers, topology: Topology, wire: torch.dtype | None = None, start: int = 0
    ) -> None:
        self.peers, self.topology, self.wire, self.start = peers, topology, wire, start
        _ = topology.period  # raises here if the graphs do not connect the nodes
        self.ledger = Ledger()

    @property
    def seconds(self) -> dict[str, float]:
        """What the exchanges have cost so far."""
        return self.ledger.seconds

    def push(self, t: int, weighting: Weighting, values: Sequence[Tensor], memory: Any) -> Pushed:
        """Lines 3-7; the second of `values` is a, the others are (1, d)."""
        x, a, *more = values
        rows = [x[0], *(value[0] for value in more)]
        step = Step(self, t, weighting, a, memory, rows, [torch.empty_like(r) for r in rows])
        for bucket in reversed(step.buckets):
            step.send(bucket)
        for _ in step.arrivals():
            pass
        first, *others = (held[None] for held in step.held)
        return Pushed((first, step.a, *others), step.memory(), step.weights)

    def average(self, value: Tensor) -> Tensor:
        """The mean over all nodes, at every node, by a ring of messages."""
        n, node, total = self.peers.n, self.peers.rank, value.clone()
        with self.ledger.spend("transfer", "waiting"):
            self.peers.all_reduce(total)
        self.ledger.bytes += ring_bytes(n, node, total.numel() * total.element_size())
        return total / n

    def saved(self, memory: Memory | None) -> tuple[dict[str, Tensor], Any]:
        """A memory as named tensors and JSON."""
        heard, d2, _ = memory or Memory({}, {})
        steps = {str(j): h.step for j, h in heard.items()}
        scalars = {str(j): h.a for j, h in heard.items()}
        notes = {"heard": steps, "a": scalars, "d2": d2}
        return {str(j): h.x for j, h in heard.items()}, notes

    def restored(self, tensors: Mapping[str, Tensor], notes: Any) -> Memory:
        """The memory that was saved; its tensors will be received into."""
        heard = {
            int(j): Heard(step, tensors[j].clone(), notes["a"][j])
            for j, step in notes["heard"].items()
        }
        return Memory(heard, {int(j): d2 for j, d2 in notes["d2"].items()})

    def weights(self, t: int, weighting: Weighting, d2: dict[int, float]) -> tuple[Tensor, Tensor]:
        """To whom this node gives what in step t: receivers (K,) in order, weights (K,) float64."""
        n, node = self.topology.n, self.peers.rank
        if not isinstance(weighting, Shares):
            row = torch.zeros(n, n, dtype=torch.float64)
            for peer, value in d2.items():
                row[node, peer] = value
            adjacency = self.topology.adjacency(t)
            (receivers,) = adjacency[node].nonzero(as_tuple=True)
            return receivers, weighting.matrix(adjacency, row)[receivers, node]
        senders, receivers = self.topology.edges(t)
        receivers = receivers[senders == node]
        total, positive = 0.0, 0
        for peer in sorted(d2):
            total += d2[peer]
            positive += d2[peer] > 0
        scale = total / max(1, positive)
        missing = scale if weighting.unheard_at_mean else 0.0
        near = torch.tensor([d2.get(j, missing) for j in receivers.tolist()], dtype=torch.float64)
        own = torch.full_like(receivers, node)
        return receivers, weighting.along(own, receivers, n, near, torch.full_like(near, scale))

    def wanted(self, t: int, weighting: Weighting) -> dict[int, int]:
        """Whose distance the weights of step t look at: peer -> the step it was heard."""
        node, sight = self.peers.rank, weighting.looks(self.topology)
        if sight == "nothing":
            return {}
        if sight == "neighbours":
            senders, receivers = self.topology.edges(t)
            mine = (senders == node) & (receivers != node)
            pairs = zip(receivers[mine], self.topology.last_heard(t)[mine], strict=True)
            return {int(peer): int(step) for peer, step in pairs if int(step) != NEVER}
        holders, heard, steps = self.topology.buffers(t)
        mine = holders == node
        return {int(j): int(s) for j, s in zip(heard[mine], steps[mine], strict=True)}


class Step:
    """One exchange under way: buckets leave as they become ready, then everything arrives.

    Args:
        exchange: between whom.
        t: the step.
        weighting: how this node divides what it gives.
        a: (1,) its scalar.
        memory: what the step before left; its tensors are used up.
        rows: the (d,) vectors to push; a bucket of them must be ready when it is sent.
        held: where to put what the node holds afterwards; may be the rows themselves.
    """

    def __init__(
        self,
        exchange: Exchange,
        t: int,
        weighting: Weighting,
        a: Tensor,
        memory: Memory | None,
        rows: Sequence[Tensor],
        held: Sequence[Tensor],
    ) -> None:
        self.t, self.rows, self.held = t, rows, held
        self.node, self.peers, self.ledger = exchange.peers.rank, exchange.peers, exchange.ledger
        self.mail = Mail(exchange.peers, t)
        self._own_a = float(a)
        self._corrected = weighting.corrected
        local = self._local = t - exchange.start
        heard, d2, spare = memory or Memory({}, {})
        with self.ledger.spend("weighting", "weighting_exposed"):
            receivers, self.weights = exchange.weights(local, weighting, d2)
            self._next_wanted = exchange.wanted(local + 1, weighting)
        self._given = dict(zip(receivers.tolist(), self.weights.tolist(), strict=True))
        senders, receivers = exchange.topology.edges(local)
        self.sources = [j for j in senders[receivers == self.node].tolist() if j != self.node]
        self.targets = [j for j in self._given if j != self.node]
        self._keep_from = local + 2 - weighting.depth(exchange.topology)
        self._heard = dict(heard)
        free = list(spare)
        d, kind = len(rows[0]), exchange.wire or rows[0].dtype
        self.buckets = [slice(b, min(d, b + BUCKET)) for b in range(0, d, BUCKET)]
        reduced = kind != rows[0].dtype
        self._out = [torch.empty_like(r, dtype=kind) if reduced else r for r in rows]
        self._in = [{j: self._inbox(j, out, free) for j in self.sources} for out in self._out]
        self._spare = free
        self._d2: dict[int, dict[int, float]] = {}
        self._began: float | None = None

    def _inbox(self, peer: int, like: Tensor, spare: list[Tensor]) -> Tensor:
        """Where a peer's vector goes: over its last one, or one that nobody needs any more."""
        if peer in self._heard:
            return self._heard.pop(peer).x
        return spare.pop() if spare else torch.empty_like(like)

    def _tag(self, place: int, bucket: slice) -> int:
        number: int = bucket.start // BUCKET
        return 1 + place * len(self.buckets) + number

    # ----------------------------------------------------------------- line 4

    def send(self, bucket: slice) -> None:
        """Push this part of every vector, and expect the peers' same parts."""
        if self._began is None:
            self._begin()
        for place, (row, out) in enumerate(zip(self.rows, self._out, strict=True)):
            tag, inboxes = self._tag(place, bucket), self._in[place]
            if out is not row:
                out[bucket] = row[bucket]
            self.mail.post(
                [Message(j, tag, out[bucket]) for j in self.targets],
                [Message(j, tag, inboxes[j][bucket]) for j in self.sources],
            )

    def _begin(self) -> None:
        """The heads of all messages: step, a and w."""
        self._began = perf_counter()

        def head(*numbers: float) -> Tensor:
            return torch.tensor(numbers, dtype=torch.float64, device=self.rows[0].device)

        self._heads = {j: head(0, 0, 0) for j in self.sources}
        self.mail.post(
            [Message(j, 0, head(self.t, self._own_a, self._given[j])) for j in self.targets],
            [Message(j, 0, box) for j, box in self._heads.items()],
        )

    # ----------------------------------------------------------------- lines 5-7

    def arrivals(self) -> Iterator[slice]:
        """Wait for everything; yields each bucket once `held` has it."""
        assert self._began is not None
        own, seconds = self._out[0], self.ledger.seconds
        with self.ledger.spend("weighting"):
            for j, step in self._next_wanted.items():
                if step < self._local:
                    heard = self._heard[j]
                    self._look(j, heard.x, heard.a, own, slice(0, len(own)))
        weights = self._weights_of_vectors()
        for bucket in reversed(self.buckets):
            for j in self.sources:
                self.mail.wait(j, self._tag(0, bucket))
                if j in self._next_wanted:
                    exposed = ("weighting_exposed",) if self.mail.complete else ()
                    with self.ledger.spend("weighting", *exposed):
                        self._look(j, self._in[0][j], self.scalars[j][0], own, bucket)
            for place, held in enumerate(self.held):
                tag = self._tag(place, bucket)
                if place > 0:
                    for j in self.sources:
                        self.mail.wait(j, tag)
                if held is self.rows[place]:
                    self.mail.wait_for_sent(tag)
                with self.ledger.spend("mixing"):
                    self._mix(place, held, bucket, weights)
            yield bucket
        for place, bucket in product(range(len(self.rows)), self.buckets):
            self.mail.wait_for_sent(self._tag(place, bucket))
        self.mail.wait_for_sent(0)
        if self.sources or self.targets:
            seconds["transfer"] += self.mail.ended - self._began
        seconds["waiting"] += self.mail.waited
        self.ledger.bytes += self.mail.bytes

    @cached_property
    def scalars(self) -> dict[int, tuple[float, float]]:
        """Of every node that gives to this one, itself included, in order: a and w."""
        known = {self.node: (self._own_a, self._given[self.node])}
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
        total = 0.0
        for a, w in self.scalars.values():
            total += a * w
        return torch.tensor([total], dtype=torch.float64)

    def memory(self) -> Memory:
        """What the next step needs."""
        first, *others = self._in
        for j, box in first.items():
            self._heard[j] = Heard(self._local, box, self.scalars[j][0])
        kept = {j: h for j, h in self._heard.items() if h.step >= self._keep_from}
        spare = [h.x for j, h in self._heard.items() if j not in kept]
        spare += [box for boxes in others for box in boxes.values()]
        d2 = {j: _sum(self._d2[j]) for j in self._next_wanted}
        return Memory(kept, d2, (*self._spare, *spare))

    def _look(self, peer: int, theirs: Tensor, a: float, own: Tensor, bucket: slice) -> None:
        """How far what a peer pushed is from what this node pushed itself."""
        found = self._d2.setdefault(peer, {})
        scalars = (self._own_a, a) if self._corrected else None
        if len(own) < LONG:
            assert BUCKET >= LONG, "a short vector is one bucket, and here when that is"
            only = torch.zeros(1, dtype=torch.int64)
            both = None
            if scalars is not None:
                mine, their = torch.tensor(scalars, dtype=torch.float64)
                both = mine[None], their[None]
            found[0] = distances(own[None], theirs[None], only, only, both).item()
            return
        parts = block_distances(own[bucket], theirs[bucket], scalars)
        found |= dict(zip(range(bucket.start, bucket.stop, BLOCK), parts, strict=True))

    def _weights_of_vectors(self) -> dict[int, float]:
        """The weights that x is added up with: float32 vectors need weights of as many bits."""
        if self.rows[0].dtype == torch.float64:
            return {j: w for j, (_, w) in self.scalars.items()}
        nodes, own = list(self._given), torch.tensor([*self._given.values()], dtype=torch.float64)
        sender = torch.zeros(len(nodes), dtype=torch.int64)
        receivers = torch.tensor([j != self.node for j in nodes]).long()  # home is 0, the sender
        kept = float32_weights(1, sender, receivers, own)[nodes.index(self.node)].item()
        received = torch.tensor([w for _, w in self.scalars.values()], dtype=torch.float64)
        rounded = dict(zip(self.scalars, float32_grain(received).tolist(), strict=True))
        return rounded | {self.node: kept}

    def _mix(self, place: int, held: Tensor, bucket: slice, weights: dict[int, float]) -> None:
        """x^(t) = sum_j w_ij x_j, in the order of the senders, block by block.

        In float64 the products are rounded before they are added, as the simulator's are.
        """
        row, out, inboxes = self.rows[place], self._out[place], self._in[place]
        kind = torch.promote_types(row.dtype, torch.float32)
        size = min(BLOCK, bucket.stop - bucket.start)
        sums, products = torch.empty(2, size, dtype=kind, device=row.device)
        last = None if out is not row else list(weights)[-1]
        for first in range(bucket.start, bucket.stop, BLOCK):
            part = slice(first, min(bucket.stop, first + BLOCK))
            total, product = sums[: part.stop - first], products[: part.stop - first]
            for number, (j, w) in enumerate(weights.items()):
                value = (out if j == self.node else inboxes[j])[part].to(kind)
                target = held[part] if j == last else total
                if number == 0:
                    torch.mul(value, w, out=target)
                elif kind == torch.float64:
                    torch.add(total, torch.mul(value, w, out=product), out=target)
                else:
                    torch.add(total, value, alpha=w, out=target)
            if out is not row:  # what rounding took from the receivers stays here
                held[part] = total.add_(row[part].to(kind) - out[part].to(kind))


def _sum(parts: dict[int, float]) -> float:
    """In order and plainly, unlike `sum`, which newer Pythons compensate."""
    total = 0.0
    for first in sorted(parts):
        total += parts[first]
    return total
