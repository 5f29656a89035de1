"""Push-SUM methods that send one vector: SGP and its kin, (M)SGAP, QGM, DEXTRA; centralized SGD."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum import checks
from pushsum.methods import MOREAU
from pushsum.optimizers import Rate, check_momentum, momentum_sgd, sgd
from pushsum.protocol import Algorithm, Got, Gradient, Sent, State, Step, corrected
from pushsum.weighting import Matrix, Weighting, as_weighting

Weights = str | Weighting | Matrix


def sgap(lr: Rate, weighting: Weights = MOREAU) -> Algorithm:
    """Stochastic gradient with Adaptive Weighting Push-SUM (Algorithm 2).

        epsilon_i^(t-1) = -lr g_i^(t-1)

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> algorithm = sgap(0.1)
    >>> algorithm.weighting  # the paper's, unless another is named
    moreau(k=1, v=0.1)
    >>> *_, last = ps.iterate(algorithm, ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> round(last.average.item(), 3)
    2.0
    """
    return Algorithm("SGAP", sgd(lr), as_weighting(weighting))


def sgp(lr: Rate) -> Algorithm:
    """Stochastic gradient push: SGAP with the original Push-SUM's uniform weights.

    >>> sgp(0.1).weighting
    uniform
    """
    return Algorithm("SGP", sgd(lr))


def msgap(lr: Rate, momentum: float, weighting: Weights = MOREAU) -> Algorithm:
    """Momentum SGD with Adaptive Weighting Push-SUM (Algorithm 2).

        m_i^(t) = momentum m_i^(t-1) + g_i^(t-1),   epsilon_i^(t-1) = -lr m_i^(t)

    >>> from pushsum import weighting
    >>> msgap(lambda t: 0.1 / t**0.5, 0.8, weighting.lazy(0.5)).weighting  # lr as a schedule
    lazy(c=0.5)
    """
    return Algorithm("MSGAP", momentum_sgd(lr, momentum), as_weighting(weighting))


def msgp(lr: Rate, momentum: float) -> Algorithm:
    """Momentum SGP: MSGAP with the original Push-SUM's uniform weights.

    >>> msgp(0.1, momentum=1.0)
    Traceback (most recent call last):
    ValueError: momentum = 1.0: momentum lies in [0, 1)
    """
    return Algorithm("MSGP", momentum_sgd(lr, momentum))


def qgm(lr: Rate, momentum: float, weighting: Weights = "uniform") -> Algorithm:
    """Quasi-global momentum (Lin et al., 2021) over Push-SUM: momentum of where exchanges lead.

        epsilon_i^(t-1) = -lr (momentum m_i^(t-1) + g_i^(t-1))
        m_i^(t) = momentum m_i^(t-1) + (1 - momentum) (y_i^(t-1) - y_i^(t)) / lr

    A node's own momentum remembers its own data only. The way of its corrected parameter has the
    neighbours' in it, and nothing more is sent. With momentum = 0 it is SGAP.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> algorithm = qgm(0.02, 0.8)
    >>> *_, last = ps.iterate(algorithm, ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=400)
    >>> round(last.average.item(), 3)
    2.0
    """
    check_momentum(momentum)

    def direction(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Tensor]:
        return momentum * state.kept + gradient(), state.kept

    def receive(state: State, m: Tensor, move: Tensor, got: Got, step: Step) -> State:
        x = got.push[0]
        led = corrected(state.x, state.a) - corrected(x, got.a)
        rate = torch.as_tensor(step.rate, dtype=x.dtype)
        after = momentum * m + (1 - momentum) * led / rate
        return State(x, got.a, torch.where(rate == 0, m, after))  # nothing to learn from

    return Algorithm(
        "QGM",
        sgd(lr),
        as_weighting(weighting),
        start=lambda x0, step: torch.zeros_like(x0),
        direction=direction,
        receive=receive,
        plain_sgd=True,
    )


class Before(NamedTuple):
    """What DEXTRA keeps of the step before."""

    x: Tensor  #: (n, d)
    mixed: Tensor  #: (n, d) C x
    gradient: Tensor  #: (n, d)


def dextra(lr: Rate, theta: float = 0.5) -> Algorithm:
    """DEXTRA: EXTRA over Push-SUM: exact with one vector, on a graph that never changes.

        x1 = C x0 - lr g(y0),   a' = C a,   y = x / a
        x'' = x' + C x' - ((1 - theta) I + theta C) x - lr (g(y') - g(y))

    The step size must lie in an interval that depends on the graph: too small diverges as well.

    Args:
        lr: step size; the optimizer must be SGD without weight decay, since it is given differences
            of gradients.
        theta: in (0, 1/2].

    >>> import pushsum as ps
    >>> targets = torch.arange(5.0).double()[:, None]
    >>> for lr in (0.2, 0.5):
    ...     *_, last = ps.iterate(dextra(lr), ps.topology.ring(5), lambda y, t: y - targets,
    ...                           torch.zeros(5, 1).double(), steps=300)
    ...     print(bool((last.y - 2).abs().max() < 1e-6))
    False
    True

    Source: Xi and Khan, DEXTRA: a fast algorithm for optimization over directed graphs, IEEE TAC
    2017.
    """
    expected = "DEXTRA's theta lies in (0, 1/2], e.g. theta=0.5"
    checks.number("theta", theta, lambda theta: 0 < theta <= 0.5, expected)

    def start(x0: Tensor, step: Step) -> Before:
        return Before(x0, x0, torch.zeros_like(x0))

    def direction(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Before]:
        g = gradient()
        return g - state.kept.gradient, state.kept._replace(gradient=g)

    def send(state: State, before: Before, move: Tensor, step: Step) -> Sent:
        return Sent(push=(state.x,))

    def receive(state: State, before: Before, move: Tensor, got: Got, step: Step) -> State:
        mixed = got.push[0]
        memory = (1 - theta) * before.x + theta * before.mixed
        x = mixed + (state.x - memory) + move
        return State(x, got.a, Before(state.x, mixed, before.gradient))

    return Algorithm(
        "DEXTRA",
        sgd(lr),
        start=start,
        direction=direction,
        send=send,
        receive=receive,
        static=True,
        plain_sgd=True,
    )


def all_reduce(lr: Rate, momentum: float = 0.0) -> Algorithm:
    """Centralized SGD, as DistributedDataParallel does it: the ceiling to compare with.

        g = mean_i g_i,   m = momentum m + g,   x = x - lr m   at every node alike

    >>> all_reduce(0.1).mean_gradient
    True
    """

    def receive(state: State, carried: Any, move: Tensor, got: Got, step: Step) -> State:
        return State(state.x + move, state.a)

    return Algorithm(
        "AllReduce",
        momentum_sgd(lr, momentum),
        send=lambda state, carried, move, step: Sent(),
        receive=receive,
        mean_gradient=True,
    )
