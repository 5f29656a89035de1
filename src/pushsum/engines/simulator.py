"""All nodes in one process: row i of every tensor is node i.

Messages are a product with the weight matrix, and a buffer x_ij is a row of the array that was
pushed at the step at which i last heard j, so nothing here is n x n x d.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pushsum import algorithms
from pushsum.algorithms import Algorithm
from pushsum.engines.arithmetic import BLOCK, distances, float32_weights
from pushsum.protocol import Pushed
from pushsum.topology import NEVER, Topology, as_topology
from pushsum.weighting import Shares, Weighting, dense

FEW_NODES = 256  #: up to here an (n, n) matrix is cheap; above, only lists of edges are kept
GRAPHS = 16  #: that are kept, of few nodes: a cycle of them comes round again
SPARSE = 16  #: a matrix product does this many zeros in the time of one gathered row

Gradient = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, eq=False)
class Iterate:
    """What all nodes hold after step t."""

    t: int
    state: algorithms.State
    topology: Topology

    @property
    def x(self) -> Tensor:
        """(n, d) parameters."""
        return self.state.network.x

    @property
    def a(self) -> Tensor:
        """(n,) normalizing scalars, float64."""
        return self.state.network.a

    @property
    def y(self) -> Tensor:
        """(n, d) corrected parameters x / a."""
        return self.state.network.y

    @property
    def pushed(self) -> Tensor:
        """(n, d) what was pushed in step t; minus the x before, the perturbation."""
        return self.state.network.pushed

    @property
    def edges(self) -> Tensor:
        """(2, E) senders and receivers of step t."""
        return self.topology.edges(self.t)

    @property
    def weights(self) -> Tensor:
        """(E,) what was given along each edge, float64."""
        return self.state.network.weights

    @property
    def W(self) -> Tensor:
        """The (n, n) weight matrix of step t; `W[j, i]` is what node i gave to node j."""
        if len(self.weights) == 0:
            raise ValueError(f"step {self.t} has no weights: nothing was pushed along the edges")
        senders, receivers = self.edges
        return dense(len(self.x), senders, receivers, self.weights)

    @property
    def average(self) -> Tensor:
        """(d,) the network's average parameter, the mean of x."""
        return self.x.mean(0)


def iterate(
    algorithm: Algorithm,
    topology: str | Topology,
    gradient: Gradient,
    x0: Tensor,
    steps: int,
    after: Iterate | None = None,
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

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> run = ps.iterate(ps.algorithms.sgp(0.1), ps.topology.ring(3), lambda y, t: y - targets,
    ...                  torch.zeros(3, 1), steps=200)
    >>> *_, last = run
    >>> round(last.average.item(), 3)
    2.0
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
        raise ValueError(f"steps = {steps!r}: the number of steps is an integer >= 0")
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"algorithm = {algorithm!r}: give one of pushsum.algorithms, such as sgp(lr=0.1)"
        )
    network = Network(as_topology(topology, len(x0)))
    if after is None:
        done, state = 0, algorithm.init(_checked_start(x0, network.topology.n))
    else:
        done, state = after.t, after.state
        if len(after.x) != network.topology.n:
            raise ValueError(
                f"after is a record of {len(after.x)} nodes, but {network.topology} has "
                f"{network.topology.n}"
            )
    return _steps(algorithm, network, gradient, state, range(done + 1, done + steps + 1))


def _steps(
    algorithm: Algorithm,
    network: "Network",
    gradient: Gradient,
    state: algorithms.State,
    steps: range,
) -> Iterator[Iterate]:
    for t in steps:
        g = _checked_gradient(gradient(state.network.y, t), state.network.x, t)
        state = algorithm.step(state, g, t, network)
        yield Iterate(t, state, network.topology)


class Snapshot(NamedTuple):
    """What all nodes pushed at a step; the rows that were received are buffers."""

    step: int
    x: Tensor
    a: Tensor | None = None  #: (n,), where distances are of x / a


@dataclass(frozen=True, eq=False)
class Graph:
    """The (E,) senders and receivers of a step, sorted, and each receiver's edges among them."""

    n: int
    senders: Tensor
    receivers: Tensor

    @cached_property
    def by_receiver(self) -> Tensor:
        """(E,) the edges, receiver after receiver; for each of them in the order of the senders."""
        return self.receivers.argsort(stable=True)

    @cached_property
    def first(self) -> Tensor:
        """(n,) where in `by_receiver` those of a receiver begin."""
        return torch.searchsorted(self.receivers[self.by_receiver], torch.arange(self.n))

    @cached_property
    def turns(self) -> list[Tensor]:
        """The first edge of every receiver, the second of every one that has two, ..."""
        order = self.by_receiver
        turn = torch.arange(len(order)) - self.first[self.receivers[order]]
        return [order[turn == k] for k in range(int(turn.max()) + 1)]


class Network:
    """The exchange of the simulator.

    Args:
        topology: who sends to whom.
        start: the step after which the sequence of graphs begins.
        wire: the dtype that vectors travel in; None: their own. A sender keeps what rounding took
            from the receivers, so that the network's sum stays what it was.
    """

    def __init__(self, topology: Topology, start: int = 0, wire: torch.dtype | None = None) -> None:
        self.topology = topology
        self.start = start
        self.wire = wire
        self.period = topology.period  # raises here if the graphs do not connect the nodes
        kept = GRAPHS if topology.n <= FEW_NODES else 1
        self._graph = lru_cache(kept)(lambda t: Graph(topology.n, *topology.edges(t)))
        self.seconds = {"weighting": 0.0, "mixing": 0.0}  # what the exchanges have cost so far

    def push(self, t: int, weighting: Weighting, values: Sequence[Tensor], memory: Any) -> Pushed:
        """Lines 3-7 of Algorithm 1; see `pushsum.protocol.Exchange`."""
        snapshots: tuple[Snapshot, ...] = memory or ()
        t -= self.start
        cycle = self.topology.cycle
        graph = self._graph(t if cycle is None else (t - 1) % cycle + 1)
        start = perf_counter()
        weights = self._weights(t, graph, weighting, snapshots)
        weighted = perf_counter()
        mix = mixer(graph, weights)
        sent = [v if self.wire is None or v.ndim == 1 else v.to(self.wire) for v in values]
        held = tuple(_delivered(mix, v, out) for v, out in zip(values, sent, strict=True))
        self.seconds["weighting"] += weighted - start
        self.seconds["mixing"] += perf_counter() - weighted
        scalars = values[1] if weighting.corrected else None
        snapshots = (Snapshot(t, sent[0], scalars), *snapshots)[: weighting.depth(self.topology)]
        return Pushed(held, snapshots, weights)

    def average(self, value: Tensor) -> Tensor:
        """The mean over all nodes, at every node."""
        return value.mean(0, keepdim=True).expand_as(value)

    def saved(self, memory: Any) -> tuple[dict[str, Tensor], Any]:
        """A memory as named tensors and JSON."""
        snapshots: tuple[Snapshot, ...] = memory or ()
        tensors = {str(position): snapshot.x for position, snapshot in enumerate(snapshots)}
        for position, snapshot in enumerate(snapshots):
            if snapshot.a is not None:
                tensors[f"{position}.a"] = snapshot.a
        return tensors, [snapshot.step for snapshot in snapshots]

    def restored(self, tensors: Mapping[str, Tensor], notes: Any) -> Any:
        """The memory that was saved."""
        return (
            tuple(
                Snapshot(step, tensors[str(position)], tensors.get(f"{position}.a"))
                for position, step in enumerate(notes)
            )
            or None
        )

    def _weights(
        self, t: int, graph: Graph, weighting: Weighting, snapshots: tuple[Snapshot, ...]
    ) -> Tensor:
        """Line 3: weights of step t from the buffers as step t-1 left them."""
        n, senders, receivers = graph.n, graph.senders, graph.receivers
        nothing = torch.zeros(len(senders), dtype=torch.float64)
        if isinstance(weighting, Shares):
            sight = weighting.looks(self.topology)
            if sight == "nothing":
                return weighting.along(senders, receivers, n, nothing, nothing)
            if sight == "neighbours":
                heard = self.topology.last_heard(t)
                d2 = squared_distances(senders, receivers, heard, snapshots)
                return weighting.along(senders, receivers, n, d2, nothing)
        elif n > 8 * FEW_NODES:
            raise ValueError(
                f"weighting {weighting}: a function of (n, n) matrices is for up to "
                f"{8 * FEW_NODES} nodes, not {n}: use one of pushsum.weighting"
            )
        holder, heard_node, step = self.topology.buffers(t)
        live = squared_distances(holder, heard_node, step, snapshots)
        if isinstance(weighting, Shares):
            total = torch.zeros(n, dtype=torch.float64).index_add_(0, holder, live)
            positive = torch.bincount(holder[live > 0], minlength=n).clamp(min=1)
            scale = (total / positive)[senders]
            missing = scale if weighting.unheard_at_mean else nothing
            d2 = _look_up(holder * n + heard_node, live, senders * n + receivers, missing)
            return weighting.along(senders, receivers, n, d2, scale)
        d2 = torch.zeros(n, n, dtype=torch.float64)
        d2[holder, heard_node] = live
        return weighting.matrix(self.topology.adjacency(t), d2)[receivers, senders]


# --------------------------------------------------------------------------- mixing


def mixer(graph: Graph, weights: Tensor) -> Callable[[Tensor], Tensor]:
    """Line 7: value -> what every node holds once the weighted values have arrived.

    In float64 and for many nodes, each node adds up what it received in the order of the senders,
    one rounded product after the other, so that the result does not depend on how many threads
    or processes did it. Below that precision sums are in float32, and a few nodes are one product
    with a matrix, or with its non-zero entries where they are few.
    """
    n = graph.n
    if n > FEW_NODES:
        exact = quick = _segment_sums
    else:
        exact = _sums_by_turn
        quick = _sparse_product if SPARSE * len(weights) <= n**2 else _dense_product

    def mix(value: Tensor) -> Tensor:
        rows = value.reshape(n, -1)
        if value.dtype == torch.float64:
            return exact(rows, graph, weights).reshape(value.shape)
        given = float32_weights(n, graph.senders, graph.receivers, weights)
        mixed = quick(rows.float(), graph, given)
        return mixed.to(value.dtype).reshape(value.shape)

    return mix


def _delivered(mix: Callable[[Tensor], Tensor], value: Tensor, sent: Tensor) -> Tensor:
    """What every node holds when `sent` was pushed for `value`: the difference stays at home."""
    if sent.dtype == value.dtype:
        return mix(sent)
    rounded = sent.to(value.dtype)
    return mix(rounded) + (value - rounded)


def _dense_product(rows: Tensor, graph: Graph, weights: Tensor) -> Tensor:
    W = dense(graph.n, graph.senders, graph.receivers, weights)
    return torch.mm(W.to(rows.device), rows)


def _sparse_product(rows: Tensor, graph: Graph, weights: Tensor) -> Tensor:
    """A bag of weighted rows for every receiver, which has at least its own."""
    return F.embedding_bag(
        graph.senders[graph.by_receiver].to(rows.device),
        rows,
        graph.first.to(rows.device),
        mode="sum",
        per_sample_weights=weights[graph.by_receiver].to(rows.device),
    )


def _sums_by_turn(rows: Tensor, graph: Graph, weights: Tensor) -> Tensor:
    """Sums by receiver, in the order of the senders: the k-th message of every node at a time."""
    device = rows.device
    w = weights.to(rows)[:, None]
    messages = [
        (graph.senders[k].to(device), graph.receivers[k].to(device), w[k.to(device)])
        for k in graph.turns
    ]
    held = torch.zeros_like(rows)
    width = max(1, 4 * BLOCK // graph.n)
    for start in range(0, rows.shape[1], width):
        part = slice(start, start + width)
        for sent_by, received_by, weight in messages:
            given = rows[:, part].index_select(0, sent_by).mul_(weight)
            if len(received_by) == graph.n:
                held[:, part] += given
            else:
                held[received_by, part] += given
    return held


def _segment_sums(rows: Tensor, graph: Graph, weights: Tensor) -> Tensor:
    """Sums by receiver, in the order of the senders: some messages at a time."""
    held = torch.zeros_like(rows)
    senders, receivers = graph.senders.to(rows.device), graph.receivers.to(rows.device)
    w = weights.to(rows)[:, None]
    width = max(1, 4 * BLOCK // min(len(senders), BLOCK))
    for column in range(0, rows.shape[1], width):
        part = slice(column, column + width)
        for first in range(0, len(senders), BLOCK):
            some = slice(first, first + BLOCK)
            given = rows[:, part].index_select(0, senders[some]).mul_(w[some])
            held[:, part].index_add_(0, receivers[some], given)
    return held


def squared_distances(
    holders: Tensor, heard: Tensor, steps: Tensor, snapshots: Sequence[Snapshot]
) -> Tensor:
    """||x_ii^(buff) - x_ij^(buff)||^2 for a list of buffers (i, j, step j was heard); float64.

    The own entry is what node i pushed in the last step. Where snapshots have scalars, of x / a.
    """
    d2 = torch.zeros(len(holders), dtype=torch.float64)
    others = (steps != NEVER) & (holders != heard)
    if not others.any():
        return d2
    last = snapshots[0]
    for step, x, a in snapshots:
        (of_step,) = ((steps == step) & others).nonzero(as_tuple=True)
        if len(of_step) > 0:
            scalars = None if last.a is None or a is None else (last.a, a)
            d2[of_step] = distances(last.x, x, holders[of_step], heard[of_step], scalars)
    return d2


def _look_up(keys: Tensor, values: Tensor, wanted: Tensor, missing: Tensor) -> Tensor:
    """values[position of wanted in the sorted keys], or what stands for it where it is missing."""
    if len(keys) == 0:
        return missing
    position = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[position] == wanted, values[position], missing)


# --------------------------------------------------------------------------- at the door


def _checked_start(x0: Tensor, n: int) -> Tensor:
    x0 = torch.as_tensor(x0).detach()
    if x0.ndim != 2 or len(x0) != n or x0.shape[1] == 0:
        raise ValueError(
            f"x0 has shape {tuple(x0.shape)}, expected ({n}, d): one row for each of {n} nodes"
        )
    if not x0.is_floating_point():
        raise ValueError(f"x0 has dtype {x0.dtype}: give floating-point numbers, e.g. x0.double()")
    finite = x0.isfinite().all(1)
    if not finite.all():
        node = int((~finite).nonzero()[0])
        raise ValueError(f"x0 of node {node} holds NaN or infinity: start from finite numbers")
    return x0.clone()


def _checked_gradient(g: Tensor, x: Tensor, t: int) -> Tensor:
    try:
        g = torch.as_tensor(g).detach().to(x)
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
