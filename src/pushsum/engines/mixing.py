"""Line 7 for all nodes in one process: what every node holds once the weighted values arrived."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

import torch
from torch import Tensor

from pushsum.engines.arithmetic import BLOCK, column_blocks, float32_rounds_once
from pushsum.weighting import dense

FEW_NODES = 256  #: up to here an (n, n) matrix is cheap; above, only lists of edges are kept
SPARSE = 16  #: a matrix product does this many zeros in the time of one gathered row
WORK = 2**18  #: float64 numbers that are added up at a time
SPACE = 2**23  #: float64 numbers that are held at a time, of many nodes


@dataclass(frozen=True, eq=False)
class Graph:
    """The (E,) senders and receivers of a step, sorted, and each receiver's edges among them."""

    n: int
    senders: Tensor
    receivers: Tensor

    @cached_property
    def in_degree(self) -> Tensor:
        """(n,) how many nodes each one hears, itself among them."""
        return torch.bincount(self.receivers, minlength=self.n)

    @cached_property
    def loops(self) -> Tensor:
        """(E,) bool, which edges are self-loops."""
        return self.senders == self.receivers

    @cached_property
    def messages(self) -> tuple[Tensor, Tensor, Tensor]:
        """The edges that are no self-loops: their places, senders and receivers."""
        (places,) = (~self.loops).nonzero(as_tuple=True)
        return places, self.senders[places], self.receivers[places]

    @cached_property
    def turns(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The first edge of every receiver, the second of every one that has two, ...

        Of each turn the places among the edges, the senders and the receivers.
        """
        order = self.receivers.argsort(stable=True)  # for each, in the order of the senders
        first = torch.searchsorted(self.receivers[order], torch.arange(self.n))
        turn = torch.arange(len(order)) - first[self.receivers[order]]
        edges = [order[turn == k] for k in range(int(turn.max()) + 1)]
        return [(some, self.senders[some], self.receivers[some]) for some in edges]


@dataclass(frozen=True, eq=False)
class Weights:
    """What is given along the edges of a graph, and what that makes of the nodes' values."""

    graph: Graph
    along: Tensor  #: (E,) float64
    wire: torch.dtype | None = None  #: see `mixer`

    @cached_property
    def push(self) -> "Mixer":
        """Of values that travel."""
        return mixer(self.graph, self.along, self.wire)

    @cached_property
    def scalars(self) -> "Mixer":
        """Of what is sent whole, whatever the values travel in: a."""
        return self.push if self.wire is None else mixer(self.graph, self.along)

    @cached_property
    def kept(self) -> Tensor:
        """(n,) what the nodes give to themselves."""
        return self.along[self.graph.loops]


class Mixer(Protocol):
    """What the nodes hold of what they sent."""

    def __call__(self, value: Tensor, out: Tensor | None = None) -> Tensor:
        """(n, d) -> (n, d), written into `out` if there is one."""
        ...


def mixer(graph: Graph, weights: Tensor, wire: torch.dtype | None = None) -> "Mixer":
    """value (n, d) -> sum_j w_ij value_j (n, d), accumulated in float64 and rounded once.

    Args:
        graph: who sends to whom.
        weights: (E,) float64.
        wire: the dtype that values travel in; None: their own. A sender keeps what rounding took
            from the receivers, so that the sum over all nodes stays what it was.
    """
    in_order = _sums_by_turn if graph.n <= FEW_NODES else _segment_sums
    full = graph.n <= FEW_NODES and SPARSE * len(weights) > graph.n**2
    plain = wire is None and graph.n <= FEW_NODES
    exact = plain and float32_rounds_once(int(graph.in_degree.max()), weights.tolist())

    @cache
    def sums(kind: torch.dtype, device: torch.device) -> Sums:
        if exact and kind == torch.float32:
            return _sums_by_turn(graph, weights.to(device), kind)
        by_product = full and kind != torch.float64
        return (_product if by_product else in_order)(graph, weights.to(device))

    def mix(value: Tensor, out: Tensor | None = None) -> Tensor:
        held = torch.empty_like(value) if out is None else out
        sums(value.dtype, value.device)(value, wire, held)
        return held

    return mix


Sums = Callable[[Tensor, torch.dtype | None, Tensor], None]  #: values, wire, where sums are written


def _arriving(value: Tensor, wire: torch.dtype | None, kind: torch.dtype = torch.float64) -> Tensor:
    """What is received of a value."""
    return (value if wire is None else value.to(wire)).to(kind)


def _product(graph: Graph, weights: Tensor) -> Sums:
    W = dense(graph.n, graph.senders, graph.receivers, weights).to(weights.device)
    width = WORK // graph.n

    def add_up(value: Tensor, wire: torch.dtype | None, held: Tensor) -> None:
        room = torch.empty(2, graph.n * width, dtype=torch.float64, device=value.device)
        for some in column_blocks(value.shape[1], width):
            own = value[:, some]
            sent, total = room[:, : own.numel()].unflatten(1, own.shape)
            sent.copy_(own if wire is None else own.to(wire))
            torch.mm(W, sent, out=total)
            held[:, some] = total if wire is None else total.add_(own.double() - sent)

    return add_up


def _sums_by_turn(graph: Graph, weights: Tensor, kind: torch.dtype = torch.float64) -> Sums:
    """Sums by receiver, in the order of the senders: the k-th message of every node at a time."""
    device, w, width = weights.device, weights[:, None].to(kind), WORK // graph.n
    messages = [
        (senders.to(device), receivers.to(device), w[edges.to(device)])
        for edges, senders, receivers in graph.turns
    ]

    def add_up(value: Tensor, wire: torch.dtype | None, held: Tensor) -> None:
        for some in column_blocks(value.shape[1], width):
            own = value[:, some]
            sent = _arriving(own, wire, kind)
            parts = ((sent.index_select(0, j).mul_(w), i) for j, i, w in messages)
            total, _ = next(parts)  # everybody hears itself
            for given, receivers in parts:
                if len(receivers) == graph.n:
                    total += given
                else:
                    total[receivers] += given
            held[:, some] = total if wire is None else total.add_(own.double() - sent)

    return add_up


def _segment_sums(graph: Graph, weights: Tensor) -> Sums:
    """Sums by receiver, in the order of the senders: some messages at a time."""
    senders, receivers = graph.senders.to(weights.device), graph.receivers.to(weights.device)
    width = max(8, min(64, SPACE // graph.n))

    def add_up(value: Tensor, wire: torch.dtype | None, held: Tensor) -> None:
        for some in column_blocks(value.shape[1], width):
            own = value[:, some]
            total = torch.zeros(own.shape, dtype=torch.float64, device=value.device)
            for first in range(0, len(senders), BLOCK):
                few = slice(first, first + BLOCK)
                given = _arriving(own.index_select(0, senders[few]), wire)
                total.index_add_(0, receivers[few], given.mul_(weights[few, None]))
            held[:, some] = (
                total if wire is None else total.add_(own.double() - _arriving(own, wire))
            )

    return add_up
