"""One object in a user's own training loop: this process is one node."""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple
from warnings import warn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pushsum import __version__, topology
from pushsum.engines.distributed.exchange import Exchange, Ledger, Memory, Step
from pushsum.engines.distributed.peers import PeerLost, Peers
from pushsum.engines.gradients import Layout
from pushsum.topology import Topology
from pushsum.weighting import Matrix, Weighting, as_weighting, warnings

WIRES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PIECE = 2**16  #: elements that stay in a core's cache while they are worked on
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  #: of an optimizer


class PushSum:
    """Adaptive Weighting Push-SUM in your own loop, one process per node.

    The loop stays as it is: whenever `optimizer.step()` has moved the model, the node pushes its
    parameters along the edges of the step and takes up what it receives. The model's parameters
    are the corrected ones, y = x / a; the node keeps x and a.

        node = ps.PushSum(model, optimizer, topology="exponential")
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()                    # moves, pushes, mixes
        node.close()

    Start it with `torchrun`. Every node must take the same number of steps. Without `torchrun` a
    process is one node alone:

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with PushSum(model, optimizer) as node:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(1, 2)).sum().backward()
    ...         optimizer.step()
    ...     print(node.rank, node.n, node.t, node.ledger.bytes)
    0 1 3 0

    Args:
        model: any module; its trainable parameters take part, its buffers stay at home.
        optimizer: any of torch.optim. None: call `push()` yourself after every step, e.g. where a
            GradScaler may skip `optimizer.step()`.
        topology: a name of `pushsum.topology` or a topology of as many nodes as processes.
        weighting: a line like "far-first" or "moreau:k=0.1,v=0.1", one of `pushsum.weighting`, or
            a function.
        overlap: send parameters while the backward pass goes on: each one is moved as soon as its
            gradient is there. Not for loops that look at gradients between `backward()` and
            `step()` (clipping, scaling); accumulate within `accumulate()`.
        wire: the dtype parameters travel in, e.g. torch.bfloat16; None: their own. A sender keeps
            what rounding took, so the network's sum stays; nodes stay about one rounding apart,
            though.
        timeout: seconds of silence after which a peer counts as lost.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        topology: str | Topology = "exponential",
        weighting: str | Weighting | Matrix = "uniform",
        *,
        overlap: bool = False,
        wire: torch.dtype | None = None,
        timeout: float = 300.0,
    ) -> None:
        _refuse_wrapped(model)
        _refuse_unhooked(optimizer)
        if overlap and optimizer is None:
            raise ValueError("overlap = True needs the optimizer: it moves during backward()")
        if overlap and isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "overlap = True: LBFGS moves all parameters at once, from a closure: overlap=False"
            )
        if wire is not None and wire not in WIRES:
            raise ValueError(f"wire = {wire}: parameters travel in a float of 16, 32 or 64 bits")
        self._model, self._optimizer = model, optimizer
        self.layout = Layout.of(model)
        named = dict(model.named_parameters())
        self._parameters = [named[name] for name in self.layout.names]
        self._places: dict[Tensor, int] = {p: k for k, p in enumerate(self._parameters)}
        first = self._parameters[0]
        _refuse_several_devices(self._parameters)
        self._peers = Peers(timeout)
        try:
            if not self._peers.backend_serves(first.device):
                raise ValueError(
                    f"the process group cannot send tensors of {first.device}: "
                    f"initialize it with a back end for {first.device.type}, e.g. nccl for cuda"
                )
            self.topology = _as_topology(topology, self._peers.n)
            self.weighting = as_weighting(weighting)
            self._exchange = Exchange(self._peers, self.topology, wire)
            self._facts = self._things_in_common(first.dtype, wire)
            self._peers.agree(self._facts)
            _warn(warnings(self.weighting, self.topology) if self.rank == 0 else [])
        except BaseException:
            self._peers.leave(0)  # the others need not wait
            raise
        self.t = 0
        self._a = torch.ones(1, dtype=torch.float64)
        self._x = torch.empty(self.layout.d, dtype=first.dtype, device=first.device)
        in_cache = PIECE if first.device.type == "cpu" else self.layout.d
        self._work = self._x.new_empty(min(in_cache, self.layout.d))
        views = self.layout.views(self._x)
        self._rows = [views[name] for name in self.layout.names]
        sizes = [row.numel() for row in self._rows]
        self._starts = [0, *accumulate(sizes)][:-1]  #: where in x each parameter begins
        for p, row in zip(self._parameters, self._rows, strict=True):
            row.copy_(p.detach())
        self._memory: Memory | None = None
        self._step: Step | None = None
        self._hooks: list[Any] = []
        self._early: _Early | None = None
        self._stepping = False
        self._closed = False
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            if overlap:
                self._early = _Early(self, optimizer)
                self._hooks += self._early.hooks
            self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    def _things_in_common(self, dtype: torch.dtype, wire: torch.dtype | None) -> dict[str, Any]:
        """What all nodes must have in common, or messages would not fit."""
        shapes = zip(self.layout.names, self.layout.shapes, strict=True)
        steps = range(1, (self.topology.cycle or 64) + 1)
        graphs = hashlib.sha256()
        for t in steps:
            graphs.update(self.topology.edges(t).numpy().tobytes())
        return {
            "parameters": [[name, *shape] for name, shape in shapes],
            "dtype": str(dtype),
            "wire": str(wire),
            "topology": f"{self.topology.name} {graphs.hexdigest()[:12]}",
            "weighting": self.weighting.name,
            "pushsum": __version__,
            "torch": str(torch.__version__),
        }

    def __repr__(self) -> str:
        return (
            f"PushSum(node {self.rank} of {self.n}, {self.topology.name}, "
            f"{self.weighting.name} weights)"
        )

    # ----------------------------------------------------------------- one step

    @property
    def rank(self) -> int:
        """Which node this process is, 0..n-1."""
        return self._peers.rank

    @property
    def n(self) -> int:
        """How many nodes there are."""
        return self._peers.n

    @property
    def a(self) -> float:
        """This node's normalizing scalar."""
        return float(self._a)

    @property
    def ledger(self) -> Ledger:
        """Bytes sent, and where the time of the exchanges went."""
        return self._exchange.ledger

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._stepping:
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() began within another step(), perhaps that of "
                "a subclass, or the last one failed: give optimizer=None, and call push() yourself"
            )
        self._stepping = True

    def _after_step(self, *_: Any) -> None:
        self._stepping = False
        self.push()

    @torch.no_grad()
    def push(self) -> None:
        """Take up what the optimizer has changed, and exchange: one step of Algorithm 1.

        Line 2      x^(t-1/2) = x^(t-1) + (y_after - y^(t-1))
        """
        if self._closed:
            raise RuntimeError("this node has left the network: push before close()")
        self._refuse_strangers()
        step = self._step or self._begin()
        if self._early is None:
            for p, row in zip(self._parameters, self._rows, strict=True):
                self._take_up(p, row)
            for bucket in reversed(step.buckets):
                step.send(bucket)
        self._finish(step)

    def _refuse_strangers(self) -> None:
        """Parameters that are trained but not pushed would go their own way at every node."""
        if self._optimizer is None:
            trained = list(self._model.parameters())
        else:
            trained = [p for group in self._optimizer.param_groups for p in group["params"]]
        for p in trained:
            if p.requires_grad and p not in self._places:
                raise RuntimeError(
                    f"a parameter of shape {tuple(p.shape)} is trained, but was not a trainable "
                    "one of the model when PushSum was made: make it again after changing the model"
                )

    def _begin(self) -> Step:
        rows = [self._x]
        self._step = Step(
            self._exchange, self.t + 1, self.weighting, self._a, self._memory, rows, rows
        )
        return self._step

    def _take_up(self, p: Tensor, row: Tensor) -> None:
        """Line 2. y is computed as `_show` does it: in half precision any other way loses mass."""
        size = len(self._work)
        moved, own = p.detach().reshape(-1).split(size), row.view(-1).split(size)
        for y, x in zip(moved, own, strict=True):
            before = torch.div(x, self.a, out=self._work[: len(x)])
            x.add_(torch.sub(y, before, out=before))

    def _finish(self, step: Step) -> None:
        hidden = len(self._parameters)
        for bucket in step.arrivals():  # from the last to the first
            self._a = step.a
            arrived = bisect_left(self._starts, bucket.start)
            self._show(slice(arrived, hidden))
            hidden = arrived
        self._memory = step.memory()
        self.t += 1
        self._step = None

    @torch.no_grad()
    def _show(self, which: slice = slice(None)) -> None:
        """Line 8: y = x / a is what the model computes with; all parameters, or some of them."""
        for p, row in zip(self._parameters[which], self._rows[which], strict=True):
            torch.div(row, self.a, out=p.data)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """With `overlap`: backward passes in here only add up gradients."""
        if self._early is None:
            yield
            return
        self._early.resting = True
        try:
            yield
        finally:
            self._early.resting = False

    # ----------------------------------------------------------------- the network

    @torch.no_grad()
    def average(self) -> dict[str, Tensor]:
        """The network's average, the mean of x; all nodes must call it after the same step.

        It waits for the others as long as all of them are alive.

        As a state for the model: what is not pushed, like buffers, is this node's own.
        """
        self._peers.meet_after(self.t)
        total = self._x.to(torch.promote_types(self._x.dtype, torch.float32), copy=True)
        self._peers.all_reduce(total)
        views = self.layout.views(total.div_(self._peers.n).to(self._x.dtype))
        means = dict(zip(self._parameters, views.values(), strict=True))
        own = self._model.state_dict(keep_vars=True)
        for name, value in own.items():
            if isinstance(value, nn.Parameter):
                own[name] = means.get(value, value.detach())
        return own

    # ----------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """This node's part of a checkpoint, besides the model's and the optimizer's own."""
        self._refuse_within_a_step()
        tensors, notes = self._exchange.saved(self._memory)
        return {
            "node": [self.rank, self.n],
            "facts": self._facts,
            "t": self.t,
            "a": self._a.clone(),
            "x": self._x.clone(),
            "heard": {j: x.clone() for j, x in tensors.items()},
            "notes": notes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the model's parameters follow."""
        if list(state["node"]) != [self.rank, self.n]:
            rank, n = state["node"]
            raise ValueError(
                f"the state is that of node {rank} of {n}, this is node {self.rank} of {self.n}: "
                "every node saves and loads a file of its own"
            )
        self._refuse_within_a_step()
        for name, here in self._facts.items():
            saved = state["facts"].get(name)
            if saved != here and name not in ("pushsum", "torch"):
                raise ValueError(f"{name} is {here} here, but {saved} in the state")
        self.t, self._a = state["t"], state["a"].clone()
        self._x.copy_(state["x"])
        heard = {j: x.to(self._x.device) for j, x in state["heard"].items()}
        self._memory = self._exchange.restored(heard, state["notes"])
        self._show()

    def _refuse_within_a_step(self) -> None:
        if self._step is not None:
            raise RuntimeError(
                f"step {self.t + 1} is under way (or was broken off): save and load between "
                "optimizer.step() and backward()"
            )

    # ----------------------------------------------------------------- the end

    def close(self) -> None:
        """Leave: `optimizer.step()` is an ordinary one again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._closed = True
        self._peers.leave(self.t)

    def __enter__(self) -> "PushSum":
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is not None and not isinstance(problem, PeerLost):
            self._peers.condemn(f"node {self.rank} gave up: {problem!r}")
        self.close()


class _Early:
    """Moves parameters as soon as they fill a bucket with gradients, and sends the bucket.

    They are moved by a copy of the user's optimizer that shares its state and knows them alone.
    Buckets leave from the last to the first, in the same order at every node.
    """

    def __init__(self, node: PushSum, optimizer: Optimizer) -> None:
        self.node = node
        self.resting = False
        self._move = _mover(optimizer)
        self._places = node._places
        self._ready: set[Tensor] = set()  # gradients that are there
        self._moved: dict[Tensor, _Look] = {}  # and how they looked then
        self._unsent: list[slice] = []
        self._next = 0  # parameters from here on have their gradients
        self.hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(self._gradient_is_there) for p in node._parameters
        ]
        self.hooks.append(optimizer.register_step_pre_hook(self._before_step))

    @torch.no_grad()
    def _gradient_is_there(self, p: Tensor) -> None:
        if self.resting:
            return
        if p.grad is not None and p.grad.is_sparse:
            raise RuntimeError("overlap: a gradient is sparse: write overlap=False")
        if p in self._ready:
            raise RuntimeError(
                "overlap: a second backward() before optimizer.step(); put all but the last "
                "into `with node.accumulate():`"
            )
        step = self.node._step or self._begin()
        self._ready.add(p)
        parameters, starts = self.node._parameters, self.node._starts
        while self._next and parameters[self._next - 1] in self._ready:
            self._next -= 1
        known = starts[self._next] if self._next < len(starts) else self.node.layout.d
        if self._unsent and self._unsent[-1].start >= known:
            self._take_up()
            while self._unsent and self._unsent[-1].start >= known:
                step.send(self._unsent.pop())

    def _begin(self) -> Step:
        step = self.node._begin()
        self._unsent = list(step.buckets)
        self._next = len(self.node._parameters)
        return step

    def _take_up(self) -> None:
        """Move all parameters whose gradients are there."""
        fresh = self._ready - self._moved.keys()
        self._move(fresh)
        for p in fresh:
            self.node._take_up(p, self.node._rows[self._places[p]])
            self._moved[p] = _Look.at(p)

    @torch.no_grad()
    def _before_step(
        self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """What no gradient came for; the optimizer itself then finds nothing to do."""
        if any(callable(value) for value in (*given[1:], *named.values())):
            raise RuntimeError("overlap: step(closure) runs backward too late; call step()")
        if any(before.differs(_Look.at(p)) for p, before in self._moved.items()):
            raise RuntimeError(
                "overlap: parameters or gradients were changed between backward() and step() "
                "(clipping, a GradScaler, another optimizer), after they were used: write "
                "overlap=False"
            )
        step = self.node._step or self._begin()
        self._ready |= self._places.keys()
        self._take_up()
        while self._unsent:
            step.send(self._unsent.pop())
        own = {p for group in optimizer.param_groups for p in group["params"]}
        for p in own & self._places.keys():  # another optimizer may wait for its own
            p.grad = None
        self._ready.clear()
        self._moved.clear()


class _Look(NamedTuple):
    """A parameter and its gradient: torch's counts of changes, and a few of their numbers.

    The counts miss what goes through `.data` and what a GradScaler does, the numbers may miss a
    change elsewhere; together they miss little.
    """

    gradient: Tensor | None
    counts: tuple[int, int]
    numbers: Tensor

    @classmethod
    def at(cls, p: Tensor) -> "_Look":
        both = [p] if p.grad is None else [p, p.grad]
        numbers = [t.detach().reshape(-1)[:: max(1, t.numel() // 8)] for t in both]
        return cls(p.grad, (p._version, both[-1]._version), torch.cat(numbers))

    def differs(self, now: "_Look") -> bool:
        if self.gradient is not now.gradient or self.counts != now.counts:
            return True
        same = (self.numbers == now.numbers) | (self.numbers.isnan() & now.numbers.isnan())
        return not bool(same.all())


def _mover(optimizer: Optimizer) -> Callable[[set[Tensor]], None]:
    """The user's optimizer for some parameters: it shares what that has, as it is now."""
    alone = object.__new__(type(optimizer))

    def move(which: set[Tensor]) -> None:
        groups = [
            {**group, "params": [p for p in group["params"] if p in which]}
            for group in optimizer.param_groups
        ]
        own = dict(vars(optimizer))
        own.pop("step", None)  # a schedule puts one there that moves the other optimizer
        own |= {name: type(own[name])() for name in HOOKS}
        own["param_groups"] = [group for group in groups if group["params"]]
        vars(alone).clear()
        vars(alone).update(own)
        if alone.param_groups:
            alone.step()
        for name, value in vars(alone).items():
            if own.get(name) is not value:
                raise RuntimeError(
                    f"overlap: {type(optimizer).__name__}.step() changes its {name}, and would "
                    "for every part of the parameters: write overlap=False"
                )

    return move


def _refuse_unhooked(optimizer: Any) -> None:
    if optimizer is not None and not hasattr(optimizer, "_optimizer_step_post_hooks"):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__}, whose steps cannot be followed: give the "
            "optimizer of torch.optim as it was before a library wrapped it"
        )


def _refuse_wrapped(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is a {type(model).__name__}: give the module first, then its optimizer: "
            "PushSum(model, optimizer)"
        )
    if any(isinstance(part, DistributedDataParallel) for part in model.modules()):
        raise ValueError(
            "the model is wrapped in DistributedDataParallel, which averages all gradients: "
            "give the plain module"
        )
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ValueError(f"parameter {name} is not initialized: run the model once before")
        if type(p.data) is not Tensor:
            raise ValueError(
                f"parameter {name} is a {type(p.data).__name__}: sharded models cannot be pushed"
            )


def _refuse_several_devices(parameters: list[nn.Parameter]) -> None:
    devices = sorted({str(p.device) for p in parameters})
    if len(devices) > 1:
        raise ValueError(f"the model lies on {' and '.join(devices)}: one device per node")


def _warn(texts: list[str]) -> None:
    for text in texts:
        warn(text, stacklevel=3)  # at the line that makes the PushSum


def _as_topology(given: str | Topology, n: int) -> Topology:
    graphs = topology.as_topology(given, n)
    if graphs.n != n:
        raise ValueError(f"topology {graphs} has {graphs.n} nodes, but there are {n} processes")
    return graphs
