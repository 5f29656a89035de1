"""The dials of the test problems do exactly what they say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pushsum import problems

POSITIVE = st.floats(0.01, 100)


def hessian(problem, x):
    return torch.autograd.functional.hessian(problem.value, x)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 9),
    d=st.integers(2, 6),
    L=POSITIVE,
    share=st.floats(0.01, 1),
    kappa=st.floats(0, 50),
    seed=st.integers(0, 99),
)
def test_quadratic_dials_are_exact(n, d, L, share, kappa, seed):
    p = problems.quadratic(n, d, L=L, mu=share * L, kappa=kappa, seed=seed)
    eigenvalues = torch.linalg.eigvalsh(hessian(p, torch.zeros(d, dtype=torch.float64)))
    assert eigenvalues[-1].item() == pytest.approx(L, rel=1e-9)
    assert eigenvalues[0].item() == pytest.approx(share * L, rel=1e-9)
    y = torch.randn(1, d, dtype=torch.float64).repeat(n, 1)
    gradients = p.gradient(y, 1)
    diversity = (gradients - gradients.mean(0)).square().sum(1).mean().sqrt()
    assert diversity.item() == pytest.approx(kappa, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(gradients.mean(0), p.slope(y[0]), rtol=1e-9, atol=1e-9)
    assert p.slope(p.minimizer).abs().max().item() == 0
    assert p.value(p.minimizer).item() == 0


def test_ripples_is_not_convex_and_attains_its_smoothness():
    p = problems.ripples(n=3, d=2, L=4.0, kappa=2.0)
    at_minimum = torch.linalg.eigvalsh(hessian(p, p.minimizer))
    torch.testing.assert_close(at_minimum, torch.full((2,), 4.0, dtype=torch.float64))
    at_ridge = torch.linalg.eigvalsh(hessian(p, p.minimizer + np.pi))
    torch.testing.assert_close(at_ridge, torch.full((2,), -3.0, dtype=torch.float64))
    x = p.minimizer + torch.linspace(-30, 30, 2001, dtype=torch.float64)[:, None]
    slopes = p.slope(x)[:, 0]
    assert ((slopes[1:] - slopes[:-1]).abs() <= 4.0 * 0.03 * (1 + 1e-9)).all()
    assert (p.value(x) >= 0).all()
    minima = (slopes[:-1] < 0) & (slopes[1:] > 0)
    assert minima.sum().item() == 3


@pytest.mark.parametrize("make", [problems.quadratic, problems.ripples])
def test_slopes_are_the_derivatives_of_the_values(make):
    p = make(n=2, d=4)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    p.value(x).backward()
    torch.testing.assert_close(x.grad, p.slope(x.detach()))


def test_noise_has_the_stated_variance_and_is_a_function_of_seed_and_step():
    p = problems.quadratic(n=8, d=5, sigma=3.0)
    y = torch.zeros(8, 5, dtype=torch.float64)
    quiet = problems.quadratic(n=8, d=5, sigma=0.0).gradient(y, 1)
    noise = torch.stack([p.gradient(y, t) - quiet for t in range(2000)])
    assert noise.square().sum(-1).mean().item() == pytest.approx(9.0, rel=0.03)
    assert noise.mean().abs().item() < 0.03
    assert torch.equal(p.gradient(y, 7), p.gradient(y, 7))
    other = problems.quadratic(n=8, d=5, sigma=3.0, seed=1)
    assert not torch.equal(other.gradient(y, 7) - other.offsets, p.gradient(y, 7) - p.offsets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0, "d": 2}, "n = 0: the number of nodes is an integer >= 1"),
        ({"n": 2, "d": 0}, "d = 0: the number of dimensions is an integer >= 1"),
        ({"n": 2, "d": 2, "L": 0.0}, "L = 0.0"),
        ({"n": 2, "d": 2, "mu": 2.0}, "mu = 2.0: strong convexity needs 0 < mu <= L"),
        ({"n": 2, "d": 1}, "mu = 0.1, L = 1.0: in one dimension"),
        ({"n": 2, "d": 2, "kappa": -1.0}, "kappa = -1.0"),
        ({"n": 2, "d": 2, "sigma": float("nan")}, "sigma = nan"),
        ({"n": 1, "d": 2}, "kappa = 1.0: a single node cannot differ from itself"),
    ],
)
def test_bad_dials_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        problems.quadratic(**arguments)
