"""The gradients of n copies of a network, as rows of one array.

The parameters of all nodes are an (n, d) tensor. Three strategies compute the same gradients, to
rounding:

    loop      node after node, each pass using all threads of the machine
    threads   nodes side by side, each pass using one thread
    vmap      all nodes in one batched pass (torch.func)

Which is fastest depends on model, batch and n, so `fastest` measures. There are no worker
processes: torch computes outside Python's lock, so threads keep the cores busy, and they share the
(n, d) arrays that processes would have to copy in every step. Where Python itself is what takes
the time (many small nodes), vmap has it only once.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pushsum.engines.runtime import Abandoned
from pushsum.randomness import torch_seeded

Strategy = Literal["loop", "threads", "vmap"]
Loss = Callable[[Tensor, Tensor], Tensor]  #: (outputs, targets) -> mean loss of the batch
MANY = 2**20  #: parameters from here on, Python is not what a pass waits for
LONG_RUN = 100  #: passes that save as much time as it takes to trace one
Stopping = Callable[[], bool]  #: whether to give up what takes long


@dataclass(frozen=True)
class Layout:
    """Where the parameters of a model lie in a row of d numbers."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """The trainable parameters of a model; tied ones count once, frozen ones stay with it."""
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError(f"{type(model).__name__} has no trainable parameters")
        kinds = sorted({str(p.dtype) for p in named.values()})
        if len(kinds) > 1:
            raise ValueError(
                f"{type(model).__name__} mixes parameters of {' and '.join(kinds)}: "
                "convert it to one dtype, e.g. model.float()"
            )
        return cls(tuple(named), tuple(p.shape for p in named.values()))

    @property
    def d(self) -> int:
        """How many parameters there are."""
        return sum(prod(shape) for shape in self.shapes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """(..., d) -> name -> (..., *shape), without copying."""
        parts = flat.split([prod(shape) for shape in self.shapes], dim=-1)
        lead = flat.shape[:-1]
        return {
            name: part.unflatten(-1, shape) if shape else part.reshape(lead)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """name -> (*shape) to one row (d,)."""
        return torch.cat([tensors[name].detach().flatten() for name in self.names])


class Batch(NamedTuple):
    """What each node works on in a step; the sizes may differ from node to node.

    Where they do not, one tensor with a leading node axis serves as well as a list.
    """

    inputs: Sequence[Tensor] | Tensor
    targets: Sequence[Tensor] | Tensor
    seeds: Sequence[int] | None = None  #: of what each node's pass draws at random, if it does


class Gradients(Protocol):
    """(y (n, d), batch) -> gradients (n, d), losses (n,); the nodes' buffers change in place.

    The gradients belong to the caller. Raises `Abandoned`, with the buffers as they were, once it
    is told to stop.
    """

    def __call__(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]: ...


def stacked_buffers(model: nn.Module, n: int) -> dict[str, Tensor]:
    """The model's buffers (BatchNorm statistics), one row per node."""
    return {name: b.detach().repeat(n, *[1] * b.ndim) for name, b in model.named_buffers()}


def gradients(
    strategy: Strategy,
    model: nn.Module,
    loss: Loss,
    buffers: dict[str, Tensor],
    stopping: Stopping = lambda: False,
) -> Gradients:
    """The gradient function of a strategy. `model` is copied; `buffers` are updated in place.

    loop and threads ask `stopping` between two nodes; vmap has only one pass.
    """
    match strategy:
        case "loop":
            return _Workers(model, loss, buffers, stopping, 1)
        case "threads":
            return _Workers(model, loss, buffers, stopping, torch.get_num_threads())
        case "vmap":
            return _Vmap(model, loss, buffers)
    raise ValueError(f"strategy = {strategy!r}: choose from {', '.join(get_args(Strategy))}")


def candidates(model: nn.Module, n: int, batch: Batch, device: torch.device) -> list[Strategy]:
    """The strategies that can compute this."""
    if batch.seeds is not None:
        return ["loop"]  # torch has one generator: nodes draw from it one after the other
    usable: list[Strategy] = ["loop"]
    if device.type == "cpu" and n > 1 and torch.get_num_threads() > 1:
        usable.append("threads")
    small = sum(p.numel() for p in model.parameters()) < MANY  # it holds all nodes' passes at once
    if (
        n > 1
        and small
        and not _has_own_buffers(model)
        and len({x.shape for x in batch.inputs}) == 1
    ):
        usable.append("vmap")
    return usable


def _has_own_buffers(model: nn.Module) -> bool:
    """Whether code that we do not know might replace a buffer, which vmap would not see."""
    known = ("torch.nn.", "pushsum.")
    return any(m._buffers and not type(m).__module__.startswith(known) for m in model.modules())


def draws(model: nn.Module, loss: Loss, x: Tensor, target: Tensor) -> bool:
    """Whether a pass in training mode draws from torch's generators, as dropout does; pure."""

    def state() -> list[Tensor]:
        gpu = [torch.cuda.get_rng_state(x.device)] if x.device.type == "cuda" else []
        return [torch.get_rng_state(), *gpu]

    with torch_seeded(0, x.device), torch.no_grad():
        before = state()
        loss(copy.deepcopy(model).train()(x), target)
        return not all(map(torch.equal, before, state()))


def fastest(
    model: nn.Module,
    loss: Loss,
    y: Tensor,
    batch: Batch,
    rounds: int = 3,
    stopping: Stopping = lambda: False,
) -> tuple[Strategy, dict[Strategy, float]]:
    """Measure the strategies on one batch: the fastest, and the seconds of each."""
    seconds: dict[Strategy, float] = {}
    for strategy in candidates(model, len(y), batch, y.device):
        compute = gradients(strategy, model, loss, stacked_buffers(model, len(y)), stopping)
        times = []
        try:
            for _ in range(rounds):
                if stopping():
                    raise Abandoned
                start = perf_counter()
                compute(y, batch)
                times.append(perf_counter() - start)
        except Exception as error:
            if strategy != "vmap" or isinstance(error, Abandoned):
                raise
            continue  # not every operation can be batched by vmap
        seconds[strategy] = min(times)
    return min(seconds, key=lambda strategy: seconds[strategy]), seconds


class _Worker:
    """One copy of the model, pointed at one node's parameters and buffers at a time."""

    def __init__(self, model: nn.Module, loss: Loss, buffers: dict[str, Tensor]) -> None:
        self.model = copy.deepcopy(model)
        self.model.train()
        self.loss, self.buffers = loss, buffers
        self.layout = Layout.of(self.model)
        named = dict(self.model.named_parameters())
        self.parameters = [named[name] for name in self.layout.names]
        self.nothing = torch.empty(0, dtype=self.parameters[0].dtype)
        self.homes = [
            (self.model.get_submodule(path), leaf, name)
            for name in buffers
            for path, _, leaf in [name.rpartition(".")]
        ]

    def compute(
        self, node: int, y: Tensor, g: Tensor, x: Tensor, target: Tensor, seed: int | None
    ) -> Tensor:
        """Write the gradient at y[node] into g[node], which holds zeros; the loss."""
        places = zip(
            self.parameters,
            self.layout.views(y[node]).values(),
            self.layout.views(g[node]).values(),
            strict=True,
        )
        for p, value, slope in places:
            p.data, p.grad = value, slope  # backward adds to the slope in place
        for module, leaf, name in self.homes:
            setattr(module, leaf, self.buffers[name][node])
        with nullcontext() if seed is None else torch_seeded(seed, y.device):
            loss = self.loss(self.model(x), target)
        loss.backward()
        for module, leaf, name in self.homes:
            if (mine := getattr(module, leaf)).data_ptr() != self.buffers[name][node].data_ptr():
                self.buffers[name][node].copy_(mine)  # the module has put another in its place
        for p in self.parameters:  # else all of y and g would live on until the next step
            p.data, p.grad = self.nothing, None
        return loss.detach()


@contextmanager
def unchanged_if_abandoned(buffers: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Put the buffers back if what is done with them is given up; yields what they were."""
    before = {name: value.clone() for name, value in buffers.items()}
    try:
        yield before
    except Abandoned:
        for name, value in before.items():
            buffers[name].copy_(value)
        raise


class _Workers:
    """Worker k of several takes nodes k, k + workers, ...; a single one needs no thread."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        buffers: dict[str, Tensor],
        stopping: Stopping,
        count: int,
    ) -> None:
        self.workers = [_Worker(model, loss, buffers) for _ in range(count)]
        self.buffers, self.stopping = buffers, stopping
        self.map: Callable[..., Iterable[bool]] = map
        if count > 1:
            pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
            self.map = pool.map

    def __call__(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        g = torch.zeros_like(y)
        losses: dict[int, Tensor] = {}
        same_as = _first_of_equals(y, batch, self.buffers)
        nodes = sorted(set(same_as))

        def work(first: int) -> bool:
            for place, node in enumerate(nodes[first :: len(self.workers)]):
                if place > 0 and self.stopping():
                    return False
                x, target = batch.inputs[node], batch.targets[node]
                seed = None if batch.seeds is None else batch.seeds[node]
                losses[node] = self.workers[first].compute(node, y, g, x, target, seed)
            return True

        with unchanged_if_abandoned(self.buffers):
            if not all(list(self.map(work, range(len(self.workers))))):  # once all have ended
                raise Abandoned
            for node, equal in enumerate(same_as):
                if node != equal:
                    for rows in (g, *self.buffers.values()):
                        rows[node] = rows[equal]
        return g, torch.stack([losses[node] for node in same_as])


def _first_of_equals(y: Tensor, batch: Batch, buffers: Mapping[str, Tensor]) -> list[int]:
    """For every node of a large model the first that holds and sees the same, maybe itself.

    With uniform weights on a complete graph all hold the same, and where published switches give
    the nodes of a cluster the same batches, a third of six gradients is enough.
    """
    if y.shape[1] < MANY or batch.seeds is not None:
        return list(range(len(y)))
    state = (batch.targets, batch.inputs, y, *buffers.values())
    found: list[int] = []
    for node in range(len(y)):
        equal = lambda i, node=node: all(torch.equal(rows[i], rows[node]) for rows in state)
        found.append(next(filter(equal, dict.fromkeys(found)), node))
    return found


class _Vmap:
    """In a long run the operations of a pass are recorded, then repeated without torch.func.

    That takes half the time for the MLP of 6 nodes, 3/4 for 100 nodes, 9/10 for a CNN of 30 nodes.
    """

    def __init__(self, model: nn.Module, loss: Loss, buffers: dict[str, Tensor]) -> None:
        self.model = copy.deepcopy(model)
        self.model.train()
        self.buffers = buffers
        self.layout = Layout.of(self.model)
        self.repeats_itself = _is_only_torch(self.model, loss)
        self.passes: Counter[Any] = Counter()
        self.recorded: dict[Any, Callable[..., Any]] = {}

        def one(parameters: Any, buffers: Any, x: Tensor, target: Tensor) -> Any:
            outputs = functional_call(self.model, (parameters, buffers), (x,))
            return loss(outputs, target), buffers

        self.all = vmap(grad_and_value(one, has_aux=True))

    def __call__(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        x, targets = _stacked(batch.inputs), _stacked(batch.targets)
        compute = self._recorded(y, x, targets) if self.repeats_itself else self.all
        slopes, (losses, buffers) = compute(self.layout.views(y), self.buffers, x, targets)
        for name, value in buffers.items():
            self.buffers[name].copy_(value)
        flat = [slopes[name].reshape(len(y), -1) for name in self.layout.names]
        return torch.cat(flat, dim=1), losses

    def _recorded(self, y: Tensor, x: Tensor, targets: Tensor) -> Callable[..., Any]:
        """A record serves tensors that lie in memory as those did that it was made with."""
        kind = tuple((v.shape, v.stride(), v.dtype, v.device) for v in (y, x, targets))
        self.passes[kind] += 1
        if self.passes[kind] == LONG_RUN:
            buffers = {name: value.clone() for name, value in self.buffers.items()}
            record = make_fx(self.all)(self.layout.views(y), buffers, x, targets)
            self.recorded[kind] = torch.no_grad()(record.forward)
        return self.recorded.get(kind, self.all)


def _is_only_torch(model: nn.Module, loss: Loss) -> bool:
    """Whether every pass does the same: code that we do not know may count, draw or branch."""
    known = ("torch.nn.modules.", "pushsum.models")
    losses = ("torch.nn.functional", "pushsum.experiment.task")
    return getattr(loss, "__module__", "") in losses and all(
        type(m).__module__.startswith(known)
        and "forward" not in vars(m)
        and not (m._forward_hooks or m._forward_pre_hooks)
        and not (m._backward_hooks or m._backward_pre_hooks)
        for m in model.modules()
    )


def _stacked(parts: Sequence[Tensor] | Tensor) -> Tensor:
    if isinstance(parts, Tensor):
        return parts
    if len({part.shape for part in parts}) > 1:
        raise ValueError(
            "gradients = 'vmap': the nodes' batches differ in size: use auto, loop or threads"
        )
    return torch.stack(list(parts))
