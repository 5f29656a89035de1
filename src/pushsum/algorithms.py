"""SGP, MSGP, SGAP, MSGAP (Algorithm 2) and S-ADDOPT: gradient + exchange = one step.

An algorithm is two pure functions, `init` and `step`. At step t it is given the gradients that
the nodes took at y^(t-1), and it may ask one thing of the world, an exchange. To write another
one, return an `Algorithm` with your own two functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum import protocol
from pushsum.protocol import Exchange
from pushsum.weighting import Matrix, Weighting, as_weighting, uniform


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
    """

    name: str
    weighting: Weighting
    vectors: int
    init: Callable[[Tensor], State]
    step: Callable[[State, Tensor, int, Exchange], State]


def sgap(lr: float, weighting: Weighting | Matrix) -> Algorithm:
    """Stochastic gradient with Adaptive Weighting Push-SUM (Algorithm 2).

    epsilon_i^(t-1) = -lr g_i^(t-1)
    """
    return _sgd("SGAP", lr, as_weighting(weighting))


def sgp(lr: float) -> Algorithm:
    """Stochastic gradient push: SGAP with the original Push-SUM's uniform weights."""
    return _sgd("SGP", lr, uniform())


def msgap(lr: float, momentum: float, weighting: Weighting | Matrix) -> Algorithm:
    """Momentum SGD with Adaptive Weighting Push-SUM (Algorithm 2).

    m_i^(t) = momentum m_i^(t-1) + g_i^(t-1),   epsilon_i^(t-1) = -lr m_i^(t)
    """
    return _momentum_sgd("MSGAP", lr, momentum, as_weighting(weighting))


def msgp(lr: float, momentum: float) -> Algorithm:
    """Momentum SGP: MSGAP with the original Push-SUM's uniform weights."""
    return _momentum_sgd("MSGP", lr, momentum, uniform())


class Tracking(NamedTuple):
    """What S-ADDOPT keeps at each node."""

    tracker: Tensor  #: (n, d) the received tracker, W w
    gradient: Tensor  #: (n, d) the gradient of the step before


def s_addopt(lr: float) -> Algorithm:
    """S-ADDOPT: Push-SUM with gradient tracking; it pushes two d-vectors.

        x' = W x - lr w,   a' = W a,   y' = x' / a',   w' = W w + g(y') - g(y),   w^(0) = g(y^(0))

    The gradient at y' is taken at the start of the next step, so that this method, like the
    others, takes exactly one gradient per step.
    """
    _check_rate(lr)
    weighting = uniform()

    def init(x0: Tensor) -> State:
        nothing = torch.zeros_like(x0)
        return State(protocol.begin(x0), Tracking(nothing, nothing))

    def step(state: State, g: Tensor, t: int, exchange: Exchange) -> State:
        network, (tracker, previous) = state
        w = tracker + g - previous
        (mixed, a, tracker), memory, weights = exchange.push(
            t, weighting, (network.x, network.a, w), network.memory
        )
        x = mixed - lr * w
        y = protocol.corrected(x, a)
        return State(protocol.State(x, a, y, memory, network.x, weights), Tracking(tracker, g))

    return Algorithm("S-ADDOPT", weighting, 2, init, step)


def _sgd(name: str, lr: float, weighting: Weighting) -> Algorithm:
    _check_rate(lr)

    def init(x0: Tensor) -> State:
        return State(protocol.begin(x0), None)

    def step(state: State, g: Tensor, t: int, exchange: Exchange) -> State:
        return State(protocol.push_sum(state.network, -lr * g, t, weighting, exchange), None)

    return Algorithm(name, weighting, 1, init, step)


def _momentum_sgd(name: str, lr: float, momentum: float, weighting: Weighting) -> Algorithm:
    _check_rate(lr)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum = {momentum!r}: momentum lies in [0, 1)")

    def init(x0: Tensor) -> State:
        return State(protocol.begin(x0), torch.zeros_like(x0))

    def step(state: State, g: Tensor, t: int, exchange: Exchange) -> State:
        m = momentum * state.local + g
        return State(protocol.push_sum(state.network, -lr * m, t, weighting, exchange), m)

    return Algorithm(name, weighting, 1, init, step)


def _check_rate(lr: float) -> None:
    if not (lr > 0 and isfinite(lr)):
        raise ValueError(f"lr = {lr!r}: a step size is a finite number > 0")
