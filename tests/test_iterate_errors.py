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
        (torch.zeros(3), r"x0 has shape \(3,\), expected \(n, d\)"),
        (torch.tensor(1.0), r"x0 has shape \(\), expected \(n, d\)"),
        (None, r"x0 is NoneType, expected a tensor \(n, d\)"),
        (torch.zeros(3, 2).to(torch.float8_e4m3fn), "x0 is torch.float8_e4m3fn"),
        (torch.zeros(3, 2).to_sparse(), "x0 is torch.float32, torch.sparse_coo: give dense"),
        (torch.zeros(3, 0), r"x0 has shape \(3, 0\)"),
        (torch.zeros(3, 2, dtype=torch.int64), "x0 is torch.int64, .*give dense floating-point"),
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


def last(*given, **options):
    *_, record = ps.iterate(*given, **options)
    return record


def test_what_is_no_record_is_refused():
    with pytest.raises(ValueError, match="after = 3: give what an earlier `iterate` has yielded"):
        ps.iterate(SGP, RING, zeros, torch.zeros(3, 1), 2, after=3)


def test_a_record_of_a_method_with_other_parameters_is_refused():
    record = last(ps.algorithms.osgp(0.1, 1), RING, zeros, torch.zeros(3, 2), 3)
    with pytest.raises(ValueError, match="a record of OSGP with other parameters"):
        ps.iterate(ps.algorithms.osgp(0.1, 2), RING, zeros, torch.zeros(3, 2), 2, after=record)
    record = last(ps.algorithms.pfedme(0.1), RING, zeros, torch.zeros(3, 2), 3)
    other = ps.algorithms.pfedme(0.1, base="push-diging")
    with pytest.raises(ValueError, match="algorithm pFedMe, not pFedMe over Push-DIGing"):
        ps.iterate(other, RING, zeros, torch.zeros(3, 2), 2, after=record)


@pytest.mark.parametrize(
    "made",
    [
        lambda seed: ps.topology.random(3, seed=seed),
        lambda seed: ps.topology.from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 1 + seed)]),
    ],
)
def test_a_record_of_graphs_of_the_same_name_is_refused(made):
    record = last(SGP, made(0), zeros, torch.zeros(3, 2), 3)
    next(ps.iterate(SGP, made(0), zeros, None, 1, after=record))
    with pytest.raises(ValueError, match="a record of a run with other graphs"):
        ps.iterate(SGP, made(1), zeros, None, 2, after=record)


def test_a_record_of_another_seed_is_refused():
    record = last(SGP, RING, zeros, torch.zeros(3, 2), 3, seed=1)
    with pytest.raises(ValueError, match="a run with seed 1, not 2"):
        ps.iterate(SGP, RING, zeros, None, 2, after=record, seed=2)


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


def test_what_is_no_gradient_function_is_refused():
    with pytest.raises(ValueError, match="gradient = 3: give a function"):
        ps.iterate(SGP, RING, 3, torch.zeros(3, 1), 2)


@pytest.mark.parametrize("rate", [None, "0.1", float("nan"), -0.1])
def test_a_schedule_that_gives_no_step_size_names_the_step(rate):
    schedule = {1: 0.0, 2: torch.tensor(0.1), 3: rate}.__getitem__
    for algorithm in (ps.algorithms.sgp(schedule), ps.algorithms.msgp(schedule, 0.9)):
        with pytest.raises(ValueError, match=r"lr\(3\) = .*: a schedule gives finite numbers >= 0"):
            list(ps.iterate(algorithm, RING, zeros, torch.zeros(3, 1), 3))


def test_an_optimizer_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"optimizer: NoneType is not one of torch.optim"):
        ps.iterate(SGP, RING, zeros, torch.zeros(3, 1), 2, optimizer=lambda parameters: None)


ASKING = [
    ps.algorithms.sgp(0.1),
    ps.algorithms.abn(0.1),
    ps.algorithms.pfedme(0.1),
    ps.algorithms.ditto(0.1),
    ps.algorithms.push_lsvrg_up(0.1),
]


@pytest.mark.parametrize("algorithm", ASKING, ids=lambda algorithm: algorithm.name)
@pytest.mark.parametrize("optimizer", [None, torch.optim.AdamW])
@pytest.mark.parametrize("how", ["autograd", "scratch"])
def test_a_gradient_function_may_do_what_it_likes_with_its_argument(algorithm, optimizer, how):
    """The records before it, and methods that keep the point, would go wrong in silence."""

    def gradient(y, t):
        if how == "scratch":
            return y.sub_(1)
        y.requires_grad_()
        ((y - 1) ** 2 / 2).sum().backward()
        return y.grad

    def run(function, full):
        start = torch.zeros(3, 2).double()
        options = {"full_gradient": full, "optimizer": optimizer}
        return list(ps.iterate(algorithm, RING, function, start, 5, **options))

    ours = run(gradient, lambda y: y.sub_(1))
    for one, plain in zip(ours, run(lambda y, t: y - 1, lambda y: y - 1), strict=True):
        assert torch.equal(one.x, plain.x)
        assert torch.equal(one.y, plain.y)
        assert not one.x.requires_grad
        assert not one.y.requires_grad


def test_a_rule_of_ones_own_may_keep_gradients():
    """The function that returned them may write over them."""
    memory = torch.zeros(3, 2).double()

    def gradient(y, t):
        return torch.sub(y, 1, out=memory)

    def move(before, y, g, t):
        return -0.1 * (g + before), g

    rule = ps.algorithms.Rule(torch.zeros_like, move)
    method = ps.algorithms.Algorithm("own", rule)
    start = torch.arange(6.0).view(3, 2).double()
    ours = last(method, RING, gradient, start, 5)
    assert torch.equal(ours.x, last(method, RING, lambda y, t: y - 1, start, 5).x)


def test_a_sparse_gradient_is_as_good():
    run = ps.iterate(SGP, RING, lambda y, t: (y - 1).to_sparse(), torch.zeros(3, 2), 2)
    plain = ps.iterate(SGP, RING, lambda y, t: y - 1, torch.zeros(3, 2), 2)
    assert all(torch.equal(one.x, other.x) for one, other in zip(run, plain, strict=True))
