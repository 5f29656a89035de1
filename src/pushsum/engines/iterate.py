"""`iterate`: a method on a graph sequence, one record per step, all nodes in this process.

What is wrong with the input is said before anything runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pushsum import checks
from pushsum.algorithms import named
from pushsum.engines import tree
from pushsum.engines.engine import Moment, Setup, late_mass
from pushsum.engines.failing.exchange import Faults
from pushsum.engines.failing.standing import Messages, UnderWay, rows_of
from pushsum.engines.simulator import Network
from pushsum.faults import Plan, as_plan
from pushsum.optimizers import OWN, as_maker, torch_rule
from pushsum.protocol import Algorithm, State, hand_out, own_gradient
from pushsum.topology import Topology, as_topology
from pushsum.weighting import dense

KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  #: that x may have

UserGradient = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, eq=False)
class Iterate:
    """What all nodes hold after step t."""

    moment: Moment
    setup: Setup

    @property
    def t(self) -> int:
        """The step."""
        return self.moment.t

    @property
    def state(self) -> State:
        """x, a, and what the method keeps."""
        return self.moment.state

    @property
    def x(self) -> Tensor:
        """(n, d) parameters."""
        return self.state.x

    @property
    def a(self) -> Tensor:
        """(n,) normalizing scalars, float64."""
        return self.state.a

    @property
    def y(self) -> Tensor:
        """(n, d) what the nodes hand out: corrected parameters x / a."""
        return self.moment.y

    @property
    def pushed(self) -> Tensor:
        """(n, d) what was sent of x in step t; minus the x before, the perturbation."""
        return self.moment.pushed

    @property
    def edges(self) -> Tensor:
        """(2, E) senders and receivers of step t; self-loops alone if it was a local move."""
        return self.setup.edges(self.t)

    @property
    def weights(self) -> Tensor:
        """(E,) what was given along each edge, float64."""
        return self.moment.weights.clone()

    @property
    def W(self) -> Tensor:
        """The (n, n) weight matrix of step t; `W[j, i]` is what node i gave to node j."""
        if len(self.weights) == 0:
            raise ValueError(f"step {self.t} has no weights: nothing was pushed along the edges")
        senders, receivers = self.edges
        return dense(len(self.x), senders, receivers, self.weights)

    @property
    def average(self) -> Tensor:
        """(d,) the network's average parameter, the sum of x over the sum of a.

        What is under way counts, and of the nodes those that are there.
        """
        late = self.under_way
        total = self.x.sum(0, dtype=torch.float64) + late.x
        return (total / (self.a.sum() + late.a)).to(self.x.dtype)

    @property
    def under_way(self) -> UnderWay:
        """The sums of x, (d,), and of a that were sent and not yet received."""
        if self._faults is None:
            return UnderWay(*late_mass(self.setup.algorithm, self.state))
        return self._faults.under_way(self.moment)

    @property
    def alive(self) -> Tensor:
        """(n,) bool, which nodes are there; x and a of the others are 0, their y is the last."""
        if self._faults is None:
            return torch.ones(len(self.x), dtype=torch.bool)
        alive: Tensor = self.moment.memory.alive
        return alive

    @property
    def held(self) -> Tensor:
        """(n,) bool, which nodes have too small an a to give anything in the next exchange."""
        if self._faults is None:
            return torch.zeros(len(self.x), dtype=torch.bool)
        return self._faults.held(self.moment)

    @property
    def messages(self) -> Messages:
        """How many messages were sent, lost and late since the start; none without a plan."""
        found: Messages = Messages() if self._faults is None else self.moment.memory.messages
        return found

    @cached_property
    def _faults(self) -> Faults | None:
        return None if self.setup.faults is None else Network(self.setup).faults

    @property
    def personal(self) -> Tensor | None:
        """(n, d) the nodes' personal models, where the method has any."""
        made = self.setup.algorithm.personal
        return None if made is None else made(self.state)


def iterate(
    algorithm: str | Algorithm,
    topology: str | Topology,
    gradient: UserGradient,
    x0: Tensor,
    steps: int,
    after: Iterate | None = None,
    *,
    optimizer: Any = None,
    every: int = 1,
    full_gradient: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
    faults: Plan | str | None = None,
) -> Iterator[Iterate]:
    """Run an algorithm on a graph sequence, one `Iterate` per step.

    Args:
        algorithm: one of `pushsum.algorithms`, or the name of one, whose step size is that of
            `optimizer`.
        topology: one of `pushsum.topology`, or the name of one, of as many nodes as x0 has rows.
        gradient: (y, t) -> (n, d): row i is the gradient that node i takes at its own row of y,
            which is y^(t-1), in step t.
        x0: (n, d), one start per node; its dtype is kept (a is float64 whatever x is).
        steps: how many steps to run.
        after: go on after this record of an earlier run, instead of starting from x0.
        optimizer: a class of torch.optim with its arguments, which takes the place of the
            algorithm's own local optimizer, e.g. functools.partial(torch.optim.AdamW, lr=0.01).
            Each `Iterate` has a copy of its state.
        every: local moves per exchange. In a step without an exchange W is the identity; graphs
            count exchanges.
        full_gradient: (y) -> (n, d), of all samples: for variance-reduced methods.
        seed: of what the algorithm draws at random.
        faults: what fails, one of `pushsum.faults`, e.g. plan(seed=0, loss=0.3); None: nothing.

    >>> import pushsum as ps
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> run = ps.iterate(ps.algorithms.sgp(0.1), ps.topology.ring(3), lambda y, t: y - targets,
    ...                  torch.zeros(3, 1), steps=200)
    >>> *_, last = run
    >>> round(last.average.item(), 3)
    2.0
    """
    checks.count("steps", steps, "the number of steps", least=0)
    if isinstance(algorithm, str) and optimizer is not None:
        algorithm = named(algorithm)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"algorithm = {algorithm!r}: give one of pushsum.algorithms, such as sgp(lr=0.1), or a "
            "name and an optimizer"
        )
    if not callable(gradient):
        raise ValueError(f"gradient = {gradient!r}: give a function (y, t) -> (n, d)")
    rule = None if optimizer is None else torch_rule(as_maker(optimizer))
    if after is not None and not isinstance(after, Iterate):
        raise ValueError(f"after = {after!r}: give what an earlier `iterate` has yielded")
    x0 = _checked_start(x0) if after is None else after.x
    graphs = as_topology(topology, len(x0))
    setup = Setup(algorithm, graphs, rule, every, seed=seed, faults=as_plan(faults))
    network = Network(setup)
    if full_gradient is not None and not callable(full_gradient):
        raise ValueError(f"full_gradient = {full_gradient!r}: give a function (y) -> (n, d)")
    if algorithm.asks == "full" and full_gradient is None:
        raise ValueError(f"{algorithm.name} needs full_gradient, a function of y")
    if after is None:
        if len(x0) != graphs.n:
            expected = f"({graphs.n}, d): one row for each of {graphs.n} nodes"
            raise ValueError(f"x0 has shape {tuple(x0.shape)}, expected {expected}")
        now = network.begin(x0)
    else:
        _refuse_other_run(after, network)
        now = after.moment
    return _steps(network, gradient, full_gradient, now, steps)


def _steps(
    network: Network,
    gradient: UserGradient,
    full: Callable[[Tensor], Tensor] | None,
    now: Moment,
    steps: int,
) -> Iterator[Iterate]:
    for _ in range(steps):
        now = network.advance(now, _Asked(network, gradient, full, now))
        yield Iterate(now, network.setup)


class _Asked:
    """A user's functions as the gradient of one step; they may use what they are given as scratch.

    y is not copied for them, as large as it is: if they write into it, it is computed again.
    """

    def __init__(
        self,
        network: Network,
        function: UserGradient,
        full: Callable[[Tensor], Tensor] | None,
        now: Moment,
    ) -> None:
        self.function, self.of_all, self.now, self.t = function, full, now, now.t + 1
        self.algorithm, faults = network.setup.algorithm, network.faults
        self.point = self.algorithm.gradient_point(now.state, now.y)
        if faults is not None and self.algorithm.point is not None:  # the dead have none
            self.point = rows_of(now.memory.alive, self.point, now.y)
        # whether y can be computed again, and torch counts how often it was written to
        plain = self.algorithm.model is hand_out and self.algorithm.point is None
        self.lends_y = plain and faults is None and not now.y.is_inference()
        # whether somebody keeps gradients, which the function might write over
        own_rule = network.setup.optimizer.name == OWN
        self.copies = own_rule or self.algorithm.direction is not own_gradient

    def __call__(self, point: Tensor | None = None) -> Tensor:
        if point is not None or not self.lends_y:
            return self._gradient((self.point if point is None else point).clone())
        y, before = self.point, self.point._version
        g = self._gradient(y.detach())
        if y._version != before:
            g = g.clone()  # it may be y itself
            y.copy_(self.algorithm.model(self.now.state))
        return g

    def _gradient(self, point: Tensor) -> Tensor:
        g = _checked_gradient(self.function(point, self.t), point, self.t)
        return g.clone() if self.copies else g

    def full(self, point: Tensor) -> Tensor:
        assert self.of_all is not None
        return _checked_gradient(self.of_all(point.clone()), point, self.t).clone()


# --------------------------------------------------------------------------- at the door


def _refuse_other_run(after: Iterate, network: Network) -> None:
    """A record goes on only as what it is a record of."""
    before, now = after.setup, network.setup
    same: dict[str, Callable[[Setup], object]] = {
        "algorithm": lambda setup: setup.algorithm.name,
        "weighting": lambda setup: setup.algorithm.weighting.name,
        "optimizer": lambda setup: setup.optimizer.name,
        "topology": lambda setup: setup.topology.name,
        "every": lambda setup: setup.every,
        "seed": lambda setup: setup.seed,
        "faults": lambda setup: setup.faults,
    }
    otherwise = "go on with the same, or start from after.y"
    for name, of in same.items():
        if of(before) != of(now):
            raise ValueError(
                f"after is a record of a run with {name} {of(before)}, not {of(now)}: {otherwise}"
            )
    graphs, others = now.topology, before.topology
    if graphs is not others and graphs.fingerprint() != others.fingerprint():
        raise ValueError(f"after is a record of a run with other graphs {graphs}: {otherwise}")
    kept = now.begin(after.x, network.nodes).state.kept
    if _shapes(kept) != _shapes(after.state.kept):
        name = now.algorithm.name
        raise ValueError(f"after is a record of {name} with other parameters: {otherwise}")


def _shapes(kept: Any) -> list[tuple[int, ...]]:
    return [tuple(part.shape) for part in tree.leaves(kept)]


def _checked_start(x0: Tensor) -> Tensor:
    try:
        x0 = torch.as_tensor(x0).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"x0 is {type(x0).__name__}, expected a tensor (n, d)") from None
    if x0.ndim != 2 or x0.numel() == 0:
        raise ValueError(f"x0 has shape {tuple(x0.shape)}, expected (n, d): one row per node")
    if x0.dtype not in KINDS or x0.layout != torch.strided:
        raise ValueError(
            f"x0 is {x0.dtype}, {x0.layout}: give dense floating-point numbers, e.g. x0.double()"
        )
    finite = x0.isfinite().all(1)
    if not finite.all():
        node = int((~finite).nonzero()[0])
        raise ValueError(f"x0 of node {node} holds NaN or infinity: start from finite numbers")
    return x0.clone()


def _checked_gradient(g: Tensor, x: Tensor, t: int) -> Tensor:
    try:
        g = torch.as_tensor(g).detach().to_dense().to(x)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"gradient at step {t} is {type(g).__name__}, expected a tensor of {tuple(x.shape)}"
        ) from None
    if g.shape != x.shape:
        raise ValueError(
            f"gradient at step {t} has shape {tuple(g.shape)}, expected {tuple(x.shape)}: "
            "one row per node"
        )
    if not g.sum(1).isfinite().all():  # quick; the sum of finite numbers may overflow, so look
        finite = g.isfinite().all(1)
        if not finite.all():
            node = int((~finite).nonzero()[0])
            raise ValueError(
                f"gradient of node {node} at step {t} holds NaN or infinity: the run has "
                "diverged (try a smaller lr) or the gradient function is at fault"
            )
    return g
