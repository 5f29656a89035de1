"""One object in a user's own training loop: this process is one node.

It runs the very text of a method that the simulator runs. The user's optimizer is the local
optimizer: before its step the method's direction is put where it looks for the gradient, and what
it changes is the method's move.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any
from warnings import warn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pushsum.engines import tree
from pushsum.engines.arithmetic import column_blocks
from pushsum.engines.distributed import door
from pushsum.engines.distributed.buffers import Memory
from pushsum.engines.distributed.exchange import Exchange, NodeStep
from pushsum.engines.distributed.overlap import Overlap
from pushsum.engines.distributed.peers import PeerLost, Peers
from pushsum.engines.engine import Setup, with_late
from pushsum.engines.gradients import Layout
from pushsum.protocol import Algorithm, Known, Sent, State, Step, hand_out
from pushsum.topology import Topology
from pushsum.weighting import Matrix, Weighting, warnings

PIECE = 2**18  #: elements that stay in a core's cache while they are worked on


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
        broadcast: start all nodes from node 0's parameters. False: each starts from its own, and
            node 0 warns if they differ.
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
        broadcast: bool = False,
        timeout: float = 300.0,
    ) -> None:
        door.check_model(model)
        door.check_wire(wire)
        self.algorithm = door.as_algorithm(algorithm, weighting)
        door.check_optimizer(optimizer, self.algorithm, overlap)
        self._model, self._optimizer = model, optimizer
        self.layout = Layout.of(model)
        named = dict(model.named_parameters())
        self._parameters: list[Tensor] = [named[name] for name in self.layout.names]
        ends = pairwise(accumulate((p.numel() for p in self._parameters), initial=0))
        self._columns = {p: slice(*both) for p, both in zip(self._parameters, ends, strict=True)}
        x0 = _row(self._parameters)
        self._peers = Peers(timeout)
        self.rank, self.n = self._peers.rank, self._peers.n  #: which node this is, of how many
        self.weighting = self.algorithm.weighting  #: how it divides what it gives
        try:
            door.check_device(x0.device, self._peers)
            self.topology = door.as_topology(topology, self.n)
            self._setup = Setup(self.algorithm, self.topology, every=every, wire=wire)
            self._exchange = Exchange(self._peers, self._setup)
            self.ledger = self._exchange.ledger  #: bytes sent, and where their time went
            self._facts = door.facts(self.layout, x0.dtype, self._setup)
            self._peers.agree(self._facts | {"broadcast": broadcast})
            notes = warnings(self.weighting, self.topology)
            if broadcast:
                self._peers.broadcast(x0)
            else:
                notes += self._differences(x0)
            for text in notes if self.rank == 0 else ():
                warn(text, stacklevel=2)  # at the line that makes the PushSum
        except BaseException:
            self._peers.leave(0)  # the others need not wait
            raise
        self.t = 0
        self._state = tree.Assembly(self.layout.d, copies=True)  # is written over in every step
        began = self.algorithm.init(x0, Step(0, self._exchange.nodes, self.n))
        self._state.whole = tree.mapped(torch.clone, began)  # a method may keep x0 more than once
        self._step = NodeStep(self._exchange, self.layout.d, again=True)
        self._under_way = self._stepping = self._accumulating = self._closed = False
        self._memory: Memory | None = None
        self._own_gradients: dict[Tensor, Tensor | None] = {}  # where the method's stand now
        self._overlap: Overlap | None = None
        self._hooks: list[Any] = []
        if broadcast:
            self._write_model(self._parameters)
        if optimizer is not None and overlap:
            self._overlap = Overlap(optimizer, self._parameters, self._send_early, self._rests)
            self._hooks += self._overlap.hooks
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    def _differences(self, x0: Tensor) -> list[str]:
        if self.n == 1:
            return []
        own = hashlib.sha256(x0.view(torch.uint8).cpu().numpy().tobytes()).hexdigest()
        first, *others = self._peers.all_gather(own)
        apart = [node for node, other in enumerate(others, 1) if other != first]
        return [
            f"node {node} starts from other parameters than node 0: build the model from the same "
            "seed everywhere, or write broadcast=True to start from those of node 0"
            for node in apart[:1]
        ]

    def __repr__(self) -> str:
        return (
            f"PushSum(node {self.rank} of {self.n}, {self.algorithm.name}, {self.topology.name}, "
            f"{self.weighting.name} weights)"
        )

    @property
    def a(self) -> float:
        """This node's normalizing scalar."""
        return float(self._state.whole.a)

    # ----------------------------------------------------------------- one step

    @torch.no_grad()
    def push(self) -> None:
        """Take up what the optimizer has changed, and exchange: one step of the method."""
        if self._closed:
            raise RuntimeError("this node has left the network: push before close()")
        if self._directs:
            raise RuntimeError(
                f"{self.algorithm.name} changes what the optimizer is given: make PushSum with the "
                "optimizer instead of calling push()"
            )
        self._refuse_changed_model()
        self._exchange_all()

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
        if self._overlap is None and not self._directs:
            return
        if any(callable(value) for value in (*given[1:], *named.values())):
            name = self.algorithm.name if self._overlap is None else "overlap"
            raise RuntimeError(f"{name}: step(closure) runs backward too late; call step()")
        if self._overlap is not None:
            self._complete(self._overlap)
            return
        if getattr(optimizer, "grad_scale", None) is not None:
            raise RuntimeError(
                f"{self.algorithm.name} needs gradients that are not scaled, and a fused optimizer "
                "under a GradScaler hides the scale: write fused=False"
            )
        if self.algorithm.mean_gradient:  # as DistributedDataParallel does
            g = _row([_gradient(p) for p in self._parameters])
            self._refuse_infinite(slice(0, self.layout.d), Sent(mean=(g,)), gradients=True)
            self._give(self._parameters, self._exchange.average(g))
        self._begin()
        self._direct(self._parameters)

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        self._stepping = False
        for p, g in self._own_gradients.items():
            p.grad = g
        self._own_gradients.clear()
        if self._overlap is None:
            self._exchange_all()
        else:
            self._finish()

    def _exchange_all(self) -> None:
        self._begin()
        self._absorb_update(self._parameters)
        self._step.send(0, self._refuse_infinite)
        self._finish()

    def _refuse_changed_model(self) -> None:
        """Parameters that are trained but not pushed would go their own way at every node."""
        if self._closed:
            raise RuntimeError("this node has left the network: step before close()")
        dtype = self._state.whole.x.dtype
        for name, p in zip(self.layout.names, self._parameters, strict=True):
            if p.dtype != dtype:
                raise RuntimeError(
                    f"parameter {name} is {p.dtype}, and was {dtype} when PushSum was made: "
                    "convert the model before"
                )
        trained = [*self._model.parameters()] if self._optimizer is None else _of(self._optimizer)
        for p in trained:
            if p.requires_grad and p not in self._columns:
                raise RuntimeError(
                    f"a parameter of shape {tuple(p.shape)} is trained, but was not a trainable "
                    "one of the model when PushSum was made: make it again after changing the model"
                )

    # ----------------------------------------------------------------- before the optimizer

    @property
    def _directs(self) -> bool:
        return door.changes_gradients(self.algorithm)

    def _begin(self) -> None:
        """The exchange of the step, unless it has begun."""
        if not self._under_way:
            self._step.begin(self._facts_of_step(), self._state.whole, self._memory, last=True)
            self._under_way = True

    def _facts_of_step(self) -> Step:
        """What the method may know of the step under way."""
        step = Step(self.t + 1, self._exchange.nodes, self.n)
        if not self.algorithm.plain_sgd or self._optimizer is None:
            return step
        groups = self._optimizer.param_groups
        if len({float(group["lr"]) for group in groups}) == 1:
            return step._replace(rate=float(groups[0]["lr"]))
        rates = torch.zeros_like(self._state.whole.x)
        for group in groups:
            for p in group["params"]:
                if p in self._columns:
                    rates[:, self._columns[p]] = float(group["lr"])
        return step._replace(rate=rates)

    def _direct(self, parameters: Iterable[Tensor]) -> None:
        """Put the method's direction where the optimizer looks for the gradient."""
        if not self._directs:
            return
        alone = [(self._columns[p], [p]) for p in parameters]
        everything = [(slice(0, self.layout.d), self._parameters)]
        for some, which in alone if self.algorithm.elementwise else everything:
            g = _row([_gradient(p) for p in which])
            self._give(which, self._step.direct(some, Known(g)))

    def _give(self, parameters: Sequence[Tensor], gradients: Tensor) -> None:
        """For the optimizer alone; the user's own come back after the step."""
        parts = gradients[0].split([p.numel() for p in parameters])
        for p, part in zip(parameters, parts, strict=True):
            self._own_gradients.setdefault(p, p.grad)
            p.grad = part.reshape(p.shape).to(p.dtype)

    # ----------------------------------------------------------------- after the optimizer

    def _parts(self, parameters: Iterable[Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
        """Columns that the method may take by themselves, and what of the model lies there."""
        if not self.algorithm.elementwise:
            yield slice(0, self.layout.d), [p.data for p in self._parameters]
            return
        for p in parameters:
            if not p.is_contiguous():
                yield self._columns[p], [p.data]
                continue
            first, flat = self._columns[p].start, p.data.view(-1)
            for piece in column_blocks(len(flat), PIECE):
                yield slice(first + piece.start, first + piece.stop), [flat[piece]]

    def _absorb_update(self, parameters: Iterable[Tensor]) -> None:
        """Line 2: what the optimizer has changed is the move."""
        x, a, _ = self._state.whole
        by = a.to(x)
        for some, parts in self._parts(parameters):
            row = parts[0].reshape(1, -1) if len(parts) == 1 else _row(parts)
            if self._divides:  # row - x / a
                move = torch.addcdiv(row, x[:, some], by, value=-1)
            else:
                move = row - self._model_of(some)
            self._step.absorb(some, move)

    def _write_model(self, parameters: Iterable[Tensor]) -> None:
        """Line 8: what the model computes with."""
        x, a, _ = self._state.whole
        by = a.to(x)[0] if self._divides else 1
        for some, parts in self._parts(parameters):
            row = x[:, some] if self._divides else self._model_of(some)
            for part, value in zip(parts, row[0].split([p.numel() for p in parts]), strict=True):
                torch.div(value.view(part.shape), by, out=part)

    @property
    def _divides(self) -> bool:
        """Whether the model is x / a, and nothing is rounded in between."""
        plain = self.algorithm.model is hand_out
        return plain and self._state.whole.x.dtype in (torch.float32, torch.float64)

    def _model_of(self, some: slice) -> Tensor:
        return self.algorithm.model(tree.columns(self._state.whole, self.layout.d, some))

    def _refuse_infinite(self, some: slice, sent: Sent, gradients: bool = False) -> None:
        """Before these columns leave."""
        for value in tree.leaves(sent):
            if bool(value.sum().isfinite()) or bool(value.isfinite().all()):
                continue
            column = some.start + int((~value[0].isfinite()).nonzero()[0])
            names = zip(self.layout.names, self._columns.values(), strict=True)
            name = next(name for name, its in names if column < its.stop)
            what = f"the gradient of {name} is not finite"
            if not gradients:
                what = f"{name} is not finite after optimizer.step()"
            text = f"node {self.rank} diverged at step {self.t + 1}: {what}; it was not sent"
            self._peers.announce_failure(text)
            raise FloatingPointError(text)

    def _finish(self) -> None:
        """Lines 7 and 8, as buckets arrive."""
        left = self._parameters
        for some, after in self._step.arrivals():
            self._state.add(some, after)
            self._write_model([p for p in left if self._columns[p].start >= some.start])
            left = [p for p in left if self._columns[p].start < some.start]
        self._memory = self._step.memory
        self.t += 1
        self._under_way = False

    # ----------------------------------------------------------------- during backward

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """With `overlap`: backward passes in here only add up gradients."""
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def _rests(self) -> bool:
        return self._accumulating or self._setup.exchange_of(self.t + 1) == 0

    def _send_early(self, first: int) -> None:
        """Parameters from here on have their gradients: move them, if that fills a bucket."""
        assert self._overlap is not None
        self._begin()
        rest = self._parameters[first:]
        known = self._columns[rest[0]].start if rest else self.layout.d
        if self._step.unsent >= known:
            self._absorb_update(self._overlap.move(self._direct))
            self._step.send(known, self._refuse_infinite)

    def _complete(self, overlap: Overlap) -> None:
        """What no gradient came for; the optimizer itself then finds nothing to do."""
        overlap.refuse_changes(self._own_gradients)
        self._begin()
        self._absorb_update(overlap.move(self._direct, rest=True))
        self._step.send(0, self._refuse_infinite)
        for p in self._columns.keys() & _of(overlap.optimizer):  # others may be another's
            self._own_gradients.setdefault(p, p.grad)
            p.grad = None
        overlap.reset()

    # ----------------------------------------------------------------- the network

    @torch.no_grad()
    def average(self) -> dict[str, Tensor]:
        """The network's average, the sum of x over the sum of a; all nodes must call it together.

        After the same step, that is: it waits for the others as long as all of them are alive.

        As a state for the model: what is not pushed, like buffers, is this node's own.
        """
        self._peers.meet_after(self.t)
        x, a = with_late(self.algorithm, self._state.whole)
        scalars = a.to(x.device, copy=True)
        self._peers.all_reduce(scalars)
        mean = torch.empty_like(x)
        for some in self._exchange.buckets(self.layout.d):
            total = x[:, some].double()
            self._peers.all_reduce(total)
            mean[:, some] = total / scalars
        means = dict(zip(self._parameters, self.layout.views(mean[0]).values(), strict=True))
        own = self._model.state_dict(keep_vars=True)
        for name, value in own.items():
            if isinstance(value, nn.Parameter):
                own[name] = means.get(value, value.detach())
        return own

    # ----------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """This node's part of a checkpoint, besides the model's and the optimizer's own."""
        self._refuse_within_a_step()
        state = self._state.whole
        heard, heard_notes = self._exchange.saved(self._memory)
        kept, kept_notes = tree.saved(state.kept)
        return {
            "node": [self.rank, self.n],
            "facts": self._facts,
            "t": self.t,
            "a": state.a.clone(),
            "x": state.x[0].clone(),
            "kept": {name: value.clone() for name, value in kept.items()},
            "heard": {name: value.clone() for name, value in heard.items()},
            "notes": {"kept": kept_notes, "heard": heard_notes},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the model's parameters follow."""
        if not isinstance(state, dict) or "node" not in state:
            raise ValueError("the state is not one that PushSum.state_dict() has made")
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
        device = self._state.whole.x.device
        x, kept, heard = tree.mapped(
            lambda v: v.to(device, copy=True), [state["x"][None], state["kept"], state["heard"]]
        )
        notes = state["notes"]
        kept = tree.restored(self._state.whole.kept, kept, notes["kept"])
        self._state.whole = State(x, state["a"].clone(), kept)
        self._memory = self._exchange.restored(heard, notes["heard"])
        self.t = state["t"]
        self._write_model(self._parameters)

    def _refuse_within_a_step(self) -> None:
        if self._under_way:
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
            self._peers.announce_failure(f"node {self.rank} gave up: {problem!r}")
        self.close()


def _row(tensors: Sequence[Tensor]) -> Tensor:
    """One after the other, (1, d); a copy."""
    return torch.cat([t.detach().reshape(1, -1) for t in tensors], dim=1)


def _gradient(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad.to_dense()


def _of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that an optimizer has."""
    return [p for group in optimizer.param_groups for p in group["params"]]
