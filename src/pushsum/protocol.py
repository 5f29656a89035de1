"""The seam between methods and networks: a method never calls the network.

A step has two outside events, the local optimizer and the network. A method is the pure functions
around them:

    direction   (state, gradient, step)           -> (what the optimizer is given, carried along)
       [optimizer: a rule of `pushsum.optimizers`, or any of torch.optim, makes a move of it]
    send        (state, carried, move, step)      -> Sent
       [network: one exchange]
    receive     (state, carried, move, got, step) -> state
    model       (state)                           -> what each node hands out, y

Every tensor has a leading node axis: n rows where one process plays all nodes, one row where a
process is one node. Without functions of its own a method is Algorithm 1 of the paper: move, push
x^(t-1/2) = x^(t-1) + epsilon^(t-1) and a, keep what arrives, hand out y = x / a.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from pushsum.optimizers import Rule
from pushsum.weighting import Weighting, uniform


class State(NamedTuple):
    """What all nodes hold between two steps; a value, never changed in place."""

    x: Tensor  #: (n, d) parameters, the push-sum numerators
    a: Tensor  #: (n,) float64 normalizing scalars; they always sum to the number of nodes
    kept: Any = ()  #: what the method keeps beside them: tensors, in tuples


class Sent(NamedTuple):
    """What the nodes send in one exchange; all (n, d)."""

    push: tuple[Tensor, ...] = ()  #: the sender divides, mass is conserved; a travels along
    pull: tuple[Tensor, ...] = ()  #: the receiver averages
    mean: tuple[Tensor, ...] = ()  #: the exact average over all nodes

    @property
    def compared(self) -> Tensor | None:
        """What distances compare: x, wherever it travels."""
        return next(iter((*self.pull, *self.push)), None)


class Got(NamedTuple):
    """What the nodes hold after an exchange, in the order of what they sent."""

    a: Tensor  #: (n,) float64, sum_j w_ij a_j
    push: tuple[Tensor, ...] = ()  #: sum_j w_ij value_j
    pull: tuple[Tensor, ...] = ()  #: mean over the nodes j that i heard, itself among them
    mean: tuple[Tensor, ...] = ()
    kept: Tensor = torch.ones(1, dtype=torch.float64)
    """(n,) w_ii, what each node kept of what it pushed; 1 where nothing travelled"""


class Underway(NamedTuple):
    """What was sent and has not arrived, by the step in which it will: the next one first."""

    x: tuple[Tensor, ...]  #: each (n, d), a row for each receiver
    a: tuple[Tensor, ...]  #: each (n,)


class Step(NamedTuple):
    """What a method may know of a step."""

    t: int  #: from 1 on; 0 where a run begins
    nodes: Tensor  #: (n,) which nodes the rows are
    n: int  #: how many nodes there are in all
    rate: float | Tensor = 0.0  #: the step size of the local optimizer, or (1, d) step sizes
    seed: int = 0  #: of what a method draws at random


class Gradient(Protocol):
    """Gradients of the nodes' losses on the batches of the step; the result is the caller's."""

    def __call__(self, point: Tensor | None = None) -> Tensor:
        """(n, d) at a point, one row per node; None: where the method's `point` is."""
        ...

    def full(self, point: Tensor) -> Tensor:
        """The gradients of all samples, not of a batch; for variance-reduced methods."""
        ...


def own_gradient(state: State, gradient: Gradient, step: Step) -> tuple[Tensor, Any]:
    """The direction is the gradient."""
    return gradient(), ()


def push_moved(state: State, carried: Any, move: Tensor, step: Step) -> Sent:
    """Line 2: x^(t-1/2) = x^(t-1) + epsilon^(t-1) is pushed."""
    return Sent(push=(state.x + move,))


def keep_received(state: State, carried: Any, move: Tensor, got: Got, step: Step) -> State:
    """Line 7: a^(t) = W^(t) a^(t-1),   x^(t) = W^(t) x^(t-1/2)."""
    return State(got.push[0], got.a, carried)


def hand_out(state: State) -> Tensor:
    """Line 8: y^(t) = x^(t) / a^(t)."""
    return corrected(state.x, state.a)


@dataclass(frozen=True)
class Algorithm:
    """A method for decentralized optimization over directed graphs.

    Attributes:
        name: how tables call it.
        optimizer: how every node, alone, makes a move of a direction; another may take its place.
        weighting: how its senders divide what they push.
        start: (x0, step 0) -> what the method keeps before step 1.
        direction, send, receive, model: see above.
        point: where the gradient is taken; None: at the model.
        personal: (state) -> (n, d), the nodes' personal models; None: it has none.
        asks: the gradient "model": once per step, at the model; "points": elsewhere, or more than
            once; "full": that of all samples, too.
        elementwise: whether a column of what it computes depends on that column alone, so that
            columns may be taken some at a time.
        static: whether it is for a graph that never changes.
        mean_gradient: whether gradients are averaged over all nodes before `direction`.
        plain_sgd: whether the local optimizer must be SGD: the method looks at `Step.rate`.
        late: after how many steps it uses what was sent; modelled time hides transfers in them.
        holds_mass: whether what it keeps is mass on its way to the nodes, an `Underway`.
    """

    name: str
    optimizer: Rule
    weighting: Weighting = field(default_factory=uniform)
    start: Callable[[Tensor, Step], Any] = lambda x0, step: ()
    direction: Callable[[State, Gradient, Step], tuple[Tensor, Any]] = own_gradient
    send: Callable[[State, Any, Tensor, Step], Sent] = push_moved
    receive: Callable[[State, Any, Tensor, Got, Step], State] = keep_received
    model: Callable[[State], Tensor] = hand_out
    point: Callable[[State], Tensor] | None = None
    personal: Callable[[State], Tensor] | None = None
    asks: Literal["model", "points", "full"] = "model"
    elementwise: bool = True
    static: bool = False
    mean_gradient: bool = False
    plain_sgd: bool = False
    late: int = 0
    holds_mass: bool = False

    def init(self, x0: Tensor, step: Step) -> State:
        """The state before step 1: a = 1."""
        a = torch.ones(len(x0), dtype=torch.float64, device=x0.device)
        return State(x0, a, self.start(x0, step))

    def gradient_point(self, state: State, y: Tensor) -> Tensor:
        """Where the gradient is taken, given what the model hands out."""
        return y if self.point is None else self.point(state)


def corrected(x: Tensor, a: Tensor) -> Tensor:
    """The corrected parameter y = x / a; below float32 it is divided in float32, and then rounded.

    >>> corrected(torch.tensor([[3.0, 6.0], [1.0, 1.0]]), torch.tensor([1.5, 0.5])).tolist()
    [[2.0, 4.0], [2.0, 2.0]]
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    return (x.to(kind) / a[:, None].to(kind)).to(x.dtype)


def what_is_sent(algorithm: Algorithm, n: int = 2, d: int = 2) -> tuple[int, int, int]:
    """How many vectors one of n nodes pushes, pulls and averages in an exchange of d numbers."""
    width = min(n, d) if algorithm.elementwise else d  # of wider ones there are as many
    zeros = torch.zeros(1, width, dtype=torch.float64)
    step = Step(1, torch.arange(1), n)
    state = algorithm.init(zeros, step._replace(t=0))
    direction, carried = algorithm.direction(state, Known(zeros), step)
    sent = algorithm.send(state, carried, torch.zeros_like(direction), step)
    return len(sent.push), len(sent.pull), len(sent.mean) + algorithm.mean_gradient


@dataclass(frozen=True, eq=False)
class Known:
    """A gradient that is the same everywhere, or is known already."""

    g: Tensor

    def __call__(self, point: Tensor | None = None) -> Tensor:
        return self.g

    def full(self, point: Tensor) -> Tensor:
        return self.g
