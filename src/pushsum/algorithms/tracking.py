"""Gradient tracking over Push-SUM: every node follows the average gradient, so no floor remains.

The tracker w starts at the first gradient, is mixed like x, and takes up what a node's own gradient
changes by: the sum of w over the nodes is always the sum of their gradients. With a plain step size
that is what the papers prove. Another optimizer that moves along w (`optimizer=`, AdamW say) is new
ground: nothing is proven there.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pushsum.optimizers import Rate, sgd
from pushsum.protocol import Algorithm, Got, Gradient, Sent, State, Step, corrected

#: (x, g, t) all (n, d): corrected parameters, own gradients, tracked average gradients -> (n, d)
Surrogate = Callable[[Tensor, Tensor, Tensor], Tensor]
Prox = Callable[[Tensor, float], Tensor]  #: (v, s) -> argmin_z G(z) + ||z - v||^2 / (2 s)


class Tracking(NamedTuple):
    """What gradient tracking keeps at each node."""

    tracker: Tensor  #: (n, d) the tracker as it was received
    gradient: Tensor  #: (n, d) the gradient of the step before

    def after(self, g: Tensor) -> "Tracking":
        """w' = W w + g' - g."""
        return Tracking(self.tracker + g - self.gradient, g)


def begin_tracking(x0: Tensor, step: Step) -> Tracking:
    """Zeros, so that the first tracker is the first gradient."""
    return Tracking(torch.zeros_like(x0), torch.zeros_like(x0))


def track(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Tracking]:
    """The direction is the tracker."""
    now = state.kept.after(gradient())
    return now.tracker, now


def add_opt(lr: Rate) -> Algorithm:
    """ADD-OPT: mix, then move along the tracker.

        x' = C x - lr w,   a' = C a,   y' = x' / a',   w' = C w + g(y') - g(y)

    The gradient at y' is taken at the start of the next step, here and in all methods below, so
    that a step takes one gradient. With sampled gradients it is S-ADDOPT.

    Args:
        lr: step size.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(add_opt(0.1), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]
    [2.0, 2.0, 2.0]

    Source: Xi, Xin and Khan, ADD-OPT: accelerated distributed directed optimization, IEEE TAC 2018.
    """

    def send(state: State, now: Tracking, move: Tensor, step: Step) -> Sent:
        return Sent(push=(state.x, now.tracker))

    def receive(state: State, now: Tracking, move: Tensor, got: Got, step: Step) -> State:
        x, w = got.push
        return State(x + move, got.a, Tracking(w, now.gradient))

    return Algorithm(
        "ADD-OPT", sgd(lr), start=begin_tracking, direction=track, send=send, receive=receive
    )


def s_addopt(lr: Rate) -> Algorithm:
    """S-ADDOPT: ADD-OPT, the same text, with sampled gradients.

    Args:
        lr: step size.

    >>> s_addopt(0.1).name
    'S-ADDOPT'

    Source: Qureshi, Xin, Kar and Khan, S-ADDOPT: decentralized stochastic first-order optimization
    over directed graphs, IEEE L-CSS 2021.
    """
    return replace(add_opt(lr), name="S-ADDOPT")


def push_diging(lr: Rate) -> Algorithm:
    """Push-DIGing: move along the tracker, then mix.

        x' = C (x - lr w),   a' = C a,   y' = x' / a',   w' = C w + g(y') - g(y)

    The move is mixed with x, so it is often stable at larger step sizes than ADD-OPT.

    Args:
        lr: step size.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> *_, last = ps.iterate(push_diging(0.2), ps.topology.ring(3), lambda y, t: y - targets,
    ...                       torch.zeros(3, 1), steps=200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]
    [2.0, 2.0, 2.0]

    Source: Nedić, Olshevsky and Shi, Achieving geometric convergence for distributed optimization
    over time-varying graphs, SIAM J. Optim. 2017.
    """

    def send(state: State, now: Tracking, move: Tensor, step: Step) -> Sent:
        return Sent(push=(state.x + move, now.tracker))

    return Algorithm(
        "Push-DIGing",
        sgd(lr),
        start=begin_tracking,
        direction=track,
        send=send,
        receive=_keep_both,
    )


def _keep_both(state: State, now: Tracking, move: Tensor, got: Got, step: Step) -> State:
    x, w = got.push
    return State(x, got.a, Tracking(w, now.gradient))


def sonata(lr: Rate, solve: Surrogate | str = "linear", prox: Prox | None = None) -> Algorithm:
    """SONATA: successive convex approximation, each node going towards a surrogate's minimizer.

        z = solve(x, g, t),   x_half = x + lr (z - x)
        phi' = C phi,   x' = C (phi x_half) / phi',   t' = (C (phi t) + g(x') - g(x)) / phi'

    z minimizes the node's surrogate of the whole objective, for example f~(z) + (t - g)'(z - x) +
    G(z), where f~ has the gradient g at x, and t tracks the average gradient. phi is a, and phi x
    the x of the other methods. With "linear", z = x - t, it is Push-DIGing. A proximal term goes
    with the linear surrogate by `prox`; within a surrogate of your own it is up to you.

    Args:
        lr: how far to go towards z, in (0, 1] in the paper.
        solve: "linear", or a function of x, g and t, all (n, d), one row per node.
        prox: (v, s) -> argmin_z G(z) + ||z - v||^2 / (2 s); the linear surrogate then gives
            z = prox(x - t, 1).

    The mean of (y - target)^2 / 2 + |y|; the prox of |y| is the soft threshold:

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> soft = lambda v, s: v.sign() * (v.abs() - s).clamp(min=0)
    >>> run = ps.iterate(sonata(0.2, prox=soft), ps.topology.ring(3), lambda y, t: y - targets,
    ...                  torch.zeros(3, 1), steps=300)
    >>> [round(y, 3) for y in list(run)[-1].y.flatten().tolist()]
    [1.0, 1.0, 1.0]

    Source: Scutari and Sun, Distributed nonconvex constrained optimization over time-varying
    digraphs, Math. Program. 2019. Their t tracks the sum of gradients; ours tracks the average.
    """
    if solve != "linear" and not callable(solve):
        raise ValueError(
            f"solve = {solve!r}: SONATA needs a surrogate: 'linear', or a function (x, g, t) -> z"
        )
    if prox is not None and not callable(prox):
        raise ValueError(f"prox = {prox!r}: a function (v, s) -> z, from Python only")
    if prox is not None and solve != "linear":
        raise ValueError("prox goes with solve='linear': put the proximal term into your own solve")
    asked, minimizer = "solve", solve if callable(solve) else lambda x, g, t: x - t
    if prox is not None:
        asked, minimizer = "prox", lambda x, g, t: prox(x - t, 1.0)

    def direction(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Tracking]:
        now, y = state.kept.after(gradient()), corrected(state.x, state.a)
        z = minimizer(y, now.gradient, corrected(now.tracker, state.a))
        if not isinstance(z, Tensor) or z.shape != y.shape:
            shown = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"{asked} returned {shown}, expected (n, d) = {tuple(y.shape)}")
        return y - z, now

    def send(state: State, now: Tracking, move: Tensor, step: Step) -> Sent:
        half = state.x + state.a[:, None].to(move) * move
        return Sent(push=(half, now.tracker))

    return Algorithm(
        "SONATA",
        sgd(lr),
        start=begin_tracking,
        direction=direction,
        send=send,
        receive=_keep_both,
        elementwise=not callable(solve) and prox is None,
    )
