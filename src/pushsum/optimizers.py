"""The local optimizer: how every node, alone, makes a move of a direction.

A rule of ours, or any of torch.optim. The move is what the optimizer changes at y, that is
y_after - y_before, so that weight decay and the like act on y, as they should.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pushsum import checks
from pushsum.names import canonical, nearest, one_line

Rate = float | Callable[[int], float]  #: a step size, or a schedule t -> step size
#: Makes an optimizer of parameters, e.g. functools.partial(torch.optim.AdamW, lr=1e-3).
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Views = Callable[[Tensor], Mapping[str, Tensor]]

#: They treat every number by itself, so that one (n, d) tensor stands for all nodes at once.
ELEMENTWISE = frozenset(
    (
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "RMSprop",
        "Rprop",
        "ASGD",
    )
)
REFUSED = {
    "LBFGS": "it evaluates the loss several times per step",
    "SparseAdam": "it is for sparse gradients",
}


OWN = "own"  #: the name of a rule that has none


class Rule(NamedTuple):
    """How every node, alone, makes a move of a direction; pure."""

    start: Callable[[Tensor], Any]  #: x0 (n, d) -> what the rule keeps: tensors, in containers
    move: Callable[[Any, Tensor, Tensor, int], tuple[Tensor, Any]]
    """(kept, y^(t-1), direction, t) -> (epsilon (n, d), kept)"""
    rate: Callable[[int], float] = lambda t: 0.0  #: the step size at step t
    name: str = OWN
    elementwise: bool = True  #: whether columns may be taken some at a time
    by_node: bool = False  #: whether it keeps a `Kept` with every node's parameters by themselves


def sgd(lr: Rate) -> Rule:
    """epsilon = -lr g."""
    rate = schedule(lr)
    return Rule(lambda x0: (), lambda kept, y, g, t: (-rate(t) * g, ()), rate, "SGD")


def momentum_sgd(lr: Rate, momentum: float) -> Rule:
    """m = momentum m + g,   epsilon = -lr m."""
    rate = schedule(lr)
    check_momentum(momentum)

    def move(m: Tensor, y: Tensor, g: Tensor, t: int) -> tuple[Tensor, Tensor]:
        m = momentum * m + g
        return -rate(t) * m, m

    return Rule(torch.zeros_like, move, rate, "momentum SGD")


def torch_rule(
    make: Make, rate: Callable[[int], float] | None = None, views: Views | None = None
) -> Rule:
    """The rule of a torch.optim optimizer, which `make` builds of a list of parameters.

    An optimizer changes its state in place; a rule is pure, so each move works on a copy of it.

    Args:
        make: e.g. functools.partial(torch.optim.AdamW, lr=1e-3), or the class itself.
        rate: sets the step size at every step; None: the optimizer's own.
        views: a row (d,) -> the parameters in it, for optimizers that look at whole parameters.
    """
    probe = _built(make, [nn.Parameter(torch.zeros(1))])
    name = type(probe).__name__
    if name in REFUSED:
        raise ValueError(f"optimizer {name}: cannot be used, {REFUSED[name]}")
    whole = name in ELEMENTWISE
    own = probe.param_groups[0].get("lr", 0.0)
    step_size = rate or (lambda t: float(own))

    def split(rows: Tensor) -> list[Tensor]:
        """One tensor for all nodes, or every node's every parameter by itself."""
        if whole:
            return [rows]
        return [p for row in rows for p in ([row] if views is None else views(row).values())]

    def move(kept: Kept, y: Tensor, g: Tensor, t: int) -> tuple[Tensor, Kept]:
        place = y.clone()
        parameters = [nn.Parameter(part) for part in split(place)]
        for p, part, slope in zip(parameters, split(place), split(g.clone()), strict=True):
            p.data, p.grad = part, slope
        optimizer = _built(make, parameters)
        for p, entries in zip(parameters, kept.state, strict=False):
            optimizer.state[p] = {name: _copied(value) for name, value in entries.items()}
        for group, options in zip(optimizer.param_groups, kept.groups, strict=False):
            group.update(options)
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(t)
        try:
            optimizer.step()
        except Exception as error:  # whatever its options have made it do
            raise ValueError(f"optimizer {name}: {one_line(error)}") from None
        groups = [
            {k: v for k, v in group.items() if k not in ("params", "lr") and checks.is_number(v)}
            for group in optimizer.param_groups
        ]
        return place - y, Kept([dict(optimizer.state[p]) for p in parameters], groups)

    start = lambda x0: Kept([], [])
    return Rule(start, move, step_size, name, elementwise=False, by_node=not whole)


class Kept(NamedTuple):
    """What a torch.optim optimizer remembers: of every parameter, and of every group."""

    state: list[dict[str, Any]]
    groups: list[dict[str, Any]]


def optimizer_maker(name: str, lr: float, options: Mapping[str, Any]) -> Make:
    """The torch.optim class of that name, with its options."""
    known = kinds()
    name = canonical(name, known)
    if name not in known:
        close = nearest(name, known.keys() - REFUSED.keys() - {"Optimizer"})
        hint = f" (did you mean {close}?)" if close else ""
        raise ValueError(
            f"algorithm.optimizer = {name!r}: torch.optim has no optimizer of that name{hint}"
        )
    return lambda parameters: known[name](parameters, lr=lr, **options)


def kinds() -> dict[str, Any]:
    """The optimizers of torch.optim by their names."""
    return {
        name: kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }


def as_maker(optimizer: Any) -> Make:
    """Accept a class, a partial of one, or (class, {its arguments}) where a maker is expected."""
    if isinstance(optimizer, tuple) and len(optimizer) == 2 and callable(optimizer[0]):
        kind, options = optimizer
        return lambda parameters: kind(parameters, **options)
    if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
        raise ValueError(
            f"optimizer = {one_line(optimizer)}: give a class of torch.optim with its arguments, "
            "e.g. functools.partial(torch.optim.AdamW, lr=1e-3)"
        )
    maker: Make = optimizer
    return maker


def schedule(lr: Rate) -> Callable[[int], float]:
    """A step size as a function of the step."""
    if not callable(lr):
        expected = "a step size is a finite number > 0, or a function of t"
        checks.number("lr", lr, lambda lr: lr > 0, expected)
        return lambda t: lr

    def rate(t: int) -> float:
        found: Any = lr(t)
        if not isinstance(found, Tensor):
            expected = "a schedule gives finite numbers >= 0"
            checks.number(f"lr({t})", found, lambda found: found >= 0, expected)
        step_size: float = found
        return step_size

    return rate


def check_momentum(momentum: float, name: str = "momentum") -> None:
    """Refuse what would never come to rest."""
    checks.number(name, momentum, lambda m: 0 <= m < 1, "momentum lies in [0, 1)")


def _built(make: Make, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        made = make(parameters)
    except Exception as error:  # whatever the options are
        raise ValueError(f"optimizer: {one_line(error)}") from None
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(f"optimizer: {type(made).__name__} is not one of torch.optim")
    return made


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
