"""All nodes in one process: row i of every tensor is node i.

Messages are a product with the weight matrix, and a buffer x_ij is a row of the array that was
pushed at the step at which i last heard j, so nothing here is n x n x d.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum.algorithms import Algorithm
from pushsum.protocol import Pushed
from pushsum.topology import Topology
from pushsum.weighting import Shares, Weighting, dense

FEW_NODES = 256  #: up to here an (n, n) matrix is cheap; above, only lists of edges are kept
BLOCK = 2**18  #: elements of a work array that stay in a core's cache

Gradient = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, eq=False)
class Iterate:
    """What all nodes hold after step t."""

    t: int
    x: Tensor  #: (n, d) parameters
    a: Tensor  #: (n,) normalizing scalars, float64
    y: Tensor  #: (n, d) corrected parameters
    pushed: Tensor  #: (n, d) what was pushed in step t; minus the x before, the perturbation
    weights: Tensor  #: (E,) what was given along each edge of step t, float64
    topology: Topology

    @property
    def edges(self) -> Tensor:
        """(2, E) senders and receivers of step t."""
        return self.topology.edges(self.t)

    @property
    def W(self) -> Tensor:
        """The (n, n) weight matrix of step t; `W[j, i]` is what node i gave to node j."""
        senders, receivers = self.edges
        return dense(len(self.x), senders, receivers, self.weights)

    @property
    def average(self) -> Tensor:
        """(d,) the network's average parameter, the mean of x."""
        return self.x.mean(0)


def iterate(
    algorithm: Algorithm, topology: Topology, gradient: Gradient, x0: Tensor, steps: int
) -> Iterator[Iterate]:
    """Run an algorithm on a graph sequence, one `Iterate` per step.

    Args:
        algorithm: one of `pushsum.algorithms`.
        topology: one of `pushsum.topology`.
        gradient: (y, t) -> (n, d): row i is the gradient that node i takes at its own row of y,
            which is y^(t-1), in step t.
        x0: (n, d), one start per node; its dtype is kept (a is float64 whatever x is).
        steps: how many steps to run.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> run = ps.iterate(ps.algorithms.sgp(0.1), ps.topology.ring(3), lambda y, t: y - targets,
    ...                  torch.zeros(3, 1), steps=200)
    >>> *_, last = run
    >>> round(last.average.item(), 3)
    2.0
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"steps = {steps!r}: the number of steps is an integer >= 0")
    x0 = _checked_start(x0, topology.n)
    network = Network(topology)
    state = algorithm.init(x0)

    def run() -> Iterator[Iterate]:
        nonlocal state
        for t in range(1, steps + 1):
            g = _checked_gradient(gradient(state.network.y, t), x0, t)
            state = algorithm.step(state, g, t, network)
            x, a, y, _, pushed, weights = state.network
            yield Iterate(t, x, a, y, pushed, weights, topology)

    return run()


class Snapshot(NamedTuple):
    """What all nodes pushed at a step; the rows that were received are buffers."""

    step: int
    x: Tensor


class Network:
    """The exchange of the simulator."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.period = topology.period  # raises here if the graphs do not connect the nodes

    def push(self, t: int, weighting: Weighting, values: Sequence[Tensor], memory: Any) -> Pushed:
        """Lines 3-7 of Algorithm 1; see `pushsum.protocol.Exchange`."""
        snapshots: tuple[Snapshot, ...] = memory or ()
        edges = self.topology.edges(t)
        weights = self._weights(t, edges, weighting, snapshots)
        held = tuple(mix(edges, weights, value) for value in values)
        if weighting.sight != "nothing":
            depth = self.topology.lookback if weighting.sight == "neighbours" else self.period
            snapshots = (Snapshot(t, values[0]), *snapshots)[:depth]
        return Pushed(held, snapshots, weights)

    def _weights(
        self, t: int, edges: Tensor, weighting: Weighting, snapshots: tuple[Snapshot, ...]
    ) -> Tensor:
        """Line 3: weights of step t from the buffers as step t-1 left them."""
        n = self.topology.n
        senders, receivers = edges
        nothing = torch.zeros(len(senders), dtype=torch.float64)
        if isinstance(weighting, Shares):
            if weighting.sight == "nothing":
                return weighting.along(senders, receivers, n, nothing, nothing)
            if weighting.sight == "neighbours":
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
            d2 = _look_up(holder * n + heard_node, live, senders * n + receivers)
            return weighting.along(senders, receivers, n, d2, (total / positive)[senders])
        d2 = torch.zeros(n, n, dtype=torch.float64)
        d2[holder, heard_node] = live
        adjacency = torch.zeros(n, n, dtype=torch.bool)
        adjacency[senders, receivers] = True
        return weighting.matrix(adjacency, d2)[receivers, senders]


# --------------------------------------------------------------------------- the kernels


def mix(edges: Tensor, weights: Tensor, value: Tensor, out: Tensor | None = None) -> Tensor:
    """Line 7: what every node holds once the weighted values along the edges have arrived.

    In float64 and for many nodes each node adds up what it received in the order of the senders,
    one rounded product after the other, so that the result does not depend on how many threads
    or processes did it. Below that precision a few nodes are one matrix product.
    """
    n = len(value)
    rows = value.reshape(n, -1)
    senders, receivers = edges
    if n <= FEW_NODES and value.dtype != torch.float64:
        W = dense(n, senders, receivers, weights).to(rows)
        held = None if out is None else out.view(rows.shape)
        return torch.mm(W, rows, out=held).reshape(value.shape)
    held = torch.zeros_like(rows) if out is None else out.view(rows.shape).zero_()
    w = weights.to(rows)[:, None]
    width = max(1, 4 * BLOCK // min(len(senders), BLOCK))
    for column in range(0, rows.shape[1], width):
        part = slice(column, column + width)
        for first in range(0, len(senders), BLOCK):
            some = slice(first, first + BLOCK)
            given = rows[:, part].index_select(0, senders[some]).mul_(w[some])
            held[:, part].index_add_(0, receivers[some], given)
    return held.reshape(value.shape)


def squared_distances(
    holders: Tensor, heard: Tensor, steps: Tensor, snapshots: Sequence[Snapshot]
) -> Tensor:
    """||x_ii^(buff) - x_ij^(buff)||^2 for a list of buffers (i, j, step j was heard); float64.

    The own entry is what node i pushed in the last step. By subtraction: the Gram identity loses
    every digit in float32 when nodes nearly agree.
    """
    d2 = torch.zeros(len(holders), dtype=torch.float64)
    if not snapshots:
        return d2
    newest = snapshots[0].x
    for step, x in snapshots:
        (of_step,) = (steps == step).nonzero(as_tuple=True)
        if len(of_step) == 0:
            continue
        i, j = holders[of_step], heard[of_step]
        by_pair = _few_long_rows if len(x) <= FEW_NODES else _many_short_rows
        d2[of_step] = by_pair(newest, x, i, j)
    return d2


def _few_long_rows(own: Tensor, other: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Pair after pair, in blocks that stay in the cache."""
    d = own.shape[1]
    work = torch.empty(min(BLOCK, d), dtype=own.dtype, device=own.device)
    pairs = list(zip(i.tolist(), j.tolist(), strict=True))
    if own is other:  # ||x_i - x_j|| = ||x_j - x_i||
        pairs = [(min(pair), max(pair)) for pair in pairs]
    distances = dict.fromkeys(pairs, 0.0)
    for first in range(0, d, BLOCK):
        block = slice(first, first + BLOCK)
        for p, q in distances:
            difference = torch.sub(other[q, block], own[p, block], out=work[: d - first])
            distances[p, q] += torch.dot(difference, difference).item()
    return torch.tensor([distances[pair] for pair in pairs], dtype=torch.float64)


def _many_short_rows(own: Tensor, other: Tensor, i: Tensor, j: Tensor) -> Tensor:
    size = max(1, 4 * BLOCK // own.shape[1])
    parts = [
        (own[i[k : k + size]] - other[j[k : k + size]]).double().square_().sum(1)
        for k in range(0, len(i), size)
    ]
    return torch.cat(parts)


def _look_up(keys: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """values[position of wanted in the sorted keys], 0 where it is not among them."""
    if len(keys) == 0:
        return torch.zeros(len(wanted), dtype=values.dtype)
    position = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[position] == wanted, values[position], 0.0)


# --------------------------------------------------------------------------- at the door


def _checked_start(x0: Tensor, n: int) -> Tensor:
    x0 = torch.as_tensor(x0)
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


def _checked_gradient(g: Tensor, x0: Tensor, t: int) -> Tensor:
    g = torch.as_tensor(g)
    if g.shape != x0.shape:
        raise ValueError(
            f"gradient at step {t} has shape {tuple(g.shape)}, expected {tuple(x0.shape)}: "
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
    return g.to(x0)
