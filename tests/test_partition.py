"""Who holds what."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pushsum import topology
from pushsum.data import partition

EXCLUSIVE = {
    "clusters": lambda y, n, seed: partition.clusters(y, n, shared=False, seed=seed),
    "iid": partition.iid,
    "dirichlet": lambda y, n, seed: partition.dirichlet(y, n, 0.3, seed=seed),
    "shards": lambda y, n, seed: partition.shards(y, n, per_node=2, seed=seed),
    "quantity": lambda y, n, seed: partition.quantity(y, n, 0.3, seed=seed),
}
CIFAR = np.repeat(np.arange(10), 500)[np.random.default_rng(0).permutation(5000)]


@pytest.mark.parametrize("name", EXCLUSIVE)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(2, 12), seed=st.integers(0, 2**32))
def test_every_sample_is_held_once_by_a_node_that_has_some(name, data, n, seed):
    size = data.draw(st.integers(4 * n, 200))
    labels = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)))
    labels[: 2 * n] = np.arange(2 * n) % 2 * 9  # enough for either of two clusters
    parts = EXCLUSIVE[name](labels, n, seed)
    assert len(parts) == n
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert (np.diff(part) > 0).all()
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))
    again = EXCLUSIVE[name](torch.from_numpy(labels), n, seed)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_another_seed_gives_another_split(name):
    one, two = (EXCLUSIVE[name](CIFAR, 6, seed) for seed in (0, 1))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_one_node_holds_everything(name):
    if name == "clusters":
        (part,) = partition.clusters(CIFAR, 1, clusters=1, shared=False)
    else:
        (part,) = EXCLUSIVE[name](CIFAR, 1, 0)
    assert (part == np.arange(5000)).all()


# --------------------------------------------------------------------------- the paper's clusters


@pytest.mark.parametrize("n", [2, 5, 6, 7])
def test_the_papers_split_gives_half_the_labels_to_each_cluster_of_divide(n):
    parts = partition.clusters(CIFAR, n)
    counts = partition.histogram(parts, CIFAR, 10)
    adjacency = topology.divide(n).adjacency(1)
    first = [i for i in range(n) if i < n // 2]
    assert all(adjacency[i, j] for i in first for j in first)
    for i in range(n):
        low, high = (500, 0) if i in first else (0, 500)
        assert counts[i].tolist() == [low] * 5 + [high] * 5


def test_clusters_of_any_number_are_balanced_and_share_no_label():
    labels = np.arange(700) % 7 * 3  # distinct labels need not be consecutive
    counts = partition.histogram(partition.clusters(labels, 8, clusters=3), labels, 19) > 0
    assert [row.nonzero()[0].tolist() for row in counts] == (
        [[0, 3]] * 2 + [[6, 9]] * 3 + [[12, 15, 18]] * 3
    )


def test_a_cluster_that_does_not_share_divides_its_samples_evenly():
    parts = partition.clusters(CIFAR, 6, shared=False)
    assert [len(p) for p in parts] == [833, 833, 834, 833, 833, 834]
    counts = partition.histogram(parts, CIFAR, 10)
    assert (counts[:3, 5:] == 0).all()
    assert (counts[3:, :5] == 0).all()
    assert (counts[:3].sum(0)[:5] == 500).all()
    assert (counts[:3, :5] > 100).all()


# --------------------------------------------------------------------------- the skewed ones


def test_alpha_is_the_dial_of_dirichlet():
    def largest_share(alpha):
        counts = partition.histogram(partition.dirichlet(CIFAR, 10, alpha), CIFAR, 10)
        return (counts.max(0) / counts.sum(0)).mean()

    shares = [largest_share(alpha) for alpha in (5e-324, 1e-3, 0.1, 1, 10, 1e6, 1.7e308)]
    assert shares[0] > 0.95
    assert shares[-1] == pytest.approx(0.1, abs=1e-3)
    assert shares[1:-1] == sorted(shares[1:-1], reverse=True)


def test_a_tiny_alpha_favours_no_node():
    labels = np.repeat(np.arange(2000), 3)
    owners = partition.histogram(partition.dirichlet(labels, 4, 5e-324), labels, 2000).argmax(0)
    assert (np.bincount(owners, minlength=4) > 400).all()  # 500 expected, 19 standard deviation


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    minimum=st.integers(1, 20),
    spare=st.integers(0, 300),
    alpha=st.sampled_from([1e-9, 0.01, 1.0, 1e9]),
    seed=st.integers(0, 99),
)
def test_a_minimum_that_can_be_met_is_met(n, minimum, spare, alpha, seed):
    labels = np.arange(n * minimum + spare) % 7
    for split in (partition.dirichlet, partition.quantity):
        parts = split(labels, n, alpha, minimum=minimum, seed=seed)
        assert min(map(len, parts)) >= minimum
        assert (np.sort(np.concatenate(parts)) == np.arange(len(labels))).all()


def test_quantity_skews_sizes_and_not_labels():
    parts = partition.quantity(CIFAR, 5, alpha=0.5, minimum=200, seed=1)
    counts = partition.histogram(parts, CIFAR, 10)
    assert counts.sum(1).max() > 3 * counts.sum(1).min()
    assert (abs(counts / counts.sum(1, keepdims=True) - 0.1) < 0.07).all()


def test_shards_hold_few_labels_and_equally_many_samples():
    parts = partition.shards(CIFAR, 10, per_node=2)
    counts = partition.histogram(parts, CIFAR, 10)
    assert (counts.sum(1) == 500).all()
    assert ((counts > 0).sum(1) <= 2).all()


def test_the_splits_never_change():
    """Golden: runs that share a seed must share their split."""
    labels = np.arange(12) % 4
    found = {name: [p.tolist() for p in split(labels, 3, 5)] for name, split in EXCLUSIVE.items()}
    assert found == GOLDEN


GOLDEN = {
    "clusters": [[0, 1, 4, 5, 8, 9], [2, 7, 11], [3, 6, 10]],
    "dirichlet": [[1, 3, 5, 7, 9, 11], [0, 2, 6, 8, 10], [4]],
    "iid": [[5, 6, 8, 11], [0, 3, 7, 9], [1, 2, 4, 10]],
    "quantity": [[6, 11], [0, 1, 2, 4, 5, 7, 8, 9, 10], [3]],
    "shards": [[2, 3, 7, 11], [4, 6, 9, 10], [0, 1, 5, 8]],
}


def test_histogram_of_no_nodes_and_of_absent_classes():
    assert partition.histogram([], [0, 1], 3).shape == (0, 3)
    assert partition.histogram([np.array([1])], [0, 1], 3).tolist() == [[0, 1, 0]]


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_more_nodes_than_samples(name):
    with pytest.raises(ValueError, match="n = 5: more nodes than the 4 samples: node 4 would be"):
        EXCLUSIVE[name]([0, 1, 2, 3], 5, 0)
    with pytest.raises(ValueError, match="more nodes than the 0 samples"):
        EXCLUSIVE[name]([], 1, 0)


def test_more_nodes_than_samples_even_if_they_share():
    with pytest.raises(ValueError, match="n = 3: more nodes than the 2 samples"):
        partition.clusters([0, 1], 3)


def test_an_empty_node_is_named():
    with pytest.raises(
        ValueError, match=r"node 4 would be empty: cluster 1 has 3 nodes and only 1"
    ):
        partition.clusters([0, 0, 0, 0, 0, 1], 6, shared=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.clusters([0, 1, 2], 2, clusters=3), "clusters = 3: more than the 2 nod"),
        (lambda: partition.clusters([0, 1, 1], 3, clusters=3), "clusters = 3: more than the 2 dis"),
        (lambda: partition.clusters([0, 1], 2, clusters=0), "clusters = 0: .* integer >= 1"),
        (lambda: partition.iid([0, 1], 0), "n = 0: the number of nodes is an integer >= 1"),
        (lambda: partition.iid([0, 1], True), "n = True: the number of nodes"),
        (lambda: partition.iid([0, 1], 1.0), "n = 1.0: the number of nodes"),
        (lambda: partition.iid([0, 1], 1, seed=-1), "seed = -1: a seed is an integer >= 0"),
        (lambda: partition.iid([0.0, 1.0], 1), "labels: one integer per sample .* not float64"),
        (lambda: partition.iid([[0, 1]], 1), r"not int64 of shape \(1, 2\): .*argmax"),
        (lambda: partition.iid([True, False], 1), "labels: .* not bool"),
        (lambda: partition.iid([0, -1], 1), "labels: -1 is among them"),
        (lambda: partition.shards([0] * 9, 5, per_node=2), "per_node = 2: .* at most 1 each"),
        (lambda: partition.shards([0] * 9, 5, per_node=0), "per_node = 0: "),
        (lambda: partition.histogram([], [0, 7], 7), "classes = 7: there is a label 7"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("split", [partition.dirichlet, partition.quantity])
@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf"), True, "1", None])
def test_alpha_must_be_a_positive_number(split, alpha):
    with pytest.raises(ValueError, match=r"alpha = .*: a Dirichlet concentration is a finite numb"):
        split([0, 1, 2], 2, alpha)


@pytest.mark.parametrize("split", [partition.dirichlet, partition.quantity])
def test_a_minimum_that_cannot_be_met(split):
    with pytest.raises(ValueError, match=r"minimum = 4: 3 nodes would need 12 samples.*at most 3"):
        split([0] * 11, 3, 1.0, minimum=4)
    with pytest.raises(ValueError, match="minimum = 0: the least a node may hold"):
        split([0] * 11, 3, 1.0, minimum=0)
