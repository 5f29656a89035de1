"""Sending while the backward pass goes on: which parameters may move, and what may not change.

Parameters are moved by the user's optimizer itself, which then sees no other gradients.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  #: of an optimizer


class Overlap:
    """The parameters whose gradients are there, and those that have moved.

    Args:
        optimizer: the user's.
        parameters: in the order of their columns.
        ready: called during backward with a number: parameters from there on have their gradients.
        resting: whether gradients are only added up now.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Tensor],
        ready: Callable[[int], None],
        resting: Callable[[], bool],
    ) -> None:
        self.optimizer, self.parameters = optimizer, parameters
        self.ready, self.resting = ready, resting
        self.reset()
        self.hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(self._gradient_is_there) for p in parameters
        ]

    def reset(self) -> None:
        """Before a step."""
        self._there: set[Tensor] = set()
        self._moved: dict[Tensor, _Trace] = {}
        self._first = len(self.parameters)

    @torch.no_grad()
    def _gradient_is_there(self, p: Tensor) -> None:
        if self.resting():
            return
        if p.grad is not None and p.grad.is_sparse:
            raise RuntimeError("overlap: a gradient is sparse: write overlap=False")
        if p in self._there:
            raise RuntimeError(
                "overlap: a second backward() before optimizer.step(); put all but the last "
                "into `with node.accumulate():`"
            )
        self._there.add(p)
        while self._first and self.parameters[self._first - 1] in self._there:
            self._first -= 1
        self.ready(self._first)

    def move(self, direct: Callable[[set[Tensor]], None], rest: bool = False) -> set[Tensor]:
        """Let the optimizer move those that have a gradient, or all the rest; which these are.

        `direct` puts the method's direction where the optimizer looks for the gradient.
        """
        which = ({*self.parameters} if rest else self._there) - self._moved.keys()
        gradients = {p: p.grad for p in which}
        direct(which)
        _step_alone(self.optimizer, which)
        self._moved |= {p: _Trace.of(p, gradients[p]) for p in which}
        return which

    def refuse_changes(self, gradients: dict[Tensor, Tensor | None]) -> None:
        """What has moved must be as it was; `gradients`: the user's, where others stand now."""
        if not all(trace.fits(p, gradients.get(p, p.grad)) for p, trace in self._moved.items()):
            raise RuntimeError(
                "overlap: parameters or gradients were changed between backward() and step() "
                "(clipping, a GradScaler, another optimizer), after they were used: write "
                "overlap=False"
            )


class _Trace(NamedTuple):
    """A parameter and its gradient: torch's counts of changes, and a few of their numbers.

    The counts miss what goes through `.data` and what a GradScaler does, the numbers may miss a
    change elsewhere; together they miss little.
    """

    gradient: Tensor | None
    counts: tuple[int, int]
    numbers: Tensor

    @classmethod
    def of(cls, p: Tensor, g: Tensor | None) -> "_Trace":
        both = [p] if g is None else [p, g]
        numbers = [t.detach().reshape(-1)[:: max(1, t.numel() // 8)] for t in both]
        return cls(g, (p._version, both[-1]._version), torch.cat(numbers))

    def fits(self, p: Tensor, g: Tensor | None) -> bool:
        now = _Trace.of(p, g)
        same = self.gradient is g and self.counts == now.counts
        return same and torch.allclose(self.numbers, now.numbers, 0, 0, equal_nan=True)


def _step_alone(optimizer: Optimizer, which: set[Tensor]) -> None:
    """The optimizer's step for some parameters: it sees no gradient of the others.

    Its hooks, ours among them, and what a schedule has put around `step` are left out.
    """
    owned = (p for group in optimizer.param_groups for p in group["params"])
    others = {p: p.grad for p in owned if p not in which and p.grad is not None}
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
