"""`iterate` against the literal reference, and the invariants of push-sum."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pushsum as ps
import reference
from benchmarks.drift import TOPOLOGIES, apart, drift
from benchmarks.drift import WEIGHTINGS as DRIFT_WEIGHTINGS
from pushsum import algorithms
from pushsum.engines import mixing, simulator
from pushsum.protocol import corrected
from strategies import WEIGHTINGS, graph_cycles, random_cycle

RULES = {
    "uniform": reference.uniform_rule,
    "lazy": reference.lazy_rule(0.3),
    "moreau": reference.moreau_rule(0.7, 0.2),
    "scale-free": reference.scale_free_rule(1.3, 0.2),
    "far-first": reference.far_first_rule(1.3, 0.2),
}
LR, MOMENTUM = 0.11, 0.8


def bowl(n: int, d: int, seed: int):
    """A non-linear gradient that depends on node and step, for numpy and torch alike."""
    rng = np.random.default_rng(seed)
    targets = 3 * rng.standard_normal((n, d))
    curvature = rng.uniform(0.2, 1.5, (n, d))

    def gradient(y, t):
        return curvature * (y - targets) + 0.3 * np.sin(y + t)

    return gradient


def torch_gradient(gradient):
    return lambda y, t: torch.from_numpy(gradient(y.numpy(), t))


def paths(name: str):
    """Algorithm `name` as (pushsum algorithm, reference run)."""
    if name == "S-ADDOPT":
        return algorithms.s_addopt(LR), lambda x0, g, B, grad, T: reference.run_s_addopt(
            x0, g, B, grad, T, LR
        )
    method, _, rule = name.partition("/")
    if method == "QGM":
        return algorithms.qgm(LR, MOMENTUM, WEIGHTINGS[rule]), (
            lambda x0, g, B, grad, T: reference.run_qgm(
                x0, g, B, RULES[rule], grad, T, LR, MOMENTUM
            )
        )
    momentum = MOMENTUM if method.startswith("M") else 0.0
    algorithm = {
        "SGP": lambda: algorithms.sgp(LR),
        "MSGP": lambda: algorithms.msgp(LR, MOMENTUM),
        "SGAP": lambda: algorithms.sgap(LR, WEIGHTINGS[rule]),
        "MSGAP": lambda: algorithms.msgap(LR, MOMENTUM, WEIGHTINGS[rule]),
    }[method]()
    return algorithm, lambda x0, g, B, grad, T: reference.run_msgap(
        x0, g, B, RULES[rule or "uniform"], grad, T, LR, momentum
    )


NAMES = [
    "SGP",
    "MSGP",
    "S-ADDOPT",
    "QGM/moreau",
    *(f"{m}/{w}" for m in ("SGAP", "MSGAP") for w in ("moreau", "scale-free", "far-first", "lazy")),
]


def assert_same(run, expected):
    steps = 0
    for r, e in zip(run, expected, strict=True):
        assert r.t == e.t
        for ours, theirs in ((r.W, e.W), (r.a, e.a), (r.x, e.x), (r.y, e.y)):
            scale = max(1.0, float(np.abs(theirs).max()))
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-10 * scale)
        steps += 1
    return steps


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(cycle=graph_cycles(), seed=st.integers(0, 1000), d=st.integers(1, 4))
def test_iterate_equals_the_reference_on_random_sequences(name, cycle, seed, d):
    n = len(cycle[0])
    x0 = np.random.default_rng(seed).standard_normal((n, d))
    gradient = bowl(n, d, seed)
    algorithm, run_reference = paths(name)
    B = reference.smallest_period(cycle)
    ours = ps.iterate(
        algorithm,
        ps.topology.from_graphs(cycle),
        torch_gradient(gradient),
        torch.from_numpy(x0),
        30,
    )
    theirs = run_reference(x0, lambda t: cycle[(t - 1) % len(cycle)], B, gradient, 30)
    assert assert_same(ours, theirs) == 30


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("topology", "B"),
    [
        (ps.topology.full(6), 1),
        (ps.topology.divide(6), 1),
        (ps.topology.exponential(6), 3),
        (ps.topology.exponential(8), 3),
        (ps.topology.exponential(5), 1),
        (ps.topology.random(6, seed=4), 8),
        (ps.topology.ring(7), 1),
        (ps.topology.full(1), 1),
        (ps.topology.full(2), 1),
    ],
    ids=repr,
)
def test_iterate_equals_the_reference_on_the_named_topologies(name, topology, B):
    n, d = topology.n, 3
    x0 = np.random.default_rng(n).standard_normal((n, d))
    gradient = bowl(n, d, 7)
    algorithm, run_reference = paths(name)
    ours = ps.iterate(algorithm, topology, torch_gradient(gradient), torch.from_numpy(x0), 40)
    theirs = run_reference(x0, lambda t: topology.adjacency(t).numpy(), B, gradient, 40)
    assert assert_same(ours, theirs) == 40


def test_a_users_own_function_sees_every_live_buffer():
    """The (n, n) distances that a plain function is given are those of all live buffers."""
    cycle = random_cycle(np.random.default_rng(5), 5, 4, 0.3)
    B = reference.smallest_period(cycle)
    x0 = np.random.default_rng(6).standard_normal((5, 2))
    gradient = bowl(5, 2, 8)

    def rule(i, away, buffers):
        total = sum(float(np.sum((buffers[i] - b) ** 2)) for b in buffers)
        return {j: (0.2 + 0.5 * total / (1 + total)) / (len(away) + 1) for j in away}

    def weights(adjacency, squared_distances):
        total = squared_distances.sum(1)
        K = adjacency.sum(1)
        off = adjacency.T * ((0.2 + 0.5 * total / (1 + total)) / K)
        off.fill_diagonal_(0)
        return off + torch.diag(1 - off.sum(0))

    ours = ps.iterate(
        algorithms.sgap(LR, weights),
        ps.topology.from_graphs(cycle),
        torch_gradient(gradient),
        torch.from_numpy(x0),
        30,
    )
    theirs = reference.run_msgap(x0, lambda t: cycle[(t - 1) % 4], B, rule, gradient, 30, LR, 0.0)
    assert assert_same(ours, theirs) == 30


def test_many_nodes_take_the_edge_list_path_and_agree_with_the_reference(monkeypatch):
    n, d, T = 18, 2, 12
    for module in (mixing, simulator):
        monkeypatch.setattr(module, "FEW_NODES", n - 1)  # the reference takes long for more
    one_way = [ps.topology.exponential(n).adjacency(t) for t in (1, 2)]
    two_way = ps.topology.from_graphs([a | a.T for a in one_way])
    gradient = bowl(n, d, 3)
    x0 = np.random.default_rng(1).standard_normal((n, d))
    for weighting in ("moreau", "scale-free"):
        ours = ps.iterate(
            algorithms.sgap(LR, WEIGHTINGS[weighting]),
            two_way,
            torch_gradient(gradient),
            torch.from_numpy(x0),
            T,
        )
        adjacency = {t: two_way.adjacency(t).numpy() for t in range(1, T + 1)}
        theirs = reference.run_msgap(
            x0, adjacency.__getitem__, two_way.period, RULES[weighting], gradient, T, LR, 0.0
        )
        assert assert_same(ours, theirs) == T


@pytest.mark.parametrize("where", ["ring", "exponential"])
def test_halves_add_up_in_float32_as_they_do_in_float64(where):
    x = (
        torch.randn(6, 50_000, generator=torch.Generator().manual_seed(1))
        * 2.0 ** torch.arange(6)[:, None]
    )
    graphs = ps.topology.parse(where, 6)
    for t in (1, 2, 3):
        graph = mixing.Graph(6, *graphs.edges(t))
        halves = torch.full_like(graph.senders, 0.5, dtype=torch.float64)
        mixed = mixing.mixer(graph, halves)(x)
        assert torch.equal(mixed, mixing.mixer(graph, halves)(x.double()).float())


# --------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_mass_is_conserved_over_thousands_of_steps(weighting):
    rng, steps = np.random.default_rng(0), 2000
    topology = ps.topology.from_graphs(random_cycle(rng, 7, 3, 0.3))
    x0 = torch.from_numpy(rng.standard_normal((7, 2)))
    kicks = torch.from_numpy(rng.standard_normal((steps, 7, 2)))
    lr = 0.01
    run = ps.iterate(
        algorithms.sgap(lr, WEIGHTINGS[weighting]), topology, lambda y, t: kicks[t - 1], x0, steps
    )
    total = x0.sum(0).numpy().astype(np.longdouble)
    scale = float(x0.abs().sum())
    for r in run:
        total -= lr * kicks[r.t - 1].numpy().astype(np.longdouble).sum(0)
        scale += lr * float(kicks[r.t - 1].abs().sum())
        assert r.a.min() > 0
        if r.t % 500 == 0:
            assert abs(float(r.a.sum()) - 7) <= 7e-12
            assert np.abs(r.x.numpy().sum(0) - total).max() <= 1e-12 * scale
    assert r.t == steps


@settings(max_examples=20, deadline=None)
@given(cycle=graph_cycles(), seed=st.integers(0, 1000))
def test_s_addopt_keeps_its_two_sums(cycle, seed):
    n = len(cycle[0])
    x0 = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, 3)))
    gradient = torch_gradient(bowl(n, 3, seed))
    x, trackers = x0, torch.zeros(n, 3, dtype=torch.float64)
    y = x0
    for r in ps.iterate(algorithms.s_addopt(LR), ps.topology.from_graphs(cycle), gradient, x0, 40):
        trackers = gradient(y, r.t)  # the trackers' sum is the sum of the newest gradients
        torch.testing.assert_close(
            r.x.sum(0), x.sum(0) - LR * trackers.sum(0), rtol=1e-11, atol=1e-11
        )
        assert abs(float(r.a.sum()) - n) < 1e-12 * n
        x, y = r.x, r.y


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@settings(max_examples=20, deadline=None)
@given(cycle=graph_cycles(), seed=st.integers(0, 1000))
def test_permuting_the_nodes_permutes_the_results(weighting, cycle, seed):
    n = len(cycle[0])
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    x0 = torch.from_numpy(rng.standard_normal((n, 2)))
    targets = torch.from_numpy(rng.standard_normal((n, 2)))
    algorithm = algorithms.msgap(LR, MOMENTUM, WEIGHTINGS[weighting])
    straight = ps.iterate(
        algorithm, ps.topology.from_graphs(cycle), lambda y, t: y - targets, x0, 25
    )
    permuted = ps.iterate(
        algorithm,
        ps.topology.from_graphs([g[order][:, order] for g in cycle]),
        lambda y, t: y - targets[order],
        x0[order],
        25,
    )
    for r, p in zip(straight, permuted, strict=True):
        torch.testing.assert_close(p.y, r.y[order], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(p.a, r.a[order], rtol=1e-11, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (algorithms.sgap(LR, ps.weighting.uniform()), algorithms.sgp(LR)),
        (algorithms.msgap(LR, 0.8, ps.weighting.uniform()), algorithms.msgp(LR, 0.8)),
        (
            algorithms.msgap(LR, 0.0, WEIGHTINGS["moreau"]),
            algorithms.sgap(LR, WEIGHTINGS["moreau"]),
        ),
        (algorithms.msgp(LR, 0.0), algorithms.sgp(LR)),
        (algorithms.sgap(LR, ps.weighting.lazy(1.0)), algorithms.sgp(LR)),
    ],
    ids=[
        "SGAP(uniform)=SGP",
        "MSGAP(uniform)=MSGP",
        "MSGAP(0)=SGAP",
        "MSGP(0)=SGP",
        "lazy(1)=uniform",
    ],
)
def test_special_cases_are_equal_bit_for_bit(one, other, dtype):
    rng = np.random.default_rng(2)
    topology = ps.topology.from_graphs(random_cycle(rng, 6, 4, 0.4))
    x0 = torch.from_numpy(rng.standard_normal((6, 5))).to(dtype)
    targets = torch.from_numpy(rng.standard_normal((6, 5))).to(dtype)
    gradient = lambda y, t: y - targets + t / 50
    runs = [ps.iterate(a, topology, gradient, x0, 60) for a in (one, other)]
    for r, s in zip(*runs, strict=True):
        assert torch.equal(r.x, s.x)
        assert torch.equal(r.a, s.a)
        assert torch.equal(r.y, s.y)


# --------------------------------------------------------------------------- small facts


def test_the_first_step_of_moreau_weighting_is_on_the_floor():
    """All distances are 0 at t = 1: v = 0.1 on Full(6) gives 0.0136 away and keeps 0.9318."""
    x0 = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    run = ps.iterate(
        algorithms.sgap(0.1, ps.weighting.moreau(1.0, 0.1)),
        ps.topology.full(6),
        lambda y, t: y,
        x0,
        2,
    )
    first, second = run
    floor = 0.1 * 0.9 / (1.1 * 6)
    expected = torch.full((6, 6), floor, dtype=torch.float64)
    expected.fill_diagonal_(1 - 5 * floor)
    torch.testing.assert_close(first.W, expected, rtol=0, atol=1e-15)
    assert first.W[0, 0].item() == pytest.approx(0.9318181818)
    pushed = 0.9 * x0  # the distances of step 2 are between what was pushed in step 1
    d2 = (pushed[0] - pushed[1]).square().sum()
    assert second.W[1, 0].item() == pytest.approx(0.9 / 6.6 * (1.1 - np.exp(-float(d2))), rel=1e-12)


def test_buffers_that_are_never_filled_leave_the_weights_on_the_floor():
    """On a one-way ring nobody hears from the node it sends to."""
    x0 = torch.arange(4.0, dtype=torch.float64)[:, None] * 100
    for r in ps.iterate(
        algorithms.sgap(0.1, ps.weighting.moreau(1.0, 0.1)),
        ps.topology.ring(4),
        lambda y, t: y,
        x0,
        5,
    ):
        assert r.W[1, 0].item() == pytest.approx(0.1 * 0.9 / (1.1 * 2), rel=1e-14)


def test_an_entry_older_than_the_period_falls_back_to_the_own_value():
    """B = 1 here, so what node 1 told node 0 at odd steps is forgotten a step later."""
    ring = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    both = ring | ring.T
    topology = ps.topology.from_graphs([both, ring, ring])
    assert topology.period == 1
    x0 = torch.tensor([[0.0], [10.0], [20.0]], dtype=torch.float64)
    weighting = ps.weighting.moreau(1.0, 0.1)
    W = [
        r.W
        for r in ps.iterate(algorithms.sgap(1e-9, weighting), topology, lambda y, t: y * 0, x0, 4)
    ]
    high, floor = 0.9 / 2, 0.1 * 0.9 / (1.1 * 2)
    assert W[1][1, 0].item() == pytest.approx(high, rel=1e-6)  # heard at step 1, used at step 2
    assert W[2][1, 0].item() == pytest.approx(
        floor, rel=1e-12
    )  # heard at step 1, expired at step 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dtype_of_x0_is_kept_and_a_is_float64(dtype):
    run = ps.iterate(
        algorithms.sgap(0.1, ps.weighting.moreau(1.0, 0.1)),
        ps.topology.exponential(4),
        lambda y, t: y.double(),
        torch.ones(4, 3, dtype=dtype),
        7,
    )
    *_, last = run
    assert last.x.dtype == last.y.dtype == dtype
    assert last.a.dtype == torch.float64
    assert abs(float(last.a.sum()) - 4) < 1e-14


def test_float32_distances_of_nearly_equal_nodes_keep_their_digits():
    """The Gram identity would return noise here: distance 1e-3 between vectors of length 1e3."""
    base = 300 * torch.randn(12, generator=torch.Generator().manual_seed(1))
    x0 = base.repeat(3, 1)
    x0[1, 0] += 1e-3
    x0[2, 0] += 2e-3
    k = 1e5
    run = ps.iterate(
        algorithms.sgap(0.1, ps.weighting.moreau(k, 0.1)),
        ps.topology.full(3),
        lambda y, t: torch.zeros_like(y),
        x0,
        2,
    )
    _, second = run
    d2 = (x0[0].double() - x0[1].double()).square().sum()
    assert second.W[1, 0].item() == pytest.approx(
        0.9 / 3.3 * (1.1 - np.exp(-k * float(d2))), rel=1e-5
    )


def test_results_do_not_depend_on_the_number_of_threads_in_float64():
    x0 = torch.randn(6, 4000, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def last():
        *_, r = ps.iterate(
            algorithms.sgap(0.1, ps.weighting.moreau(1e-3, 0.1)),
            ps.topology.random(6),
            lambda y, t: y - t,
            x0,
            12,
        )
        return r

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = last()
        torch.set_num_threads(2)
        two = last()
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)


def test_records_stay_valid_and_x0_is_not_touched():
    x0 = torch.ones(3, 2, dtype=torch.float64)
    records = list(ps.iterate(algorithms.sgp(0.5), ps.topology.ring(3), lambda y, t: y, x0, 4))
    assert torch.equal(x0, torch.ones(3, 2, dtype=torch.float64))
    assert [round(float(r.average[0]), 6) for r in records] == [0.5, 0.25, 0.125, 0.0625]


def test_a_run_goes_on_bit_for_bit_after_a_record():
    rng = np.random.default_rng(4)
    topology = ps.topology.from_graphs(random_cycle(rng, 5, 3, 0.4))
    x0 = torch.from_numpy(rng.standard_normal((5, 3)))
    gradient = torch_gradient(bowl(5, 3, 4))
    for name in NAMES:
        algorithm, _ = paths(name)
        whole = list(ps.iterate(algorithm, topology, gradient, x0, 20))
        rest = list(ps.iterate(algorithm, topology, gradient, x0, 9, after=whole[10]))
        assert [r.t for r in rest] == list(range(12, 21))
        assert torch.equal(rest[-1].y, whole[-1].y)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_function_may_reuse_its_output_and_change_its_input(name):
    algorithm, _ = paths(name)
    topology, x0 = ps.topology.exponential(4), torch.ones(4, 3, dtype=torch.float64)
    targets = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    shared = torch.empty(4, 3, dtype=torch.float64)

    def careless(y, t):
        torch.sub(y, targets, out=shared)
        y.zero_()
        return shared

    *_, expected = ps.iterate(algorithm, topology, lambda y, t: y - targets, x0, 12)
    *_, r = ps.iterate(algorithm, topology, careless, x0, 12)
    assert torch.equal(r.x, expected.x)


def test_no_autograd_graph_is_kept():
    x0 = torch.ones(3, 2, requires_grad=True)
    run = ps.iterate(algorithms.msgp(0.1, 0.5), ps.topology.ring(3), lambda y, t: y * x0, x0, 3)
    assert not any(r.x.requires_grad for r in run)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [10, 20_000])
def test_half_precision_distances_are_computed_in_float32(dtype, d):
    x0 = torch.zeros(2, d, dtype=dtype)
    x0[1] = 8.0  # a squared distance beyond float16
    k = 0.5 / (64.0 * d)
    run = ps.iterate(
        algorithms.sgap(0.1, ps.weighting.moreau(k, 0.1)),
        ps.topology.full(2),
        lambda y, t: torch.zeros_like(y),
        x0,
        2,
    )
    _, second = run
    assert second.W[1, 0].item() == pytest.approx(0.9 / 2.2 * (1.1 - np.exp(-0.5)), rel=1e-4)


@pytest.mark.parametrize("scale", [1e-24, 1e-10, 1.0, 1e10, 1e20])
@pytest.mark.parametrize("d", [4, 3000])
def test_scale_free_weights_do_not_see_the_scale_in_float32_either(scale, d):
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(4, d, generator=generator)

    def second_W(factor):
        run = ps.iterate(
            algorithms.sgap(0.1, ps.weighting.scale_free_moreau()),
            ps.topology.full(4),
            lambda y, t: torch.zeros_like(y),
            (start.double() * factor).float(),
            2,
        )
        return list(run)[1].W

    torch.testing.assert_close(second_W(scale), second_W(1.0), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("where", "weighting", "steps"),
    [
        ("divide(6)", "moreau:k=1,v=0.1", 3000),
        ("full(6)", f"lazy:c={1 / 3}", 2000),
        ("random(6)", "uniform", 4000),
        ("exponential(300)", "far-first", 500),
    ],
)
def test_the_average_of_float32_parameters_does_not_drift(where, weighting, steps):
    """Sums are rounded once: a random walk of single roundings remains, which has no trend.

    `python -m benchmarks.drift` has 12 000 steps. Sums in float32 had a trend of 1e-9 per step.
    """
    largest, median, trend = drift(TOPOLOGIES[where], weighting, steps)
    assert largest < 5e-6
    assert median < 1.5e-6
    assert abs(trend) < 2e-10


@pytest.mark.parametrize("where", ["full(6)", "divide(6)"])
def test_the_average_does_not_drift_on_a_bfloat16_wire(where):
    largest, _, trend = drift(TOPOLOGIES[where], "uniform", 1500, torch.bfloat16)
    assert largest < 1e-6
    assert abs(trend) < 2e-10


@pytest.mark.parametrize("weighting", [*DRIFT_WEIGHTINGS, "lazy:c=1e-4"])
@pytest.mark.parametrize("where", ["full(6)", "divide(6)"])
def test_nodes_that_start_alike_stay_alike_in_float32(where, weighting):
    """x and a are mixed with the same weights; `lazy:c=1e-4` was off by 2e-4."""
    assert apart(TOPOLOGIES[where], weighting, 1000) < 2.5e-6


def test_the_smallest_weight_mixes():
    *_, last = ps.iterate(
        algorithms.sgap(0.1, "lazy:c=5e-8"),
        "full",
        lambda y, t: torch.zeros_like(y),
        torch.tensor([[0.0], [1e6]]),
        100,
    )
    assert last.x[0, 0] > 0


def test_half_precision_is_divided_before_it_is_rounded():
    x, a = torch.full((1, 1), 3.0, dtype=torch.bfloat16), torch.tensor([1.0 + 2**-9])
    assert corrected(x, a).item() == torch.tensor(3.0 / (1 + 2**-9)).bfloat16().item()


@pytest.mark.parametrize("name", ["sgp", "qgm", "s_addopt", "all_reduce"])
def test_a_gradient_function_may_use_y_as_scratch(name):
    make = {
        "sgp": lambda: algorithms.sgp(0.1),
        "qgm": lambda: algorithms.qgm(0.1, 0.5, "uniform"),
        "s_addopt": lambda: algorithms.s_addopt(0.1),
        "all_reduce": lambda: algorithms.all_reduce(0.1),
    }[name]
    x0 = torch.zeros(3, 2, dtype=torch.float64)
    graphs = ps.topology.exponential(3)
    *_, plain = ps.iterate(make(), graphs, lambda y, t: y - 1, x0, 20)
    *_, scratched = ps.iterate(make(), graphs, lambda y, t: y.sub_(1), x0, 20)
    assert torch.equal(plain.x, scratched.x)


def test_all_reduce_has_no_weights():
    algorithm, graphs = algorithms.all_reduce(0.1), ps.topology.ring(3)
    *_, last = ps.iterate(algorithm, graphs, lambda y, t: y, torch.ones(3, 1), 2)
    with pytest.raises(ValueError, match="step 2 has no weights: nothing was pushed"):
        _ = last.W


def test_quasi_global_momentum_rests_while_the_step_size_is_0():
    """As in a warm-up that begins with 0."""
    algorithm = algorithms.qgm(lambda t: 0.1 * min(1, (t - 1) / 5), 0.8, "uniform")
    targets = torch.tensor([[0.0], [1.0], [5.0]])
    run = ps.iterate(
        algorithm, ps.topology.ring(3), lambda y, t: y - targets, torch.zeros(3, 1), 400
    )
    first, *_, last = run
    assert first.x.tolist() == [[0.0], [0.0], [0.0]]
    assert last.average.item() == pytest.approx(2.0, abs=1e-3)


def test_all_reduce_is_gradient_descent_on_the_mean():
    targets = torch.tensor([[0.0, 1.0], [2.0, 5.0], [4.0, 0.0]], dtype=torch.float64)
    x0 = torch.ones(3, 2, dtype=torch.float64)
    run = ps.iterate(
        ps.algorithms.all_reduce(0.1, 0.5), ps.topology.ring(3), lambda y, t: y - targets, x0, 30
    )
    x, m = x0[0], torch.zeros(2, dtype=torch.float64)
    for record in run:
        m = 0.5 * m + (x - targets).mean(0)
        x = x - 0.1 * m
        torch.testing.assert_close(record.x, x.expand(3, 2), rtol=0, atol=1e-14)
        torch.testing.assert_close(record.y, record.x, rtol=0, atol=0)
        assert record.a.tolist() == [1.0, 1.0, 1.0]


def test_a_rule_of_ones_own_may_return_what_it_keeps():
    """Nothing writes to it: momentum that is its own move reaches the mean of the targets."""

    def move(v, y, g, t):
        v = 0.5 * v - 0.05 * g
        return v, v

    own = ps.algorithms.Rule(torch.zeros_like, move)
    algorithm = ps.algorithms.Algorithm("own", own)
    targets = torch.tensor([[0.0], [1.0], [5.0]])
    start = torch.zeros(3, 1)
    *_, last = ps.iterate(algorithm, "ring", lambda y, t: y - targets, start, steps=200)
    assert last.average.item() == pytest.approx(2.0, abs=1e-3)
