"""The methods: SGP, MSGP, SGAP, MSGAP (Algorithm 2), S-ADDOPT, QGM, and centralized SGD.

Each is one text, which every engine runs. To write another one, return an `Algorithm` with the
functions that differ from Algorithm 1 (see `pushsum.protocol`), and give it a line in
`pushsum.methods`, or name it as `FILE.py:function` wherever a method is named.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum.methods import ADAPTIVE, METHODS, MOREAU, NAMES, Method, find, takes
from pushsum.optimizers import Rate, Rule, check_momentum, momentum_sgd, sgd
from pushsum.protocol import Algorithm, Got, Gradient, Sent, State, Step, corrected
from pushsum.weighting import Matrix, Weighting, as_weighting

__all__ = [
    "ADAPTIVE",
    "METHODS",
    "NAMES",
    "Algorithm",
    "Got",
    "Gradient",
    "Method",
    "Rate",
    "Rule",
    "Sent",
    "State",
    "Step",
    "all_reduce",
    "momentum_sgd",
    "msgap",
    "msgp",
    "parse",
    "qgm",
    "s_addopt",
    "sgap",
    "sgd",
    "sgp",
    "takes",
]

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


class Tracking(NamedTuple):
    """What gradient tracking keeps at each node."""

    tracker: Tensor  #: (n, d) the received tracker, W w
    gradient: Tensor  #: (n, d) the gradient of the step before


def s_addopt(lr: Rate) -> Algorithm:
    """S-ADDOPT: Push-SUM with gradient tracking; it pushes two d-vectors.

        x' = W x - lr w,   a' = W a,   y' = x' / a',   w' = W w + g(y') - g(y),   w^(0) = g(y^(0))

    The gradient at y' is taken at the start of the next step, so that this method, like the
    others, takes exactly one gradient per step. A constant step size leaves no distance to the
    average behind, however much the nodes differ:

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(s_addopt(0.1), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]
    [2.0, 2.0, 2.0]
    """

    def direction(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Tracking]:
        g, before = gradient(), state.kept
        w = before.tracker + g - before.gradient
        return w, Tracking(w, g)

    def send(state: State, now: Tracking, move: Tensor, step: Step) -> Sent:
        return Sent(push=(state.x, now.tracker))

    def receive(state: State, now: Tracking, move: Tensor, got: Got, step: Step) -> State:
        x, w = got.push
        return State(x + move, got.a, Tracking(w, now.gradient))

    def start(x0: Tensor, step: Step) -> Tracking:
        return Tracking(torch.zeros_like(x0), torch.zeros_like(x0))

    return Algorithm(
        "S-ADDOPT", sgd(lr), start=start, direction=direction, send=send, receive=receive
    )


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


# --------------------------------------------------------------------------- by name


def parse(name: str, **given: Any) -> Algorithm:
    """Make the method of that name of what it takes among the given values.

    >>> parse("msgp", lr=0.1, momentum=0.8, weighting="uniform").name
    'MSGP'
    """
    found = find(name)
    takes = {key: value for key, value in given.items() if key in found.parameters}
    try:
        made = found.function(**takes)
    except TypeError as error:
        raise ValueError(f"algorithm {name}: {error}") from None
    if not isinstance(made, Algorithm):
        raise ValueError(f"algorithm {name}: returned {type(made).__name__}, expected an Algorithm")
    return made
