"""The directed family in dense float64, straight from the equations; nothing here is `pushsum`'s.

`graphs(t)[i, j]` is truthy iff i sends to j at step t = 1, 2, ...; C divides at the sender, by its
out-degree, R averages at the receiver, by its in-degree. Every function yields what the nodes hand
out after each step: (n, d) arrays.
"""

from collections.abc import Callable, Iterator

import numpy as np

Array = np.ndarray
Graphs = Callable[[int], Array]
Slope = Callable[[Array], Array]


def columns(adjacency: Array) -> Array:
    """C, whose columns sum to 1."""
    sends = (np.asarray(adjacency) > 0).astype(float)
    return (sends / sends.sum(1, keepdims=True)).T


def rows(adjacency: Array) -> Array:
    """R, whose rows sum to 1."""
    hears = (np.asarray(adjacency) > 0).astype(float).T
    return hears / hears.sum(1, keepdims=True)


def sgp(x: Array, graphs: Graphs, g: Slope, steps: int, lr: float) -> Iterator[Array]:
    a, y = np.ones((len(x), 1)), x
    for t in range(1, steps + 1):
        C = columns(graphs(t))
        x, a = C @ (x - lr * g(y)), C @ a
        y = x / a
        yield y


def add_opt(x: Array, graphs: Graphs, g: Slope, steps: int, lr: float) -> Iterator[Array]:
    a, y, w = np.ones((len(x), 1)), x, g(x)
    for t in range(1, steps + 1):
        C = columns(graphs(t))
        x, a, before = C @ x - lr * w, C @ a, y
        y = x / a
        w = C @ w + g(y) - g(before)
        yield y


def push_diging(x: Array, graphs: Graphs, g: Slope, steps: int, lr: float) -> Iterator[Array]:
    a, y, w = np.ones((len(x), 1)), x, g(x)
    for t in range(1, steps + 1):
        C = columns(graphs(t))
        x, a, before = C @ (x - lr * w), C @ a, y
        y = x / a
        w = C @ w + g(y) - g(before)
        yield y


def sonata(x: Array, graphs: Graphs, g: Slope, steps: int, lr: float, solve) -> Iterator[Array]:
    phi, tracked = np.ones((len(x), 1)), g(x)
    for t in range(1, steps + 1):
        C = columns(graphs(t))
        half = x + lr * (solve(x, g(x), tracked) - x)
        after = C @ phi
        moved = C @ (phi * half) / after
        tracked = (C @ (phi * tracked) + g(moved) - g(x)) / after
        x, phi = moved, after
        yield x


def dextra(
    x: Array, graphs: Graphs, g: Slope, steps: int, lr: float, theta: float
) -> Iterator[Array]:
    C, n = columns(graphs(1)), len(x)
    mixed = theta * C + (1 - theta) * np.eye(n)
    a, y = np.ones((n, 1)), x
    before, y_before = x, x
    x, a = C @ x - lr * g(y), C @ a
    y = x / a
    yield y
    for _ in range(2, steps + 1):
        x, before = x + C @ x - mixed @ before - lr * (g(y) - g(y_before)), x
        a, y_before = C @ a, y
        y = x / a
        yield y


def accelerated_ab(
    x: Array, graphs: Graphs, g: Slope, steps: int, lr: float, beta: float = 0, gamma: float = 0
) -> Iterator[Array]:
    s, before, w = x, x, g(x)
    for t in range(1, steps + 1):
        C, R = columns(graphs(t)), rows(graphs(t))
        x, before = R @ s - lr * w + beta * (x - before), x
        s, s_before = x + gamma * (x - before), s
        w = C @ w + g(s) - g(s_before)
        yield x


def push_pull(x: Array, graphs: Graphs, g: Slope, steps: int, lr: float) -> Iterator[Array]:
    w = g(x)
    for t in range(1, steps + 1):
        C, R = columns(graphs(t)), rows(graphs(t))
        x, before = R @ (x - lr * w), x
        w = C @ w + g(x) - g(before)
        yield x


def frost(x: Array, graphs: Graphs, g: Slope, steps: int, lr: float) -> Iterator[Array]:
    R, n = rows(graphs(1)), len(x)
    E, w = np.eye(n), g(x)
    for _ in range(steps):
        x, before = R @ x - lr * w, x
        E, E_before = R @ E, E
        w = R @ w + g(x) / np.diag(E)[:, None] - g(before) / np.diag(E_before)[:, None]
        yield x


def osgp(x: Array, graphs: Graphs, g: Slope, steps: int, lr: float, delay: int) -> Iterator[Array]:
    n = len(x)
    a, y = np.ones((n, 1)), x
    history = []  # of what was sent to others: (n, d + 1)
    for t in range(1, steps + 1):
        C = columns(graphs(t))
        held = np.hstack([x - lr * g(y), a])
        own = np.diag(np.diag(C))
        history.append((C - own) @ held)
        now = own @ held + (history[t - 1 - delay] if t > delay else 0)
        x, a = now[:, :-1], now[:, -1:]
        y = x / a
        yield y
