"""What the paper proves, as functions: Lemmas 1-2, Theorems 1-2 and Corollaries 1-3.

All of it rests on p = delta^H, where delta is the smallest weight (Definition 1) and H the horizon,
the number of steps after which everybody has heard from everybody. The paper writes Delta * B in
place of H; that is right for a graph that never changes and can fail when it does
(docs/horizon.md). `published` gives the paper's own expression.

p is astronomically small for all but tiny networks, so everything here is a natural logarithm;
`log_` in a name says so. Norms of matrices are entrywise: `l1` is the sum of absolute values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import exp, expm1, inf, isfinite, log, log1p, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum import checks
from pushsum.faults import Plan, as_plan
from pushsum.faults import certificate as measured
from pushsum.topology import Topology
from pushsum.weighting import Matrix, Weighting, as_weighting

BLOCK = 2**18  #: numbers that stay in a core's cache


@dataclass(frozen=True)
class Constants:
    """The constants of the theory for one network.

    Attributes:
        n: N, the number of nodes.
        delta: the smallest weight, Definition 1.
        horizon: H (or the paper's Delta * B, from `published`).
        max_degree: K_max, the largest out-degree.
        note: a warning worth showing beside any figure, or ''.
    """

    n: int
    delta: float
    horizon: int
    max_degree: int
    note: str = ""

    @property
    def log_p(self) -> float:
        """log(delta^H), the smallest entry of a product of H consecutive weight matrices."""
        return self.horizon * log(self.delta)

    @property
    def log_C(self) -> float:
        """log C, C = 4 / delta^H."""
        return log(4) - self.log_p

    @property
    def log_lambda(self) -> float:
        """log lambda, lambda = (1 - delta^H)^(1/H); -inf where lambda = 0 (a single node)."""
        return log1p(-exp(self.log_p)) / self.horizon if self.log_p < 0 else -inf

    @property
    def log_gap(self) -> float:
        """log(1 - lambda), also where lambda itself rounds to 1."""
        tiny = self.log_p < log(1e-8)
        return self.log_p - log(self.horizon) if tiny else log(-expm1(self.log_lambda))

    @property
    def C(self) -> float:
        """C = 4 / delta^H; inf if it does not fit a float."""
        return from_log(self.log_C)

    @property
    def lam(self) -> float:
        """lambda = (1 - delta^H)^(1/H)."""
        return exp(self.log_lambda)


def constants(
    topology: Topology,
    weighting: str | Weighting | Matrix,
    faults: Plan | str | None = None,
    steps: int = 1000,
) -> Constants:
    """The constants for a graph sequence and a weighting, with the horizon H.

    Under a fault plan whose senders keep what is lost, H is that of the messages that get through,
    measured over so many steps; delta is that of the graphs themselves, since a sender keeps more
    than it meant to, never less. Theorem 1 says nothing about late messages.

    >>> from pushsum import topology, weighting
    >>> full = constants(topology.full(6), weighting.uniform())
    >>> round(full.C, 9), round(full.lam, 4)
    (24.0, 0.8333)
    """
    if faults is not None:
        H = measured(faults, topology, steps).horizon
        note = f"H = {H} was measured over {steps} steps under {faults}: it is no guarantee"
        if (plan := as_plan(faults)) is not None and not plan.keeps_definition_1:
            note += (
                ", and Theorem 1 says nothing about messages that are late or wait, lost mass, and "
                "nodes that come or go"
            )
    else:
        certificate = topology.certificate()
        H, published = certificate.horizon, certificate.diameter * certificate.period
        note = (
            f"H = {H} is larger than the paper's Delta * B = {published}: "
            "the paper's own bounds need not hold on this sequence"
            if H > max(1, published)
            else ""
        )
    K = topology.degrees[1]
    return Constants(topology.n, as_weighting(weighting).floor(K), H, K, note)


def published(topology: Topology, weighting: str | Weighting | Matrix) -> Constants:
    """The same with the paper's Delta * B in place of H.

    >>> from pushsum import topology, weighting
    >>> exponential = topology.exponential(6)
    >>> constants(exponential, weighting.uniform()).horizon
    3
    >>> published(exponential, weighting.uniform()).horizon
    6
    """
    certificate = topology.certificate()
    exponent = max(1, certificate.diameter * certificate.period)
    return replace(constants(topology, weighting), horizon=exponent)


# --------------------------------------------------------------------------- consensus


def log_lemma1(c: Constants, t: int, s: int) -> float:
    """Lemma 1: |[W(t) ... W(s)]_ij - phi_i(t)| <= 2 lambda^(t-s), for s <= t.

    phi(t) = a(t) / N serves for every s.

    >>> from pushsum import topology, weighting
    >>> c = constants(topology.full(6), weighting.uniform())
    >>> round(exp(log_lemma1(c, t=10, s=1)), 3)
    0.388
    """
    return log(2) + _power(c.log_lambda, t - s)


def log_lemma2(c: Constants, t: int) -> float:
    """Lemma 2: every row sum of W(t) ... W(1) is at least N delta^H once t >= H, delta^H before.

    >>> from pushsum import topology, weighting
    >>> c = constants(topology.ring(3), weighting.uniform())  # delta = 1/2, H = 2
    >>> round(exp(log_lemma2(c, t=1)), 3), round(exp(log_lemma2(c, t=2)), 3)
    (0.25, 0.75)
    """
    return (log(c.n) if t >= c.horizon else 0.0) + c.log_p


class Consensus(NamedTuple):
    """How far the nodes are from agreeing.

    Attributes:
        largest: max_i ||y_i - average||_1, of which Theorem 1 speaks.
        mean_square: the mean over i of ||y_i - mean of y||^2.
    """

    largest: float
    mean_square: float


def consensus(x: Tensor, a: Tensor, y: Tensor) -> Consensus:
    """How far the nodes are apart; in float64, the average is the sum of x over the sum of a.

    x and a may have rows besides those of nodes: what is under way.
    Some columns at a time, so that no array of the size of x is made.
    """
    width = max(1, BLOCK // len(x))
    l1, square = torch.zeros(2, len(y), dtype=torch.float64, device=x.device)
    for first in range(0, x.shape[1], width):
        some = y[:, first : first + width].double()
        average = x[:, first : first + width].double().sum(0) / a.sum()
        l1 += (some - average).abs().sum(1)
        square += (some - some.mean(0)).square().sum(1)
    return Consensus(float(l1.max()), float(square.mean()))


class Beside(NamedTuple):
    """Measured distance and bound after step t.

    Attributes:
        t: the step.
        distance: max_i ||y_i - mean of x||_1.
        log_bound: log of Theorem 1's bound on it.
        rounding: how far off the measured distance may be.
    """

    t: int
    distance: float
    log_bound: float
    rounding: float

    @property
    def holds(self) -> bool:
        """Whether the distance is within the bound, up to rounding."""
        return self.distance <= from_log(self.log_bound) * (1 + 1e-9) + self.rounding


class ConsensusBound:
    """Theorem 1, laid beside a run.

        ||y_i(t) - xbar(t)||_1 <= C_t (lambda^(t-1) ||X(0)||_1 + sum_s lambda^(t-s) ||eps(s)||_1)

    with C_t = C / N for t >= H and C before; eps(s), s = 1..t, is the perturbation applied in
    step s. Feed the perturbations' norms in order:

    >>> from pushsum import topology, weighting
    >>> bound = ConsensusBound(constants(topology.full(4), weighting.uniform()), x0_l1=8.0)
    >>> round(exp(bound.after(0.0)), 6), round(exp(bound.after(2.0)), 6)
    (32.0, 32.0)
    """

    def __init__(self, c: Constants, x0_l1: float) -> None:
        self._c = c
        self._x0_l1 = x0_l1
        self._t = 0
        self._drift = 0.0  # sum_s lambda^(t-s) ||eps(s)||_1

    def after(self, perturbation_l1: float) -> float:
        """Advance one step; the logarithm of the bound after it."""
        c = self._c
        self._t += 1
        self._drift = c.lam * self._drift + perturbation_l1
        start = exp(_power(c.log_lambda, self._t - 1)) * self._x0_l1
        scale = c.log_C - (log(c.n) if self._t >= c.horizon else 0.0)
        return scale + _log(start + self._drift)


def theorem1(c: Constants, x0: Tensor, run: Iterable[Any]) -> Iterator[Beside]:
    """Lay Theorem 1 beside the records of `pushsum.iterate`: measured distance and bound.

    For the four algorithms whose perturbation enters before the exchange; S-ADDOPT, which moves
    after it, is refused.

    >>> import torch
    >>> import pushsum as ps
    >>> graphs, sgp, x0 = ps.topology.divide(6), ps.algorithms.sgp(0.1), torch.ones(6, 2)
    >>> targets = torch.arange(12.0).reshape(6, 2)
    >>> run = ps.iterate(sgp, graphs, lambda y, t: y - targets, x0, steps=50)
    >>> rows = list(theorem1(constants(graphs, sgp.weighting), x0, run))
    >>> all(row.holds for row in rows)
    True
    """
    if len(x0) != c.n:
        raise ValueError(f"x0 has {len(x0)} rows, the constants are those of {c.n} nodes")
    before = x0
    bound = ConsensusBound(c, float(x0.double().abs().sum()))
    for record in run:
        x, pushed = record.x.double(), record.pushed.double()
        rounding = 64 * torch.finfo(record.x.dtype).eps * float(x.abs().sum() + pushed.abs().sum())
        if float((x.sum(0) - pushed.sum(0)).abs().sum()) > len(x) * rounding:
            raise ValueError(
                f"step {record.t} moves x after the exchange, as S-ADDOPT does: Theorem 1 speaks "
                "of perturbations that enter before it"
            )
        perturbation = float((pushed - before.double()).abs().sum())
        before = record.x
        distance = consensus(record.x, record.a, record.y).largest
        rounding /= float(record.a.min())
        yield Beside(record.t, distance, bound.after(perturbation), rounding)


# --------------------------------------------------------------------------- optimization


@dataclass(frozen=True)
class Objective:
    """What Theorem 2 asks of the problem and the start.

    Attributes:
        L: smoothness of every f_i (Assumption 2).
        sigma: sampling noise, E||grad F_i - grad f_i||^2 <= sigma^2 (Assumption 3).
        kappa: statistical diversity, mean_i ||grad f_i - grad f||^2 <= kappa^2 (Assumption 3).
        gap: f(xbar(0)) - f*.
        x0_fro: ||X(0)||_F.
    """

    L: float
    sigma: float
    kappa: float
    gap: float
    x0_fro: float

    def __post_init__(self) -> None:
        _check_smoothness(self.L)
        for name in ("sigma", "kappa", "gap", "x0_fro"):
            checks.number(name, getattr(self, name), lambda v: v >= 0, "a finite number >= 0")


@dataclass(frozen=True)
class GradientBound:
    """Theorem 2's bound on mean_t E||grad f(xbar(t))||^2, term by term, in logarithms."""

    log_start: float  #: (2 - 2 beta) / (gamma T) (f(xbar(0)) - f*)
    log_x0: float  #: (4 L^2 + 12 C^2 N L^2 / (1 - lambda^2)) / T ||X(0)||_F^2
    log_noise: float  #: gamma L / (N (1 - beta)^2) sigma^2
    log_drift_noise: float  #: 18 gamma^2 C^2 L^2 / (1 - alpha)^4 (1 + N^2 H / T) sigma^2
    log_diversity: float  #: 72 gamma^2 C^2 L^2 / (1 - alpha)^4 (1 + N^2 H / T) kappa^2

    @property
    def log_total(self) -> float:
        """The bound itself."""
        return _log_sum(
            self.log_start,
            self.log_x0,
            self.log_noise,
            self.log_drift_noise,
            self.log_diversity,
        )


def log_largest_step_size(c: Constants, L: float, momentum: float = 0.0) -> float:
    """The largest step size that Theorem 2 allows.

        gamma <= min{(1 - alpha)^2 / (12 sqrt(2) C N L), (1 - beta)^2 / (2 L (1 + beta))},

    alpha = max(lambda, beta), which the paper defines only in its Corollary 5.

    >>> from pushsum import topology, weighting
    >>> c = constants(topology.full(6), weighting.uniform())
    >>> f"{exp(log_largest_step_size(c, L=1.0)):.1e}"
    '1.1e-05'
    """
    _check_smoothness(L)
    checks.number("momentum", momentum, lambda m: 0 <= m < 1, "momentum lies in [0, 1)")
    network = 2 * _log_one_minus_alpha(c, momentum) - log(12 * sqrt(2) * c.n * L) - c.log_C
    return min(network, log((1 - momentum) ** 2 / (2 * L * (1 + momentum))))


def theorem2(
    c: Constants, problem: Objective, log_lr: float, steps: int, momentum: float = 0.0
) -> GradientBound:
    """Theorem 2 for MSGAP after `steps` = T steps; with momentum 0 it is Corollary 2, SGAP.

    The step size is given as a logarithm because the largest one that the theorem allows seldom
    fits a float. Raises ValueError where the theorem says nothing: a step size that is too large,
    or T <= H.

    >>> from pushsum import topology, weighting
    >>> c = constants(topology.full(6), weighting.uniform())
    >>> problem = Objective(L=1.0, sigma=1.0, kappa=1.0, gap=1.0, x0_fro=0.0)
    >>> bound = theorem2(c, problem, log_largest_step_size(c, L=1.0), steps=10**8)
    >>> round(exp(bound.log_start), 4), round(exp(bound.log_diversity), 4)
    (0.0018, 0.0069)
    """
    if steps <= c.horizon:
        raise ValueError(f"steps = {steps}: Theorem 2 speaks of more than H = {c.horizon} steps")
    largest = log_largest_step_size(c, problem.L, momentum)
    if log_lr > largest + 1e-12:
        raise ValueError(
            f"log_lr = {log_lr:.6g}: Theorem 2 allows at most {largest:.6g} on this network"
        )
    log_T, log_N, log_L = log(steps), log(c.n), _log(problem.L)
    # 1 - lambda^2 = (1 - lambda)(1 + lambda)
    log_spread = log(12) + 2 * c.log_C + log_N - c.log_gap - log1p(c.lam)
    drift = (
        2 * (log_lr + c.log_C + log_L)
        - 4 * _log_one_minus_alpha(c, momentum)
        + log1p(c.n**2 * c.horizon / steps)
    )
    return GradientBound(
        log_start=log(2 - 2 * momentum) - log_lr - log_T + _log(problem.gap),
        log_x0=2 * log_L - log_T + _log_sum(log(4), log_spread) + 2 * _log(problem.x0_fro),
        log_noise=log_lr + log_L - log_N - 2 * log(1 - momentum) + 2 * _log(problem.sigma),
        log_drift_noise=log(18) + drift + 2 * _log(problem.sigma),
        log_diversity=log(72) + drift + 2 * _log(problem.kappa),
    )


def corollary1(
    c: Constants, problem: Objective, steps: int, momentum: float = 0.0, scale: float = 1.0
) -> GradientBound:
    """Corollary 1 (MSGAP): Theorem 2 at gamma = scale * sqrt(N / T), for T large enough.

    Its orders O(1/sqrt(NT)), O(sigma^2/sqrt(NT)) and O(N kappa^2/T) hide C >= 4 N and
    1/(1 - alpha)^4, which depend on N; here they are not hidden.

    >>> from pushsum import topology, weighting
    >>> c = constants(topology.full(6), weighting.uniform())
    >>> unit = Objective(L=1.0, sigma=1.0, kappa=1.0, gap=1.0, x0_fro=1.0)
    >>> [f"{exp(corollary1(c, unit, steps).log_total):.1e}" for steps in (10**12, 10**14)]
    ['4.0e-04', '4.2e-06']
    """
    checks.number("scale", scale, lambda s: s > 0, "a finite number > 0 is expected")
    return theorem2(c, problem, log(scale) + (log(c.n) - log(steps)) / 2, steps, momentum)


def corollary2(c: Constants, problem: Objective, steps: int, scale: float = 1.0) -> GradientBound:
    """Corollary 2 (SGAP): Corollary 1 without momentum."""
    return corollary1(c, problem, steps, 0.0, scale)


def log_steps_for_corollary1(
    c: Constants, L: float, momentum: float = 0.0, scale: float = 1.0
) -> float:
    """How large "sufficiently large T" is: from there gamma = scale sqrt(N/T) is allowed.

    >>> from pushsum import topology, weighting
    >>> c = constants(topology.full(6), weighting.uniform())
    >>> f"{exp(log_steps_for_corollary1(c, L=1.0)):.1e}"
    '4.6e+10'
    """
    return log(c.n) + 2 * (log(scale) - log_largest_step_size(c, L, momentum))


class SgpOrders(NamedTuple):
    """Corollary 3's three terms, as logarithms, without the constants that the paper leaves out."""

    log_start: float  #: 1 / sqrt(NT)
    log_noise: float  #: sigma^2 / sqrt(NT)
    log_diversity: float | None  #: N P^2 kappa^2 / T; None where P does not exist


def corollary3(c: Constants, problem: Objective, d: int, steps: int) -> SgpOrders:
    """Corollary 3 (SGP): the orders of its three terms for a model of d parameters.

    With the horizon H in place of Delta * B, although the corollary is quoted from the analysis of
    SGP and not proven in the paper.
    """
    start = -(log(c.n) + log(steps)) / 2
    log_P = log_sgp_P(c, d)
    diversity = None if log_P is None else log(c.n) + 2 * (log_P + _log(problem.kappa)) - log(steps)
    return SgpOrders(start, start + 2 * _log(problem.sigma), diversity)


def log_sgp_P(c: Constants, d: int) -> float | None:
    """Corollary 3 (SGP): log of P's bound 2 sqrt(d) K^H / (1 - N K^-H)^((H+2)/(H+1)), K = K_max.

    None where it does not exist, because N K_max^-H = 1: on the fully connected network, say.
    SGP's term of statistical diversity is O(N P^2 kappa^2 / T), which grows with the number of
    parameters d.

    >>> from pushsum import topology, weighting
    >>> log_sgp_P(constants(topology.full(6), weighting.uniform()), d=1000) is None
    True
    """
    log_reach = c.horizon * log(c.max_degree)
    log_share = log(c.n) - log_reach
    if log_share >= -1e-12:
        return None
    exponent = (c.horizon + 2) / (c.horizon + 1)
    return log(2) + log(d) / 2 + log_reach - exponent * log(-expm1(log_share))


# --------------------------------------------------------------------------- logarithms


def _check_smoothness(L: float) -> None:
    checks.number("L", L, lambda L: L > 0, "smoothness is a finite number > 0")


def _log_one_minus_alpha(c: Constants, momentum: float) -> float:
    return min(c.log_gap, log1p(-momentum))


def from_log(value: float) -> float:
    """The number with this natural logarithm; inf if it does not fit a float."""
    return exp(value) if value < 709 else inf


def _power(log_base: float, exponent: int) -> float:
    return 0.0 if exponent == 0 else exponent * log_base


def _log(value: float) -> float:
    return log(value) if value > 0 else -inf


def _log_sum(*logs: float) -> float:
    largest = max(logs)
    return largest + log(sum(exp(v - largest) for v in logs)) if isfinite(largest) else largest
