"""What every engine does alike: what a run is made of, and what changes from step to step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pushsum import checks
from pushsum.faults import Plan
from pushsum.optimizers import Rule
from pushsum.protocol import Algorithm, Gradient, State, Step
from pushsum.topology import Topology


class Moment(NamedTuple):
    """All that changes from step to step; a value, from which a run may go on more than once."""

    t: int
    state: State
    y: Tensor  #: (n, d) what the nodes hand out
    optimizer: Any  #: what the local optimizer keeps
    memory: Any  #: what the exchange remembers; only the engine that made it looks inside
    pushed: Tensor  #: (n, d) what was sent last of x
    weights: Tensor  #: (E,) float64, along the edges of the last exchange


HEAD = 24  #: bytes in front of what is sent along an edge: step, a and w


class Engine(Protocol):
    """It carries a method's state from step to step, and counts what that costs."""

    @property
    def seconds(self) -> dict[str, float]:
        """What the exchanges have cost so far, by phase."""
        ...

    @property
    def bytes(self) -> int:
        """What the nodes of this process have sent so far."""
        ...

    @property
    def collective(self) -> bool:
        """Whether all exchanges are by all-reduce instead of by messages along the edges."""
        ...

    def begin(self, x0: Tensor) -> Moment:
        """Before step 1."""
        ...

    def advance(self, now: Moment, gradient: Gradient, last: bool = False) -> Moment:
        """One step. `now` stays as it is, unless it is used for the last time."""
        ...

    def saved(self, memory: Any) -> tuple[dict[str, Tensor], Any]:
        """What an exchange remembers as named tensors and JSON."""
        ...

    def restored(self, tensors: Mapping[str, Tensor], notes: Any) -> Any:
        """The memory that was saved."""
        ...


@dataclass(frozen=True, eq=False)
class Setup:
    """What a run is made of, besides its gradients.

    Attributes:
        algorithm: the method.
        topology: who sends to whom.
        rule: the local optimizer; None: the method's own.
        every: local moves per exchange; graphs and buffers count exchanges.
        start: the step after which the method and the sequence of graphs begin.
        wire: the dtype that vectors travel in; None: their own. A sender keeps what rounding took
            from the receivers, so that the network's sum stays what it was.
        seed: of what the method draws at random.
        faults: what fails, in the simulator; None: nothing.
    """

    algorithm: Algorithm
    topology: Topology
    rule: Rule | None = None
    every: int = 1
    start: int = 0
    wire: torch.dtype | None = None
    seed: int = 0
    faults: Plan | None = None

    def __post_init__(self) -> None:
        algorithm, topology = self.algorithm, self.topology
        checks.count("every", self.every, "the number of local moves per exchange")
        if algorithm.static and topology.cycle != 1:
            raise ValueError(
                f"{algorithm.name} is for a graph that never changes, and {topology} changes: "
                "take another method, such as S-ADDOPT or Push-Pull"
            )
        if algorithm.static and self.every > 1:
            raise ValueError(
                f"every = {self.every}: {algorithm.name} exchanges in every step: write every=1, "
                "or take another method, such as S-ADDOPT"
            )
        if algorithm.plain_sgd and self.rule is not None and self.rule.name != "SGD":
            raise ValueError(
                f"{algorithm.name} must know what a step size is: optimizer SGD, not "
                f"{self.rule.name}"
            )
        _ = topology.period  # raises here if the graphs do not connect the nodes

    @property
    def optimizer(self) -> Rule:
        """The local optimizer."""
        return self.rule or self.algorithm.optimizer

    def begin(self, x0: Tensor, nodes: Tensor) -> Moment:
        """Before step 1, at these nodes."""
        state = self.algorithm.init(x0, self.step(self.start, nodes))
        nothing = torch.empty(0, dtype=torch.float64)
        y, kept = self.algorithm.model(state), self.optimizer.start(x0)
        return Moment(self.start, state, y, kept, None, x0, nothing)

    def step(self, t: int, nodes: Tensor) -> Step:
        """What the method may know of a step at these nodes."""
        rate = self.optimizer.rate(t) if t > self.start else 0.0
        return Step(t, nodes, self.topology.n, rate, self.seed)

    def exchange_of(self, t: int) -> int:
        """Which exchange step t ends with, from 1 on; 0 if it is a local move."""
        return (t - self.start) // self.every if (t - self.start) % self.every == 0 else 0

    def edges(self, t: int) -> Tensor:
        """(2, E) the edges of step t; self-loops alone if it is a local move."""
        exchange = self.exchange_of(t)
        if exchange == 0:
            return torch.arange(self.topology.n).expand(2, -1)
        return self.topology.edges(exchange)


def average(x: Tensor, a: Tensor) -> Tensor:
    """(d,) the network's average parameter: the sum of x over the sum of a, added up in float64."""
    return (x.sum(0, dtype=torch.float64) / a.sum()).to(x.dtype)


def with_late(algorithm: Algorithm, state: State) -> tuple[Tensor, Tensor]:
    """x and a of the nodes, with what the method keeps that is on its way to them."""
    if not algorithm.holds_mass:
        return state.x, state.a
    return sum(state.kept.x, start=state.x), sum(state.kept.a, start=state.a)


def late_mass(algorithm: Algorithm, state: State) -> tuple[Tensor, float]:
    """The sums of x, (d,) float64, and of a that the method keeps, on their way to the nodes."""
    x = torch.zeros(state.x.shape[1], dtype=torch.float64, device=state.x.device)
    if not algorithm.holds_mass:
        return x, 0.0
    parts = (part.sum(0, dtype=torch.float64) for part in state.kept.x)
    return sum(parts, start=x), float(sum(part.sum() for part in state.kept.a))


def refuse_tiny(a: Tensor, kind: torch.dtype, nodes: Sequence[int], t: int) -> None:
    """ValueError if x = a y is so small that its dtype cuts its digits, and y = x / a is wrong.

    What is sqrt(eps) times as large as a number of size 1 should still have all of them.
    """
    number = torch.finfo(kind)
    smallest = a.min()
    if smallest < number.tiny / number.eps**0.5:
        raise ValueError(
            f"node {nodes[int(a.argmin())]} has a = {float(smallest):.1e} after step {t}, too "
            f"small for {str(kind).removeprefix('torch.')}: y = x / a would be wrong; let it hear "
            "from more nodes" + ", or compute in float64" * (kind != torch.float64)
        )
