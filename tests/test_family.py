"""The directed family: against dense equations, and what characterises each method."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import dense
import pushsum as ps
from pushsum import algorithms as alg
from pushsum import config, training
from pushsum.config import Link
from pushsum.engines import tree
from pushsum.engines.engine import Setup
from pushsum.experiment import Experiment
from pushsum.experiment.costs import Costs
from pushsum.faults import plan
from pushsum.protocol import what_is_sent
from strategies import random_cycle

SEEDS = range(2)


def digraph(seed, n=6, density=0.3):
    """A random strongly connected digraph with self-loops, irregular as a rule."""
    return random_cycle(np.random.default_rng(seed), n, 1, density)


def cycle_of(seed, n=6, m=3):
    """Graphs none of which need be connected: only all of them together are."""
    return random_cycle(np.random.default_rng(seed), n, m, 0.15)


def quadratics(seed, n=6, d=3, spread=1.0, condition=2.0):
    """f_i = h_i (y - b_i)^2 / 2 by coordinate: curvatures, targets, the minimizer of the sum."""
    rng = np.random.default_rng(seed + 1000)
    h = rng.uniform(1 / condition, 1, (n, d))
    b = spread * rng.standard_normal((n, d))
    return h, b, (h * b).sum(0) / h.sum(0)


def away(algorithm, graphs, seed=0, steps=1000, spread=1.0):
    """After every step, how far the nodes are from the minimizer; ends where they diverge."""
    h, b, best = quadratics(seed, len(graphs[0]), spread=spread)
    H, B, best = (torch.from_numpy(v) for v in (h, b, best))
    run = ps.iterate(
        algorithm,
        ps.topology.from_graphs(graphs),
        lambda y, t: H * (y - B),
        torch.ones_like(B),
        steps,
    )
    for r in run:
        distance = float((r.y - best).abs().max())
        yield distance
        if not distance < 1e6:
            return


def steps_to(goal, distances):
    """How many steps until they are this close; infinity if never."""
    return next((t for t, distance in enumerate(distances, 1) if distance < goal), np.inf)


def floor(algorithm, graphs, seed, steps=700, **options):
    return [*away(algorithm, graphs, seed, steps, **options)][-1]


# --------------------------------------------------------------------------- step by step

LR = 0.07


def ours_and_theirs(name):
    """A method, and its dense equations."""
    newton = lambda x, g, t: x - t / 2 + 0.1 * (g - t)
    return {
        "SGP": (alg.sgp(LR), partial(dense.sgp, lr=LR)),
        "ADD-OPT": (alg.add_opt(LR), partial(dense.add_opt, lr=LR)),
        "S-ADDOPT": (alg.s_addopt(LR), partial(dense.add_opt, lr=LR)),
        "Push-DIGing": (alg.push_diging(LR), partial(dense.push_diging, lr=LR)),
        "SONATA": (alg.sonata(LR, solve=newton), partial(dense.sonata, lr=LR, solve=newton)),
        "DEXTRA": (alg.dextra(LR, theta=0.3), partial(dense.dextra, lr=LR, theta=0.3)),
        "AB": (alg.ab(LR), partial(dense.accelerated_ab, lr=LR)),
        "Push-Pull": (alg.push_pull(LR), partial(dense.push_pull, lr=LR)),
        "ABm": (alg.abm(LR, 0.4), partial(dense.accelerated_ab, lr=LR, beta=0.4)),
        "ABN": (alg.abn(LR, 0.4), partial(dense.accelerated_ab, lr=LR, gamma=0.4)),
        "ABmN": (
            alg.accelerated_ab(LR, 0.2, 0.3),
            partial(dense.accelerated_ab, lr=LR, beta=0.2, gamma=0.3),
        ),
        "FROST": (alg.frost(LR / 6), partial(dense.frost, lr=LR / 6)),
        "OSGP": (alg.osgp(LR, delay=2), partial(dense.osgp, lr=LR, delay=2)),
        "OSGP, no delay": (alg.osgp(LR, delay=0), partial(dense.sgp, lr=LR)),
    }[name]


PAIRS = ("SGP", "ADD-OPT", "S-ADDOPT", "Push-DIGing", "SONATA", "DEXTRA", "AB", "Push-Pull", "ABm")
PAIRS += ("ABN", "ABmN", "FROST", "OSGP", "OSGP, no delay")


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_method_equals_its_equations_step_by_step(name, seed):
    ours, theirs = ours_and_theirs(name)
    graphs = digraph(seed) if ours.static or seed == 0 else cycle_of(seed)
    h, b, _ = quadratics(seed, d=2 + 5 * seed)  # fewer columns than nodes, and more
    slope = lambda y: h * (y - b) + 0.3 * np.sin(y)
    x0 = np.random.default_rng(seed).standard_normal(h.shape)
    run = ps.iterate(
        ours,
        ps.topology.from_graphs(graphs),
        lambda y, t: torch.from_numpy(slope(y.numpy())),
        torch.from_numpy(x0),
        40,
    )
    for r, y in zip(
        run, theirs(x0, lambda t: graphs[(t - 1) % len(graphs)], slope, 40), strict=True
    ):
        np.testing.assert_allclose(r.y.numpy(), y, rtol=0, atol=1e-12 * max(1, np.abs(y).max()))


# --------------------------------------------------------------------------- exact limits


EXACT = 1e-10


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [alg.add_opt, alg.push_diging, alg.sonata, alg.ab, alg.push_pull])
def test_trackers_reach_the_minimizer_on_static_and_changing_graphs(make, seed):
    assert steps_to(EXACT, away(make(0.15), digraph(seed), seed)) < 500
    assert steps_to(EXACT, away(make(0.1), cycle_of(seed), seed)) < 800


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rest_of_the_pull_family_reaches_the_minimizer(seed):
    for method in (alg.abm(0.15, 0.3), alg.abn(0.15, 0.3), alg.frost(0.02)):
        assert steps_to(EXACT, away(method, digraph(seed), seed)) < 500


@pytest.mark.parametrize("seed", SEEDS)
def test_the_floor_of_sgp_is_proportional_to_the_step_size(seed):
    graphs = digraph(seed)
    floors = [floor(alg.sgp(lr), graphs, seed, steps) for lr, steps in ((0.04, 600), (0.02, 1000))]
    assert 1.8 < floors[0] / floors[1] < 2.2
    assert steps_to(EXACT, away(alg.sgp(0.15), graphs, seed, spread=0.0)) < 500


def noisy_distance(algorithm, spread):
    """The root mean square distance to the minimizer, with sampled gradients."""
    h, b, best = quadratics(1, spread=spread)
    H, B, best = (torch.from_numpy(v) for v in (h, b, best))

    def gradient(y, t):
        noise = torch.Generator().manual_seed(t)
        return H * (y - B) + 0.1 * torch.randn(y.shape, generator=noise, dtype=y.dtype)

    x0 = best.expand_as(B).clone()
    run = ps.iterate(algorithm, ps.topology.from_graphs(digraph(1)), gradient, x0, 800)
    return float(np.mean([(r.y - best).square().mean() for r in run if r.t > 200])) ** 0.5


def test_the_floor_of_s_addopt_does_not_know_how_much_the_nodes_differ():
    tracking = [noisy_distance(alg.s_addopt(0.05), spread) for spread in (2.0, 20.0)]
    plain = [noisy_distance(alg.sgp(0.05), spread) for spread in (2.0, 20.0)]
    assert tracking[1] == pytest.approx(tracking[0], rel=0.05)
    assert 8 < plain[1] / plain[0] < 11


def test_push_diging_is_stable_at_larger_steps_than_add_opt():
    """On random sequences of graphs, the largest of some step sizes that still converges."""
    rates, larger = (0.1, 0.2, 0.4, 0.8), 0
    for seed in range(4):
        limits = [
            max(
                lr
                for lr in rates
                if steps_to(1e-4, away(make(lr), cycle_of(seed), seed, 300)) < np.inf
            )
            for make in (alg.add_opt, alg.push_diging)
        ]
        assert limits[1] >= limits[0]
        larger += limits[1] >= 2 * limits[0]
    assert larger >= 2


# --------------------------------------------------------------------------- identities


def records(algorithm, graphs, seed=0, steps=60):
    h, b, _ = quadratics(seed, len(graphs[0]))
    H, B = torch.from_numpy(h), torch.from_numpy(b)
    run = ps.iterate(
        algorithm,
        ps.topology.from_graphs(graphs),
        lambda y, t: H * (y - B) + 0.2 * torch.sin(y),
        torch.zeros_like(H),
        steps,
    )
    return torch.stack([r.y for r in run])


@pytest.mark.parametrize("seed", SEEDS)
def test_sonata_with_the_linear_surrogate_is_push_diging(seed):
    for graphs in (digraph(seed), cycle_of(seed)):
        ours, theirs = records(alg.sonata(0.1), graphs), records(alg.push_diging(0.1), graphs)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("hops", [(1,), (1, 2), (1, 3)])
def test_pull_methods_are_push_methods_on_regular_graphs(hops):
    ring = np.eye(6, dtype=bool)
    graph = [ring | sum(np.roll(ring, h, axis=1) for h in hops).astype(bool)]
    for pull, push in ((alg.ab, alg.add_opt), (alg.push_pull, alg.push_diging)):
        torch.testing.assert_close(records(pull(0.1), graph), records(push(0.1), graph))
    star = np.eye(6, dtype=bool)
    star[0], star[:, 0] = True, True
    for pull, push in ((alg.ab, alg.add_opt), (alg.push_pull, alg.push_diging)):
        apart = (records(pull(0.1), [star]) - records(push(0.1), [star])).abs().max()
        assert apart > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_accelerated_ab_without_momentum_is_ab_bit_for_bit(seed):
    for graphs in (digraph(seed), cycle_of(seed)):
        expected = records(alg.ab(0.1), graphs)
        assert torch.equal(records(alg.accelerated_ab(0.1, 0.0, 0.0), graphs), expected)
        assert torch.equal(records(alg.abm(0.1, 0.0), graphs), expected)
        assert torch.equal(records(alg.abn(0.1, 0.0), graphs), expected)


# --------------------------------------------------------------------------- one by one


@pytest.mark.parametrize("seed", SEEDS)
def test_sonata_reaches_the_minimizer_with_a_proximal_term_and_second_order(seed):
    h, b, best = (torch.from_numpy(v) for v in quadratics(seed, spread=2.0))
    run = partial(
        ps.iterate,
        topology=ps.topology.from_graphs(digraph(seed)),
        gradient=lambda y, t: h * (y - b),
        x0=torch.ones_like(b),
        steps=400,
    )
    soft = lambda v, s: v.sign() * (v.abs() - 0.3 * s).clamp(min=0)
    *_, last = run(alg.sonata(0.2, prox=soft))
    lasso = soft((h * b).mean(0), 1.0) / h.mean(0)  # by coordinate
    torch.testing.assert_close(last.y, lasso.expand_as(b), rtol=0, atol=EXACT)
    newton = lambda x, g, t: x - t / (h + 0.1)  # each node with its own curvature
    *_, last = run(alg.sonata(0.2, solve=newton))
    torch.testing.assert_close(last.y, best.expand_as(b), rtol=0, atol=EXACT)


def test_dextra_on_the_one_way_ring_has_an_interval_of_step_sizes():
    targets = torch.arange(1.0, 6.0, dtype=torch.float64)[:, None]

    def distance(lr):
        run = ps.iterate(
            alg.dextra(lr, theta=0.5),
            ps.topology.ring(5),
            lambda y, t: y - targets,
            torch.zeros(5, 1, dtype=torch.float64),
            400,
        )
        *_, last = run
        return float((last.y - 3).abs().max())

    assert distance(0.1) > 1e3
    assert distance(0.2) > 1
    assert max(distance(lr) for lr in (0.4, 0.5, 0.6, 0.7)) < EXACT


@pytest.mark.parametrize("decay", [0.0, 0.25])
def test_dextra_takes_schedules_and_weight_decay(decay):
    """A step size that falls, and the ridge's minimizer; differences of gradients know neither."""
    targets = torch.arange(1.0, 6.0, dtype=torch.float64)[:, None]
    ridge = partial(torch.optim.SGD, lr=0.5, weight_decay=decay) if decay else None
    method = alg.dextra(lambda t: 0.7 if t < 50 else 0.5)
    x0 = torch.zeros(5, 1, dtype=torch.float64)
    *_, last = ps.iterate(method, "ring", lambda y, t: y - targets, x0, 300, optimizer=ridge)
    best = torch.full_like(x0, 3 / (1 + decay))
    torch.testing.assert_close(last.y, best, rtol=0, atol=EXACT)


@pytest.mark.parametrize("seed", SEEDS)
def test_dextra_reaches_the_minimizer_within_its_interval(seed):
    steps = [
        steps_to(EXACT, away(alg.dextra(float(lr)), digraph(seed), seed, 500))
        for lr in np.geomspace(0.2, 1.6, 4)
    ]
    assert min(steps) < 300
    assert steps[-1] == np.inf


def test_momentum_is_faster_on_an_ill_conditioned_problem():
    h = torch.tensor([[1.0, 0.02]], dtype=torch.float64)
    b = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 2)))

    def steps(method, most=1500):
        graphs = ps.topology.from_graphs(digraph(0))
        run = ps.iterate(method, graphs, lambda y, t: h * (y - b), torch.zeros_like(b), most)
        return steps_to(1e-4, ((r.y - b.mean(0)).abs().max() for r in run))

    plain = min(steps(alg.ab(lr)) for lr in (0.28, 0.4, 0.57))
    assert plain < 1500
    assert min(steps(alg.abm(lr, 0.5), plain) for lr in (0.57, 0.8)) < 0.7 * plain
    assert min(steps(alg.abn(lr, 0.8), plain) for lr in (0.1, 0.14)) < 0.7 * plain


def test_variance_reduction_leaves_no_floor():
    graphs, n, samples = digraph(0), 6, 4
    rng = np.random.default_rng(0)
    h = torch.from_numpy(rng.uniform(0.5, 1, (n, samples, 2)))
    b = torch.from_numpy(rng.standard_normal((n, samples, 2)))
    best = (h * b).sum((0, 1)) / h.sum((0, 1))

    def sampled(y, t):
        k = torch.from_numpy(np.random.default_rng([7, t]).integers(samples, size=n))
        rows = torch.arange(n)
        return h[rows, k] * (y - b[rows, k])

    full = lambda y: (h * (y[:, None] - b)).mean(1)

    def distance(method):
        run = ps.iterate(
            method,
            ps.topology.from_graphs(graphs),
            sampled,
            torch.zeros(n, 2, dtype=torch.float64),
            400,
            full_gradient=full,
        )
        *_, last = run
        return float((last.y - best).abs().max())

    assert distance(alg.push_lsvrg_up(0.15, p=0.25)) < EXACT
    assert distance(alg.push_lsvrg_up(0.15, p=[0.1, 0.2, 0.3, 0.4, 0.5, 1.0])) < EXACT
    assert distance(alg.s_addopt(0.15)) > 1e-2


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_late_messages_lose_no_mass_and_leave_the_average(seed, random):
    x0 = torch.from_numpy(np.random.default_rng(seed).standard_normal((6, 2)))
    run = ps.iterate(
        alg.osgp(0.1, delay=3, random=random),
        ps.topology.from_graphs(cycle_of(seed)),
        lambda y, t: torch.zeros_like(y),
        x0,
        600,
        seed=seed,
    )
    for r in run:
        late = r.state.kept
        mass = r.x.sum(0) + sum(part.sum(0) for part in late.x)
        torch.testing.assert_close(mass, x0.sum(0), rtol=0, atol=1e-12)
        scalars = r.a.sum() + sum(part.sum() for part in late.a)
        assert float(scalars) == pytest.approx(6, abs=1e-12)
        if r.t == 50 and not random:
            assert float(r.a.sum()) < 5.5
    torch.testing.assert_close(r.y, x0.mean(0).expand_as(x0), rtol=0, atol=1e-10)


def test_the_floor_of_osgp_grows_with_the_delay():
    floors = [floor(alg.osgp(0.1, delay), digraph(3), 3, 300) for delay in (0, 1, 4)]
    assert floors[0] == pytest.approx(floor(alg.sgp(0.1), digraph(3), 3, 300), rel=1e-6)
    assert floors[0] < floors[1] < floors[2]


@pytest.mark.parametrize("seed", SEEDS)
def test_private_steps_hide_everything_and_change_no_average(seed):
    x0 = torch.from_numpy(np.random.default_rng(seed).standard_normal((6, 2)))
    run = list(
        ps.iterate(
            alg.private_push_sum(alg.sgp(0.1), steps=3, scale=20.0),
            ps.topology.from_graphs(digraph(seed)),
            lambda y, t: torch.zeros_like(y),
            x0,
            150,
            seed=seed,
        )
    )
    assert max(float(r.pushed.abs().max()) for r in run[:3]) > 1e3
    assert (run[0].pushed < 0).any()
    assert torch.equal(
        run[2].a, [*ps.iterate(alg.sgp(0.1), *run_of(digraph(seed), x0), 3)][-1].a
    )  # a keeps its own weights
    torch.testing.assert_close(run[-1].y, x0.mean(0).expand_as(x0), rtol=0, atol=1e-11)


def run_of(graphs, x0):
    return ps.topology.from_graphs(graphs), lambda y, t: torch.zeros_like(y), x0


def test_private_steps_go_with_any_push_method():
    graphs = digraph(1)
    for base in (alg.push_diging(0.2), alg.add_opt(0.2), alg.msgap(0.15, 0.5, "lazy:c=0.5")):
        there = floor(alg.private_push_sum(base, steps=2), graphs, 1, 250)
        assert there == pytest.approx(floor(base, graphs, 1, 250), abs=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_personal_models_are_the_closed_forms(seed):
    h, b, best = (torch.from_numpy(v) for v in quadratics(seed))
    lam = 0.7

    def last(method):
        run = ps.iterate(
            method,
            ps.topology.from_graphs(digraph(seed)),
            lambda y, t: h * (y - b),
            torch.zeros_like(b),
            400,
        )
        return list(run)[-1]

    near = lambda y: (h * b + lam * y) / (h + lam)  # prox_i(y)
    found = last(alg.ditto(0.15, penalty=lam, personal_lr=0.5, base="push-diging"))
    torch.testing.assert_close(found.y, best.expand_as(b), rtol=0, atol=EXACT)
    torch.testing.assert_close(found.personal, near(best), rtol=0, atol=EXACT)
    found = last(alg.pfedme(0.3, penalty=lam, inner=5, inner_lr=0.5, base=alg.push_pull))
    q = lam * h / (h + lam)  # the envelope's curvature
    common = (q * b).sum(0) / q.sum(0)
    torch.testing.assert_close(found.y, common.expand_as(b), rtol=0, atol=EXACT)
    torch.testing.assert_close(found.personal, near(common), rtol=0, atol=EXACT)


# --------------------------------------------------------------------------- at the door


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: alg.dextra(0.1, theta=0.6), r"theta = 0.6: .*\(0, 1/2\]"),
        (lambda: alg.dextra(-0.1), r"lr = -0.1"),
        (lambda: alg.abm(0.1, -0.2), r"beta = -0.2: momentum lies in \[0, 1\)"),
        (lambda: alg.abn(0.1, 1.0), r"gamma = 1.0: momentum lies in \[0, 1\)"),
        (lambda: alg.sonata(0.1, solve=None), r"solve = None: SONATA needs a surrogate: 'linear'"),
        (lambda: alg.sonata(0.1, lambda x, g, t: x, abs), r"prox goes with solve='linear'"),
        (lambda: alg.sonata(0.1, prox=0.1), r"prox = 0.1: a function"),
        (lambda: alg.push_lsvrg_up(0.15, p="x"), r"p = 'x': a probability"),
        (lambda: alg.osgp(0.1, delay=-1), r"delay = -1: .* integer >= 0"),
        (lambda: alg.osgp(0.1, delay=1.5), r"delay = 1.5"),
        (lambda: alg.osgp(0.1, random="no"), r"random = 'no': .* True or False"),
        (lambda: alg.push_lsvrg_up(0.15, p=0.0), r"p = 0.0: a probability in \(0, 1\]"),
        (lambda: alg.push_lsvrg_up(0.15, p=np.array(2.0)), r"p = array\(2.\): a probability"),
        (lambda: alg.pfedme(0.1, penalty=-1), r"penalty = -1: a finite number > 0"),
        (lambda: alg.pfedme(0.1, inner_lr=np.inf), r"inner_lr = inf: a finite number > 0"),
        (lambda: alg.pfedme(0.1, inner=0), r"inner = 0: .* integer >= 1"),
        (lambda: alg.ditto(0.1, personal_lr=0), r"personal_lr = 0: a finite number > 0"),
        (lambda: alg.ditto(0.1, base="allreduce"), r"base = AllReduce: .* such as SGP"),
        (lambda: alg.pfedme(0.1, base="Push-LSVRG-UP"), r"base = Push-LSVRG-UP: .* such as SGP"),
        (lambda: alg.ditto(0.1, base="sgd"), r"unknown algorithm 'sgd'"),
        (lambda: alg.ditto(0.1, base="msgp"), r"MSGP: it needs momentum: .* a function of lr"),
        (lambda: alg.ditto(0.1, base="osgp"), r"base = OSGP: .* nothing under way, such as SGP"),
        (lambda: alg.ditto(0.1, base=alg.msgp), r"base = .*msgp.*'momentum': .* of lr alone"),
        (lambda: alg.ditto(0.1, base=3), r"base = 3: give the name of a method, or a function"),
        (lambda: alg.ditto(0.1, base=lambda lr: lr), r"base = .* or a function of lr that returns"),
        (lambda: alg.private_push_sum(alg.ab(0.1)), r"algorithm = AB: .* only push, such as SGP"),
        (lambda: alg.private_push_sum("sgp"), r"algorithm = 'sgp': give a method, such as sgp"),
        (lambda: alg.private_push_sum(alg.sgp(0.1), scale=np.inf), r"scale = inf: .* > 0"),
        (lambda: alg.parse("dextra", {"beta": 1}, lr=0.1), r"DEXTRA: it has no parameter beta"),
    ],
)
def test_bad_parameters_are_one_line(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("make", [alg.dextra, alg.frost])
def test_static_methods_refuse_what_changes(make):
    x0 = torch.zeros(4, 1)
    with pytest.raises(ValueError, match=r"never changes, .* such as S-ADDOPT"):
        ps.iterate(make(0.1), "exponential", lambda y, t: y, x0, 1)
    with pytest.raises(ValueError, match=r"every = 2: .* write every=1"):
        ps.iterate(make(0.1), "ring", lambda y, t: y, x0, 1, every=2)
    over = rf"Ditto over {make(0.1).name} is for a graph that never changes"
    with pytest.raises(ValueError, match=over):
        ps.iterate(alg.ditto(0.1, base=make), "exponential", lambda y, t: y, x0, 1)


def test_personal_models_go_on_over_the_base_they_began_with():
    run = partial(
        ps.iterate, topology="ring", gradient=lambda y, t: y, x0=torch.ones(3, 1), steps=2
    )
    *_, last = run(alg.ditto(0.1, base="push-diging"))
    with pytest.raises(ValueError, match="Ditto over Push-DIGing, not Ditto over ADD-OPT"):
        run(alg.ditto(0.1, base="add-opt"), after=last)


def test_what_a_run_lacks_is_one_line():
    x0 = torch.zeros(4, 1)
    ring = ps.topology.ring(4)
    with pytest.raises(ValueError, match="Push-LSVRG-UP needs full_gradient"):
        ps.iterate(alg.push_lsvrg_up(0.1), ring, lambda y, t: y, x0, 1)
    with pytest.raises(ValueError, match="p has 3 values for 4 nodes"):
        ps.iterate(
            alg.push_lsvrg_up(0.1, [0.1] * 3), ring, lambda y, t: y, x0, 1, full_gradient=abs
        )
    with pytest.raises(ValueError, match="full_gradient = 3: give a function"):
        ps.iterate(alg.push_lsvrg_up(0.1), ring, lambda y, t: y, x0, 1, full_gradient=3)
    with pytest.raises(ValueError, match=r"prox returned \(4,\), expected"):
        list(ps.iterate(alg.sonata(0.1, prox=lambda v, s: v[:, 0]), ring, lambda y, t: y, x0, 1))
    with pytest.raises(ValueError, match=r"float32: private steps need float64"):
        ps.iterate(alg.private_push_sum(alg.sgp(0.1)), ring, lambda y, t: y, x0, 1)
    with pytest.raises(ValueError, match=r"solve returned \(4,\), expected \(n, d\) = \(4, 1\)"):
        list(ps.iterate(alg.sonata(0.1, lambda x, g, t: x[:, 0]), ring, lambda y, t: y, x0, 1))
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name in ("abn", "push-lsvrg-up", "pfedme", "ditto"):
        with pytest.raises(ValueError, match=r"takes gradients elsewhere than at the model"):
            ps.PushSum(model, optimizer, algorithm=name)
    with pytest.raises(ValueError, match=r"algorithm = 'push-pull': .* or a name and an optimizer"):
        ps.iterate("push-pull", ring, lambda y, t: y, x0, 1)


def test_iterate_takes_a_name_beside_an_optimizer():
    targets = torch.arange(4.0, dtype=torch.float64)[:, None]
    run = partial(
        ps.iterate,
        topology="ring",
        gradient=lambda y, t: y - targets,
        x0=torch.zeros_like(targets),
        steps=5,
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    for name, made in (("push-pull", alg.push_pull(0.3)), ("SGAP", alg.sgap(0.3))):
        for one, other in zip(run(name), run(made), strict=True):
            assert torch.equal(one.y, other.y)


def test_late_messages_hide_in_as_many_steps_also_between_exchanges():
    """With four moves per exchange, a delay of one step hides as long as one gradient takes."""
    wire, compute = 8 * 1000 / 1e6, 0.003
    for every, delay, waits in ((1, 0, wire), (1, 1, wire - compute), (4, 1, wire - compute)):
        setup = Setup(alg.osgp(0.1, delay), ps.topology.ring(3), every=every)
        costs = Costs(lambda t, s=setup: s, (1, 0, 0), 1000, Link(gigabits=0.001), plan(0))
        assert costs.seconds(every, compute, 0.0)["transfer"] == pytest.approx(waits)


# --------------------------------------------------------------------------- on the page


def test_the_page_says_what_a_method_sends_and_keeps():
    """The table of docs/methods.md against the methods themselves, at 8 nodes and 50 parameters."""
    page = (Path(__file__).parent.parent / "docs" / "methods.md").read_text()
    told = {}
    for line in page[: page.index("## On one problem")].splitlines():
        if line.startswith("| ") and not line.startswith("| method"):
            names, vectors, memory, graphs, *_ = (cell.strip() for cell in line.split("|")[1:-1])
            told |= dict.fromkeys(names.split(", "), (vectors, memory, graphs))
    assert told.keys() == set(alg.METHODS)
    targets = torch.arange(8.0)[:, None].expand(8, 50)
    for name, (vectors, memory, graphs) in told.items():
        method = alg.parse(name, lr=0.1, momentum=0.5, weighting="uniform")
        if vectors.isdigit():
            assert sum(what_is_sent(method, 8, 50)) == int(vectors), name
        if memory.isdigit():
            *_, r = ps.iterate(
                method, "ring", lambda y, t: y - targets, torch.zeros(8, 50), 2, full_gradient=abs
            )
            copies = sum(part.shape == (8, 50) for part in tree.leaves(r.state.kept))
            assert copies == int(memory), name
        assert method.static == (graphs == "one that never changes"), name


# --------------------------------------------------------------------------- in a run

SMALL = {"steps": 3, "batch": 16, "model": {"hidden": [4]}, "topology": {"nodes": 3}}


@pytest.mark.parametrize(
    ("name", "parameters", "graph"),
    [
        ("osgp", {"delay": 2, "random": True}, "exponential"),
        ("Push-LSVRG-UP", {"p": 0.5}, "exponential"),
        ("ditto", {"base": "Push-DIGing", "penalty": 0.5}, "exponential"),
        ("ABN", {"gamma": 0.2}, "exponential"),
        ("FROST", {}, "ring"),
    ],
)
def test_methods_run_by_name_with_their_parameters(name, parameters, graph, tmp_path):
    algorithm = {"name": name, "parameters": parameters, "lr": 0.01}
    place = {"nodes": 3, "name": graph}
    experiment = Experiment(config.parse({**SMALL, "algorithm": algorithm, "topology": place}))
    line = training.run(experiment, tmp_path)
    assert line["step"] == 3
    assert np.isfinite(line["train_loss"])


def test_parameters_that_a_method_does_not_take_are_one_line():
    for parameters, said in (
        ({"tau": 2}, "OSGP: it has no parameter tau: delay, random"),
        ({"lr": 2}, "OSGP: it has no parameter lr"),
        ({"delay": -1}, r"algorithm.parameters: delay = -1"),
    ):
        content = {**SMALL, "algorithm": {"name": "OSGP", "parameters": parameters}}
        with pytest.raises(ValueError, match=said):
            Experiment(config.parse(content))


def test_all_samples_of_a_node_come_once():
    experiment = Experiment(
        config.parse(
            {**SMALL, "split": {"kind": "dirichlet", "alpha": 0.3}, "evaluation": {"batch": 100}}
        )
    )
    batches = list(experiment.sampler.everything(experiment.feed, range(3), 100))
    torch.testing.assert_close(sum(shares for _, shares in batches), torch.ones(3))
    for node in range(3):
        targets = torch.cat([batch.targets[node] for batch, _ in batches])
        assert torch.equal(targets, experiment.dataset.train_y[experiment.parts[node]])
