"""The paper's Algorithms 1 and 2, slow and literal: loops over nodes, one array per buffer.

Nothing here comes from `pushsum`; the tests hold `pushsum` against it. Nodes are 0..n-1, steps
count from 1, `graphs(t)[i][j]` is truthy iff i sends to j at step t.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np

Array = np.ndarray
Graphs = Callable[[int], Array]
#: (node, out-neighbours without itself, all its buffers) -> {neighbour: weight}, the rest stays
Rule = Callable[[int, list[int], list[Array]], dict[int, float]]


def smallest_period(graphs: list[Array]) -> int:
    """B by brute force over the cyclic sequence."""
    m = len(graphs)
    for B in range(1, m + 1):
        if all(
            nx.is_strongly_connected(
                nx.from_numpy_array(
                    sum(np.asarray(graphs[(s + b) % m], dtype=int) for b in range(B)) > 0,
                    create_using=nx.DiGraph,
                )
            )
            for s in range(m)
        ):
            return B
    raise AssertionError("not strongly connected")


def uniform_rule(i: int, away: list[int], buffers: list[Array]) -> dict[int, float]:
    return {j: 1 / (len(away) + 1) for j in away}


def lazy_rule(c: float) -> Rule:
    return lambda i, away, buffers: {j: c / (len(away) + 1) for j in away}


def moreau_rule(k: float, v: float) -> Rule:
    gamma = 0.37  # the paper's gamma; it cancels

    def C_prime(d2: float) -> float:
        return (1 - v) / (2 * gamma * (1 + v)) * (1 + v - np.exp(-k * d2))

    def rule(i: int, away: list[int], buffers: list[Array]) -> dict[int, float]:
        K = len(away) + 1
        return {
            j: 2 * gamma / K * C_prime(float(np.sum((buffers[i] - buffers[j]) ** 2))) for j in away
        }

    return rule


def scale_free_rule(c: float, v: float) -> Rule:
    def rule(i: int, away: list[int], buffers: list[Array]) -> dict[int, float]:
        d2 = [float(np.sum((buffers[i] - b) ** 2)) for b in buffers]
        positive = [d for d in d2 if d > 0]
        k = c * len(positive) / sum(positive) if positive else 1.0
        return moreau_rule(k, v)(i, away, buffers)

    return rule


def far_first_rule(c: float, v: float) -> Rule:
    """Not the paper's; `buffers` are corrected ones, and who was not heard is at no distance."""

    def rule(i: int, away: list[int], buffers: list[Array]) -> dict[int, float]:
        d2 = [float(np.sum((buffers[i] - b) ** 2)) for b in buffers]
        positive = [d for d in d2 if d > 0]
        mean = sum(positive) / len(positive) if positive else 1.0
        parts = {j: 1 + v - np.exp(-c * (d2[j] or mean) / mean) for j in away}
        K = len(away) + 1
        return {j: (K - 1) / K * part / sum(parts.values()) for j, part in parts.items()}

    rule.corrected = True  # type: ignore[attr-defined]
    return rule


@dataclass
class Step:
    t: int
    x: Array
    a: Array
    y: Array
    W: Array


class Nodes:
    """Algorithm 1: the state of all nodes and one step of the protocol."""

    def __init__(self, x0: Array, graphs: Graphs, B: int, rule: Rule) -> None:
        self.n = len(x0)
        self.graphs, self.B, self.rule = graphs, B, rule
        self.x = [row.copy() for row in x0]
        self.y = [row.copy() for row in x0]
        self.a = [1.0] * self.n
        self.buff = [[x0[i].copy() for _ in range(self.n)] for i in range(self.n)]
        self.buff_a = [[1.0] * self.n for _ in range(self.n)]  # for rules that compare x / a
        self.corrected = getattr(rule, "corrected", False)

    def has_edge(self, t: int, i: int, j: int) -> bool:
        return t >= 1 and (i == j or bool(self.graphs(t)[i][j]))

    def step(self, t: int, perturbation: Array, also: list[Array] | None = None) -> Array:
        n = self.n
        x_half = [self.x[i] + perturbation[i] for i in range(n)]  # line 2
        W = np.zeros((n, n))  # line 3
        for i in range(n):
            away = [j for j in range(n) if j != i and self.has_edge(t, i, j)]
            scalars = self.buff_a[i] if self.corrected else [1.0] * n
            seen = [x / a for x, a in zip(self.buff[i], scalars, strict=True)]
            for j, w in self.rule(i, away, seen).items():
                W[j, i] = w
            W[i, i] = 1 - W[:, i].sum()
        for i in range(n):  # line 6
            for j in range(n):
                if self.has_edge(t, j, i):
                    self.buff[i][j], self.buff_a[i][j] = x_half[j].copy(), self.a[j]
                elif not any(self.has_edge(s, j, i) for s in range(t - self.B + 1, t + 1)):
                    self.buff[i][j], self.buff_a[i][j] = x_half[i].copy(), self.a[i]
        self.a = [sum(W[i, j] * self.a[j] for j in range(n)) for i in range(n)]  # line 7
        self.x = [sum(W[i, j] * x_half[j] for j in range(n)) for i in range(n)]
        if also is not None:
            also[:] = [sum(W[i, j] * also[j] for j in range(n)) for i in range(n)]
        self.y = [self.x[i] / self.a[i] for i in range(n)]  # line 8
        return W

    def record(self, t: int, W: Array) -> Step:
        return Step(t, np.array(self.x), np.array(self.a), np.array(self.y), W)


def run_msgap(
    x0: Array,
    graphs: Graphs,
    B: int,
    rule: Rule,
    gradient: Callable[[Array, int], Array],
    steps: int,
    lr: float,
    momentum: float,
) -> Iterator[Step]:
    """Algorithm 2; momentum 0 is SGAP, the uniform rule makes it (M)SGP."""
    nodes = Nodes(x0, graphs, B, rule)
    m = np.zeros_like(x0)
    for t in range(1, steps + 1):
        m = momentum * m + gradient(np.array(nodes.y), t)
        yield nodes.record(t, nodes.step(t, -lr * m))


def run_qgm(
    x0: Array,
    graphs: Graphs,
    B: int,
    rule: Rule,
    gradient: Callable[[Array, int], Array],
    steps: int,
    lr: float,
    momentum: float,
) -> Iterator[Step]:
    """Quasi-global momentum: that of the way of y, exchanges included."""
    nodes = Nodes(x0, graphs, B, rule)
    m = np.zeros_like(x0)
    for t in range(1, steps + 1):
        before = np.array(nodes.y)
        W = nodes.step(t, -lr * (momentum * m + gradient(before, t)))
        m = momentum * m + (1 - momentum) * (before - np.array(nodes.y)) / lr
        yield nodes.record(t, W)


def run_s_addopt(
    x0: Array,
    graphs: Graphs,
    B: int,
    gradient: Callable[[Array, int], Array],
    steps: int,
    lr: float,
) -> Iterator[Step]:
    """S-ADDOPT in its own order: mix, move along the tracker, then take the new gradient."""
    nodes = Nodes(x0, graphs, B, uniform_rule)
    g = gradient(np.array(nodes.y), 1)
    w = [row.copy() for row in g]
    for t in range(1, steps + 1):
        before = [row.copy() for row in w]
        W = nodes.step(t, np.zeros_like(x0), also=w)
        nodes.x = [nodes.x[i] - lr * before[i] for i in range(nodes.n)]
        nodes.y = [nodes.x[i] / nodes.a[i] for i in range(nodes.n)]
        yield nodes.record(t, W)
        g_new = gradient(np.array(nodes.y), t + 1)
        w = [w[i] + g_new[i] - g[i] for i in range(nodes.n)]
        g = g_new
