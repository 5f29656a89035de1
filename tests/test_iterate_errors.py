"""Bad input to `iterate` gets one clear line, before anything has run."""

import networkx as nx
import numpy as np
import pytest
import torch

import pushsum as ps

RING = ps.topology.ring(3)
SGP = ps.algorithms.sgp(0.1)


def zeros(y, t):
    return torch.zeros_like(y)


@pytest.mark.parametrize(
    ("x0", "message"),
    [
        (torch.zeros(2, 4), r"x0 has shape \(2, 4\), expected \(3, d\)"),
        (torch.zeros(3), r"x0 has shape \(3,\), expected \(3, d\)"),
        (torch.zeros(3, 0), r"x0 has shape \(3, 0\)"),
        (torch.zeros(3, 2, dtype=torch.int64), r"x0 has dtype torch.int64: give floating-point"),
        (torch.tensor([[0.0], [1.0], [np.nan]]), "x0 of node 2 holds NaN or infinity"),
        (torch.tensor([[0.0], [np.inf], [0.0]]), "x0 of node 1 holds NaN or infinity"),
    ],
)
def test_bad_starts_are_refused_before_the_first_step(x0, message):
    with pytest.raises(ValueError, match=message):
        ps.iterate(SGP, RING, zeros, x0, 5)


@pytest.mark.parametrize(
    ("algorithm", "topology", "message"),
    [
        (ps.algorithms.sgp, RING, r"algorithm = <function sgp .*give one of pushsum.algorithms"),
        (SGP, ps.topology.ring, r"topology = <function ring .*give a name, or one of"),
        (SGP, nx.DiGraph([(0, 1), (1, 2), (2, 0)]), r"topology = .*DiGraph.*from_graphs"),
    ],
)
def test_what_is_no_algorithm_and_no_topology_is_refused(algorithm, topology, message):
    with pytest.raises(ValueError, match=message):
        ps.iterate(algorithm, topology, zeros, torch.zeros(3, 1), 5)


def test_a_record_of_other_nodes_is_refused():
    *_, last = ps.iterate(SGP, RING, zeros, torch.zeros(3, 1), 2)
    with pytest.raises(ValueError, match=r"a run with topology ring\(3\), not ring\(4\)"):
        ps.iterate(SGP, ps.topology.ring(4), zeros, torch.zeros(4, 1), 2, after=last)


@pytest.mark.parametrize("steps", [-1, 2.0, "3", True])
def test_a_bad_number_of_steps_is_refused(steps):
    with pytest.raises(ValueError, match=r"steps = .*: the number of steps is an integer >= 0"):
        ps.iterate(SGP, RING, zeros, torch.zeros(3, 1), steps)


def test_a_gradient_of_the_wrong_shape_names_the_step():
    run = ps.iterate(SGP, RING, lambda y, t: y if t < 4 else y[:2], torch.zeros(3, 2), 9)
    with pytest.raises(
        ValueError, match=r"gradient at step 4 has shape \(2, 2\), expected \(3, 2\)"
    ):
        list(run)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_with_nan_names_node_and_step(bad):
    def gradient(y, t):
        g = torch.zeros_like(y)
        if t == 3:
            g[1, 0] = bad
        return g

    run = ps.iterate(SGP, RING, gradient, torch.zeros(3, 2), 9)
    seen = []
    with pytest.raises(ValueError, match="gradient of node 1 at step 3 holds NaN or infinity"):
        seen.extend(r.t for r in run)
    assert seen == [1, 2]


def test_a_gradient_that_is_no_tensor_or_overflows_is_refused():
    run = ps.iterate(SGP, RING, lambda y, t: None, torch.zeros(3, 2), 9)
    with pytest.raises(ValueError, match="gradient at step 1 is NoneType, expected a tensor"):
        next(run)
    huge = ps.iterate(SGP, RING, lambda y, t: y.double() + 1e300, torch.zeros(3, 2), 9)
    with pytest.raises(ValueError, match="gradient of node 0 at step 1 holds NaN or infinity"):
        next(huge)


def test_numpy_integers_are_integers():
    topology = ps.topology.random(np.int64(4), period=np.int64(3))
    run = ps.iterate(SGP, RING, zeros, torch.zeros(3, 2), np.int64(2))
    assert [r.t for r in run] == [1, 2]
    assert torch.equal(topology.edges(np.int64(3)), topology.edges(3))


def test_huge_but_finite_gradients_pass():
    run = ps.iterate(SGP, RING, lambda y, t: torch.full_like(y, 3e38), torch.zeros(3, 4), 1)
    assert next(run).x.isfinite().all()


def test_a_graph_without_strong_connectivity_is_refused_at_once():
    island = ps.topology.from_graphs([np.eye(3)])
    with pytest.raises(ps.topology.NotStronglyConnected, match="no path from node 0 to nodes 1, 2"):
        ps.iterate(SGP, island, zeros, torch.zeros(3, 1), 5)


def test_a_function_weighting_for_too_many_nodes_is_refused():
    run = ps.iterate(
        ps.algorithms.sgap(0.1, lambda a, d2: a.T / a.sum(1)),
        ps.topology.exponential(5000),
        zeros,
        torch.zeros(5000, 1),
        1,
    )
    with pytest.raises(ValueError, match="is for up to 2048 nodes, not 5000"):
        next(run)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ps.algorithms.sgp(0.0), "lr = 0.0: a step size is a finite number > 0, or"),
        (lambda: ps.algorithms.sgp(float("nan")), "lr = nan"),
        (lambda: ps.algorithms.s_addopt(-1.0), "lr = -1.0"),
        (lambda: ps.algorithms.sgp("0.1"), "lr = '0.1'"),
        (lambda: ps.algorithms.msgp(0.1, 1.0), r"momentum = 1.0: momentum lies in \[0, 1\)"),
        (lambda: ps.algorithms.msgap(0.1, -0.1, ps.weighting.uniform()), "momentum = -0.1"),
        (lambda: ps.algorithms.sgap(0.1, None), "weighting = None"),
    ],
)
def test_bad_algorithm_dials_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
