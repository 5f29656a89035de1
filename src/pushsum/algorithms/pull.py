"""Methods that pull x and push the tracker: no scalar, a stays 1.

R is row stochastic: the receiver averages what it hears, itself included. C is column stochastic:
the sender divides the tracker, by the method's weighting. Distances compare x, which is pulled.
FROST pulls everything.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from pushsum.algorithms.tracking import Tracking, begin_tracking, track
from pushsum.optimizers import Rate, check_momentum, sgd
from pushsum.protocol import Algorithm, Got, Gradient, Sent, State, Step


def ab(lr: Rate) -> Algorithm:
    """AB: pull x and move along the tracker, which is pushed.

        x' = R x - lr w,   w' = C w + g(x') - g(x)

    Where C = R (on regular graphs) it is ADD-OPT.

    Args:
        lr: step size.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(ab(0.1), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()], last.a.tolist()
    ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])

    Source: Xin and Khan, A linear algorithm for optimization over directed graphs with geometric
    convergence, IEEE L-CSS 2018. Weights are uniform, 1 / in-degree and 1 / out-degree.
    """

    def send(state: State, now: Tracking, move: Tensor, step: Step) -> Sent:
        return Sent(pull=(state.x,), push=(now.tracker,))

    def receive(state: State, now: Tracking, move: Tensor, got: Got, step: Step) -> State:
        return State(got.pull[0] + move, state.a, Tracking(got.push[0], now.gradient))

    return Algorithm(
        "AB", sgd(lr), start=begin_tracking, direction=track, send=send, receive=receive
    )


def push_pull(lr: Rate) -> Algorithm:
    """Push-Pull: move along the tracker, then pull x; the tracker is pushed.

        x' = R (x - lr w),   w' = C w + g(x') - g(x)

    Where C = R (on regular graphs) it is Push-DIGing.

    Args:
        lr: step size.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(push_pull(0.2), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]
    [2.0, 2.0, 2.0]

    Source: Pu, Shi, Xu and Nedić, Push-Pull gradient methods for distributed optimization in
    networks, IEEE TAC 2021.
    """

    def send(state: State, now: Tracking, move: Tensor, step: Step) -> Sent:
        return Sent(pull=(state.x + move,), push=(now.tracker,))

    def receive(state: State, now: Tracking, move: Tensor, got: Got, step: Step) -> State:
        return State(got.pull[0], state.a, Tracking(got.push[0], now.gradient))

    return Algorithm(
        "Push-Pull", sgd(lr), start=begin_tracking, direction=track, send=send, receive=receive
    )


class Accelerated(NamedTuple):
    """What accelerated AB keeps beside x."""

    ahead: Tensor  #: (n, d) s, where the gradient is taken
    before: Tensor  #: (n, d) the x before
    tracking: Tracking


def accelerated_ab(lr: Rate, beta: float = 0.0, gamma: float = 0.0) -> Algorithm:
    """AB with heavy-ball and Nesterov momentum.

        x' = R s - lr w + beta (x - x_before),   s' = x' + gamma (x' - x)
        w' = C w + g(s') - g(s)

    gamma = 0 is ABm, beta = 0 is ABN; with both 0 it is AB to the last bit. Nodes hand out x.

    Args:
        lr: step size.
        beta: heavy-ball momentum in [0, 1).
        gamma: Nesterov momentum in [0, 1).

    >>> accelerated_ab(0.1, beta=-0.5)
    Traceback (most recent call last):
    ValueError: beta = -0.5: momentum lies in [0, 1)

    Source: Xin and Khan, Distributed heavy-ball, IEEE TAC 2020; Xin, Jakovetić and Khan,
    Distributed Nesterov gradient methods over arbitrary graphs, IEEE SPL 2019. The order is that
    of AB: one gradient per step, taken at its start.
    """
    check_momentum(beta, "beta")
    check_momentum(gamma, "gamma")

    def start(x0: Tensor, step: Step) -> Accelerated:
        return Accelerated(x0, x0, begin_tracking(x0, step))

    def direction(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Accelerated]:
        now = state.kept.tracking.after(gradient())
        return now.tracker, state.kept._replace(tracking=now)

    def send(state: State, now: Accelerated, move: Tensor, step: Step) -> Sent:
        return Sent(pull=(now.ahead,), push=(now.tracking.tracker,))

    def receive(state: State, now: Accelerated, move: Tensor, got: Got, step: Step) -> State:
        x = got.pull[0] + move + beta * (state.x - now.before)
        ahead = x + gamma * (x - state.x)
        tracking = Tracking(got.push[0], now.tracking.gradient)
        return State(x, state.a, Accelerated(ahead, state.x, tracking))

    return Algorithm(
        "ABm" if gamma == 0 else "ABN" if beta == 0 else "ABmN",
        sgd(lr),
        start=start,
        direction=direction,
        send=send,
        receive=receive,
        point=None if gamma == 0 else lambda state: state.kept.ahead,
    )


def abm(lr: Rate, beta: float = 0.5) -> Algorithm:
    """ABm: AB with heavy-ball momentum, x' = R x - lr w + beta (x - x_before).

    Args:
        lr: step size.
        beta: momentum in [0, 1).

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(abm(0.1, 0.3), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]
    [2.0, 2.0, 2.0]

    Source: see `accelerated_ab`.
    """
    return accelerated_ab(lr, beta=beta)


def abn(lr: Rate, gamma: float = 0.5) -> Algorithm:
    """ABN: AB with Nesterov momentum, x' = R s - lr w, s' = x' + gamma (x' - x).

    The gradient is taken at s, so it does not run in a loop of your own.

    Args:
        lr: step size.
        gamma: momentum in [0, 1).

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(abn(0.1, 0.3), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]
    [2.0, 2.0, 2.0]

    Source: see `accelerated_ab`.
    """
    return accelerated_ab(lr, gamma=gamma)


class Learned(NamedTuple):
    """What FROST keeps beside x."""

    shares: Tensor  #: (n, n) rows of E: they tend to the left Perron vector of R
    tracking: Tracking


def frost(lr: Rate) -> Algorithm:
    """FROST: pull only; every node learns its share of the average by itself.

        E' = R E, E0 = I,   x' = R x - lr w,   w' = R w + g(x') / E'_ii - g(x) / E_ii

    E_ii tends to about 1 / n, so the step size is about n times smaller than that of other methods.
    For a graph that never changes.

    Args:
        lr: step size.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(frost(0.03), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=300)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]
    [2.0, 2.0, 2.0]

    Source: Xin, Xi and Khan, FROST: fast row-stochastic optimization with uncoordinated step-sizes,
    EURASIP JASP 2019. A row of E travels as vectors of d numbers, the last one filled up with
    zeros: where n <= d, as one more vector.
    """

    def start(x0: Tensor, step: Step) -> Learned:
        return Learned(one_hot(step.nodes, step.n).to(x0), begin_tracking(x0, step))

    def direction(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Learned]:
        g, before = gradient(), state.kept
        own = before.shares.gather(1, step.nodes.to(g.device)[:, None])
        now = before.tracking.after(g / own)
        return now.tracker, before._replace(tracking=now)

    def send(state: State, now: Learned, move: Tensor, step: Step) -> Sent:
        d = state.x.shape[1]
        rows = pad(now.shares, (0, -step.n % d)).split(d, dim=1)
        return Sent(pull=(state.x, now.tracking.tracker, *rows))

    def receive(state: State, now: Learned, move: Tensor, got: Got, step: Step) -> State:
        x, w, *rows = got.pull
        shares = torch.cat(rows, dim=1)[:, : step.n].contiguous()
        return State(x + move, state.a, Learned(shares, Tracking(w, now.tracking.gradient)))

    return Algorithm(
        "FROST",
        sgd(lr),
        start=start,
        direction=direction,
        send=send,
        receive=receive,
        elementwise=False,
        static=True,
    )
