"""Measured decay, fitted, beside what theory states."""

from math import exp, log

import numpy as np
import pytest
import torch

import pushsum as ps
from pushsum import algorithms, problems, theory, topology, weighting

FOUR = [topology.full(6), topology.divide(6), topology.exponential(6), topology.random(6)]
MOREAU = weighting.moreau(0.1, 0.1)


def fitted_rate(values, first, last):
    """exp of the slope of log(values) over steps first..last."""
    steps = np.arange(first, last)
    return exp(np.polyfit(steps, np.log(np.asarray(values[first:last])), 1)[0])


def consensus_distances(graphs, rule, steps):
    x0 = torch.randn(graphs.n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    zero = lambda y, t: torch.zeros_like(y)
    run = ps.iterate(algorithms.sgap(1.0, rule), graphs, zero, x0, steps)
    return [float((r.y - x0.mean(0)).abs().sum(1).max()) for r in run]


@pytest.mark.parametrize("graphs", FOUR[1:], ids=repr)
@pytest.mark.parametrize("rule", [weighting.uniform(), weighting.lazy(0.3), MOREAU], ids=repr)
def test_consensus_decays_at_least_at_the_rate_of_lemma_1(graphs, rule):
    distances = consensus_distances(graphs, rule, 240)
    last = next((t for t, d in enumerate(distances) if d < 1e-12), 240)
    rate = fitted_rate(distances, min(8, last // 3), last)
    assert rate < 1
    assert rate <= theory.constants(graphs, rule).lam


def test_the_rate_of_consensus_is_the_second_eigenvalue_of_a_fixed_graph():
    """Lazy weights on Divide: the decay is |lambda_2(W)|, far below what is proven."""
    graphs, rule = topology.divide(6), weighting.lazy(0.3)
    W = rule.matrix(graphs.adjacency(1), torch.zeros(6, 6))
    second = torch.linalg.eigvals(W).abs().sort().values[-2].item()
    measured = fitted_rate(consensus_distances(graphs, rule, 300), 100, 300)
    assert measured == pytest.approx(second, rel=1e-6)
    assert second < theory.constants(graphs, rule).lam


def test_full_with_uniform_weights_agrees_after_one_step():
    assert consensus_distances(topology.full(6), weighting.uniform(), 1)[0] < 1e-14


def test_gradient_descent_contracts_at_one_minus_lr_mu():
    """No diversity, no noise, equal starts: every method is gradient descent on f."""
    p = problems.quadratic(6, 4, L=1.0, mu=0.3, kappa=0.0)
    x0 = torch.ones(6, 4, dtype=torch.float64)
    for graphs in FOUR:
        for algorithm in (
            algorithms.sgp(0.2),
            algorithms.sgap(0.2, MOREAU),
            algorithms.s_addopt(0.2),
        ):
            run = ps.iterate(algorithm, graphs, p.gradient, x0, 160)
            errors = [float((r.average - p.minimizer).norm()) for r in run]
            assert fitted_rate(errors, 60, 160) == pytest.approx(1 - 0.2 * 0.3, abs=2e-3)


def test_heavy_ball_contracts_at_the_root_of_the_momentum():
    """In the under-damped regime |root|^2 = momentum, whatever the curvature."""
    p = problems.quadratic(6, 4, L=1.0, mu=0.3, kappa=0.0)
    run = ps.iterate(
        algorithms.msgap(0.5, 0.64, MOREAU),
        topology.exponential(6),
        p.gradient,
        torch.ones(6, 4, dtype=torch.float64),
        120,
    )
    errors = [float((r.average - p.minimizer).norm()) for r in run]
    assert fitted_rate(errors, 10, 100) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("graphs", FOUR[1:], ids=repr)
def test_tracking_converges_exactly_where_sgp_stalls_at_a_floor_of_order_lr(graphs):
    p = problems.quadratic(6, 4, L=1.0, mu=0.5, kappa=2.0)
    x0 = torch.zeros(6, 4, dtype=torch.float64)

    def error(algorithm, steps):
        """Largest error over the nodes and the last 16 steps: Random agrees on every eighth."""
        run = list(ps.iterate(algorithm, graphs, p.gradient, x0, steps))
        return max(float((r.y - p.minimizer).norm(dim=1).max()) for r in run[-16:])

    assert error(algorithms.s_addopt(0.05), 1500) < 1e-10
    rates = (0.08, 0.04, 0.02)
    floors = [error(algorithms.sgp(lr), 1200) for lr in rates]
    slope = np.polyfit(np.log(rates), np.log(floors), 1)[0]
    assert floors[-1] > 1e-4
    assert slope == pytest.approx(1.0, abs=0.2)


def mean_squared_gradient(n, T, sigma=4.0):
    """mean_t ||grad f(xbar(t))||^2 of SGAP at Corollary 2's step size sqrt(n / T) / 4."""
    p = problems.quadratic(n, 64, L=1.0, mu=1.0, kappa=0.5, sigma=sigma)
    x0 = p.minimizer.repeat(n, 1)
    lr = 0.25 * (n / T) ** 0.5
    run = ps.iterate(algorithms.sgap(lr, MOREAU), topology.full(n), p.gradient, x0, T)
    squares = torch.stack([p.slope(r.average).square().sum() for r in run])
    return float(squares[T // 10 :].mean())


def test_noise_averages_out_like_one_over_the_root_of_n_t():
    """Corollary 2: O(sigma^2 / sqrt(NT)); the fitted exponents in T and in N are both near -1/2."""
    Ts = [160, 640, 2560]
    in_T = np.polyfit(np.log(Ts), np.log([mean_squared_gradient(4, T) for T in Ts]), 1)[0]
    assert in_T == pytest.approx(-0.5, abs=0.12)
    ns = [2, 4, 8]
    in_n = np.polyfit(np.log(ns), np.log([mean_squared_gradient(n, 1000) for n in ns]), 1)[0]
    assert in_n == pytest.approx(-0.5, abs=0.15)


def test_a_non_convex_problem_reaches_a_stationary_point():
    p = problems.ripples(6, 3, L=1.0, kappa=0.5)
    x0 = p.minimizer + 8 * torch.ones(6, 3, dtype=torch.float64)
    run = ps.iterate(algorithms.s_addopt(0.1), topology.exponential(6), p.gradient, x0, 1500)
    slopes = [float(p.slope(r.average).norm()) for r in run]
    assert slopes[-1] < 1e-9
    assert log(slopes[0]) > 0  # it started on a slope
