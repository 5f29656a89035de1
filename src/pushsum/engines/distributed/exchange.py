"""The engine whose nodes are processes: each holds one row.

Weights of an exchange come from the buffers as the one before left them. A node looks at what it
receives block by block while the rest is under way, so that the squared distances for the weights
of the next exchange are known as soon as the last block of this one has arrived. That is the
paper's arrangement (Fig. 1: weights are computed while parameters are on the wire) one step
earlier, and it has three merits: w travels in front of x, a block is added up as it arrives, and
one buffer per in-neighbour is enough, since nothing of step t-1 is needed while step t arrives.

Sums are in the order of the senders, as the simulator's: in float64 both agree bit for bit. Only
where everybody gives the same to everybody nodes exchange by all-reduce, which sends less; it adds
up in an order of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum.engines import tree
from pushsum.engines.arithmetic import (
    BLOCK,
    LONG,
    block_distances,
    column_blocks,
    distances,
    ring_bytes,
)
from pushsum.engines.arrivals import Arrivals
from pushsum.engines.distributed.messages import Mail, Message
from pushsum.engines.distributed.peers import PeerLost, Peers
from pushsum.engines.engine import Known, Moment, Setup
from pushsum.protocol import Got, Gradient, Sent
from pushsum.weighting import View

BUCKET = 4 * BLOCK  #: elements that travel as one message
PIECE = 2**15  #: elements of a vector that stay in a core's cache while they are added up


class Heard(NamedTuple):
    """What a peer sent when it was last heard."""

    x: Tensor  #: (d,)
    a: float


class Memory(NamedTuple):
    """A node's buffers, and how far they are from what it sent itself: for the next exchange.

    Spare vectors hold nothing: they are there to be received into.
    """

    arrivals: Arrivals
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
    """One node per process; see `pushsum.engines.engine.Engine`.

    Args:
        peers: the processes; they have agreed on everything that sizes depend on.
        setup: what the run is made of.
    """

    def __init__(self, peers: Peers, setup: Setup) -> None:
        if setup.faults is not None:
            raise ValueError(
                "faults are simulated: leave the section faults out, or run --engine simulator"
            )
        self.peers, self.setup = peers, setup
        self.topology, self.weighting = setup.topology, setup.algorithm.weighting
        self.sight = self.weighting.looks(self.topology)
        self.nodes = torch.tensor([peers.rank])
        self.ledger = Ledger()
        self.is_complete = lru_cache(64)(self._is_complete)

    @property
    def seconds(self) -> dict[str, float]:
        """What the exchanges have cost so far, by phase."""
        return self.ledger.seconds

    @property
    def bytes(self) -> int:
        """What this node has sent so far."""
        return self.ledger.bytes

    @property
    def collective(self) -> bool:
        """Whether all exchanges are by all-reduce instead of by messages along the edges."""
        cycle = self.topology.cycle
        return cycle is not None and all(map(self.by_all_reduce, range(1, cycle + 1)))

    def by_all_reduce(self, number: int) -> bool:
        """Whether everybody gives the same to everybody."""
        plain = self.peers.n > 1 and self.setup.wire is None
        return plain and self.weighting.name == "uniform" and self.is_complete(number)

    def begin(self, x0: Tensor) -> Moment:
        """Before step 1."""
        return self.setup.begin(x0, self.nodes)

    def advance(self, now: Moment, gradient: Gradient, last: bool = False) -> Moment:
        """One step. `now` stays as it is, unless it is used for the last time."""
        t, algorithm, rule = now.t + 1, self.setup.algorithm, self.setup.optimizer
        step, d = self.setup.step(t, self.nodes), now.state.x.shape[1]
        if algorithm.mean_gradient:
            gradient = Known(self.average(gradient()))
        direction, carried = algorithm.direction(now.state, gradient, step)
        move, kept = rule.move(now.optimizer, now.y, direction, t)
        whole = tree.Assembly(d)
        sents, parts = {}, {}
        for some in self.buckets(d):
            part = state, carry, moved = tree.columns((now.state, carried, move), d, some)
            parts[some.start] = part
            sents[some.start] = algorithm.send(state, carry, moved, step)
        exchange = self.round(t, now.state.a, now.memory, sents[0], d, last)
        for some in reversed(exchange.buckets):
            exchange.send(some, sents[some.start])
        for some, got in exchange.arrivals():
            state, carry, moved = parts[some.start]
            after = algorithm.receive(state, carry, moved, got, step)
            compared = sents[some.start].compared
            pushed = state.x if compared is None else compared
            whole.add(some, (after, algorithm.model(after), pushed))
        after, y, pushed = whole.whole
        return Moment(t, after, y, kept, exchange.memory(), pushed, exchange.weights)

    def buckets(self, d: int) -> list[slice]:
        """The columns that travel together; all of them, where the method looks at all at once."""
        return column_blocks(d, BUCKET if self.setup.algorithm.elementwise else d)

    def round(
        self,
        t: int,
        a: Tensor,
        memory: Memory | None,
        kind: Sent,
        d: int,
        last: bool,
        in_place: bool = False,
    ) -> "Round | Alone":
        """The exchange of step t, of d columns of what is like `kind`; see `Round`."""
        number = self.setup.exchange_of(t)
        if number == 0 or not any(kind):
            kept = torch.ones(int(number == 0), dtype=torch.float64)  # none, where none are asked
            return Alone(self.buckets(d), a, memory, kept)
        return Round(self, t, number, a, memory, kind, d, last, in_place)

    def average(self, value: Tensor) -> Tensor:
        """The mean over all nodes, at every node, by a ring of messages."""
        n, node, total = self.peers.n, self.peers.rank, value.clone()
        with self.ledger.spend("transfer", "waiting"):
            self.peers.all_reduce(total)
        self.ledger.bytes += ring_bytes(n, node, total.numel() * total.element_size())
        return total / n

    def _is_complete(self, number: int) -> bool:
        return self.topology.edges(number).shape[1] == self.peers.n**2

    # ----------------------------------------------------------------- on disk

    def saved(self, memory: Memory | None) -> tuple[dict[str, Tensor], Any]:
        """A memory as named tensors and JSON."""
        if memory is None:
            return tree.saved(None)
        heard = {str(j): tuple(entry) for j, entry in memory.heard.items()}
        d2 = {str(j): value for j, value in memory.d2.items()}
        return tree.saved((tuple(memory.arrivals), heard, d2))

    def restored(self, tensors: Mapping[str, Tensor], notes: Any) -> Memory | None:
        """The memory that was saved."""
        found = tree.restored((), tensors, notes)
        if found is None:
            return None
        (n, steps), heard, d2 = found
        return Memory(
            Arrivals(n, tuple((step, pairs) for step, pairs in steps)),
            {int(j): Heard(*entry) for j, entry in heard.items()},
            {int(j): value for j, value in d2.items()},
        )

    # ----------------------------------------------------------------- lines 3 and 6

    def weights(self, number: int, memory: Memory | None) -> tuple[Tensor, Tensor]:
        """To whom this node gives what: receivers (K,) in order, weights (K,) float64."""
        n, node = self.topology.n, self.peers.rank
        senders, receivers = self.topology.edges(number)
        others = sorted(memory.d2) if memory is not None else []
        d2 = [memory.d2[j] for j in others] if memory is not None else []
        view = View(
            n,
            senders,
            receivers,
            torch.full((len(others),), node),
            torch.tensor(others, dtype=torch.int64),
            torch.tensor(d2, dtype=torch.float64),
        )
        mine = senders == node
        return receivers[mine], self.weighting.along(view, self.setup.wire)[mine]

    def heard_after(self, number: int, memory: Memory | None, sources: Sequence[int]) -> Arrivals:
        """Who was heard, the sources of this exchange among them."""
        n, node = self.topology.n, self.peers.rank
        before = Arrivals(n) if memory is None else memory.arrivals
        if self.sight == "nothing":
            return before
        fresh = list(sources)
        if self.sight == "neighbours":  # what is never asked for need not be remembered
            senders, receivers = self.topology.edges(number)
            asked = self.topology.answered(number)
            wanted = set(senders[(receivers == node) & asked].tolist())
            fresh = [j for j in sources if j in wanted]
        came = torch.tensor(fresh, dtype=torch.int64)
        return before.after(number, came, torch.full_like(came, node), self.topology.period)

    def wanted(self, number: int, arrivals: Arrivals) -> list[int]:
        """Whose distance the weights of an exchange look at."""
        node = self.peers.rank
        _, held = arrivals.pairs()
        if self.sight != "neighbours":
            return held.tolist()
        senders, receivers = self.topology.edges(number)
        following = set(receivers[senders == node].tolist())
        return [j for j in held.tolist() if j in following]


class Alone:
    """A step in which nothing travels: W = I."""

    def __init__(
        self, buckets: list[slice], a: Tensor, memory: Memory | None, weights: Tensor
    ) -> None:
        self.buckets, self.a, self._memory, self.weights = buckets, a, memory, weights
        self._got: list[tuple[slice, Got]] = []

    def send(self, bucket: slice, sent: Sent) -> None:
        """Keep it."""
        self._got.append((bucket, Got(self.a, *sent)))

    def arrivals(self) -> Iterator[tuple[slice, Got]]:
        """What was kept."""
        yield from self._got

    def memory(self) -> Memory | None:
        """What it was."""
        return self._memory


class Round:
    """One exchange under way: buckets leave as they become ready, then everything arrives.

    Args:
        exchange: between whom.
        t: the step.
        number: which exchange that is.
        a: (1,) this node's scalar.
        memory: what the exchange before left.
        kind: what is sent, for its dtypes and counts.
        d: how many columns there are in all.
        last: whether the memory's tensors may be written over.
        in_place: whether what was sent is written over as soon as its bucket has arrived.
    """

    def __init__(
        self,
        exchange: Exchange,
        t: int,
        number: int,
        a: Tensor,
        memory: Memory | None,
        kind: Sent,
        d: int,
        last: bool,
        in_place: bool,
    ) -> None:
        self.in_place = in_place
        self.t, self.number, self.d, self.kind = t, number, d, kind
        self.exchange, self.peers, self.ledger = exchange, exchange.peers, exchange.ledger
        self.node = self.peers.rank
        self.mail = Mail(self.peers, t)
        self._own_a, self._before = a, memory
        senders, receivers = exchange.topology.edges(number)
        self.sources = [j for j in senders[receivers == self.node].tolist() if j != self.node]
        self.weights = torch.empty(0, dtype=torch.float64)
        given = receivers[senders == self.node].tolist()
        self._given = dict.fromkeys(given, 0.0)
        if kind.push:
            with self.ledger.spend("weighting", "weighting_exposed"):
                _, self.weights = exchange.weights(number, memory)
            self._given = dict(zip(given, self.weights.tolist(), strict=True))
        self.targets = [j for j in given if j != self.node]
        self.values = (*kind.push, *kind.pull)
        wire = exchange.setup.wire
        self._wire = [value.dtype if wire is None else wire for value in self.values]
        self.collective = exchange.by_all_reduce(number) and all(
            value.dtype in (torch.float32, torch.float64) for value in self.values
        )
        self.buckets = exchange.buckets(d)
        self._arrivals = exchange.heard_after(number, memory, self.sources)
        self._wanted = exchange.wanted(number + 1, self._arrivals)
        self._heard = {} if memory is None else dict(memory.heard)
        self._spare = list(memory.spare) if memory is not None and last else []
        if last:  # expired ones, and those that are heard again
            stale = [j for j in self._heard if j in self.sources]
            self._spare += [self._heard.pop(j).x for j in stale]
        self._out: dict[int, list[Tensor]] = {}
        self._own: dict[int, Sent] = {}
        if not self.collective:
            self._in = [{j: self._inbox(dtype) for j in self.sources} for dtype in self._wire]
        self._d2: dict[int, dict[int, float]] = {}
        self._began: float | None = None

    def _inbox(self, dtype: torch.dtype) -> Tensor:
        """Where a peer's vector goes: one that nobody needs any more, or a new one."""
        if self._spare and self._spare[-1].dtype == dtype:
            return self._spare.pop()
        return torch.empty(self.d, dtype=dtype, device=self.values[0].device)

    def _tag(self, place: int, bucket: int) -> int:
        width: int = self.buckets[0].stop
        return 1 + place * len(self.buckets) + bucket // width

    # ----------------------------------------------------------------- line 4

    def send(self, bucket: slice, sent: Sent) -> None:
        """Send this part of every vector, and expect the peers' same parts.

        What is sent must stay as it is until the part has arrived.
        """
        if self._began is None:
            self._begin()
        self._own[bucket.start] = sent
        outs = self._out[bucket.start] = []
        for place, value in enumerate((*sent.push, *sent.pull)):
            tag = self._tag(place, bucket.start)
            if self.collective:
                outs.append(value[0].clone())
                self.mail.post_sum(tag, outs[-1])
                continue
            outs.append(value[0].to(self._wire[place]).contiguous())
            self.mail.post(
                [Message(j, tag, outs[-1]) for j in self.targets],
                [Message(j, tag, self._in[place][j][bucket]) for j in self.sources],
            )

    def _begin(self) -> None:
        """The heads of all messages: step, a and w."""
        self._began = perf_counter()
        device = self.values[0].device if self.values else None

        def head(*numbers: float) -> Tensor:
            return torch.tensor(numbers, dtype=torch.float64, device=device)

        a = float(self._own_a)
        if self.collective:
            self._sum = head(self.t, a)
            self.mail.post_sum(0, self._sum)
            return
        self._heads = {j: head(0, 0, 0) for j in self.sources}
        self.mail.post(
            [Message(j, 0, head(self.t, a, self._given[j])) for j in self.targets],
            [Message(j, 0, box) for j, box in self._heads.items()],
        )

    # ----------------------------------------------------------------- lines 5-7

    def arrivals(self) -> Iterator[tuple[slice, Got]]:
        """Wait for everything, bucket by bucket; what the node then holds."""
        assert self._began is not None
        for bucket in reversed(self.buckets):
            sent, outs = self._own.pop(bucket.start), self._out[bucket.start]
            self._wait_for(bucket)
            with self.ledger.spend("mixing"):
                values = (*sent.push, *sent.pull)
                held = [
                    self._held(place, value, outs[place], bucket)
                    for place, value in enumerate(values)
                ]
            if self.in_place:
                for place in range(len(self.values)):
                    self.mail.wait_for_sent(self._tag(place, bucket.start))
            mean = tuple(self.exchange.average(value) for value in sent.mean)
            pushed = len(sent.push)
            yield bucket, Got(self.a, tuple(held[:pushed]), tuple(held[pushed:]), mean)
        for tag in range(1 + len(self.values) * len(self.buckets)):
            self.mail.wait_for_sent(tag)
        seconds = self.ledger.seconds
        if self.sources or self.targets:
            seconds["transfer"] += self.mail.ended - self._began
        seconds["waiting"] += self.mail.waited
        self.ledger.bytes += self.mail.bytes

    def _wait_for(self, bucket: slice) -> None:
        """Until a bucket of everybody is here; what is compared is looked at as it comes."""
        compared = len(self.kind.push) if self.kind.pull else 0
        order = sorted(range(len(self.values)), key=lambda place: place != compared)
        for place in order:
            tag = self._tag(place, bucket.start)
            if self.collective:
                self.mail.wait_for_sum(tag)
                continue
            for j in self.sources:
                self.mail.wait(j, tag)
                if place == compared and j in self._wanted:
                    exposed = ("weighting_exposed",) if self.mail.complete else ()
                    with self.ledger.spend("weighting", *exposed):
                        theirs = self._in[place][j][bucket]
                        self._look(j, theirs, self.scalars[j][0], self._out[bucket.start], bucket)
        with self.ledger.spend("weighting"):
            for j in set(self._wanted) - set(self.sources):
                heard = self._heard[j]
                self._look(j, heard.x[bucket], heard.a, self._out[bucket.start], bucket)

    def _look(
        self, peer: int, theirs: Tensor, a: float, outs: Sequence[Tensor], bucket: slice
    ) -> None:
        """How far what a peer sent is from what this node sent itself."""
        own = outs[len(self.kind.push) if self.kind.pull else 0]
        found = self._d2.setdefault(peer, {})
        scalars = (float(self._own_a), a) if self.exchange.weighting.corrected else None
        if self.d < LONG:
            only = torch.zeros(1, dtype=torch.int64)
            both = None
            if scalars is not None:
                mine, their = torch.tensor(scalars, dtype=torch.float64)
                both = mine[None], their[None]
            found[0] = distances(own[None], theirs[None], only, only, both).item()
            return
        parts = block_distances(own, theirs, scalars)
        found |= dict(zip(range(bucket.start, bucket.stop, BLOCK), parts, strict=True))

    @cached_property
    def scalars(self) -> dict[int, tuple[float, float]]:
        """Of every node that gives to this one, itself included, in order: a and w."""
        known = {self.node: (float(self._own_a), self._given[self.node])}
        for j in self.sources:
            self.mail.wait(j, 0)
            t, a, w = self._heads[j].tolist()
            if t != self.t:
                self._refuse_other_step(j, t)
            known[j] = a, w
        return dict(sorted(known.items()))

    def _refuse_other_step(self, peer: int, t: float) -> None:
        raise PeerLost(
            f"node {peer} is at step {t:g}, this node at step {self.t}: "
            "all nodes must take the same steps"
        )

    @cached_property
    def a(self) -> Tensor:
        """a^(t) = sum_j w_ij a_j, (1,)."""
        if self.collective:
            self.mail.wait_for_sum(0)
            steps, total = self._sum.tolist()
            if steps != self.t * self.peers.n:
                raise PeerLost(
                    f"this node is at step {self.t}, others are not: all must take the same steps"
                )
            return torch.tensor([total / self.peers.n], dtype=torch.float64)
        if not self.kind.push:
            return self._own_a
        total = 0.0
        for a, w in self.scalars.values():
            total += a * w
        return torch.tensor([total], dtype=torch.float64)

    def _held(self, place: int, value: Tensor, out: Tensor, bucket: slice) -> Tensor:
        """What the node holds of one vector's bucket, (1, k)."""
        if self.collective:
            return (out / self.peers.n)[None]
        pushes = place < len(self.kind.push)
        if pushes:
            weights = {j: w for j, (_, w) in self.scalars.items()}
        else:
            nodes = sorted([self.node, *self.sources])
            weights = dict.fromkeys(nodes, 1 / len(nodes))
        parts = [out if j == self.node else self._in[place][j][bucket] for j in weights]
        held = torch.empty_like(value)
        for some in column_blocks(len(out), PIECE):
            total = _sum_of([part[some] for part in parts], [*weights.values()], value.dtype)
            if pushes and out.dtype != value.dtype:  # what rounding took stays here
                total += value[0, some].double() - out[some].double()
            held[0, some] = total
        return held

    def memory(self) -> Memory | None:
        """What the next exchange needs."""
        if self.exchange.sight == "nothing":
            spare = [] if self.collective else [b for boxes in self._in for b in boxes.values()]
            return Memory(self._arrivals, {}, {}, (*self._spare, *spare))
        compared = len(self.kind.push) if self.kind.pull else 0
        for j, box in self._in[compared].items():
            self._heard[j] = Heard(box, self.scalars[j][0])
        lasting = self._arrivals.lasting(self.number, self.exchange.topology.period)
        _, held = lasting.pairs()
        kept = {j: self._heard[j] for j in held.tolist()}
        spare = [entry.x for j, entry in self._heard.items() if j not in kept]
        for place, boxes in enumerate(self._in):
            spare += [] if place == compared else list(boxes.values())
        d2 = {j: _in_order(self._d2[j]) for j in self._wanted}
        return Memory(lasting, kept, d2, (*self._spare, *spare))


def _sum_of(parts: Sequence[Tensor], weights: Sequence[float], dtype: torch.dtype) -> Tensor:
    """sum_j w_j part_j in float64.

    For float64 in the order given, one rounded product after the other, as the simulator does it.
    """
    if dtype == torch.float64:
        total = parts[0].double() * weights[0]
        for part, w in zip(parts[1:], weights[1:], strict=True):
            total += part.double() * w
        return total
    rows = torch.empty(len(parts), len(parts[0]), dtype=torch.float64, device=parts[0].device)
    for row, part in zip(rows, parts, strict=True):
        row.copy_(part)
    return torch.mv(rows.T, torch.tensor(weights, dtype=torch.float64, device=rows.device))


def _in_order(parts: dict[int, float]) -> float:
    """Their sum, in order and plainly, unlike `sum`, which newer Pythons compensate."""
    total = 0.0
    for first in sorted(parts):
        total += parts[first]
    return total
