"""All nodes in one process: row i of every tensor is node i.

Messages are a product with the weight matrix, and a buffer x_ij is a row of the array that was sent
at the step at which i last heard j, so nothing here is n x n x d. Where a method allows it, a step
goes through the columns block by block, so that what one part of it computes is still in the
cache when the next one needs it.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum.engines import tree
from pushsum.engines.arithmetic import BLOCK, LONG, column_blocks, distances
from pushsum.engines.arrivals import Arrivals
from pushsum.engines.engine import HEAD, Moment, Setup, refuse_tiny
from pushsum.engines.failing.exchange import Failing, Faults, check
from pushsum.engines.failing.standing import Standing
from pushsum.engines.failing.standing import restored as restored_standing
from pushsum.engines.mixing import FEW_NODES, Graph, Mixer, Weights, mixer
from pushsum.protocol import Got, Gradient, Known, Sent, keep_received
from pushsum.weighting import View

TINY = 1e-300
GRAPHS = 16  #: that are kept, of few nodes: a cycle of them comes round again


class Snapshot(NamedTuple):
    """What all nodes sent at a step; the rows that were received are buffers."""

    step: int
    x: Tensor
    a: Tensor | None = None  #: (n,), where distances are of x / a


class Memory(NamedTuple):
    """What the exchange remembers: who was heard, what was sent then, and how far away that was."""

    arrivals: Arrivals
    snapshots: tuple[Snapshot, ...]
    seen: tuple[Tensor, Tensor, Tensor]
    """of the buffers that count in the next exchange: holders, others, squared distances"""

    def scaled(self, factor: float, corrected: bool) -> "Memory":
        """As it would be if x and a had always been larger by a factor."""
        snapshots = (
            Snapshot(s.step, s.x * factor, None if s.a is None else s.a * factor)
            for s in self.snapshots
        )
        holders, others, d2 = self.seen
        seen = holders, others, d2 if corrected else d2 * factor**2
        return Memory(self.arrivals, tuple(snapshots), seen)


class Network:
    """The simulator."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.topology, self.weighting = setup.topology, setup.algorithm.weighting
        self.sight = self.weighting.looks(self.topology)
        self.nodes = torch.arange(self.topology.n)
        kept = GRAPHS if self.topology.n <= FEW_NODES else 2
        self._kept_graph = lru_cache(kept)(self._made_graph)
        self._kept_weights = lru_cache(kept)(self._made_weights)
        self.seconds = {"weighting": 0.0, "mixing": 0.0}
        self.bytes = 0
        self.collective = False
        self.faults: Faults | None = None
        if setup.faults is not None:
            check(setup)
            self.faults = Faults(setup, self.graph)

    def _made_graph(self, exchange: int) -> Graph:
        return Graph(self.topology.n, *self.topology.edges(exchange))

    def graph(self, exchange: int) -> Graph:
        """The graph of an exchange."""
        cycle = self.topology.cycle
        return self._kept_graph(exchange if cycle is None else (exchange - 1) % cycle + 1)

    def _made_weights(self, graph: Graph) -> Weights:
        return self._weighed(View.of_edges(graph.n, graph.senders, graph.receivers), graph)

    def _weighed(self, view: View, graph: Graph) -> Weights:
        wire = self.setup.wire
        return Weights(graph, self.weighting.along(view, wire), wire)

    def weights(self, graph: Graph, memory: "Memory | None") -> Weights:
        """Line 3: weights from the buffers as the exchange before left them."""
        if memory is None:  # those of a graph whose nodes know nothing of each other
            return self._kept_weights(graph)
        return self._weighed(View(graph.n, graph.senders, graph.receivers, *memory.seen), graph)

    def begin(self, x0: Tensor) -> Moment:
        """Before step 1."""
        start = self.setup.begin(x0, self.nodes)
        return start if self.faults is None else self.faults.begin(start)

    def advance(self, now: Moment, gradient: Gradient, last: bool = False) -> Moment:
        """One step; `now` stays as it is."""
        t, algorithm, rule = now.t + 1, self.setup.algorithm, self.setup.optimizer
        step, d = self.setup.step(t, self.nodes), now.state.x.shape[1]
        number = self.setup.exchange_of(t)
        if self.faults is not None:
            now = self.faults.attend(now, -(-t // self.setup.every))
        before = now.state if self.faults is None else self.faults.seen(now)
        exchange = _Exchange(self, now, number)
        whole = tree.Assembly(d, room=exchange.received)
        g = gradient() if algorithm.asks == "model" else None
        if g is not None and algorithm.mean_gradient:
            g = g.mean(0, keepdim=True).expand_as(g)
        in_blocks = algorithm.elementwise and rule.elementwise and g is not None
        for some in column_blocks(d, BLOCK if in_blocks else d):
            state, y, kept = tree.columns((before, now.y, now.optimizer), d, some)
            asked = gradient if g is None else Known(g[:, some])
            direction, carried = algorithm.direction(state, asked, step)
            move, kept = rule.move(kept, y, direction, t)
            move = exchange.scaled(move)
            sent = algorithm.send(state, carried, move, step)
            after = algorithm.receive(state, carried, move, exchange.deliver(sent, some), step)
            self.bytes += exchange.bytes_of(sent)
            whole.add(some, (after, kept, sent.compared))
        after, kept, pushed = whole.whole
        pushed = now.state.x if pushed is None else pushed
        y = algorithm.model(after)
        if self.faults is not None:
            after, y, kept = self.faults.moved(now, after, y, kept)
        memory, weights = exchange.finish(pushed)
        self.bytes += exchange.heads
        if g is not None and algorithm.mean_gradient:
            self.bytes += 2 * (len(g) - 1) * d * g.element_size()
        self.seconds["weighting"] += exchange.weighting
        self.seconds["mixing"] += exchange.mixing
        return Moment(t, after, y, kept, memory, pushed, weights)

    # ----------------------------------------------------------------- on disk

    def saved(self, memory: Memory | Standing | None) -> tuple[dict[str, Tensor], Any]:
        """A memory as named tensors and JSON."""
        return tree.saved(None if memory is None else tuple(memory))

    def restored(self, tensors: Mapping[str, Tensor], notes: Any) -> Memory | Standing | None:
        """The memory that was saved."""
        if self.faults is not None:
            return restored_standing(tensors, notes, _memory)
        return _memory(tree.restored((), tensors, notes))


def _memory(found: Any) -> Memory | None:
    if found is None:
        return None
    (n, steps), snapshots, seen = found
    arrivals = Arrivals(n, tuple((step, pairs) for step, pairs in steps))
    kinds, like = [(t.dtype, t.shape) for t in seen], (len(seen[0]),)
    if kinds != [(torch.int64, like), (torch.int64, like), (torch.float64, like)]:
        raise ValueError("what the exchange remembered is damaged: go on from another step")
    return Memory(arrivals, tuple(Snapshot(*s) for s in snapshots), tuple(seen))


#: By the step at which they were heard: holders, heard nodes, squared distances so far.
Pairs = dict[int, tuple[Tensor, Tensor, Tensor]]


class _Exchange:
    """One exchange under way: columns are delivered, distances add up, and what it leaves."""

    def __init__(self, network: Network, now: Moment, number: int) -> None:
        self.network, self.number, self.now = network, number, now
        self.a = now.state.a
        self.weighting = self.mixing = 0.0
        self.heads = 0  #: bytes in front of messages
        self.wire = network.setup.wire
        self.long = now.state.x.shape[1] >= LONG
        self.weights = torch.empty(0, dtype=torch.float64)
        self._kept = torch.ones(1, dtype=torch.float64)
        self._push: Mixer | None = None
        self._pull: Mixer | None = None
        self._pairs: Pairs | None = None
        # what `keep_received` leaves is what arrived, so that may lie where it stays
        stays = network.setup.algorithm.receive is keep_received and network.faults is None
        self.received = torch.empty_like(now.state.x) if stays and number else None
        self.failing: Failing | None = None
        if number == 0:  # a local move: W = I
            return
        start = perf_counter()
        self.graph = network.graph(number)
        if network.faults is not None:
            self.failing = Failing(network.faults, now, number, self.graph)
        self.memory: Memory | None = (
            now.memory if self.failing is None else self.failing.standing.buffers
        )
        self.weighting += perf_counter() - start

    # ----------------------------------------------------------------- lines 3 and 7

    def deliver(self, sent: Sent, some: slice) -> Got:
        """What the nodes hold of these columns."""
        if self.number == 0:
            return Got(self.a, *sent)
        if sent.push and len(self.weights) == 0:
            self._weigh()
        start = perf_counter()
        push = tuple(self._pushed(k, value, some) for k, value in enumerate(sent.push))
        pull = tuple(self._pulled(k, value, some) for k, value in enumerate(sent.pull))
        mean = tuple(value.mean(0, keepdim=True).expand_as(value) for value in sent.mean)
        mixed = perf_counter()
        if self.network.sight != "nothing" and sent.compared is not None:
            self._look(self._wired(sent.compared), some)
        self.mixing += mixed - start
        self.weighting += perf_counter() - mixed
        return Got(self.a, push, pull, mean, self._kept)

    def bytes_of(self, sent: Sent) -> int:
        """What these columns amount to on the wire: along every edge, or by ring."""
        if self.number == 0:
            return 0
        away = len(self.graph.senders) - self.graph.n
        if self.failing is not None:
            away = self.failing.sent
        vectors = (*sent.push, *sent.pull)
        if vectors:
            self.heads = away * HEAD
        along = sum(v.shape[1] * (self.wire or v.dtype).itemsize for v in vectors)
        means = sum(v.shape[1] * v.element_size() for v in sent.mean)
        return away * along + 2 * (self.graph.n - 1) * means

    def _weigh(self) -> None:
        """Line 3: weights from the buffers as the exchange before left them; and line 7 for a."""
        start = perf_counter()
        graph = self.graph
        weights = self.network.weights(graph, self.memory)
        if self.failing is not None:
            along, self.a = self.failing.weigh(weights.along)
            weights = Weights(graph, along)
        else:
            self._push = weights.push
            self.a = weights.scalars(self.now.state.a[:, None])[:, 0]
            refuse_tiny(self.a, self.now.state.x.dtype, range(graph.n), self.now.t + 1)
        self.weights, self._kept = weights.along, weights.kept
        self.weighting += perf_counter() - start

    def scaled(self, move: Tensor) -> Tensor:
        """Moves of nodes that have a clock of their own, or too small an a."""
        return move if self._pace is None else move * self._pace.to(move)

    @cached_property
    def _pace(self) -> Tensor | None:
        faults = self.network.faults
        return None if faults is None else faults.pace(self.now, self.number)

    def _pushed(self, k: int, value: Tensor, some: slice) -> Tensor:
        if self.failing is not None:
            return self.failing.push(k, value, self._wired(value), some)
        assert self._push is not None
        if self.received is None:
            return self._push(value)
        return self._push(value, self.received[:, some])

    def _pulled(self, k: int, value: Tensor, some: slice) -> Tensor:
        if self.failing is not None:
            return self.failing.pull(k, value, self._wired(value), some)
        if self._pull is None:
            shares = 1 / self.graph.in_degree.double()
            self._pull = mixer(self.graph, shares[self.graph.receivers], self.wire)
        return self._pull(value)

    def _wired(self, value: Tensor) -> Tensor:
        return value if self.wire is None else value.to(self.wire)

    # ----------------------------------------------------------------- lines 5 and 6

    def _look(self, sent: Tensor, some: slice) -> None:
        """How far these columns of what was sent are from the buffers that count next."""
        pairs = self._next_pairs()
        corrected = self.network.weighting.corrected
        if self.failing is not None:
            sent = self.failing.compared(sent, self._last_sent()[:, some])
        for step, (holders, heard, d2) in pairs.items():
            then = Snapshot(step, sent, self.now.state.a)
            if step != self.number:
                then = next(s for s in self._snapshots if s.step == step)
                then = then._replace(x=then.x[:, some])
            theirs = then.x
            scalars = (self.now.state.a, then.a) if corrected and then.a is not None else None
            if scalars is not None and self.failing is not None:  # the dead have none
                scalars = scalars[0].clamp(min=TINY), scalars[1].clamp(min=TINY)
            d2.add_(distances(sent, theirs, holders, heard, scalars, self.long))

    def _next_pairs(self) -> "Pairs":
        """Whose distances the next exchange asks for."""
        if self._pairs is not None:
            return self._pairs
        network, graph = self.network, self.graph
        before = Arrivals(graph.n) if self.memory is None else self.memory.arrivals
        self._snapshots = () if self.memory is None else self.memory.snapshots
        self.arrivals = before.expired(self.number, self._lifetime)
        answered = torch.ones_like(graph.loops)
        if network.sight == "neighbours":  # what is never asked for need not be remembered
            answered = network.topology.answered(self.number)
        if self.failing is not None:
            for flight in self.failing.arriving(answered):
                self.arrivals = self.arrivals.heard(*flight[1:])
        else:
            senders, receivers = graph.senders[answered], graph.receivers[answered]
            self.arrivals = self.arrivals.heard(self.number, senders, receivers)
        if network.sight == "neighbours":
            following = network.graph(self.number + 1)
            holders, heard = following.senders, following.receivers
        else:
            holders, heard = self.arrivals.pairs()
        last, self._pairs = self.arrivals.last(holders, heard), {}
        for step, _ in self.arrivals.steps:
            (then,) = (last == step).nonzero(as_tuple=True)
            if len(then):
                self._pairs[step] = holders[then], heard[then], _zeros(len(then))
        return self._pairs

    @property
    def _lifetime(self) -> int:
        """For how many exchanges a buffer counts: B, and as long as messages may be late."""
        late = 0 if self.network.faults is None else self.network.faults.plan.longest
        return self.network.topology.period + late

    def _last_sent(self) -> Tensor:
        """What the nodes sent before; of what is remembered, the latest."""
        return self._snapshots[0].x if self._snapshots else self.now.state.x

    def finish(self, pushed: Tensor) -> tuple[Memory | Standing | None, Tensor]:
        """What the exchange leaves for the next one, and its weights."""
        if self.number == 0:
            return self.now.memory, torch.ones(self.network.topology.n, dtype=torch.float64)
        looks = self.network.sight != "nothing"
        memory = self._remembered(pushed) if looks else None
        if self.failing is None:
            return memory, self.weights
        return self.failing.finish(memory), self.weights

    def _remembered(self, pushed: Tensor) -> Memory:
        start = perf_counter()
        pairs = self._next_pairs()
        scalars = self.now.state.a if self.network.weighting.corrected else None
        pushed = self._wired(pushed)
        if self.failing is not None:
            pushed = self.failing.compared(pushed, self._last_sent())
        latest = Snapshot(self.number, pushed, scalars)
        lasting = self.arrivals.lasting(self.number, self._lifetime)
        needed = {step for step, _ in lasting.steps}
        if self.failing is not None:
            needed |= self.failing.needed
        snapshots = tuple(s for s in (latest, *self._snapshots) if s.step in needed)
        memory = Memory(lasting, snapshots, self._sorted(pairs))
        self.weighting += perf_counter() - start
        return memory

    def _sorted(self, pairs: "Pairs") -> tuple[Tensor, Tensor, Tensor]:
        if not pairs:
            return _zeros(0).long(), _zeros(0).long(), _zeros(0)
        if len(pairs) == 1:
            return next(iter(pairs.values()))
        holders, heard, d2 = (torch.cat(parts) for parts in zip(*pairs.values(), strict=True))
        order = (holders * self.graph.n + heard).argsort()
        return holders[order], heard[order], d2[order]


def _zeros(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.float64)
