"""Ten thousand valid weight sequences against Lemma 1, Lemma 2 and Theorem 1.

A sequence is one cycle of column-stochastic matrices on graphs that satisfy Assumption 1. The
left sides are exact: Lemma 1 for every s <= t, Theorem 1 for every perturbation of a single entry.
The bound is linear in the norms of the perturbations and the distance is convex in them, so those
extreme points stand for all perturbations.

`python tests/theory_sweep.py` measures for the table of docs/horizon.md; `study.publish` writes it.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pushsum import theory, topology
from strategies import random_cycle

ROUNDING = 1e-9


class Sequence(NamedTuple):
    kind: str
    cycle: list[np.ndarray]  #: W(1), W(2), ..., then again from the start

    @property
    def delta(self) -> float:
        return min(float(W[W > 0].min()) for W in self.cycle)

    @property
    def graphs(self) -> topology.Topology:
        return topology.from_graphs([(W > 0).T for W in self.cycle])


def star(n: int, centre: int, delta: float) -> np.ndarray:
    """A two-way star: a leaf keeps delta, the centre gives delta to each leaf."""
    W = np.diag(np.full(n, float(delta)))
    W[centre, :] = 1 - delta
    W[:, centre] = delta
    W[centre, centre] = 1 - (n - 1) * delta
    return W


def groups(n: int, hub: int, delta: float) -> np.ndarray:
    """Two groups of n/2 with a hub each; only the hubs give anything to the other group."""
    half = n // 2
    W = np.zeros((n, n))
    for base in (0, half):
        own = slice(base, base + half)
        W[own, own] = star(half, hub, delta)
        W[:, base + hub] = delta
        W[base + hub, base + hub] = 1 - (n - 1) * delta
    return W


def sequences(count: int, seed: int) -> Iterator[Sequence]:
    """Random graphs with random or extreme weights, stars with moving centres, slow groups."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        n = int(rng.integers(2, 7))
        m = int(rng.integers(1, 6))
        floor = float(rng.choice([0.3, 0.1, 0.03])) / n
        match number % 4:
            case 0:
                order = [int(c) for c in rng.integers(n, size=m)]
                yield Sequence("moving stars", [star(n, c, floor) for c in order])
            case 1:
                half = int(rng.integers(2, 4))
                hubs = [int(c) for c in rng.integers(half, size=m)]
                yield Sequence("two groups", [groups(2 * half, c, floor / 2) for c in hubs])
            case kind:
                graphs = random_cycle(rng, n, m, float(rng.choice([0.0, 0.2, 0.5])))
                weights = _extreme if kind == 2 else _random
                name = "weights at the floor" if kind == 2 else "random weights"
                yield Sequence(name, [weights(rng, g, floor) for g in graphs])


def _extreme(rng: np.random.Generator, graph: np.ndarray, floor: float) -> np.ndarray:
    """Everything at the floor, except that each node gives the rest to one receiver."""
    W = np.where(graph.T, floor, 0.0)
    for i in range(len(W)):
        heavy = rng.choice(np.flatnonzero(graph[i]))
        W[heavy, i] += 1 - W[:, i].sum()
    return W


def _random(rng: np.random.Generator, graph: np.ndarray, floor: float) -> np.ndarray:
    W = np.where(graph.T, rng.exponential(size=graph.shape), 0.0)
    spare = 1 - floor * graph.sum(1)
    return np.where(graph.T, floor, 0.0) + W / W.sum(0) * spare


def violations(sequence: Sequence, c: theory.Constants, steps: int) -> set[str]:
    """Which of the three statements break within `steps` steps."""
    n, cycle = c.n, sequence.cycle
    lemma1 = np.exp([theory.log_lemma1(c, lag + 1, 1) for lag in range(steps)])
    powers = lemma1 / 2
    broken = set()
    products = np.empty((0, n, n))  # W(t) ... W(s) for s = 1..t
    for t in range(1, steps + 1):
        W = cycle[(t - 1) % len(cycle)]
        products = np.concatenate([W @ products, W[None]])
        a = products[0].sum(1)
        lags = np.arange(t - 1, -1, -1)
        phi = a / n
        if (np.abs(products - phi[None, :, None]).max((1, 2)) > lemma1[lags] + ROUNDING).any():
            broken.add("Lemma 1")
        if a.min() < np.exp(theory.log_lemma2(c, t)) * (1 - ROUNDING):
            broken.add("Lemma 2")
        # a unit kick of node j in step s moves y_i - xbar by W[t:s]_ij / a_i - 1/n
        moved = np.abs(products / a[None, :, None] - 1 / n).max((1, 2))
        scale = np.exp(c.log_C) / (n if t >= c.horizon else 1)
        if (moved > scale * powers[lags] * (1 + ROUNDING) + ROUNDING).any():
            broken.add("Theorem 1")
    return broken


class Tally(NamedTuple):
    sequences: int
    longer: int  #: how many have H > Delta * B
    with_horizon: Counter[str]
    published: Counter[str]
    published_although_short: int  #: broken although H <= Delta * B


def sweep(count: int, seed: int) -> Tally:
    longer = short = 0
    ours: Counter[str] = Counter()
    papers: Counter[str] = Counter()
    for sequence in sequences(count, seed):
        certificate = sequence.graphs.certificate()
        H, published = certificate.horizon, max(1, certificate.diameter * certificate.period)
        n, delta = len(sequence.cycle[0]), sequence.delta
        steps = min(3 * H + 8, 40)
        ours.update(violations(sequence, theory.Constants(n, delta, H, n), steps))
        found = violations(sequence, theory.Constants(n, delta, published, n), steps)
        papers.update(found)
        longer += H > published
        short += bool(found) and H <= published
    return Tally(count, longer, ours, papers, short)


if __name__ == "__main__":
    tally = sweep(10_000, seed=0)
    rows = [["statement", "sequences", "H > Delta B", "broken with H", "broken with Delta B"]]
    for claim in ("Lemma 1", "Lemma 2", "Theorem 1"):
        broken = tally.with_horizon[claim], tally.published[claim]
        rows.append([claim, *map(str, (tally.sequences, tally.longer, *broken))])
    text = "\n".join(map(",".join, rows))
    print(text)
    results = Path(__file__).parent.parent / "study" / "results"
    (results / "horizon.csv").write_text(f"{text}\n")
