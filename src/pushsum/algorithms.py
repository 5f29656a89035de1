"""SGP, MSGP, SGAP, MSGAP (Algorithm 2), S-ADDOPT, QGM: gradient + exchange = one step.

An algorithm is two pure functions, `init` and `step`. At step t it is given the gradients that
the nodes took at y^(t-1), and it may ask one thing of the world, an exchange. To write another
one, return an `Algorithm` with your own two functions; if it only moves differently between the
exchanges, `descent` with your own `Rule` is enough.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum import protocol
from pushsum.protocol import Exchange
from pushsum.weighting import Matrix, Weighting, as_weighting, is_number, uniform

Rate = float | Callable[[int], float]  #: a step size, or a schedule t -> step size


class State(NamedTuple):
    """The protocol's state and whatever the algorithm keeps beside it at each node."""

    network: protocol.State
    local: Any


@dataclass(frozen=True)
class Algorithm:
    """A method for decentralized optimization over directed graphs.

    Attributes:
        name: how tables call it.
        weighting: how its senders divide what they give.
        vectors: how many d-vectors it sends along each edge in a step.
        init: x0 (n, d) -> the state before step 1.
        step: (state, gradients at y^(t-1), t, exchange) -> the state after step t.
        collective: whether it averages over all nodes instead of using the graph.
    """

    name: str
    weighting: Weighting
    vectors: int
    init: Callable[[Tensor], State]
    step: Callable[[State, Tensor, int, Exchange], State]
    collective: bool = False


class Rule(NamedTuple):
    """How every node, alone, turns its gradient into the perturbation epsilon^(t-1)."""

    init: Callable[[Tensor], Any]  #: x0 (n, d) -> what the rule keeps
    move: Callable[[Any, Tensor, Tensor, int], tuple[Tensor, Any]]
    """(kept, y^(t-1), gradients, t) -> (epsilon (n, d), kept)"""


def sgap(lr: Rate, weighting: str | Weighting | Matrix) -> Algorithm:
    """Stochastic gradient with Adaptive Weighting Push-SUM (Algorithm 2).

        epsilon_i^(t-1) = -lr g_i^(t-1)

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> algorithm = sgap(0.1, ps.weighting.moreau(k=0.1, v=0.1))
    >>> *_, last = ps.iterate(algorithm, ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> round(last.average.item(), 3)
    2.0
    """
    return descent("SGAP", sgd(lr), as_weighting(weighting))


def sgp(lr: Rate) -> Algorithm:
    """Stochastic gradient push: SGAP with the original Push-SUM's uniform weights.

    >>> sgp(0.1).weighting
    uniform
    """
    return descent("SGP", sgd(lr), uniform())


def msgap(lr: Rate, momentum: float, weighting: str | Weighting | Matrix) -> Algorithm:
    """Momentum SGD with Adaptive Weighting Push-SUM (Algorithm 2).

        m_i^(t) = momentum m_i^(t-1) + g_i^(t-1),   epsilon_i^(t-1) = -lr m_i^(t)

    >>> from pushsum import weighting
    >>> msgap(lambda t: 0.1 / t**0.5, 0.8, weighting.lazy(0.5)).weighting  # lr as a schedule
    lazy(c=0.5)
    """
    return descent("MSGAP", momentum_sgd(lr, momentum), as_weighting(weighting))


def msgp(lr: Rate, momentum: float) -> Algorithm:
    """Momentum SGP: MSGAP with the original Push-SUM's uniform weights.

    >>> msgp(0.1, momentum=1.0)
    Traceback (most recent call last):
    ValueError: momentum = 1.0: momentum lies in [0, 1)
    """
    return descent("MSGP", momentum_sgd(lr, momentum), uniform())


def descent(name: str, rule: Rule, weighting: Weighting) -> Algorithm:
    """The algorithm that moves by a rule, then exchanges: one step of Algorithm 1."""

    def init(x0: Tensor) -> State:
        return State(protocol.begin(x0), rule.init(x0))

    def step(state: State, g: Tensor, t: int, exchange: Exchange) -> State:
        perturbation, kept = rule.move(state.local, state.network.y, g, t)
        x_half = state.network.x + perturbation
        del perturbation  # an (n, d) array less during the exchange
        return State(protocol.push_sum(state.network, x_half, t, weighting, exchange), kept)

    return Algorithm(name, weighting, 1, init, step)


def sgd(lr: Rate) -> Rule:
    """epsilon = -lr g."""
    rate = schedule(lr)
    return Rule(lambda x0: None, lambda kept, y, g, t: (-rate(t) * g, None))


def momentum_sgd(lr: Rate, momentum: float) -> Rule:
    """m = momentum m + g,   epsilon = -lr m."""
    rate = schedule(lr)
    _check_momentum(momentum)

    def move(m: Tensor, y: Tensor, g: Tensor, t: int) -> tuple[Tensor, Tensor]:
        m = momentum * m + g
        return -rate(t) * m, m

    return Rule(torch.zeros_like, move)


class Tracking(NamedTuple):
    """What S-ADDOPT keeps at each node."""

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
    rate = schedule(lr)
    weighting = uniform()

    def init(x0: Tensor) -> State:
        return State(protocol.begin(x0), Tracking(torch.zeros_like(x0), torch.zeros_like(x0)))

    def step(state: State, g: Tensor, t: int, exchange: Exchange) -> State:
        network, (tracker, previous) = state
        w = tracker + g - previous
        (mixed, a, tracker), memory, weights = exchange.push(
            t, weighting, (network.x, network.a, w), network.memory
        )
        x = mixed - rate(t) * w
        y = protocol.corrected(x, a)
        return State(
            protocol.State(x, a, y, memory, network.x, weights), Tracking(tracker, g.clone())
        )

    return Algorithm("S-ADDOPT", weighting, 2, init, step)


def qgm(lr: Rate, momentum: float, weighting: str | Weighting | Matrix) -> Algorithm:
    """Quasi-global momentum (Lin et al., 2021) over Push-SUM: momentum of where exchanges lead.

        epsilon_i^(t-1) = -lr (momentum m_i^(t-1) + g_i^(t-1))
        m_i^(t) = momentum m_i^(t-1) + (1 - momentum) (y_i^(t-1) - y_i^(t)) / lr

    A node's own momentum remembers its own data only. The way of its corrected parameter has the
    neighbours' in it, and nothing more is sent. With momentum = 0 it is SGAP.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> algorithm = qgm(0.02, 0.8, ps.weighting.uniform())
    >>> *_, last = ps.iterate(algorithm, ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=400)
    >>> round(last.average.item(), 3)
    2.0
    """
    rate = schedule(lr)
    _check_momentum(momentum)
    rule = as_weighting(weighting)

    def init(x0: Tensor) -> State:
        return State(protocol.begin(x0), torch.zeros_like(x0))

    def step(state: State, g: Tensor, t: int, exchange: Exchange) -> State:
        network, m = state
        gamma = rate(t)
        x_half = network.x - gamma * (momentum * m + g)
        after = protocol.push_sum(network, x_half, t, rule, exchange)
        if gamma == 0:  # nothing to learn from
            return State(after, m)
        # not network.y: whoever took the gradient may have changed it
        y = protocol.corrected(network.x, network.a)
        led = y.sub_(after.y).div_(gamma)
        return State(after, led.lerp_(m, momentum))  # momentum m + (1 - momentum) led

    return Algorithm("QGM", rule, 1, init, step)


def all_reduce(lr: Rate, momentum: float = 0.0) -> Algorithm:
    """Centralized SGD, as DistributedDataParallel does it: the ceiling to compare with.

        g = mean_i g_i,   m = momentum m + g,   x = x - lr m   at every node alike

    >>> all_reduce(0.1).collective
    True
    """
    return centralized("AllReduce", momentum_sgd(lr, momentum))


def centralized(name: str, rule: Rule) -> Algorithm:
    """The algorithm that moves by a rule along the mean of all gradients; no graph, no weights."""

    def init(x0: Tensor) -> State:
        return State(protocol.begin(x0), rule.init(x0))

    def step(state: State, g: Tensor, t: int, exchange: Exchange) -> State:
        network, kept = state
        move, kept = rule.move(kept, network.y, exchange.average(g), t)
        x = network.x + move
        # a copy: whoever takes the gradient may change y
        return State(network._replace(x=x, y=x.clone(), pushed=x), kept)

    return Algorithm(name, uniform(), 1, init, step, collective=True)


def schedule(lr: Rate) -> Callable[[int], float]:
    """A step size as a function of the step."""
    if callable(lr):
        return lr
    if not (is_number(lr) and lr > 0 and isfinite(lr)):
        raise ValueError(f"lr = {lr!r}: a step size is a finite number > 0, or a function of t")
    return lambda t: lr


def _check_momentum(momentum: float) -> None:
    if not (is_number(momentum) and 0 <= momentum < 1):
        raise ValueError(f"momentum = {momentum!r}: momentum lies in [0, 1)")
