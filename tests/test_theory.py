"""The theory against hand-computed numbers, random sequences, and its counterexamples."""

from math import exp, inf, isfinite, log, sqrt

import numpy as np
import pytest
import torch

import pushsum as ps
import theory_sweep
from pushsum import theory, topology, weighting
from pushsum.theory import Constants, Objective
from theory_sweep import Sequence, groups, star

FOUR = {
    "full": (topology.full(6), 1, 6),
    "divide": (topology.divide(6), 3, 4),
    "exponential": (topology.exponential(6), 3, 2),
    "random": (topology.random(6), 8, 6),
}


# --------------------------------------------------------------------------- constants


@pytest.mark.parametrize("name", FOUR)
def test_constants_of_the_papers_topologies(name):
    graphs, H, K = FOUR[name]
    c = theory.constants(graphs, weighting.uniform())
    p = (1 / K) ** H
    assert (c.n, c.horizon, c.max_degree) == (6, H, K)
    assert c.delta == pytest.approx(1 / K)
    assert c.C == pytest.approx(4 / p)
    assert c.lam == pytest.approx((1 - p) ** (1 / H), rel=1e-14)
    assert exp(c.log_gap) == pytest.approx(1 - (1 - p) ** (1 / H), rel=1e-9)


def test_moreau_floor_by_hand():
    """v = 0.1 on Full(6): delta = 0.1 * 0.9 / (1.1 * 6)."""
    c = theory.constants(topology.full(6), weighting.moreau(1.0, 0.1))
    assert c.delta == pytest.approx(0.09 / 6.6)
    assert c.C == pytest.approx(4 * 6.6 / 0.09)


def test_published_uses_delta_times_b():
    ours = theory.constants(topology.exponential(6), weighting.uniform())
    papers = theory.published(topology.exponential(6), weighting.uniform())
    assert (ours.horizon, papers.horizon) == (3, 6)
    assert papers.C == pytest.approx(4 * 2**6)
    assert ours.note == ""


def test_a_horizon_beyond_delta_b_is_noted():
    stars = topology.from_graphs([star(4, c, 0.1) > 0 for c in range(3)])
    c = theory.constants(stars, weighting.uniform())
    assert c.horizon == 3
    assert "H = 3 is larger than the paper's Delta * B = 2" in c.note
    assert theory.published(stars, weighting.uniform()).note == c.note


def test_a_single_node_has_lambda_zero():
    c = theory.constants(topology.full(1), weighting.moreau(1.0, 0.1))
    assert (c.delta, c.lam, c.C) == (1.0, 0.0, 4.0)
    bound = theory.ConsensusBound(c, x0_l1=3.0)
    assert exp(bound.after(1.0)) == pytest.approx(4 * (3 + 1))
    assert exp(bound.after(1.0)) == pytest.approx(4)


def test_nothing_overflows_on_a_large_network():
    c = theory.constants(topology.ring(1000), weighting.moreau(1.0, 0.1))
    assert c.horizon == 999
    assert c.C == inf
    assert c.lam == 1.0
    assert c.log_C == pytest.approx(log(4) - 999 * log(0.09 / 2.2))
    assert c.log_gap == pytest.approx(999 * log(0.09 / 2.2) - log(999))
    problem = Objective(L=1.0, sigma=1.0, kappa=1.0, gap=1.0, x0_fro=1.0)
    lr = theory.log_largest_step_size(c, 1.0)
    assert isfinite(theory.theorem2(c, problem, lr, 10**6).log_total)
    assert isfinite(theory.log_steps_for_corollary1(c, 1.0))


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("rule", [weighting.uniform(), weighting.moreau(0.1, 0.1)], ids=repr)
def test_the_bound_is_never_below_four(name, rule):
    """delta^H <= 1/N, so C / N >= 4: the O(1/N) of the paper hides an N inside C."""
    c = theory.constants(FOUR[name][0], rule)
    assert c.log_C - log(c.n) >= log(4) - 1e-12


# --------------------------------------------------------------------------- random sequences


def test_with_the_horizon_nothing_breaks_in_random_sequences():
    """`python tests/theory_sweep.py` looks at ten thousand."""
    tally = theory_sweep.sweep(1500, seed=0)
    assert tally.sequences == 1500
    assert not tally.with_horizon
    assert tally.published_although_short == 0  # the paper is right wherever H <= Delta * B
    assert tally.longer > 150
    assert tally.published["Lemma 2"] > 100
    assert tally.published["Theorem 1"] > 0


# --------------------------------------------------------------------------- the smallest examples


def products(cycle, steps):
    P = np.eye(len(cycle[0]))
    for t in range(steps):
        P = cycle[t % len(cycle)] @ P
    return P


def test_lemma_2_fails_with_four_nodes_at_step_three():
    """Stars with centres 0, 1, 2: row 3 sums to 8 delta^3, not to the claimed 4 delta^2."""
    delta = 0.01
    example = Sequence("", [star(4, c, delta) for c in range(3)])
    certificate = example.graphs.certificate()
    assert (certificate.period, certificate.diameter, certificate.horizon) == (1, 2, 3)
    assert example.delta == delta
    row_sum = products(example.cycle, 3).sum(1).min()
    assert row_sum == pytest.approx(8 * delta**3)
    assert row_sum < exp(theory.log_lemma2(Constants(4, delta, 2, 4), 3)) == pytest.approx(4e-4)
    assert row_sum >= exp(theory.log_lemma2(Constants(4, delta, 3, 4), 3))
    assert (products(example.cycle, 2) == 0).any()


def test_lemma_2_fails_with_the_original_push_sum_weights_too():
    """Two alternating graphs, weights 1 / out-degree: 7/18 < 4/9 at step 3."""
    first = np.eye(4, dtype=int)
    for i, receivers in {0: (1,), 1: (2, 3), 2: (0, 1), 3: (0, 1)}.items():
        first[i, receivers] = 1
    swap = [0, 2, 1, 3]
    graphs = topology.from_graphs([first, first[swap][:, swap]])
    certificate = graphs.certificate()
    assert (certificate.period, certificate.diameter, certificate.horizon) == (1, 2, 3)
    zero = lambda y, t: torch.zeros_like(y)
    x0 = torch.zeros(4, 1, dtype=torch.float64)
    *_, third = ps.iterate(ps.algorithms.sgp(1.0), graphs, zero, x0, 3)
    assert third.a.min().item() == pytest.approx(7 / 18, rel=1e-14)
    papers = theory.published(graphs, weighting.uniform())
    assert exp(theory.log_lemma2(papers, 3)) == pytest.approx(4 / 9)
    assert third.a.min() >= exp(theory.log_lemma2(theory.constants(graphs, weighting.uniform()), 3))


def test_theorem_1_fails_with_four_nodes_at_step_four():
    """Stars 0, 1, 2 and 0 again, where leaf 3 keeps 1 - delta; one kick of node 3 at step 4."""
    delta = 0.05
    last = star(4, 0, delta)
    last[3, 3], last[0, 3] = 1 - delta, delta
    example = Sequence("", [*(star(4, c, delta) for c in range(3)), last])
    certificate = example.graphs.certificate()
    assert (certificate.period, certificate.diameter, certificate.horizon) == (1, 2, 3)
    x, a = np.zeros(4), np.ones(4)
    papers = theory.ConsensusBound(Constants(4, delta, 2, 4), x0_l1=0.0)
    corrected = theory.ConsensusBound(Constants(4, delta, 3, 4), x0_l1=0.0)
    for t, W in enumerate(example.cycle, start=1):
        kick = np.array([0, 0, 0, 1.0 if t == 4 else 0])
        x, a = W @ (x + kick), W @ a
        published, ours = papers.after(kick.sum()), corrected.after(kick.sum())
    distance = abs(x / a - x.mean()).max()
    assert distance == pytest.approx(654.9, abs=0.1)
    assert exp(published) == pytest.approx(400)
    assert distance <= exp(ours) == pytest.approx(8000)


def test_lemma_1_fails_with_six_nodes_in_the_long_run():
    """Two groups with rotating hubs mix more slowly than (1 - delta^2)^(1/2) allows.

    Half the range of a row exceeds 2 lambda^(t-s), so that no vector phi(t) can satisfy Lemma 1.
    """
    delta = 0.05
    example = Sequence("", [groups(6, hub, delta) for hub in range(3)])
    certificate = example.graphs.certificate()
    assert (certificate.period, certificate.diameter, certificate.horizon) == (1, 2, 3)
    second = np.sort(np.abs(np.linalg.eigvals(products(example.cycle, 3))))[-2]
    papers, ours = Constants(6, delta, 2, 6), Constants(6, delta, 3, 6)
    assert papers.lam**3 == pytest.approx(0.996252, abs=1e-6)
    assert papers.lam**3 < second == pytest.approx(0.997861, abs=1e-6)
    assert second <= ours.lam**3
    P = products(example.cycle, 2674)  # t - s = 2673
    half_range = (P.max(1) - P.min(1)).max() / 2
    assert half_range > exp(theory.log_lemma1(papers, 2674, 1))
    assert half_range <= exp(theory.log_lemma1(ours, 2674, 1))


def test_theorem_1_needs_the_perturbation_of_step_one():
    """Read with Algorithm 1's indices, eps(1)..eps(t) leaves out eps(0), which is what moved x."""
    x0 = torch.zeros(2, 1, dtype=torch.float64)
    kick = lambda y, t: torch.tensor([[float(t == 1)], [0.0]], dtype=torch.float64)
    rule = weighting.moreau(1.0, 0.1)
    run = ps.iterate(ps.algorithms.sgap(1.0, rule), topology.full(2), kick, x0, 3)
    rows = list(theory.theorem1(theory.constants(topology.full(2), rule), x0, run))
    assert rows[0].distance > 0.1  # with eps(0) left out the bound would be 0
    assert all(log(r.distance) <= r.log_bound for r in rows)


# --------------------------------------------------------------------------- Theorem 1 beside a run


def test_the_bound_by_hand():
    """Divide(6), uniform: delta = 1/4, H = 3, C = 256, lambda = (1 - 1/64)^(1/3)."""
    bound = theory.ConsensusBound(theory.constants(topology.divide(6), weighting.uniform()), 2.0)
    lam = (1 - 1 / 64) ** (1 / 3)
    assert exp(bound.after(1.0)) == pytest.approx(256 * (2 + 1))
    assert exp(bound.after(0.5)) == pytest.approx(256 * (lam * 2 + lam * 1 + 0.5))
    expected = lam**2 * 2 + lam**2 * 1 + lam * 0.5 + 0.25
    assert exp(bound.after(0.25)) == pytest.approx(256 / 6 * expected)


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("rule", [weighting.uniform(), weighting.moreau(0.1, 0.1)], ids=repr)
def test_theorem_1_holds_along_real_runs(name, rule):
    graphs = FOUR[name][0]
    problem = ps.problems.quadratic(6, 5, kappa=5.0, sigma=1.0)
    x0 = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for algorithm in (ps.algorithms.sgap(0.1, rule), ps.algorithms.msgap(0.05, 0.8, rule)):
        run = ps.iterate(algorithm, graphs, problem.gradient, x0, 100)
        rows = list(theory.theorem1(theory.constants(graphs, rule), x0, run))
        assert len(rows) == 100
        assert all(r.distance <= exp(r.log_bound) for r in rows)


# --------------------------------------------------------------------------- Theorem 2


def plain_theorem2(c, problem, lr, T, beta):
    """The paper's formula in plain floats."""
    N, L, C, lam, H = c.n, problem.L, c.C, c.lam, c.horizon
    alpha = max(lam, beta)
    drift = lr**2 * C**2 * L**2 / (1 - alpha) ** 4 * (1 + N**2 * H / T)
    return (
        (2 - 2 * beta) / (lr * T) * problem.gap
        + (4 * L**2 / T + 12 * C**2 * N * L**2 / (T * (1 - lam**2))) * problem.x0_fro**2
        + lr * L / (N * (1 - beta) ** 2) * problem.sigma**2
        + 18 * drift * problem.sigma**2
        + 72 * drift * problem.kappa**2
    )


@pytest.mark.parametrize("beta", [0.0, 0.8])
@pytest.mark.parametrize("name", FOUR)
def test_theorem_2_equals_the_formula(name, beta):
    c = theory.constants(FOUR[name][0], weighting.uniform())
    problem = Objective(L=2.0, sigma=0.7, kappa=1.3, gap=3.0, x0_fro=1.7)
    alpha = max(c.lam, beta)
    largest = min(
        (1 - alpha) ** 2 / (12 * sqrt(2) * c.C * 6 * 2), (1 - beta) ** 2 / (4 * (1 + beta))
    )
    assert exp(theory.log_largest_step_size(c, 2.0, beta)) == pytest.approx(largest, rel=1e-6)
    bound = theory.theorem2(c, problem, log(largest / 2), 1000, beta)
    expected = plain_theorem2(c, problem, largest / 2, 1000, beta)
    assert exp(bound.log_total) == pytest.approx(expected, rel=1e-6)


def test_theorem_2_holds_in_a_run():
    """Two nodes, full: delta = 1/2, H = 1, C = 8, lambda = 1/2, so steps up to 9.2e-4."""
    graphs, rule = topology.full(2), weighting.uniform()
    problem = ps.problems.quadratic(2, 4, L=1.0, mu=0.2, kappa=2.0, sigma=1.0)
    x0 = torch.ones(2, 4, dtype=torch.float64)
    c = theory.constants(graphs, rule)
    log_lr, T = theory.log_largest_step_size(c, 1.0), 3000
    assert exp(log_lr) == pytest.approx(0.25 / (12 * sqrt(2) * 8 * 2))
    run = ps.iterate(ps.algorithms.sgap(exp(log_lr), rule), graphs, problem.gradient, x0, T - 1)
    averages = torch.stack([x0.mean(0), *(r.average for r in run)])
    measured = problem.slope(averages).square().sum(1).mean().item()
    gap = problem.value(x0.mean(0)).item()
    stated = Objective(1.0, problem.sigma, problem.kappa, gap, float(x0.norm()))
    assert measured <= exp(theory.theorem2(c, stated, log_lr, T).log_total)


def test_corollaries_1_and_2_are_theorem_2_at_the_root_step_size():
    c = theory.constants(topology.full(2), weighting.uniform())
    problem = Objective(L=1.0, sigma=1.0, kappa=1.0, gap=1.0, x0_fro=0.0)
    T = round(exp(theory.log_steps_for_corollary1(c, 1.0))) + 1
    lr = sqrt(2 / T)
    bound = theory.corollary2(c, problem, T)
    assert bound == theory.corollary1(c, problem, T, momentum=0.0)
    assert exp(bound.log_total) == pytest.approx(plain_theorem2(c, problem, lr, T, 0.0), rel=1e-9)
    with pytest.raises(ValueError, match="Theorem 2 allows at most"):
        theory.corollary2(c, problem, T // 2)
    four_times = theory.corollary2(c, problem, 4 * T)
    assert exp(four_times.log_noise - bound.log_noise) == pytest.approx(1 / 2)  # O(1/sqrt(T))
    assert exp(four_times.log_start - bound.log_start) == pytest.approx(1 / 2)
    assert exp(four_times.log_diversity - bound.log_diversity) == pytest.approx(1 / 4, rel=1e-5)


def test_theorem_2_says_where_it_says_nothing():
    c = theory.constants(topology.random(6), weighting.uniform())
    problem = Objective(L=1.0, sigma=1.0, kappa=1.0, gap=1.0, x0_fro=1.0)
    with pytest.raises(ValueError, match="more than H = 8 steps"):
        theory.theorem2(c, problem, -100.0, 8)
    with pytest.raises(ValueError, match="Theorem 2 allows at most"):
        theory.theorem2(c, problem, log(0.1), 100)
    with pytest.raises(ValueError, match=r"momentum = 1.0: momentum lies in \[0, 1\)"):
        theory.theorem2(c, problem, -100.0, 100, momentum=1.0)


# --------------------------------------------------------------------------- Corollary 3


def test_sgp_P_by_hand_and_where_it_does_not_exist():
    """Divide(6): K = 4, H = 3, so N K^-H = 6/64 and P < 2 sqrt(d) 64 / (1 - 6/64)^(5/4)."""
    c = theory.constants(topology.divide(6), weighting.uniform())
    P = theory.log_sgp_P(c, d=100)
    assert P is not None
    assert exp(P) == pytest.approx(2 * 10 * 64 / (1 - 6 / 64) ** 1.25)
    for n in (1, 2, 6, 50):
        assert (
            theory.log_sgp_P(theory.constants(topology.full(n), weighting.uniform()), 100) is None
        )
    four = theory.constants(topology.exponential(4), weighting.uniform())  # K^H = 2^2 = N
    assert theory.log_sgp_P(four, 100) is None


def test_corollary_3_orders():
    problem = Objective(L=1.0, sigma=2.0, kappa=3.0, gap=1.0, x0_fro=0.0)
    c = theory.constants(topology.divide(6), weighting.uniform())
    orders = theory.corollary3(c, problem, d=100, steps=400)
    assert exp(orders.log_start) == pytest.approx(1 / sqrt(6 * 400))
    assert exp(orders.log_noise) == pytest.approx(4 / sqrt(6 * 400))
    P = 2 * 10 * 64 / (1 - 6 / 64) ** 1.25
    assert orders.log_diversity is not None
    assert exp(orders.log_diversity) == pytest.approx(6 * P**2 * 9 / 400)
    full = theory.constants(topology.full(6), weighting.uniform())
    assert theory.corollary3(full, problem, 100, 400).log_diversity is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"L": 0.0}, "L = 0.0: smoothness is a finite number > 0"),
        ({"sigma": -1.0}, "sigma = -1.0: a finite number >= 0"),
        ({"gap": float("nan")}, "gap = nan: a finite number >= 0"),
    ],
)
def test_bad_objectives_are_refused(change, message):
    good = {"L": 1.0, "sigma": 1.0, "kappa": 1.0, "gap": 1.0, "x0_fro": 1.0}
    with pytest.raises(ValueError, match=message):
        Objective(**(good | change))


def test_theorem_1_does_not_speak_of_s_addopt():
    x0 = torch.zeros(6, 2, dtype=torch.float64)
    run = ps.iterate(ps.algorithms.s_addopt(0.1), topology.full(6), lambda y, t: y + 1, x0, 5)
    c = theory.constants(topology.full(6), weighting.uniform())
    with pytest.raises(ValueError, match="step 1 moves x after the exchange, as S-ADDOPT does"):
        list(theory.theorem1(c, x0, run))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_not_taken_for_a_violation(dtype):
    """After some hundred steps the bound is far below what a float can tell."""
    x0 = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    rule, zero = weighting.uniform(), lambda y, t: torch.zeros_like(y)
    run = ps.iterate(ps.algorithms.sgap(1.0, rule), topology.full(6), zero, x0, 600)
    rows = list(theory.theorem1(theory.constants(topology.full(6), rule), x0, run))
    assert rows[-1].log_bound < log(1e-40)
    assert all(r.holds for r in rows)
