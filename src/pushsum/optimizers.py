"""Any torch.optim optimizer as the rule that makes the perturbation.

The perturbation is what the optimizer changes at y: epsilon = y_after - y_before. Weight decay and
the like then act on y, as they should.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pushsum.algorithms import Rule
from pushsum.names import nearest, one_line

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

Views = Callable[[Tensor], Mapping[str, Tensor]]


class Optimizing:
    """An optimizer and the tensors that it moves."""

    def __init__(
        self,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        x0: Tensor,
        views: Views | None,
    ) -> None:
        self._make, self._views = make, views
        self.place = x0.clone()
        self.slope = torch.zeros_like(x0)
        self.optimizer = make(self._parameters())

    def _parameters(self) -> list[nn.Parameter]:
        places = self._split(self.place)
        parameters = [nn.Parameter(place) for place in places]
        for p, place, slope in zip(parameters, places, self._split(self.slope), strict=True):
            p.data, p.grad = place, slope
        return parameters

    def _split(self, rows: Tensor) -> list[Tensor]:
        """One tensor for all, or every node's every parameter by itself."""
        if self._views is None:
            return [rows]
        return [view for row in rows for view in self._views(row).values()]

    def move(self, y: Tensor, g: Tensor, rate: float) -> Tensor:
        """What the optimizer changes at y, given the gradients there."""
        self.place.copy_(y)
        self.slope.copy_(g)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        try:
            self.optimizer.step()
        except Exception as error:  # whatever its options have made it do
            raise ValueError(f"algorithm.optimizer: {one_line(error)}") from None
        return self.place - y

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The optimizer's state as tensors and JSON."""
        tensors, plain = {}, {}
        for number, entries in self.optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"{number}.{key}"] = value
                else:
                    plain[f"{number}.{key}"] = value
        return tensors, plain

    def restored(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> "Optimizing":
        """This optimizer in a saved state."""
        state: dict[int, dict[str, Any]] = {}
        for name, value in (*tensors.items(), *plain.items()):
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        return self


def optimizer_rule(
    name: str, lr: float, options: Mapping[str, Any], rate: Callable[[int], float], views: Views
) -> Rule:
    """The rule of the torch.optim class `name`; `rate` sets its step size at every step."""
    kinds: dict[str, Any] = {
        known: kind
        for known, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    if name not in kinds:
        close = nearest(name, kinds.keys() - REFUSED.keys() - {"Optimizer"})
        hint = f" (did you mean {close}?)" if close else ""
        raise ValueError(
            f"algorithm.optimizer = {name!r}: torch.optim has no optimizer of that name{hint}"
        )
    if name in REFUSED:
        raise ValueError(f"algorithm.optimizer = {name!r}: cannot be used, {REFUSED[name]}")

    found: Callable[..., torch.optim.Optimizer] = kinds[name]

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        try:
            return found(parameters, lr=lr, **options)
        except Exception as error:  # whatever the options are
            raise ValueError(f"algorithm.optimizer = {name!r}: {one_line(error)}") from None

    def init(x0: Tensor) -> Optimizing:
        return Optimizing(make, x0, None if name in ELEMENTWISE else views)

    def move(kept: Optimizing, y: Tensor, g: Tensor, t: int) -> tuple[Tensor, Optimizing]:
        return kept.move(y, g, rate(t)), kept

    return Rule(init, move)
