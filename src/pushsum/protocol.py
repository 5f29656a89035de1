"""Algorithm 1, the Adaptive Weighting Push-SUM protocol, and the seam it runs over.

Every tensor has a leading node axis: n rows where one process plays all nodes, one row where a
process is one node. All that the protocol asks of the world is an `Exchange`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pushsum.weighting import Weighting


class Pushed(NamedTuple):
    """What the nodes hold after an exchange."""

    values: tuple[Tensor, ...]  #: sum_j w_ij value_j, one tensor for each value that was pushed
    memory: Any  #: the buffers after line 6; only the exchange that made it looks inside
    weights: Tensor  #: (E,) float64, along the edges of the step


class Exchange(Protocol):
    """The world, as an algorithm sees it: push these values along E(t) with W(t).

    An exchange keeps the buffers of Algorithm 1 (in `memory`, handed back and forth, so that a
    state is a value that can be stored and resumed), computes the weights of step t from the
    buffers that step t-1 left, delivers the values, and returns what each node then holds.
    """

    def push(self, t: int, weighting: Weighting, values: Sequence[Tensor], memory: Any) -> Pushed:
        """Lines 3-7 of Algorithm 1. The first of `values` is what the buffers remember."""
        ...

    def average(self, value: Tensor) -> Tensor:
        """The mean over all nodes, at every node: for methods to compare with."""
        ...


class State(NamedTuple):
    """What all nodes hold between two steps."""

    x: Tensor  #: (n, d) parameters, the push-sum numerators
    a: Tensor  #: (n,) float64 normalizing scalars; they sum to the number of nodes for ever
    y: Tensor  #: (n, d) corrected parameters x / a, where gradients are taken
    memory: Any  #: the exchange's buffers
    pushed: Tensor  #: (n, d) what the nodes pushed in the last step, x^(t-1/2)
    weights: Tensor  #: (E,) weights of the last step


def begin(x0: Tensor) -> State:
    """The state before step 1: a = 1, y = x, empty buffers."""
    a = torch.ones(len(x0), dtype=torch.float64, device=x0.device)
    return State(x0, a, x0.clone(), None, x0, torch.empty(0, dtype=torch.float64))


def push_sum(
    state: State, x_half: Tensor, t: int, weighting: Weighting, exchange: Exchange
) -> State:
    """One step of Algorithm 1, after line 2, x^(t-1/2) = x^(t-1) + epsilon^(t-1).

    Lines 3-6   weights from the buffers of step t-1, messages, buffers of step t
    Line 7      a^(t) = W^(t) a^(t-1),   x^(t) = W^(t) x^(t-1/2)
    Line 8      y^(t) = x^(t) / a^(t)
    """
    (x, a), memory, weights = exchange.push(t, weighting, (x_half, state.a), state.memory)
    return State(x, a, corrected(x, a), memory, x_half, weights)


def corrected(x: Tensor, a: Tensor) -> Tensor:
    """The corrected parameter y = x / a.

    >>> corrected(torch.tensor([[3.0, 6.0], [1.0, 1.0]]), torch.tensor([1.5, 0.5])).tolist()
    [[2.0, 4.0], [2.0, 2.0]]
    """
    return x / a[:, None].to(x.dtype)
