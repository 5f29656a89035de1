"""One object in a user's own training loop: this process is one node.

It runs the very text of a method that the simulator runs. The user's optimizer is the local
optimizer: before its step the method's direction is put where it looks for the gradient, and what
it changes is the method's move.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple
from warnings import warn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pushsum import __version__, algorithms, protocol, topology
from pushsum.engines import tree
from pushsum.engines.arithmetic import column_blocks
from pushsum.engines.distributed.exchange import Alone, Exchange, Ledger, Memory, Round
from pushsum.engines.distributed.peers import PeerLost, Peers
from pushsum.engines.engine import Known, Setup
from pushsum.engines.gradients import Layout
from pushsum.methods import find
from pushsum.optimizers import Rule
from pushsum.protocol import Algorithm, Sent, State, Step
from pushsum.topology import Topology
from pushsum.weighting import Matrix, Weighting, as_weighting, warnings

WIRES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PIECE = 2**16  #: elements that stay in a core's cache while they are worked on
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  #: of an optimizer


class PushSum:
    """Adaptive Weighting Push-SUM, or another method, in your own loop, one process per node.

    The loop stays as it is. `PushSum` hooks into `optimizer.step()`: after your update it sends
    and mixes parameters. The model's parameters are the corrected ones, y = x / a; the node keeps
    x and a.

        node = ps.PushSum(model, optimizer, topology="exponential")
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()                    # moves, sends, mixes
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
            GradScaler may skip `optimizer.step()`; for methods whose direction is the gradient.
        topology: a name of `pushsum.topology` or a topology of as many nodes as processes.
        weighting: a line like "far-first" or "moreau:k=0.1,v=0.1", one of `pushsum.weighting`, or
            a function; None: the method's own, which is uniform unless it says otherwise.
        algorithm: the name of a method, "s-addopt" for example, or one of `pushsum.algorithms`.
            The optimizer takes the place of the method's own.
        every: local moves per exchange. Graphs count exchanges.
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
        weighting: str | Weighting | Matrix | None = None,
        *,
        algorithm: str | Algorithm = "sgp",
        every: int = 1,
        overlap: bool = False,
        wire: torch.dtype | None = None,
        timeout: float = 300.0,
    ) -> None:
        _refuse_wrapped(model)
        _refuse_unhooked(optimizer)
        if wire is not None and wire not in WIRES:
            raise ValueError(f"wire = {wire}: parameters travel in a float of 16, 32 or 64 bits")
        method = _as_algorithm(algorithm, weighting)
        _refuse_method(method, optimizer, overlap)
        self.algorithm = method
        self._model, self._optimizer = model, optimizer
        self.layout = Layout.of(model)
        named = dict(model.named_parameters())
        self._parameters = [named[name] for name in self.layout.names]
        self._places: dict[Tensor, int] = {p: k for k, p in enumerate(self._parameters)}
        sizes = [p.numel() for p in self._parameters]
        self._starts = [0, *accumulate(sizes)]  #: where in a row each parameter begins, and d
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
            rule = None if optimizer is None else Rule(_nothing, _no_move, name=_kind(optimizer))
            self._setup = Setup(method, self.topology, rule, every, wire=wire)
            self._exchange = Exchange(self._peers, self._setup)
            self._facts = self._things_in_common(first.dtype, wire)
            self._peers.agree(self._facts)
            _warn(warnings(method.weighting, self.topology) if self.rank == 0 else [])
        except BaseException:
            self._peers.leave(0)  # the others need not wait
            raise
        self._begin_run()
        self._hooks: list[Any] = []
        self._early: _Early | None = None
        self._stepping = False
        self._closed = False
        if optimizer is not None:
            if overlap:
                self._early = _Early(self, optimizer)
                self._hooks += self._early.hooks
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    def _begin_run(self) -> None:
        """Before step 1; the arrays of this node are written in place from then on."""
        self.t = 0
        x0 = torch.cat([p.detach().reshape(1, -1) for p in self._parameters], dim=1)
        self._nodes = torch.tensor([self.rank])
        self._state = self.algorithm.init(x0, Step(0, self._nodes, self.n))
        # what `keep_received` holds afterwards is what arrived, so nothing else need be kept
        self._bare = self.algorithm.receive is protocol.keep_received
        self._moves = x0.new_empty(1, 0 if self._bare else self.layout.d)
        self._carried: Any = ()
        self._memory: Memory | None = None
        self._round: Round | Alone | None = None
        self._unsent: list[slice] = []
        self._outs: tuple[tuple[Tensor, ...], ...] = ((), (), ())
        self._gradients: dict[Tensor, Tensor | None] = {}  # the user's own, while ours stand there

    @property
    def weighting(self) -> Weighting:
        """How this node divides what it gives."""
        return self.algorithm.weighting

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
            "algorithm": self.algorithm.name,
            "weighting": self.weighting.name,
            "every": self._setup.every,
            "pushsum": __version__,
            "torch": str(torch.__version__),
        }

    def __repr__(self) -> str:
        return (
            f"PushSum(node {self.rank} of {self.n}, {self.algorithm.name}, {self.topology.name}, "
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
        return float(self._state.a)

    @property
    def ledger(self) -> Ledger:
        """Bytes sent, and where the time of the exchanges went."""
        return self._exchange.ledger

    @torch.no_grad()
    def _before_step(
        self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if self._stepping:
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() began within another step(), perhaps that of "
                "a subclass, or the last one failed: give optimizer=None, and call push() yourself"
            )
        self._stepping = True
        self._refuse_changed_model()
        if self._early is not None:
            self._early.complete(given, named)
        elif self._has_direction:
            self._refuse_hidden_gradients(optimizer, given, named)
            if self.algorithm.mean_gradient:
                self._average_gradients()
            self._direct(self._parameters)

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        self._stepping = False
        for p, g in self._gradients.items():
            p.grad = g
        self._gradients.clear()
        if self._early is None:
            self._begin()
            self._take_up(self._parameters)
        self._finish()

    @torch.no_grad()
    def push(self) -> None:
        """Take up what the optimizer has changed, and exchange: one step of the method."""
        if self._closed:
            raise RuntimeError("this node has left the network: push before close()")
        if self._has_direction:
            raise RuntimeError(
                f"{self.algorithm.name} changes what the optimizer is given: make PushSum with the "
                "optimizer instead of calling push()"
            )
        self._refuse_changed_model()
        self._begin()
        self._take_up(self._parameters)
        self._finish()

    @property
    def _has_direction(self) -> bool:
        """Whether the optimizer is given something else than the gradient."""
        plain = self.algorithm.direction is protocol.own_gradient
        return not plain or self.algorithm.mean_gradient

    def _refuse_changed_model(self) -> None:
        """Parameters that are trained but not pushed would go their own way at every node."""
        if self._closed:
            raise RuntimeError("this node has left the network: step before close()")
        for name, p in zip(self.layout.names, self._parameters, strict=True):
            if p.dtype != self._state.x.dtype:
                raise RuntimeError(
                    f"parameter {name} is {p.dtype}, and was {self._state.x.dtype} when PushSum "
                    "was made: convert the model before"
                )
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

    def _refuse_hidden_gradients(
        self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        name = self.algorithm.name
        if any(callable(value) for value in (*given[1:], *named.values())):
            raise RuntimeError(f"{name} needs the gradient before step(closure): call step()")
        if getattr(optimizer, "grad_scale", None) is not None:
            raise RuntimeError(
                f"{name} needs gradients that are not scaled, and a fused optimizer under a "
                "GradScaler hides the scale: write fused=False"
            )

    # ----------------------------------------------------------------- before the optimizer

    def _step(self, some: slice) -> Step:
        """What the method may know of the step under way, for these columns."""
        step = Step(self.t + 1, self._nodes, self.n)
        if not self.algorithm.plain_sgd or self._optimizer is None:
            return step
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        if len(set(rates)) == 1:
            return step._replace(rate=rates[0])
        row = self._state.x.new_zeros(self.layout.d)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            for p in group["params"]:
                if p in self._places:
                    row[self._columns(p)] = rate
        return step._replace(rate=row[some])

    def _columns(self, p: Tensor) -> slice:
        """Where in a row a parameter lies."""
        k = self._places[p]
        return slice(self._starts[k], self._starts[k + 1])

    def _direct(self, parameters: Iterable[Tensor]) -> None:
        """Put the method's direction where the optimizer looks for the gradient."""
        if self.algorithm.elementwise:
            for p in parameters:
                self._direct_columns(self._columns(p), [p])
        else:
            self._direct_columns(slice(0, self.layout.d), self._parameters)

    def _direct_columns(self, some: slice, parameters: list[Any]) -> None:
        state = tree.columns(self._state, self.layout.d, some)
        slopes = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        g = torch.cat([slope.detach().reshape(1, -1) for slope in slopes], dim=1)
        direction, carried = self.algorithm.direction(state, Known(g), self._step(some))
        self._carry(some, carried)
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, direction[0].split(sizes), strict=True):
            self._gradients.setdefault(p, p.grad)
            p.grad = part.reshape(p.shape).to(p.dtype)

    def _carry(self, some: slice, carried: Any) -> None:
        """Keep what the method carries along until the exchange is over."""
        if not tree.leaves(self._carried) and tree.leaves(carried):
            d = self.layout.d
            self._carried = tree.mapped(
                carried, lambda v: v.new_empty(1, d) if v.ndim == 2 else v.clone()
            )
        places = tree.leaves(tree.columns(self._carried, self.layout.d, some))
        for place, part in zip(places, tree.leaves(carried), strict=True):
            place.copy_(part)

    def _average_gradients(self) -> None:
        """As DistributedDataParallel does."""
        slopes = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        mean = self._exchange.average(torch.cat([g.detach().reshape(1, -1) for g in slopes], dim=1))
        for p, part in zip(self._parameters, self.layout.views(mean[0]).values(), strict=True):
            self._gradients.setdefault(p, p.grad)
            p.grad = part

    # ----------------------------------------------------------------- after the optimizer

    def _begin(self) -> None:
        """The exchange of the step, or that there is none."""
        if self._round is not None:
            return
        kind, d = self._kind_of_message(), self.layout.d
        self._round = self._exchange.round(
            self.t + 1, self._state.a, self._memory, kind, d, last=True, in_place=True
        )
        self._unsent = list(self._round.buckets)
        if not any(self._outs):
            aliased = self._bare and self.algorithm.send is protocol.push_moved
            self._outs = tuple(
                tuple(self._state.x if aliased else value.new_empty(1, d) for value in values)
                for values in kind
            )

    def _kind_of_message(self) -> Sent:
        """What is sent, of one column that stands for all."""
        counts = protocol.what_is_sent(self.algorithm)
        one = self._state.x[:, :1]
        push, pull, mean = counts
        return Sent((one,) * push, (one,) * pull, (one,) * (mean - self.algorithm.mean_gradient))

    def _take_up(self, parameters: Iterable[Tensor]) -> None:
        """Line 2: what the optimizer has changed is the move, and what the method sends of it."""
        if not self.algorithm.elementwise:
            moved = torch.cat([p.detach().reshape(1, -1) for p in self._parameters], dim=1)
            self._take_columns(slice(0, self.layout.d), moved, "the model")
        else:
            for p in parameters:
                first, row = self._columns(p).start, p.detach().reshape(1, -1)
                for piece in column_blocks(row.shape[1], PIECE):
                    some = slice(first + piece.start, first + piece.stop)
                    self._take_columns(some, row[:, piece], self.layout.names[self._places[p]])
        self._send_what_is_ready(0)

    def _take_columns(self, some: slice, moved: Tensor, name: str) -> None:
        d = self.layout.d
        state, carried, outs = tree.columns((self._state, self._carried, self._outs), d, some)
        move = moved - self.algorithm.model(state)
        sent = self.algorithm.send(state, carried, move, self._step(some))
        for place, value in zip(tree.leaves(outs), tree.leaves(tuple(sent)), strict=True):
            if not bool(value.sum().isfinite()) and not bool(value.isfinite().all()):
                self._refuse_infinite(name)
            place.copy_(value)
        if not self._bare:
            self._moves[:, some] = move

    def _refuse_infinite(self, name: str) -> None:
        text = (
            f"node {self.rank} diverged at step {self.t + 1}: {name} is not finite after "
            "optimizer.step(); nothing was sent"
        )
        self._peers.condemn(text)
        raise FloatingPointError(text)

    def _send_what_is_ready(self, known: int) -> None:
        """Buckets leave from the last to the first, once all their columns from `known` on are."""
        assert self._round is not None
        while self._unsent and self._unsent[-1].start >= known:
            bucket = self._unsent.pop()
            self._round.send(bucket, Sent(*tree.columns(self._outs, self.layout.d, bucket)))

    def _finish(self) -> None:
        """Lines 7 and 8, as buckets arrive."""
        assert self._round is not None
        d, shown, a = self.layout.d, len(self._parameters), self._state.a
        for some, got in self._round.arrivals():
            state, carried, move = tree.columns((self._state, self._carried, self._moves), d, some)
            after = self.algorithm.receive(state, carried, move, got, self._step(some))
            places, parts = ((s.x, s.kept) for s in (state, after))
            for place, part in zip(tree.leaves(places), tree.leaves(parts), strict=True):
                place.copy_(part)
            a = after.a
            arrived = next(k for k, first in enumerate(self._starts) if first >= some.start)
            self._show(State(self._state.x, a, self._state.kept), slice(arrived, shown))
            shown = min(arrived, shown)
        self._state = State(self._state.x, a, self._state.kept)
        self._memory = self._round.memory()
        self.t += 1
        self._round = None

    def _show(self, state: State, which: slice = slice(None)) -> None:
        """Line 8: what the model computes with; all parameters, or some of them."""
        if not self.algorithm.elementwise:
            y = self.layout.views(self.algorithm.model(state)[0])
            for p, value in zip(self._parameters, y.values(), strict=True):
                p.data.copy_(value)
            return
        for p in self._parameters[which]:
            first, row = self._columns(p).start, p.data.view(1, -1) if p.is_contiguous() else None
            whole = tree.columns(state, self.layout.d, self._columns(p))
            if row is None:
                p.data.copy_(self.algorithm.model(whole).view(p.shape))
                continue
            for piece in column_blocks(row.shape[1], PIECE):
                some = slice(first + piece.start, first + piece.stop)
                part = tree.columns(state, self.layout.d, some)
                row[:, piece] = self.algorithm.model(part)

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
        """The network's average, the sum of x over the sum of a; all nodes must call it together.

        After the same step, that is: it waits for the others as long as all of them are alive.

        As a state for the model: what is not pushed, like buffers, is this node's own.
        """
        self._peers.meet_after(self.t)
        scalars = self._state.a.to(self._state.x.device, copy=True)
        self._peers.all_reduce(scalars)
        mean = torch.empty_like(self._state.x)
        for some in self._exchange.buckets(self.layout.d):
            total = self._state.x[:, some].double()
            self._peers.all_reduce(total)
            mean[:, some] = total / scalars
        views = self.layout.views(mean[0])
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
        kept, kept_notes = tree.saved(self._state.kept)
        return {
            "node": [self.rank, self.n],
            "facts": self._facts,
            "t": self.t,
            "a": self._state.a.clone(),
            "x": self._state.x[0].clone(),
            "kept": {name: value.clone() for name, value in kept.items()},
            "heard": {name: value.clone() for name, value in tensors.items()},
            "notes": {"kept": kept_notes, "heard": notes},
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
        if "kept" not in state:
            version = state["facts"].get("pushsum", "another version")
            raise ValueError(f"the state is one of pushsum {version}: go on with that version")
        for name, here in self._facts.items():
            saved = state["facts"].get(name)
            if saved != here and name not in ("pushsum", "torch"):
                raise ValueError(f"{name} is {here} here, but {saved} in the state")
        device = self._state.x.device
        moved = {
            part: {name: value.to(device, copy=True) for name, value in state[part].items()}
            for part in ("kept", "heard")
        }
        self.t = state["t"]
        kept = tree.restored(self._state.kept, moved["kept"], state["notes"]["kept"])
        self._state.x.copy_(state["x"][None])
        self._state = State(self._state.x, state["a"].clone(), kept)
        self._memory = self._exchange.restored(moved["heard"], state["notes"]["heard"])
        with torch.no_grad():
            self._show(self._state)

    def _refuse_within_a_step(self) -> None:
        if self._round is not None:
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

    They are moved by the user's optimizer itself, which then sees no other gradients. Buckets
    leave from the last to the first, in the same order at every node.
    """

    def __init__(self, node: PushSum, optimizer: Optimizer) -> None:
        self.node, self.optimizer = node, optimizer
        self.resting = False
        self._ready: set[Tensor] = set()  # gradients that are there
        self._moved: dict[Tensor, _Look] = {}  # and how they looked then
        self._next = len(node._parameters)  # parameters from here on have their gradients
        self.hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(self._gradient_is_there) for p in node._parameters
        ]

    @torch.no_grad()
    def _gradient_is_there(self, p: Tensor) -> None:
        node = self.node
        if self.resting or node._setup.exchange_of(node.t + 1) == 0:
            return
        if p.grad is not None and p.grad.is_sparse:
            raise RuntimeError("overlap: a gradient is sparse: write overlap=False")
        if p in self._ready:
            raise RuntimeError(
                "overlap: a second backward() before optimizer.step(); put all but the last "
                "into `with node.accumulate():`"
            )
        node._begin()
        self._ready.add(p)
        parameters = node._parameters
        while self._next and parameters[self._next - 1] in self._ready:
            self._next -= 1
        known = node._starts[self._next]
        if node._unsent and node._unsent[-1].start >= known:
            self._move(self._ready - self._moved.keys())
            node._send_what_is_ready(known)

    def _move(self, which: set[Tensor]) -> None:
        """The user's optimizer and the method, for some parameters."""
        node = self.node
        looks = {p: _Look.at(p) for p in which}
        if node._has_direction:
            node._direct(which)
        _step_alone(self.optimizer, which)
        for p, look in looks.items():
            self._moved[p] = _Look.at(p, look.gradient)
        for p in which:
            first, row = node._columns(p).start, p.detach().reshape(1, -1)
            for piece in column_blocks(row.shape[1], PIECE):
                some = slice(first + piece.start, first + piece.stop)
                node._take_columns(some, row[:, piece], node.layout.names[node._places[p]])

    @torch.no_grad()
    def complete(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """What no gradient came for; the optimizer itself then finds nothing to do."""
        if any(callable(value) for value in (*given[1:], *named.values())):
            raise RuntimeError("overlap: step(closure) runs backward too late; call step()")
        changed = any(
            before.differs(_Look.at(p, self._gradient(p))) for p, before in self._moved.items()
        )
        if changed:
            raise RuntimeError(
                "overlap: parameters or gradients were changed between backward() and step() "
                "(clipping, a GradScaler, another optimizer), after they were used: write "
                "overlap=False"
            )
        node = self.node
        node._begin()
        self._move(node._places.keys() - self._moved.keys())
        node._send_what_is_ready(0)
        own = {p for group in self.optimizer.param_groups for p in group["params"]}
        for p in own & node._places.keys():  # another optimizer may wait for its own
            node._gradients.setdefault(p, p.grad)
            p.grad = None  # put back after the step
        self._ready.clear()
        self._moved.clear()
        self._next = len(node._parameters)

    def _gradient(self, p: Tensor) -> Tensor | None:
        """The user's own gradient, where the method's stands in its place."""
        return self.node._gradients.get(p, p.grad)


class _Look(NamedTuple):
    """A parameter and its gradient: torch's counts of changes, and a few of their numbers.

    The counts miss what goes through `.data` and what a GradScaler does, the numbers may miss a
    change elsewhere; together they miss little.
    """

    gradient: Tensor | None
    counts: tuple[int, int]
    numbers: Tensor

    @classmethod
    def at(cls, p: Tensor, gradient: Tensor | None = None) -> "_Look":
        g = p.grad if gradient is None else gradient
        both = [p] if g is None else [p, g]
        numbers = [t.detach().reshape(-1)[:: max(1, t.numel() // 8)] for t in both]
        return cls(g, (p._version, both[-1]._version), torch.cat(numbers))

    def differs(self, now: "_Look") -> bool:
        if self.gradient is not now.gradient or self.counts != now.counts:
            return True
        same = (self.numbers == now.numbers) | (self.numbers.isnan() & now.numbers.isnan())
        return not bool(same.all())


def _step_alone(optimizer: Optimizer, which: set[Tensor]) -> None:
    """The optimizer's step for some parameters: it sees no gradient of the others.

    Its hooks, ours among them, and what a schedule has put around `step` are left out.
    """
    others = {
        p: p.grad
        for group in optimizer.param_groups
        for p in group["params"]
        if p not in which and p.grad is not None
    }
    hooks = {name: getattr(optimizer, name) for name in HOOKS}
    counts = _numbers_of(optimizer)
    try:
        for p in others:
            p.grad = None
        for name in HOOKS:
            setattr(optimizer, name, OrderedDict())
        type(optimizer).step(optimizer)
    finally:
        for name, value in hooks.items():
            setattr(optimizer, name, value)
        for p, g in others.items():
            p.grad = g
    for name, value in _numbers_of(optimizer).items():
        if counts.get(name) != value:
            raise RuntimeError(
                f"overlap: {type(optimizer).__name__}.step() changes its {name}, and would "
                "for every part of the parameters: write overlap=False"
            )


def _numbers_of(optimizer: Optimizer) -> dict[str, float]:
    """What an optimizer counts for all parameters together; most count nothing."""
    places: list[dict[str, Any]] = [vars(optimizer), *optimizer.param_groups]
    return {
        name: value
        for place in places
        for name, value in place.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "lr"
    }


def _nothing(x0: Tensor) -> tuple[()]:
    return ()


def _no_move(kept: Any, y: Tensor, g: Tensor, t: int) -> tuple[Tensor, Any]:
    raise AssertionError("the user's optimizer moves")


def _kind(optimizer: Optimizer) -> str:
    return next(kind.__name__ for kind in type(optimizer).__mro__ if _is_of_torch(kind))


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim")


def _as_algorithm(given: str | Algorithm, weighting: str | Weighting | Matrix | None) -> Algorithm:
    """The method; its own step size and momentum are those of the optimizer."""
    if isinstance(given, str):
        weights = find(given).weighting if weighting is None else weighting
        found = algorithms.parse(given, lr=1.0, momentum=0.9, weighting=weights)
    elif isinstance(given, Algorithm):
        found = given
    else:
        raise ValueError(
            f"algorithm = {given!r}: give the name of a method, or one of pushsum.algorithms"
        )
    return found if weighting is None else replace(found, weighting=as_weighting(weighting))


def _refuse_method(method: Algorithm, optimizer: Optimizer | None, overlap: bool) -> None:
    if overlap and optimizer is None:
        raise ValueError("overlap = True needs the optimizer: it moves during backward()")
    if overlap and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "overlap = True: LBFGS moves all parameters at once, from a closure: overlap=False"
        )
    if method.asks != "model" or method.point is not None:
        raise ValueError(
            f"algorithm = {method.name}: it takes gradients elsewhere than at the model, which a "
            "loop of your own does not have: use pushsum.iterate, or `pushsum run`"
        )
    if overlap and (not method.elementwise or method.mean_gradient):
        raise ValueError(
            f"overlap = True: {method.name} looks at all parameters at once: overlap=False"
        )


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
