"""Variance reduction: sampled gradients, corrected by full ones that are taken now and then."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pushsum.algorithms.tracking import Tracking, add_opt, begin_tracking
from pushsum.checks import is_number
from pushsum.optimizers import Rate, sgd
from pushsum.protocol import Algorithm, Got, Gradient, Sent, State, Step, corrected
from pushsum.randomness import uniforms


class Reduced(NamedTuple):
    """What variance reduction keeps beside the tracker."""

    tracking: Tracking
    snapshot: Tensor  #: (n, d) tau
    full: Tensor  #: (n, d) the gradient of all samples there; NaN: not taken yet


def push_lsvrg_up(lr: Rate, p: float | Sequence[float] = 0.1) -> Algorithm:
    """Push-LSVRG-UP: ADD-OPT on variance-reduced gradients: sampled, and yet without a floor.

        v = g_s(y) - g_s(tau) + full(tau),   tau = y with probability p_i, each node its own coin
        x' = C x - lr w,   a' = C a,   w' = C w + v' - v

    It takes two gradients of the batch per step, and now and then one of all samples: `iterate`
    has `full_gradient=` for that.

    Args:
        lr: step size.
        p: how probable it is that a node takes the full gradient in a step; one for all, or one
            per node.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0, 2.0], [1.0, 3.0], [4.0, 8.0]])  # two samples per node
    >>> run = ps.iterate(push_lsvrg_up(0.05, p=0.5), ps.topology.ring(3),
    ...                  lambda y, t: y - targets[:, t % 2, None], torch.zeros(3, 1), steps=600,
    ...                  full_gradient=lambda y: y - targets.mean(1, keepdim=True))
    >>> [round(y, 3) for y in list(run)[-1].y.flatten().tolist()]
    [3.0, 3.0, 3.0]

    Source: Hu et al., Push-LSVRG-UP: distributed stochastic optimization over unbalanced directed
    networks with uncoordinated triggered probabilities, IEEE TNSE 2023. The coin of a step is
    thrown before its gradient is taken.
    """
    given = np.ravel(p).tolist()
    chances = np.array([value if is_number(value) else np.nan for value in given], dtype=float)
    if not ((chances > 0) & (chances <= 1)).all():
        raise ValueError(f"p = {p!r}: a probability in (0, 1], or one per node")
    base = add_opt(lr)

    def start(x0: Tensor, step: Step) -> Reduced:
        if len(chances) not in (1, step.n):
            raise ValueError(f"p has {len(chances)} values for {step.n} nodes: give one per node")
        return Reduced(begin_tracking(x0, step), x0, torch.full_like(x0, torch.nan))

    def direction(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Reduced]:
        y, before = corrected(state.x, state.a), state.kept
        heads = uniforms(step.seed, "coin", step.t, shape=(step.n,)) < chances
        coin = torch.from_numpy(heads)[step.nodes][:, None].to(y.device)
        coin = coin | before.full.isnan().any(1, keepdim=True)
        snapshot = torch.where(coin, y, before.snapshot)
        full = before.full
        if bool(coin.any()):
            full = torch.where(coin, gradient.full(snapshot), full)
        v = gradient() - gradient(snapshot) + full
        now = before.tracking.after(v)
        return now.tracker, Reduced(now, snapshot, full)

    def send(state: State, now: Reduced, move: Tensor, step: Step) -> Sent:
        return base.send(state, now.tracking, move, step)

    def receive(state: State, now: Reduced, move: Tensor, got: Got, step: Step) -> State:
        after = base.receive(state, now.tracking, move, got, step)
        return after._replace(kept=now._replace(tracking=after.kept))

    return Algorithm(
        "Push-LSVRG-UP",
        sgd(lr),
        start=start,
        direction=direction,
        send=send,
        receive=receive,
        asks="full",
    )
