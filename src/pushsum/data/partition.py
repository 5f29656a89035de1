"""Who holds which samples: pure functions of the labels, the number of nodes and a seed.

Each returns n sorted int64 arrays of sample indices, one per node, none of them empty. To
extend, write a function of the same form.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pushsum import checks
from pushsum.randomness import stream


def clusters(
    labels: ArrayLike, n: int, clusters: int = 2, shared: bool = True, seed: int = 0
) -> list[np.ndarray]:
    """The paper's split: clusters of consecutive nodes, each with labels that no other holds.

    Nodes and the distinct labels are both cut into `clusters` consecutive ranges of equal size
    (for two: 0..n//2-1 and the rest, as in `topology.divide`).

    Args:
        labels: (m,) integers.
        n: how many nodes.
        clusters: how many clusters, at most n and at most one per distinct label.
        shared: every node holds all samples of its cluster, as the paper has it; False deals
            them out evenly, at random, so that no sample is held twice.
        seed: of the dealing; without effect when `shared`.

    >>> [part.tolist() for part in clusters([0, 1, 2, 3, 0, 1], n=3)]
    [[0, 1, 4, 5], [2, 3], [2, 3]]
    """
    y, n = _labels_for(labels, n)
    clusters = checks.count("clusters", clusters, "the number of clusters")
    kinds = np.unique(y)
    if clusters > n:
        raise ValueError(f"clusters = {clusters}: more than the {n} nodes; every cluster needs one")
    if clusters > len(kinds):
        raise ValueError(
            f"clusters = {clusters}: more than the {len(kinds)} distinct labels; "
            "every cluster needs one of its own"
        )
    parts: list[np.ndarray] = []
    nodes, ranges = _even(n, clusters), np.split(kinds, np.cumsum(_even(len(kinds), clusters))[:-1])
    for c, (members, own) in enumerate(zip(nodes, ranges, strict=True)):
        held = np.flatnonzero((y >= own[0]) & (y <= own[-1]))
        if shared:
            parts += [held] * int(members)
            continue
        if len(held) < members:
            raise ValueError(
                f"node {len(parts) + len(held)} would be empty: cluster {c} has {members} nodes "
                f"and only {len(held)} samples of its labels {own[0]}..{own[-1]}: "
                "use fewer nodes or shared=True"
            )
        shuffled = stream(seed, "split", "clusters", c).permutation(held)
        parts += _cut(shuffled, _even(len(held), int(members)))
    return parts


def iid(labels: ArrayLike, n: int, seed: int = 0) -> list[np.ndarray]:
    """All samples dealt out evenly, at random.

    >>> [len(part) for part in iid([0, 1] * 5, n=3)]
    [3, 3, 4]
    """
    y, n = _labels_for(labels, n)
    return _cut(stream(seed, "split", "iid").permutation(len(y)), _even(len(y), n))


def dirichlet(
    labels: ArrayLike, n: int, alpha: float, minimum: int = 1, seed: int = 0
) -> list[np.ndarray]:
    """The samples of each label go to the nodes in proportions drawn from Dirichlet(alpha).

    A small alpha gives every label to few nodes, a large one approaches an even split. The
    proportions are drawn once; a node left with fewer than `minimum` samples is then given
    random ones of the largest node, so every alpha works and nothing is drawn again.

    >>> parts = dirichlet([0, 1, 2, 3] * 25, n=4, alpha=0.1, minimum=5)
    >>> sum(map(len, parts)), min(map(len, parts)) >= 5
    (100, True)
    """
    y, n = _labels_for(labels, n)
    _check_alpha(alpha)
    minimum = _minimum(minimum, n, len(y))
    owner = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        random = stream(seed, "split", "dirichlet", int(label))
        sizes = _sizes(random, alpha, n, int(np.count_nonzero(y == label)))
        owner[random.permutation(np.flatnonzero(y == label))] = np.repeat(np.arange(n), sizes)
    _top_up(owner, n, minimum, stream(seed, "split", "dirichlet", "minimum"))
    return _cut(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=n))


def shards(labels: ArrayLike, n: int, per_node: int = 2, seed: int = 0) -> list[np.ndarray]:
    """Samples sorted by label, cut into n * per_node equal shards, `per_node` to every node.

    With as many shards as labels, or more, a node sees about `per_node` labels.

    >>> parts = shards([0] * 10 + [1] * 10, n=2, per_node=1)
    >>> sorted(part.tolist() for part in parts) == [[*range(10)], [*range(10, 20)]]
    True
    """
    y, n = _labels_for(labels, n)
    count = n * checks.count("per_node", per_node, "the number of shards of a node")
    if count > len(y):
        raise ValueError(
            f"per_node = {per_node}: {n} nodes would need {count} shards of at least one sample, "
            f"there are {len(y)} samples: at most {len(y) // n} each"
        )
    random = stream(seed, "split", "shards")
    shuffled = random.permutation(len(y))
    by_label = shuffled[np.argsort(y[shuffled], kind="stable")]
    owner = np.empty(len(y), dtype=np.int64)
    owner[by_label] = np.repeat(random.permutation(count) // per_node, _even(len(y), count))
    return _cut(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=n))


def quantity(
    labels: ArrayLike, n: int, alpha: float, minimum: int = 1, seed: int = 0
) -> list[np.ndarray]:
    """Nodes of very different size with the same mixture of labels.

    Every node holds `minimum` samples; the rest is divided in proportions drawn from
    Dirichlet(alpha). Which samples a node holds is random.

    >>> [len(part) for part in quantity([0, 1] * 50, n=4, alpha=0.3, minimum=5, seed=3)]
    [7, 76, 7, 10]
    """
    y, n = _labels_for(labels, n)
    _check_alpha(alpha)
    minimum = _minimum(minimum, n, len(y))
    random = stream(seed, "split", "quantity")
    sizes = minimum + _sizes(random, alpha, n, len(y) - n * minimum)
    return _cut(random.permutation(len(y)), sizes)


def hold_out(
    parts: Sequence[np.ndarray], fraction: float, seed: int = 0
) -> tuple[list[np.ndarray], np.ndarray]:
    """What the nodes train on, and what nobody does: a fraction of every node's part, at random.

    Nodes that hold the same samples hold out the same.

    >>> kept, held = hold_out([np.arange(4), np.arange(4), np.arange(4, 8)], 0.5)
    >>> [len(part) for part in kept], len(held), np.array_equal(kept[0], kept[1])
    ([2, 2, 2], 4, True)
    """
    order = stream(seed, "validation").permutation(1 + max(int(part.max()) for part in parts))
    chosen = [part[np.argsort(order[part])[: int(fraction * len(part))]] for part in parts]
    held = np.unique(np.concatenate(chosen))
    kept = [np.setdiff1d(part, held) for part in parts]
    empty = [k for k, part in enumerate(kept) if not len(part)]
    if empty or not len(held):
        why = f"leaves node {empty[0]} nothing to train on" if empty else "holds nothing out"
        raise ValueError(f"data.validation = {fraction}: {why}: choose another fraction")
    return kept, held


def of_test(
    parts: Sequence[np.ndarray], labels: ArrayLike, test_labels: ArrayLike, seed: int = 0
) -> list[np.ndarray]:
    """The test samples of each node's own, with the labels in the proportions that it trains on.

    A node that trains on a third of the samples of a label is tested on a third of the test
    samples of that label; nodes whose parts do not overlap have test samples that do not either,
    and nodes that hold all samples of a label are tested on all of them. A node left without any
    gets one of the label that it holds most of; only if no test sample has a label of its own is
    its part empty.

    >>> parts = [np.array([0, 1]), np.array([2, 3, 4, 5])]
    >>> [part.tolist() for part in of_test(parts, [0, 0, 1, 1, 1, 1], [1, 0, 0, 1])]
    [[1, 2], [0, 3]]
    """
    y, test = _labels(labels), _labels(test_labels)
    kinds = 1 + int(max(y.max(), test.max()))
    held = histogram([np.unique(part) for part in parts], y, kinds)
    own: list[list[np.ndarray]] = [[] for _ in parts]
    total, ends = np.bincount(y, minlength=kinds), np.cumsum(held, axis=0)
    for label in np.unique(test):
        order = stream(seed, "split", "test", int(label)).permutation(np.flatnonzero(test == label))
        m, all_of_it = len(order), max(1, int(total[label]))
        last = (2 * ends[:, label] * m + all_of_it) // (2 * all_of_it)  # rounded, and going round
        for node in np.flatnonzero(held[:, label]):
            first = last[node - 1] if node else 0
            own[node].append(order[np.arange(first, last[node]) % m])
    there = np.isin(np.arange(kinds), test)
    for found, counts in zip(own, held * there, strict=True):
        if not any(map(len, found)) and counts.any():
            found.append(np.flatnonzero(test == counts.argmax())[:1])
    return [np.sort(np.concatenate([np.empty(0, np.int64), *found])) for found in own]


def histogram(parts: Sequence[np.ndarray], labels: ArrayLike, classes: int) -> np.ndarray:
    """How many samples of each class each node holds: an (n, classes) array of counts.

    >>> histogram(clusters([0, 1, 2, 3, 0, 1], n=2), [0, 1, 2, 3, 0, 1], classes=4).tolist()
    [[2, 2, 0, 0], [0, 0, 1, 1]]
    """
    y, classes = _labels(labels), checks.count("classes", classes, "the number of classes")
    if y.size and y.max() >= classes:
        raise ValueError(f"classes = {classes}: there is a label {y.max()}; labels run from 0")
    counts = [np.bincount(y[part], minlength=classes) for part in parts]
    return np.array(counts, dtype=np.int64).reshape(len(parts), classes)


# --------------------------------------------------------------------------- pieces they share


def _even(total: int, parts: int) -> np.ndarray:
    """Sizes of `parts` consecutive ranges that differ by one at most; for two, the smaller first.

    >>> _even(5, 2).tolist()
    [2, 3]
    """
    return np.diff(np.arange(parts + 1) * total // parts)


def _cut(order: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def _sizes(random: np.random.Generator, alpha: float, n: int, total: int) -> np.ndarray:
    """`total` samples divided among n nodes in proportions drawn from Dirichlet(alpha)."""
    shares = random.dirichlet(np.full(n, np.clip(alpha, 1e-100, 1e100)))  # else it loses digits
    ends = np.rint(np.cumsum(shares) * total).astype(np.int64).clip(0, total)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def _top_up(owner: np.ndarray, n: int, minimum: int, random: np.random.Generator) -> None:
    """Hands samples of the largest node to the smallest until all have the minimum, in place."""
    sizes = np.bincount(owner, minlength=n)
    while sizes.min() < minimum:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        amount = int(min(minimum - sizes[poor], sizes[rich] - minimum))
        owner[random.choice(np.flatnonzero(owner == rich), amount, replace=False)] = poor
        sizes[poor] += amount
        sizes[rich] -= amount


def _labels(labels: ArrayLike) -> np.ndarray:
    y = np.asarray(labels)
    if y.ndim != 1 or (y.dtype.kind not in "iu" and y.size):
        raise ValueError(
            f"labels: one integer per sample is expected, a 1-D array, not {y.dtype} "
            f"of shape {y.shape}: write labels.argmax(1) for one-hot rows"
        )
    if y.size and y.min() < 0:
        raise ValueError(f"labels: {y.min()} is among them; labels are integers >= 0")
    return y.astype(np.int64)


def _labels_for(labels: ArrayLike, n: int) -> tuple[np.ndarray, int]:
    y, n = _labels(labels), checks.count("n", n, "the number of nodes")
    if n > len(y):
        raise ValueError(
            f"n = {n}: more nodes than the {len(y)} samples: node {len(y)} would be empty; "
            f"use at most {len(y)} nodes"
        )
    return y, n


def _check_alpha(alpha: float) -> None:
    expected = "a Dirichlet concentration is a finite number > 0; for an even split use iid"
    checks.number("alpha", alpha, lambda alpha: alpha > 0, expected)


def _minimum(minimum: int, n: int, samples: int) -> int:
    minimum = checks.count("minimum", minimum, "the least a node may hold")
    if n * minimum > samples:
        raise ValueError(
            f"minimum = {minimum}: {n} nodes would need {n * minimum} samples, there are "
            f"{samples}: at most {samples // n}"
        )
    return minimum
