"""Graphs, certificates and what the nodes remember."""

import tracemalloc

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from pushsum import topology
from pushsum.engines.arrivals import NEVER, Arrivals
from strategies import graph_cycles

PAPER = {
    "full": (topology.full(6), (1, 1, 1)),
    "divide": (topology.divide(6), (1, 3, 3)),
    "exponential": (topology.exponential(6), (3, 2, 3)),
    "random": (topology.random(6), (8, 1, 8)),
    "ring": (topology.ring(7), (1, 6, 6)),
}


def numbers(certificate):
    return certificate.period, certificate.diameter, certificate.horizon


def edge_set(g, t):
    return set(zip(*g.edges(t).tolist(), strict=True))


def test_topologies_by_name():
    assert topology.MAKERS.keys() == PAPER.keys()
    assert topology.parse("random", 6, period=3).period == 3
    with pytest.raises(ValueError, match=r"unknown topology 'Rings' \(did you mean ring\?\)"):
        topology.parse("Rings", 6)


@pytest.mark.parametrize("name", PAPER)
def test_certificates_of_the_papers_topologies(name):
    g, expected = PAPER[name]
    assert numbers(g.certificate()) == expected
    assert g.period == expected[0]


def brute_force(graphs):
    """B, Delta and H of a cycled sequence by definition, with networkx and boolean products."""
    m, n = len(graphs), len(graphs[0])
    A = [np.asarray(g, dtype=int) | np.eye(n, dtype=int) for g in graphs]
    B = reference.smallest_period(A)
    unions = [
        nx.from_numpy_array(sum(A[(s + b) % m] for b in range(B)) > 0, create_using=nx.DiGraph)
        for s in range(m)
    ]
    Delta = max(nx.diameter(u) for u in unions)
    horizons = []
    for s in range(m):
        product, h = A[s], 1
        while not (product > 0).all():
            product = ((product @ A[(s + h) % m]) > 0).astype(int)
            h += 1
        horizons.append(h)
    return B, Delta, max(horizons)


@settings(max_examples=150, deadline=None)
@given(cycle=graph_cycles(max_nodes=8, max_cycle=6))
def test_certificates_equal_brute_force(cycle):
    n = len(cycle[0])
    certificate = topology.from_graphs(cycle).certificate()
    assert numbers(certificate) == brute_force(cycle)
    assert certificate.horizon <= max(1, (n - 1) * certificate.period)
    if len(cycle) == 1:
        assert certificate.horizon == max(1, certificate.diameter)


@pytest.mark.parametrize("n", [*range(1, 18), 31, 32, 33])
@pytest.mark.parametrize("make", [topology.full, topology.ring, topology.exponential])
def test_circulant_certificates_equal_brute_force(make, n):
    g = make(n)
    graphs = [g.adjacency(t).numpy() for t in range(1, g.cycle + 1)]
    assert numbers(g.certificate()) == brute_force(graphs)
    same = topology.from_graphs(graphs)
    for t in range(1, 3 * g.cycle + 3):
        assert torch.equal(g.edges(t), same.edges(t))
        away = g.edges(t)[0] != g.edges(t)[1]
        assert torch.equal(g.answered(t)[away], same.answered(t)[away])


def test_exponential_of_a_million_nodes_is_certified_at_once():
    assert numbers(topology.exponential(10**6).certificate()) == (20, 17, 20)
    assert topology.exponential(10**6).edges(3).shape == (2, 2 * 10**6)


# --------------------------------------------------------------------------- edges


def test_exponential_hops():
    g = topology.exponential(6)
    for t, hop in ((1, 1), (2, 2), (3, 4), (4, 1)):
        assert edge_set(g, t) == {(i, j) for i in range(6) for j in (i, (i + hop) % 6)}


def test_divide_joins_the_first_node_of_each_cluster():
    expected = np.kron(np.eye(2), np.ones((3, 3))).astype(bool)
    expected[0, 3] = expected[3, 0] = True
    assert (topology.divide(6).adjacency(5).numpy() == expected).all()
    odd = topology.divide(5)
    assert edge_set(odd, 1) == {(i, j) for c in ((0, 1), (2, 3, 4)) for i in c for j in c} | {
        (0, 2),
        (2, 0),
    }


@pytest.mark.parametrize(
    "make", [topology.full, topology.divide, topology.exponential, topology.random, topology.ring]
)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 12])
def test_every_n_has_self_loops_sorted_edges_and_a_certificate(make, n):
    g = make(n)
    g.certificate()
    for t in (1, 2, 3, 8, 9):
        a = g.adjacency(t)
        assert a.shape == (n, n)
        assert a.dtype == torch.bool
        assert a.diagonal().all()
        assert torch.equal(g.edges(t), a.nonzero().T)
        assert g.degrees[0] <= int(a.sum(1).min()) <= int(a.sum(1).max()) <= g.degrees[1]


def test_random_is_a_pure_function_of_seed_and_step():
    one, two, other = topology.random(6), topology.random(6), topology.random(6, seed=1)
    late_first = [two.adjacency(t) for t in (30, 5, 17)]
    assert all(
        torch.equal(a, one.adjacency(t)) for a, t in zip(late_first, (30, 5, 17), strict=True)
    )
    assert not all(torch.equal(one.adjacency(t), other.adjacency(t)) for t in range(1, 8))
    assert one.adjacency(8).all()
    assert one.adjacency(16).all()


def test_the_draws_of_random_never_change():
    """Every process of a run must draw these; a golden file in one line."""
    bits = topology.random(4, seed=7).adjacency(1).int().flatten().tolist()
    assert "".join(map(str, bits)) == GOLDEN_RANDOM_4_7_1


GOLDEN_RANDOM_4_7_1 = "1110011101110001"


def test_channels_of_random_open_independently_with_the_stated_probabilities():
    g = topology.random(6, inner=0.5, inter=0.25, period=8, seed=3)
    opened = torch.stack([g.adjacency(t) for t in range(1, 8001) if t % 8]).double()
    share = opened.mean(0)
    inner = torch.kron(torch.eye(2), torch.ones(3, 3)).bool()
    off = ~torch.eye(6, dtype=torch.bool)
    assert (share[inner & off] - 0.5).abs().max() < 0.025  # 4 standard deviations
    assert (share[~inner] - 0.25).abs().max() < 0.025
    flat = opened.flatten(1)[:, off.flatten()]
    correlation = torch.corrcoef(flat.T)
    assert (correlation - torch.eye(30)).abs().max() < 0.06


def test_random_certificate_uses_only_what_is_certain():
    assert numbers(topology.random(6, inner=1.0, inter=1.0).certificate()) == (1, 1, 1)
    assert numbers(topology.random(6, inner=0.0, inter=1.0).certificate()) == (1, 2, 2)
    assert numbers(topology.random(6, inner=1.0, inter=0.5, period=3).certificate()) == (3, 1, 3)
    assert numbers(topology.random(6, period=1).certificate()) == (1, 1, 1)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize("inner", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("inter", [0.0, 0.5, 1.0])
def test_random_and_divide_know_their_certificates(n, period, inner, inter):
    cluster = np.arange(n) >= n // 2
    same = cluster[:, None] == cluster[None, :]
    certain = np.where(same, inner == 1, inter == 1) | np.eye(n, dtype=bool)
    guaranteed = [certain] * (period - 1) + [np.ones((n, n), dtype=bool)]
    g = topology.random(n, inner, inter, period)
    assert numbers(g.certificate()) == brute_force(guaranteed)
    assert g.degrees == topology.from_graphs(guaranteed).degrees
    divided = topology.divide(n)
    assert numbers(divided.certificate()) == brute_force([divided.adjacency(1).numpy()])


def test_certificates_of_large_topologies():
    assert numbers(topology.ring(10**6).certificate()) == (1, 10**6 - 1, 10**6 - 1)
    assert numbers(topology.full(20_000).certificate()) == (1, 1, 1)
    assert numbers(topology.divide(2000).certificate()) == (1, 3, 3)
    assert numbers(topology.random(2000).certificate()) == (8, 1, 8)


def test_from_graphs_takes_networkx_and_arrays_and_adds_self_loops():
    ring = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    g = topology.from_graphs([ring, [[0, 0, 1], [0, 0, 0], [0, 0, 0]]])
    assert edge_set(g, 1) == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 0), (2, 2)}
    assert edge_set(g, 2) == {(0, 0), (0, 2), (1, 1), (2, 2)}
    assert edge_set(g, 3) == edge_set(g, 1)
    weighted = nx.DiGraph()
    weighted.add_weighted_edges_from([(0, 1, 0.5), (1, 0, 3.0)])
    assert edge_set(topology.from_graphs([weighted]), 1) == {(0, 0), (0, 1), (1, 0), (1, 1)}


# --------------------------------------------------------------------------- memory


@settings(max_examples=60, deadline=None)
@given(cycle=graph_cycles(max_nodes=6), t=st.integers(1, 20))
def test_what_a_node_remembers(cycle, t):
    g = topology.from_graphs(cycle)
    B, m = g.period, len(cycle)
    arrivals = Arrivals(g.n)
    for s in range(1, t):
        arrivals = arrivals.expired(s, B).heard(s, *g.edges(s))

    def last(i, j):
        steps = [s for s in range(max(1, t - B), t) if cycle[(s - 1) % m][j, i]]
        return max(steps, default=NEVER) if i != j else NEVER

    edges = list(zip(*g.edges(t).tolist(), strict=True))
    assert arrivals.last(*g.edges(t)).tolist() == [last(i, j) for i, j in edges]
    live = {(i, j): last(i, j) for i in range(g.n) for j in range(g.n) if last(i, j)}
    pairs = arrivals.pairs()
    held = zip(*(part.tolist() for part in pairs), strict=True)
    assert dict(zip(held, arrivals.last(*pairs).tolist(), strict=True)) == live
    for (i, j), answered in zip(edges, g.answered(t).tolist(), strict=True):
        assert i == j or answered == any(graph[j, i] for graph in cycle)


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("n", [0, -1, 2.5, "6", None, True, float("nan")])
@pytest.mark.parametrize(
    "make", [topology.full, topology.divide, topology.exponential, topology.random, topology.ring]
)
def test_a_bad_number_of_nodes_is_refused(make, n):
    with pytest.raises(ValueError, match=r"n = .*: the number of nodes is an integer >= 1"):
        make(n)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inner": 1.1}, r"inner = 1.1: a probability lies in \[0, 1\]"),
        ({"inter": -0.1}, r"inter = -0.1: a probability lies in \[0, 1\]"),
        ({"inner": float("nan")}, r"inner = nan: a probability lies in \[0, 1\]"),
        ({"period": 0}, "period = 0: a period is an integer >= 1"),
        ({"period": 2.0}, "period = 2.0: a period is an integer >= 1"),
        ({"seed": -1}, "seed = -1: a seed is an integer >= 0"),
        ({"seed": 0.5}, "seed = 0.5: a seed is an integer >= 0"),
    ],
)
def test_bad_arguments_of_random_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        topology.random(6, **arguments)


def test_nodes_that_cannot_reach_each_other_are_named():
    sink = [[0, 1, 0], [1, 0, 1], [0, 0, 0]]
    with pytest.raises(topology.NotStronglyConnected, match=r"no path from node 2 to node 0"):
        topology.from_graphs([sink]).certificate()
    source = np.array(sink).T
    with pytest.raises(topology.NotStronglyConnected, match=r"no path from node 0 to node 2"):
        topology.from_graphs([source]).certificate()
    islands = np.zeros((12, 12))
    with pytest.raises(topology.NotStronglyConnected, match=r"0 to nodes 1, 2, .*, 8, \.\.\."):
        topology.from_graphs([islands]).certificate()


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([], "give at least one graph"),
        ([[[1, 2], [0, 1]]], "graph 0: an adjacency holds 0 and 1 only"),
        ([[[1, 0]]], r"graph 0: an adjacency is a square array, not \(1, 2\)"),
        (3, r"takes a list of graphs: write from_graphs\(\[graph\]\)"),
        ([np.eye(2), np.eye(3)], r"graphs of \[2, 3\] nodes"),
        ([nx.DiGraph([(1, 2), (2, 1)])], r"graph 0: its nodes must be 0..n-1, not \[1, 2\]"),
    ],
)
def test_bad_graphs_are_refused(graphs, message):
    with pytest.raises(ValueError, match=message):
        topology.from_graphs(graphs)


def test_steps_count_from_one():
    for g in (topology.full(3), topology.divide(3), topology.random(3)):
        with pytest.raises(ValueError, match="t = 0: a step is an integer >= 1"):
            g.edges(0)


def test_large_sparse_graphs_never_become_matrices():
    """50 000 nodes as a matrix would be 2.5 GB; this must not even come close."""
    ring = nx.cycle_graph(50_000, create_using=nx.DiGraph)
    tracemalloc.start()
    g = topology.from_graphs([ring])
    assert g.period == 1
    assert g.edges(1).shape == (2, 100_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150e6


def test_undirected_networkx_graphs_are_two_way():
    g = topology.from_graphs([nx.path_graph(3)])
    assert edge_set(g, 1) == {(0, 0), (1, 1), (2, 2), (0, 1), (1, 0), (1, 2), (2, 1)}


def test_random_as_the_paper_ran_it_draws_once_per_receiver():
    g = topology.random(6, period=8, seed=2, per_receiver=True)
    assert g.adjacency(1).all()
    assert g.adjacency(9).all()
    assert not g.adjacency(8).all()
    for t in range(2, 9):
        heard = g.adjacency(t).numpy()
        for receiver in range(6):
            own = [j for j in range(6) if (j < 3) == (receiver < 3) and j != receiver]
            other = [j for j in range(6) if (j < 3) != (receiver < 3)]
            assert len({bool(heard[j, receiver]) for j in own}) == 1
            assert len({bool(heard[j, receiver]) for j in other}) == 1
            assert heard[own[0], receiver] >= heard[other[0], receiver]
    assert numbers(g.certificate()) == (8, 1, 8)


def test_edges_from_lists_files_and_functions_are_the_same_graph(tmp_path):
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (3, 1)]
    made = topology.from_edges(4, edges)
    (tmp_path / "edges.csv").write_text("sender,receiver\n0,1\n1,2  # comment\n\n2,3\n3,0\n3,1\n")
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n2 3\n3 0\n3 1\n")
    (tmp_path / "mine.py").write_text(
        "from pushsum import topology\n"
        f"def graphs(n):\n    return topology.from_edges(n, {edges})\n"
    )
    assert numbers(made.certificate()) == brute_force([made.adjacency(1).numpy()])
    assert set(zip(*made.edges(1).tolist(), strict=True)) == {*edges, *((i, i) for i in range(4))}
    (tmp_path / "excel.csv").write_bytes(b"\xef\xbb\xbf0,1\r\n1,2\r\n2,3\r\n3,0\r\n3,1\r\n")
    for name in ("edges.csv", "edges.txt", "excel.csv", "mine.py:graphs"):
        assert torch.equal(topology.parse(str(tmp_path / name), 4).edges(7), made.edges(1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,x\n", r"line 2: '1,x' is no edge: write sender,receiver"),
        ("0,1,2\n", "line 1: '0,1,2' is no edge"),
        ("-1,2\n", "line 1: '-1,2' is no edge"),
        ("0,1\n1,²\n", "line 2: '1,²' is no edge"),
        ("0,1\n1,9\n", r"edge \(1, 9\): the nodes are the integers from 0 to 3"),
        ("0,1\n1,0\n", "there is no path from node 0 to nodes 2, 3, at any step"),
    ],
)
def test_lists_of_edges_that_are_refused(text, message, tmp_path):
    (tmp_path / "edges.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        topology.parse(str(tmp_path / "edges.csv"), 4).certificate()


def test_edges_from_arrays_are_as_good():
    made = topology.from_edges(3, [(0, 1), (1, 2), (2, 0)])
    array = np.array([[0, 1], [1, 2], [2, 0]])
    for edges in (array, torch.from_numpy(array), iter(array.tolist())):
        assert topology.from_edges(3, edges).fingerprint() == made.fingerprint()


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(0, 1, 2)], r"edge \(0, 1, 2\): a pair \(sender, receiver\) of integers"),
        ([1, 2], "edge 1: a pair"),
        ([(0, 1.5)], r"edge \(0, 1.5\): a pair"),
        ([(0, -1)], r"edge \(0, -1\): the nodes are the integers from 0 to 2"),
        (None, "edges = None: give a list of pairs"),
    ],
)
def test_edges_that_are_refused(edges, message):
    with pytest.raises(ValueError, match=message):
        topology.from_edges(3, edges)


@pytest.mark.parametrize("t", [1.5, "1", None])
def test_what_is_no_step_is_refused(t):
    with pytest.raises(ValueError, match="a step is an integer >= 1"):
        topology.ring(3).edges(t)


def test_an_absurd_number_of_nodes_is_refused():
    with pytest.raises(ValueError, match=r"n = 10{21}: at most 1000000000 nodes"):
        topology.ring(10**21)
    with pytest.raises(ValueError, match=r"n = 100000: at most 20000 nodes"):
        topology.full(100_000)
    with pytest.raises(ValueError, match=r"write from_graphs\(\[graph\]\)"):
        topology.from_graphs(nx.DiGraph([(0, 1), (1, 0)]))


@pytest.mark.parametrize("name", ["full", "divide", "exponential", "random"])
def test_expiry_changes_nothing_on_the_papers_topologies(name):
    """Whoever is heard at all is heard again within B steps: docs/published.md relies on it."""
    g, _ = PAPER[name]
    arrivals = for_ever = Arrivals(g.n)
    for t in range(1, 40):
        assert torch.equal(arrivals.last(*g.edges(t)), for_ever.last(*g.edges(t)))
        arrivals = arrivals.expired(t, g.period).heard(t, *g.edges(t))
        for_ever = for_ever.expired(t, 1000).heard(t, *g.edges(t))
