"""Test problems with exact parameters: smoothness, statistical diversity and noise.

    f(x) = mean_i f_i(x),    grad f_i(x) = grad f(x) + c_i,    sum_i c_i = 0

so that mean_i ||grad f_i - grad f||^2 = kappa^2 at every x, and a gradient sample adds noise with
E||noise||^2 = sigma^2. Both hold with equality, as Assumption 3's bounds would have it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from pushsum import checks
from pushsum.randomness import stream


@dataclass(frozen=True, eq=False)
class Problem:
    """A decentralized problem whose constants are known exactly.

    Attributes:
        name: what it is.
        L: smoothness of every f_i, attained.
        mu: strong convexity of every f_i (0 for the non-convex problem).
        kappa: statistical diversity; sigma: gradient noise.
        minimizer: (d,) where f is smallest; f is 0 there.
        offsets: (n, d) the c_i.
        value, slope: f and grad f of a (..., d) tensor.
        seed: names the noise.
    """

    name: str
    L: float
    mu: float
    kappa: float
    sigma: float
    minimizer: Tensor
    offsets: Tensor
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    seed: int

    def gradient(self, y: Tensor, t: int) -> Tensor:
        """Sampled gradients (n, d), row i at row i of y: what `pushsum.iterate` asks for."""
        g = self.slope(y) + self.offsets.to(y)
        if self.sigma == 0:
            return g
        noise = stream(self.seed, "noise", t).standard_normal(tuple(y.shape))
        return g + torch.from_numpy(noise).to(y) * (self.sigma / sqrt(y.shape[1]))


def quadratic(
    n: int,
    d: int,
    L: float = 1.0,
    mu: float = 0.1,
    kappa: float = 1.0,
    sigma: float = 0.0,
    seed: int = 0,
) -> Problem:
    """f(x) = 1/2 (x - x*)' A (x - x*), A with eigenvalues from mu to L in random directions.

    >>> p = quadratic(n=6, d=4, kappa=3.0)
    >>> round(p.offsets.square().sum(1).mean().sqrt().item(), 12)
    3.0
    """
    _check(n, d, L, kappa, sigma)
    if not 0 < mu <= L:
        raise ValueError(f"mu = {mu!r}: strong convexity needs 0 < mu <= L = {L!r}")
    if d == 1 and mu != L:
        raise ValueError(f"mu = {mu!r}, L = {L!r}: in one dimension there is one curvature, mu = L")
    draw = stream(seed, "quadratic")
    directions, _ = np.linalg.qr(draw.standard_normal((d, d)))
    A = torch.from_numpy((directions * np.linspace(mu, L, d)) @ directions.T)
    minimizer = torch.from_numpy(draw.standard_normal(d))

    def slope(x: Tensor) -> Tensor:
        return (x - minimizer.to(x)) @ A.to(x)

    def value(x: Tensor) -> Tensor:
        return ((x - minimizer.to(x)) * slope(x)).sum(-1) / 2

    offsets = _offsets(draw, n, d, kappa)
    return Problem("quadratic", L, mu, kappa, sigma, minimizer, offsets, value, slope, seed)


def ripples(
    n: int, d: int, L: float = 1.0, kappa: float = 1.0, sigma: float = 0.0, seed: int = 0
) -> Problem:
    """A non-convex bowl with ripples: f(x) = L sum_k (u_k^2 + 14 (1 - cos u_k)) / 16.

    u = x - x*. f'' lies between -3/4 L and L, both attained. There are other local minima.

    >>> p = ripples(n=2, d=1)
    >>> p.value(p.minimizer).item()
    0.0
    """
    _check(n, d, L, kappa, sigma)
    draw = stream(seed, "ripples")
    minimizer = torch.from_numpy(draw.standard_normal(d))

    def value(x: Tensor) -> Tensor:
        u = x - minimizer.to(x)
        return L * (u.square() + 14 * (1 - u.cos())).sum(-1) / 16

    def slope(x: Tensor) -> Tensor:
        u = x - minimizer.to(x)
        return L * (u + 7 * u.sin()) / 8

    offsets = _offsets(draw, n, d, kappa)
    return Problem("ripples", L, 0.0, kappa, sigma, minimizer, offsets, value, slope, seed)


def _offsets(draw: np.random.Generator, n: int, d: int, kappa: float) -> Tensor:
    if n == 1 or kappa == 0:
        return torch.zeros(n, d, dtype=torch.float64)
    c = draw.standard_normal((n, d))
    c -= c.mean(0)
    return torch.from_numpy(c * (kappa / sqrt((c**2).sum(1).mean())))


def _check(n: int, d: int, L: float, kappa: float, sigma: float) -> None:
    checks.count("n", n, "the number of nodes")
    checks.count("d", d, "the number of dimensions")
    checks.number("L", L, lambda L: L > 0, "smoothness is a finite number > 0")
    for name, value in (("kappa", kappa), ("sigma", sigma)):
        checks.number(name, value, lambda v: v >= 0, "a finite number >= 0 is expected")
    if n == 1 and kappa > 0:
        raise ValueError(f"kappa = {kappa!r}: a single node cannot differ from itself, kappa = 0")
