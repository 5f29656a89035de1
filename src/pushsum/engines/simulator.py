"""All nodes in one process: row i of every tensor is node i.

Messages are a product with the weight matrix, and a buffer x_ij is a row of the array that was sent
at the step at which i last heard j, so nothing here is n x n x d. Where a method allows it, a step
goes through the columns block by block, so that what one part of it computes is still in the
cache when the next one needs it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum import checks
from pushsum.engines import tree
from pushsum.engines.arithmetic import BLOCK, LONG, column_blocks, distances
from pushsum.engines.arrivals import Arrivals
from pushsum.engines.engine import HEAD, Known, Moment, Setup, late_mass, refuse_tiny
from pushsum.engines.failing.exchange import Failing, Faults, check
from pushsum.engines.failing.standing import Messages, Standing, UnderWay, optimizer_rows, rows_of
from pushsum.engines.failing.standing import restored as restored_standing
from pushsum.engines.mixing import FEW_NODES, Graph, Mixer, Weights, mixer
from pushsum.faults import Plan, as_plan
from pushsum.optimizers import OWN, as_maker, torch_rule
from pushsum.protocol import Algorithm, Got, Gradient, Sent, State, keep_received, own_gradient
from pushsum.topology import Topology, as_topology
from pushsum.weighting import View, dense

TINY = 1e-300
KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  #: that x may have
GRAPHS = 16  #: that are kept, of few nodes: a cycle of them comes round again

UserGradient = Callable[[Tensor, int], Tensor]


class Snapshot(NamedTuple):
    """What all nodes sent at a step; the rows that were received are buffers."""

    step: int
    x: Tensor
    a: Tensor | None = None  #: (n,), where distances are of x / a


@dataclass(frozen=True, eq=False)
class Iterate:
    """What all nodes hold after step t."""

    moment: Moment
    setup: Setup

    @property
    def t(self) -> int:
        """The step."""
        return self.moment.t

    @property
    def state(self) -> State:
        """x, a, and what the method keeps."""
        return self.moment.state

    @property
    def x(self) -> Tensor:
        """(n, d) parameters."""
        return self.state.x

    @property
    def a(self) -> Tensor:
        """(n,) normalizing scalars, float64."""
        return self.state.a

    @property
    def y(self) -> Tensor:
        """(n, d) what the nodes hand out: corrected parameters x / a."""
        return self.moment.y

    @property
    def pushed(self) -> Tensor:
        """(n, d) what was sent of x in step t; minus the x before, the perturbation."""
        return self.moment.pushed

    @property
    def edges(self) -> Tensor:
        """(2, E) senders and receivers of step t; self-loops alone if it was a local move."""
        return self.setup.edges(self.t)

    @property
    def weights(self) -> Tensor:
        """(E,) what was given along each edge, float64."""
        return self.moment.weights.clone()

    @property
    def W(self) -> Tensor:
        """The (n, n) weight matrix of step t; `W[j, i]` is what node i gave to node j."""
        if len(self.weights) == 0:
            raise ValueError(f"step {self.t} has no weights: nothing was pushed along the edges")
        senders, receivers = self.edges
        return dense(len(self.x), senders, receivers, self.weights)

    @property
    def average(self) -> Tensor:
        """(d,) the network's average parameter, the sum of x over the sum of a.

        What is under way counts, and of the nodes those that are there.
        """
        late = self.under_way
        total = self.x.sum(0, dtype=torch.float64) + late.x
        return (total / (self.a.sum() + late.a)).to(self.x.dtype)

    @property
    def under_way(self) -> UnderWay:
        """The sums of x, (d,), and of a that were sent and not yet received."""
        if self._faults is None:
            return UnderWay(*late_mass(self.setup.algorithm, self.state))
        return self._faults.under_way(self.moment)

    @property
    def alive(self) -> Tensor:
        """(n,) bool, which nodes are there; x and a of the others are 0, their y is the last."""
        if self._faults is None:
            return torch.ones(len(self.x), dtype=torch.bool)
        alive: Tensor = self.moment.memory.alive
        return alive

    @property
    def held(self) -> Tensor:
        """(n,) bool, which nodes have too small an a to give anything in the next exchange."""
        if self._faults is None:
            return torch.zeros(len(self.x), dtype=torch.bool)
        return self._faults.held(self.moment)

    @property
    def messages(self) -> Messages:
        """How many messages were sent, lost and late since the start; none without a plan."""
        found: Messages = Messages() if self._faults is None else self.moment.memory.messages
        return found

    @cached_property
    def _faults(self) -> Faults | None:
        return None if self.setup.faults is None else Network(self.setup).faults

    @property
    def personal(self) -> Tensor | None:
        """(n, d) the nodes' personal models, where the method has any."""
        made = self.setup.algorithm.personal
        return None if made is None else made(self.state)


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
        if self.faults is not None and not bool(now.memory.awake.all()):
            after, y = rows_of(now.memory.awake, (after, y), (now.state, now.y))
            kept = optimizer_rows(rule, now.memory.awake, kept, now.optimizer)
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
        """Moves of nodes that have a clock of their own."""
        return move if self.failing is None else self.failing.scaled(move)

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
            self._pull = mixer(self.graph, shares[self.graph.receivers])
        return self._pull(self._wired(value).to(value.dtype))

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
        senders, receivers, answered = graph.senders, graph.receivers, None
        if network.sight == "neighbours":  # what is never asked for need not be remembered
            answered = network.topology.answered(self.number)
        if self.failing is not None:
            self.arrivals = before.expired(self.number, self._lifetime)
            for flight in self.failing.arriving(answered):
                self.arrivals = self.arrivals.heard(*flight[1:])
        else:
            if answered is not None:
                senders, receivers = senders[answered], receivers[answered]
            self.arrivals = before.after(self.number, senders, receivers, self._lifetime)
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


# --------------------------------------------------------------------------- the loop


def iterate(
    algorithm: Algorithm,
    topology: str | Topology,
    gradient: UserGradient,
    x0: Tensor,
    steps: int,
    after: Iterate | None = None,
    *,
    optimizer: Any = None,
    every: int = 1,
    full_gradient: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
    faults: Plan | str | None = None,
) -> Iterator[Iterate]:
    """Run an algorithm on a graph sequence, one `Iterate` per step.

    Args:
        algorithm: one of `pushsum.algorithms`.
        topology: one of `pushsum.topology`, or the name of one, of as many nodes as x0 has rows.
        gradient: (y, t) -> (n, d): row i is the gradient that node i takes at its own row of y,
            which is y^(t-1), in step t.
        x0: (n, d), one start per node; its dtype is kept (a is float64 whatever x is).
        steps: how many steps to run.
        after: go on after this record of an earlier run, instead of starting from x0.
        optimizer: a class of torch.optim with its arguments, which takes the place of the
            algorithm's own local optimizer, e.g. functools.partial(torch.optim.AdamW, lr=0.01).
            Each `Iterate` has a copy of its state.
        every: local moves per exchange. In a step without an exchange W is the identity; graphs
            count exchanges.
        full_gradient: (y) -> (n, d), of all samples: for variance-reduced methods.
        seed: of what the algorithm draws at random.
        faults: what fails, one of `pushsum.faults`, e.g. plan(seed=0, loss=0.3); None: nothing.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> run = ps.iterate(ps.algorithms.sgp(0.1), ps.topology.ring(3), lambda y, t: y - targets,
    ...                  torch.zeros(3, 1), steps=200)
    >>> *_, last = run
    >>> round(last.average.item(), 3)
    2.0
    """
    checks.count("steps", steps, "the number of steps", least=0)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"algorithm = {algorithm!r}: give one of pushsum.algorithms, such as sgp(lr=0.1)"
        )
    if not callable(gradient):
        raise ValueError(f"gradient = {gradient!r}: give a function (y, t) -> (n, d)")
    rule = None if optimizer is None else torch_rule(as_maker(optimizer))
    if after is not None and not isinstance(after, Iterate):
        raise ValueError(f"after = {after!r}: give what an earlier `iterate` has yielded")
    x0 = _checked_start(x0) if after is None else after.x
    graphs = as_topology(topology, len(x0))
    setup = Setup(algorithm, graphs, rule, every, seed=seed, faults=as_plan(faults))
    network = Network(setup)
    if algorithm.asks == "full" and full_gradient is None:
        raise ValueError(f"{algorithm.name} needs full_gradient, a function of y")
    if after is None:
        if len(x0) != graphs.n:
            expected = f"({graphs.n}, d): one row for each of {graphs.n} nodes"
            raise ValueError(f"x0 has shape {tuple(x0.shape)}, expected {expected}")
        now = network.begin(x0)
    else:
        _refuse_other_run(after, network)
        now = after.moment
    return _steps(network, gradient, full_gradient, now, steps)


def _steps(
    network: Network,
    gradient: UserGradient,
    full: Callable[[Tensor], Tensor] | None,
    now: Moment,
    steps: int,
) -> Iterator[Iterate]:
    algorithm = network.setup.algorithm
    keeps = algorithm.direction is not own_gradient or network.setup.optimizer.name == OWN
    for _ in range(steps):
        point = algorithm.gradient_point(now.state, now.y)
        if network.faults is not None and algorithm.point is not None:  # the dead have none
            point = rows_of(now.memory.alive, point, now.y)
        now = network.advance(now, _Asked(gradient, full, point, now.t + 1, keeps))
        yield Iterate(now, network.setup)


@dataclass(frozen=True)
class _Asked:
    """A user's functions as the gradient of one step."""

    function: UserGradient
    of_all: Callable[[Tensor], Tensor] | None
    point: Tensor
    t: int
    keeps: bool  #: whether somebody keeps gradients, which the function might write over

    def __call__(self, point: Tensor | None = None) -> Tensor:
        place = self.point if point is None else point
        g = self._checked(lambda y: self.function(y, self.t), place)
        return g.clone() if self.keeps else g

    def full(self, point: Tensor) -> Tensor:
        assert self.of_all is not None
        return self._checked(self.of_all, point).clone()

    def _checked(self, function: Callable[[Tensor], Tensor], place: Tensor) -> Tensor:
        handed = place.detach()  # `requires_grad_()` on it leaves ours alone
        before = _changes(handed)
        g = _checked_gradient(function(handed), place, self.t)
        if _changes(handed) != before:
            raise ValueError(
                f"the gradient function wrote into its argument at step {self.t}: work on a copy, "
                "y.clone()"
            )
        return g


def _changes(tensor: Tensor) -> int:
    """How often a tensor was written to, which torch does not count of inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


# --------------------------------------------------------------------------- at the door


def _refuse_other_run(after: Iterate, network: Network) -> None:
    """A record goes on only as what it is a record of."""
    before, now = after.setup, network.setup
    same: dict[str, Callable[[Setup], object]] = {
        "algorithm": lambda setup: setup.algorithm.name,
        "weighting": lambda setup: setup.algorithm.weighting.name,
        "optimizer": lambda setup: setup.optimizer.name,
        "topology": lambda setup: setup.topology.name,
        "every": lambda setup: setup.every,
        "seed": lambda setup: setup.seed,
        "faults": lambda setup: setup.faults,
    }
    otherwise = "go on with the same, or start from after.y"
    for name, of in same.items():
        if of(before) != of(now):
            raise ValueError(
                f"after is a record of a run with {name} {of(before)}, not {of(now)}: {otherwise}"
            )
    graphs, others = now.topology, before.topology
    if graphs is not others and graphs.fingerprint() != others.fingerprint():
        raise ValueError(f"after is a record of a run with other graphs {graphs}: {otherwise}")
    kept = now.begin(after.x, network.nodes).state.kept
    if _shapes(kept) != _shapes(after.state.kept):
        name = now.algorithm.name
        raise ValueError(f"after is a record of {name} with other parameters: {otherwise}")


def _shapes(kept: Any) -> list[tuple[int, ...]]:
    return [tuple(part.shape) for part in tree.leaves(kept)]


def _checked_start(x0: Tensor) -> Tensor:
    try:
        x0 = torch.as_tensor(x0).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"x0 is {type(x0).__name__}, expected a tensor (n, d)") from None
    if x0.ndim != 2 or x0.numel() == 0:
        raise ValueError(f"x0 has shape {tuple(x0.shape)}, expected (n, d): one row per node")
    if x0.dtype not in KINDS or x0.layout != torch.strided:
        raise ValueError(
            f"x0 is {x0.dtype}, {x0.layout}: give dense floating-point numbers, e.g. x0.double()"
        )
    finite = x0.isfinite().all(1)
    if not finite.all():
        node = int((~finite).nonzero()[0])
        raise ValueError(f"x0 of node {node} holds NaN or infinity: start from finite numbers")
    return x0.clone()


def _checked_gradient(g: Tensor, x: Tensor, t: int) -> Tensor:
    try:
        g = torch.as_tensor(g).detach().to_dense().to(x)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"gradient at step {t} is {type(g).__name__}, expected a tensor of {tuple(x.shape)}"
        ) from None
    if g.shape != x.shape:
        raise ValueError(
            f"gradient at step {t} has shape {tuple(g.shape)}, expected {tuple(x.shape)}: "
            "one row per node"
        )
    if not g.sum(1).isfinite().all():  # quick; the sum of finite numbers may overflow, so look
        finite = g.isfinite().all(1)
        if not finite.all():
            node = int((~finite).nonzero()[0])
            raise ValueError(
                f"gradient of node {node} at step {t} holds NaN or infinity: the run has "
                "diverged (try a smaller lr) or the gradient function is at fault"
            )
    return g
