"""Directed graph sequences: who may send to whom at step t = 1, 2, ...

A topology says what the graphs are: their edges at every step, and what they guarantee about
connectivity (Assumption 1). Who was really heard is no matter of geometry: exchanges remember it.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from math import gcd
from operator import index
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from pushsum import checks, files, own_code
from pushsum.names import canonical, unknown
from pushsum.randomness import uniforms

Part = TypeVar("Part")

MOST = 10**9  #: nodes, or steps of a period
MOST_DENSE = 20_000  #: nodes of a topology with of the order of n^2 channels
MOST_EDGES = 1 << 30  #: bytes of a file of edges


class NotStronglyConnected(ValueError):
    """Some node can never reach some other one, so Assumption 1 does not hold."""


@dataclass(frozen=True)
class Certificate:
    """What a graph sequence guarantees.

    Attributes:
        period: B, the smallest window such that every B consecutive graphs together are
            strongly connected.
        diameter: Delta, the largest diameter of such a union.
        horizon: H, the smallest number such that every product of H consecutive weight matrices
            is entrywise positive. H <= (n - 1) B, and H = Delta for a graph that never changes;
            the paper uses Delta * B in its place, which can be too small (docs/horizon.md).
    """

    period: int
    diameter: int
    horizon: int


class Topology(ABC):
    """A directed graph on nodes 0..n-1 for every step t = 1, 2, ...; self-loops always included."""

    n: int
    name: str

    @property
    @abstractmethod
    def cycle(self) -> int | None:
        """After how many steps the graphs repeat; None if they never do."""

    @property
    @abstractmethod
    def degrees(self) -> tuple[int, int]:
        """The smallest and the largest out-degree K at any step, self-loop counted."""

    @abstractmethod
    def edges(self, t: int) -> Tensor:
        """The edges of step t as a (2, E) int64 tensor of senders and receivers, sorted."""

    @abstractmethod
    def certificate(self) -> Certificate:
        """B, Delta and H; raises `NotStronglyConnected` if some node can never reach another."""

    @property
    @abstractmethod
    def period(self) -> int:
        """B alone, cheap enough for a million nodes: buffers expire after B steps."""

    @abstractmethod
    def answered(self, t: int) -> Tensor:
        """(E,) bool, for each edge i -> j of step t: whether j ever sends to i.

        Of self-loops it says nothing.
        """

    def adjacency(self, t: int) -> Tensor:
        """The graph of step t as an (n, n) bool tensor; [i, j] is True iff i sends to j."""
        adjacency = torch.zeros(self.n, self.n, dtype=torch.bool)
        senders, receivers = self.edges(t)
        adjacency[senders, receivers] = True
        return adjacency

    def fingerprint(self) -> str:
        """What the graphs are, in a few letters: two that are equal have the same edges."""
        graphs = sha256()
        for t in range(1, (self.cycle or 64) + 1):
            graphs.update(self.edges(t).numpy().tobytes())
        return graphs.hexdigest()[:12]

    def __repr__(self) -> str:
        return self.name


# --------------------------------------------------------------------------- the constructors


def full(n: int) -> Topology:
    """Everybody sends to everybody at every step.

    >>> full(6).certificate()
    Certificate(period=1, diameter=1, horizon=1)
    """
    n = _node_count(n, MOST_DENSE)
    return Circulant(n, (tuple(range(n)),), f"full({n})")


def ring(n: int) -> Topology:
    """Node i sends to node i + 1 (mod n) at every step.

    >>> ring(7).certificate()
    Certificate(period=1, diameter=6, horizon=6)
    """
    n = _node_count(n)
    return Circulant(n, (_hop(n, 1),), f"ring({n})")


def exponential(n: int) -> Topology:
    """At step t node i sends to i + 2^p (mod n), p cycling through 0..ceil(log2 n) - 1.

    >>> exponential(6).certificate()
    Certificate(period=3, diameter=2, horizon=3)
    """
    n = _node_count(n)
    powers = range(max(1, (n - 1).bit_length()))
    return Circulant(n, tuple(_hop(n, 2**p) for p in powers), f"exponential({n})")


def divide(n: int) -> Topology:
    """Two complete clusters, 0..n//2-1 and the rest, joined by one two-way channel.

    The channel joins the first node of each cluster, 0 and n//2.

    >>> divide(6).certificate()
    Certificate(period=1, diameter=3, horizon=3)
    """
    n = _node_count(n, MOST_DENSE)
    cluster = np.arange(n) >= n // 2
    adjacency = cluster[:, None] == cluster[None, :]
    adjacency[0, n // 2] = adjacency[n // 2, 0] = True
    # from the farthest node of one cluster to its gate, across, and on to the farthest of the other
    diameter = 0 if n == 1 else 1 + (n // 2 > 1) + (n - n // 2 > 1)
    known = Certificate(1, diameter, max(1, diameter))
    return Cyclic(n, (_sorted_edges(adjacency),), f"divide({n})", known)


def random(
    n: int,
    inner: float = 0.5,
    inter: float = 0.25,
    period: int = 8,
    seed: int = 0,
    per_receiver: bool = False,
) -> Topology:
    """Every one-way channel opens by chance; on the last step of each period all are open.

    A channel inside a cluster (0..n//2-1 and the rest) opens with probability `inner`, one
    between clusters with probability `inter`, independently of all others and of other steps.
    The graph of step t is a function of (seed, t) alone: every process draws the same.

    `per_receiver` is what the paper's experiment did instead: one draw decides for all channels
    into a receiver, and all channels are open on the first step of each period.

    >>> random(6).certificate()
    Certificate(period=8, diameter=1, horizon=8)
    """
    n = _node_count(n, MOST_DENSE)
    for name, p in (("inner", inner), ("inter", inter)):
        checks.number(name, p, lambda p: 0 <= p <= 1, "a probability lies in [0, 1]")
    if checks.count("period", period, "a period") > MOST:
        raise ValueError(f"period = {period}: at most {MOST} steps")
    uniforms(seed, "graph", 0, shape=(1,))  # refuses a bad seed at the door
    return Random(n, float(inner), float(inter), int(period), seed, f"random({n})", per_receiver)


def from_graphs(graphs: Iterable[Any]) -> Topology:
    """Your own graphs, cycled: networkx digraphs or square 0/1 arrays with [i, j] = i sends to j.

    Self-loops are added where they are missing. The nodes of a networkx graph must be 0..n-1.

    >>> from_graphs([[[0, 1], [0, 0]], [[0, 0], [1, 0]]]).certificate()
    Certificate(period=2, diameter=1, horizon=2)
    """
    if _is_networkx(graphs) or not isinstance(graphs, Iterable):
        raise ValueError("from_graphs takes a list of graphs: write from_graphs([graph])")
    sized = [_edges_of(graph, position) for position, graph in enumerate(graphs)]
    if not sized:
        raise ValueError("from_graphs([]): give at least one graph")
    sizes = sorted({n for n, _ in sized})
    if len(sizes) > 1:
        raise ValueError(f"from_graphs: graphs of {sizes} nodes: all must have the same nodes")
    edges = tuple(edges for _, edges in sized)
    return Cyclic(sizes[0], edges, f"from_graphs({len(edges)} x {sizes[0]} nodes)")


def from_edges(n: int, edges: Iterable[tuple[int, int]]) -> Topology:
    """One graph that never changes, from its edges (sender, receiver); self-loops are added.

    >>> from_edges(3, [(0, 1), (1, 2), (2, 0)]).certificate()
    Certificate(period=1, diameter=2, horizon=2)
    """
    n = _node_count(n)
    if not isinstance(edges, Iterable):
        raise ValueError(f"edges = {edges!r}: give a list of pairs (sender, receiver)")
    pairs = np.array([_edge(n, edge) for edge in edges], dtype=np.int64).reshape(-1, 2)
    return Cyclic(n, (_with_loops(n, pairs),), f"from_edges({n} nodes, {len(pairs)} edges)")


#: The topologies by the names that `parse` knows.
MAKERS: dict[str, Callable[..., Topology]] = {
    "full": full,
    "divide": divide,
    "exponential": exponential,
    "random": random,
    "ring": ring,
}


def parse(name: str, n: int, **options: Any) -> Topology:
    """The topology of that name; the options are those of `random`, and of no others.

    `FILE.py:function` is one of your own, made by function(n). A .csv or .txt file is a list of
    edges, `sender,receiver` in each line.

    >>> parse("Ring", 7)
    ring(7)
    """
    if own_code.is_named(name):
        made = own_code.load("topology", name)
        return as_topology(made(n) if callable(made) else made, n)
    if name.endswith((".csv", ".txt")):
        return from_edges(n, _edge_list(Path(name)))
    name = spelled(name)
    if name not in MAKERS:
        raise ValueError(
            f"{unknown('topology', name, MAKERS)}, FILE.py:function, or a .csv or .txt of edges"
        )
    return MAKERS[name](n, **(options if name == "random" else {}))


def is_file(name: str) -> bool:
    """Whether a name is that of a file, with edges or of one's own."""
    return name.endswith((".csv", ".txt")) or own_code.is_named(name)


def spelled(name: str) -> str:
    """The one way to write what `parse` reads, whatever its case; files from the root."""
    if name.endswith((".csv", ".txt")):
        return str(Path(name).expanduser().absolute())
    return own_code.spelled(name) if own_code.is_named(name) else canonical(name, MAKERS)


def _edge_list(file: Path) -> list[tuple[int, int]]:
    """The edges of a file; a heading, blank lines and what follows # are passed over."""
    try:
        lines = files.content(file, MOST_EDGES).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(f"topology {file}: cannot be read: {error}") from None
    edges = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words or (number == 1 and words[0][0].isalpha()):
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise ValueError(
                f"topology {file}, line {number}: {line.strip()!r} is no edge: write "
                "sender,receiver, two numbers from 0 on"
            )
        edges.append((int(words[0]), int(words[1])))
    return edges


def as_topology(given: str | Topology, n: int) -> Topology:
    """Accept a name where a topology is expected."""
    if isinstance(given, str):
        return parse(given, n)
    if not isinstance(given, Topology):
        raise ValueError(
            f"topology = {given!r}: give a name, or one of pushsum.topology, such as ring(6) or "
            "from_graphs([...])"
        )
    return given


# --------------------------------------------------------------------------- the three kinds


class _Repeating(Topology, Generic[Part]):
    """Graphs that repeat; a part is one of them, or a union of several."""

    parts: tuple[Part, ...]
    known: Certificate | None = None  #: where it needs no computing

    @abstractmethod
    def _union(self, start: int, length: int) -> Part: ...

    @abstractmethod
    def _connected(self, part: Part) -> bool: ...

    @abstractmethod
    def _steps_to_all(self, parts: Sequence[Part], start: int) -> int:
        """How many steps from `start` on until every node has reached every node."""

    @property
    def cycle(self) -> int:
        return len(self.parts)

    def _part(self, t: int) -> Part:
        return self.parts[(_step(t) - 1) % self.cycle]

    @cached_property
    def period(self) -> int:
        return self._smallest_period() if self.known is None else self.known.period

    def _smallest_period(self) -> int:
        """The smallest B such that every B steps together connect the nodes, as all together do."""

        def every_window(length: int) -> bool:
            return all(self._connected(self._union(s, length)) for s in range(self.cycle))

        lengths = range(1, self.cycle + 1)
        return lengths[bisect_left(lengths[:-1], True, key=every_window)]

    def certificate(self) -> Certificate:
        return self.known or self._computed

    @cached_property
    def _computed(self) -> Certificate:
        starts, period = range(self.cycle), self.period
        return Certificate(
            period,
            diameter=max(self._steps_to_all([self._union(s, period)], 0) for s in starts),
            horizon=max(1, *(self._steps_to_all(self.parts, s) for s in starts)),
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Circulant(_Repeating[tuple[int, ...]]):
    """Node i sends to i + h (mod n) for every hop h of the step; a part is its hops, 0 first.

    Every node sees the same picture, so node 0 stands for all and nothing here is n x n.
    """

    n: int
    parts: tuple[tuple[int, ...], ...]
    name: str

    @property
    def degrees(self) -> tuple[int, int]:
        return min(map(len, self.parts)), max(map(len, self.parts))

    def edges(self, t: int) -> Tensor:
        receivers = self._targets(t).sort(dim=1).values
        senders = torch.arange(self.n).repeat_interleave(receivers.shape[1])
        return torch.stack([senders, receivers.flatten()])

    def answered(self, t: int) -> Tensor:
        there = set(self._union(0, self.cycle))
        answered = [(-h) % self.n in there for h in self._part(t)]
        if len({*answered[1:]}) <= 1:  # the first hop stays at home
            return torch.full((self.n * len(answered),), answered[-1])
        return torch.tensor(answered)[self._targets(t).sort(dim=1).indices].flatten()

    def _targets(self, t: int) -> Tensor:
        return (torch.arange(self.n)[:, None] + torch.tensor(self._part(t))) % self.n

    def _union(self, start: int, length: int) -> tuple[int, ...]:
        hops = (h for s in range(length) for h in self.parts[(start + s) % self.cycle])
        return tuple(dict.fromkeys(hops))

    def _connected(self, part: tuple[int, ...]) -> bool:
        return gcd(self.n, *part) == 1

    def _steps_to_all(self, parts: Sequence[tuple[int, ...]], start: int) -> int:
        if len(parts) == 1 and len(parts[0]) == 2:  # one further every time, all the way round
            return self.n - 1
        if len(parts) == 1 and len(parts[0]) == self.n > 1:
            return 1
        reached = np.zeros(self.n, dtype=bool)
        reached[0] = True
        steps = 0
        while not reached.all():
            hops = parts[(start + steps) % len(parts)]
            reached = np.logical_or.reduce([np.roll(reached, h) for h in hops])
            steps += 1
        return steps


@final
@dataclass(frozen=True, eq=False, repr=False)
class Cyclic(_Repeating[Tensor]):
    """Any graphs; a part is (2, E) edges."""

    n: int
    parts: tuple[Tensor, ...]
    name: str
    known: Certificate | None = None

    @cached_property
    def degrees(self) -> tuple[int, int]:
        counts = [senders.bincount(minlength=self.n) for senders, _ in self.parts]
        return min(int(c.min()) for c in counts), max(int(c.max()) for c in counts)

    def edges(self, t: int) -> Tensor:
        return self._part(t)

    def answered(self, t: int) -> Tensor:
        senders, receivers = self.edges(t)
        found: Tensor = torch.isin(receivers * self.n + senders, self._ever)
        return found

    @cached_property
    def _ever(self) -> Tensor:
        """Every channel of the cycle, as one number each."""
        channels = self._union(0, self.cycle)
        return channels[0] * self.n + channels[1]

    def _union(self, start: int, length: int) -> Tensor:
        parts = [self.parts[(start + s) % self.cycle] for s in range(min(length, self.cycle))]
        return parts[0] if len(parts) == 1 else torch.unique(torch.cat(parts, dim=1), dim=1)

    def _connected(self, part: Tensor) -> bool:
        return not any(self._lost(edges) for edges in (part, part.flip(0)))

    def _lost(self, edges: Tensor) -> list[int]:
        """Which nodes node 0 does not reach along `edges`; in time linear in their number."""
        senders, order = edges[0].sort()
        first = torch.searchsorted(senders, torch.arange(self.n + 1)).tolist()
        receivers = edges[1][order].tolist()
        reached, waiting = {0}, [0]
        while waiting:
            node = waiting.pop()
            fresh = set(receivers[first[node] : first[node + 1]]) - reached
            reached |= fresh
            waiting += fresh
        return [node for node in range(self.n) if node not in reached]

    def _smallest_period(self) -> int:
        edges = self._union(0, self.cycle)
        ways = ((edges, "from node 0 to {}"), (edges.flip(0), "from {} to node 0"))
        for direction, path in ways:
            if lost := self._lost(direction):
                nodes = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
                which = path.format(f"node{'s' * (len(lost) > 1)} {nodes}")
                raise NotStronglyConnected(
                    f"{self.name}: there is no path {which}, at any step: "
                    "add edges until every node can reach every other"
                )
        return super()._smallest_period()

    def _steps_to_all(self, parts: Sequence[Tensor], start: int) -> int:
        # one bit per pair of nodes: row j holds the set of nodes that have reached j so far
        reached = np.packbits(np.eye(self.n, dtype=bool), axis=1)
        everybody = np.packbits(np.ones(self.n, dtype=bool))
        steps = 0
        while not (reached == everybody).all():
            senders, receivers = parts[(start + steps) % len(parts)].numpy()
            order = np.argsort(receivers, kind="stable")
            first = np.searchsorted(receivers[order], np.arange(self.n))
            reached = np.bitwise_or.reduceat(reached[senders[order]], first, axis=0)
            steps += 1
        return steps


@final
@dataclass(frozen=True, eq=False, repr=False)
class Random(Topology):
    """Channels that open by chance; see `random`."""

    n: int
    inner: float
    inter: float
    open_every: int
    seed: int
    name: str
    per_receiver: bool = False

    @property
    def cycle(self) -> None:
        return None

    @cached_property
    def degrees(self) -> tuple[int, int]:
        if self.open_every == 1:
            return self.n, self.n
        certain = self._probabilities >= 1
        np.fill_diagonal(certain, True)
        return int(certain.sum(1).min()), self.n

    def edges(self, t: int) -> Tensor:
        return self._drawn(_step(t))

    @property
    def period(self) -> int:
        return self.certificate().period

    def certificate(self) -> Certificate:
        """What the channels that are certain to be open guarantee, whatever is drawn."""
        inner_certain, inter_certain = self.inner >= 1, self.inter >= 1
        if self.n == 1:
            return Certificate(1, 0, 1)
        if self.open_every == 1 or (inter_certain and (inner_certain or self.n == 2)):
            return Certificate(1, 1, 1)
        if inter_certain:  # by way of the other cluster
            return Certificate(1, 2, 2)
        return Certificate(self.open_every, 1, self.open_every)

    def answered(self, t: int) -> Tensor:
        return torch.ones(self.edges(t).shape[1], dtype=torch.bool)

    @cached_property
    def _drawn(self) -> Callable[[int], Tensor]:
        """The graph of a step; the last few are kept: several ask for the same."""

        open_at, draws = (1, 1) if self.per_receiver else (0, self.n)

        def draw(t: int) -> Tensor:
            if t % self.open_every == open_at % self.open_every:
                return _sorted_edges(np.ones((self.n, self.n), dtype=bool))
            chance = uniforms(self.seed, "graph", t, shape=(draws, self.n))
            return _sorted_edges(chance < self._probabilities)

        return lru_cache(maxsize=4)(draw)

    @cached_property
    def _probabilities(self) -> np.ndarray:
        cluster = np.arange(self.n) >= self.n // 2
        return np.where(cluster[:, None] == cluster[None, :], self.inner, self.inter)


# --------------------------------------------------------------------------- pieces they share


def _node_count(n: int, most: int = MOST) -> int:
    n = checks.count("n", n, "the number of nodes")
    if n > most:
        raise ValueError(f"n = {n}: at most {most} nodes with this many channels fit here")
    return n


def _step(t: int) -> int:
    return checks.count("t", t, "a step")


def _hop(n: int, hop: int) -> tuple[int, ...]:
    return (0,) if hop % n == 0 else (0, hop % n)


def _is_networkx(graph: Any) -> bool:
    """Whoever has such a graph has imported networkx; it takes 0.2 s and 12 MB."""
    return hasattr(graph, "is_directed")


def _edges_of(graph: Any, position: int) -> tuple[int, Tensor]:
    """Number of nodes and sorted edges of a networkx graph or a 0/1 array."""
    if _is_networkx(graph):
        n = len(graph)
        if n == 0 or set(graph) != set(range(n)):
            nodes = sorted(graph, key=str)[:8]
            raise ValueError(f"graph {position}: its nodes must be 0..n-1, not {nodes}")
        pairs = np.array([(i, j) for i, j, *_ in graph.edges()], dtype=np.int64).reshape(-1, 2)
        both = [pairs] if graph.is_directed() else [pairs, pairs[:, ::-1]]
        return n, _with_loops(n, np.concatenate(both))
    array = np.asarray(graph)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ValueError(f"graph {position}: an adjacency is a square array, not {array.shape}")
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"graph {position}: an adjacency holds 0 and 1 only")
    return len(array), _sorted_edges(array != 0)


def _with_loops(n: int, pairs: np.ndarray) -> Tensor:
    """(E, 2) senders and receivers -> (2, E) sorted, each once, with every self-loop."""
    loops = np.stack([np.arange(n)] * 2, axis=1)
    return torch.from_numpy(np.unique(np.concatenate([pairs, loops]), axis=0).T.copy())


def _edge(n: int, edge: Any) -> tuple[int, int]:
    try:
        sender, receiver = map(index, edge)
    except (TypeError, ValueError):
        raise ValueError(f"edge {edge!r}: a pair (sender, receiver) of integers") from None
    for node in (sender, receiver):
        if not 0 <= node < n:
            raise ValueError(f"edge {edge!r}: the nodes are the integers from 0 to {n - 1}")
    return sender, receiver


def _sorted_edges(adjacency: np.ndarray) -> Tensor:
    return torch.from_numpy(np.stack(np.nonzero(adjacency | np.eye(len(adjacency), dtype=bool))))
