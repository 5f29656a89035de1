"""Personal models beside the common one: pFedMe and Ditto, over any base method."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from pushsum import checks
from pushsum.optimizers import Rate
from pushsum.protocol import Algorithm, Got, Gradient, Known, Sent, State, Step

Base = str | Callable[[Rate], Algorithm]  #: the name of a method, or a function of lr


class Personal(NamedTuple):
    """What a method with personal models keeps."""

    base: Any  #: what the base method keeps
    model: Tensor  #: (n, d) the personal models


def pfedme(
    lr: Rate, penalty: float = 1.0, inner: int = 10, inner_lr: float = 0.1, base: Base = "SGP"
) -> Algorithm:
    """pFedMe: a common model of the nodes' Moreau envelopes, and personal models near it.

        theta_i = prox_i(y_i) = argmin_z f_i(z) + penalty / 2 ||z - y_i||^2
        the base method, with penalty (y_i - theta_i) in the place of g_i(y_i)

    The prox is an inner loop of gradient steps on the batch of the step, which starts from the
    personal model of the step before.

    Args:
        lr: step size of the common model.
        penalty: lambda; the larger, the closer personal models stay to the common one.
        inner: gradient steps towards the prox, in every step.
        inner_lr: their step size, below 2 / (L + penalty).
        base: the method of the common model, by name or as a function of lr; one that takes one
            gradient per step, and not OSGP.

    >>> import pushsum as ps, torch
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> run = ps.iterate(pfedme(0.1, base="Push-DIGing"), "ring", lambda y, t: y - targets,
    ...                  torch.zeros(3, 1), steps=400)
    >>> last = list(run)[-1]
    >>> round(last.y[0].item(), 3), [round(v, 3) for v in last.personal.flatten().tolist()]
    (2.0, [1.0, 1.5, 3.5])

    Source: T. Dinh, Tran and Nguyen, Personalized federated learning with Moreau envelopes,
    NeurIPS 2020; theirs has a server.
    """
    _check(penalty=penalty, inner_lr=inner_lr)
    inner = checks.count("inner", inner, "the number of gradient steps")

    def step_of(common: Algorithm, state: State, gradient: Gradient, step: Step) -> _Found:
        theta, kept = state.kept.model, state._replace(kept=state.kept.base)
        y = common.gradient_point(kept, common.model(kept))
        for _ in range(inner):
            theta = theta - inner_lr * (gradient(theta) + penalty * (theta - y))
        direction, carried = common.direction(kept, Known(penalty * (y - theta)), step)
        return direction, Personal(carried, theta)

    return _beside("pFedMe", base, lr, step_of)


def ditto(
    lr: Rate, penalty: float = 1.0, personal_lr: float = 0.1, base: Base = "SGP"
) -> Algorithm:
    """Ditto: a common model by any method, and a personal one that is drawn towards it.

        v_i' = v_i - personal_lr (g_i(v_i) + penalty (v_i - y_i))

    Two gradients of the batch per step, one at y and one at v; y is that of the step's start.

    Args:
        lr: step size of the common model.
        penalty: lambda; the larger, the closer personal models stay to the common one.
        personal_lr: eta, the step size of the personal models.
        base: the method of the common model, by name or as a function of lr; one that takes one
            gradient per step, and not OSGP.

    >>> import pushsum as ps, torch
    >>> targets = torch.tensor([[0.0], [1.0], [5.0]])
    >>> run = ps.iterate(ditto(0.1, base="Push-DIGing"), "ring", lambda y, t: y - targets,
    ...                  torch.zeros(3, 1), steps=400)
    >>> last = list(run)[-1]
    >>> round(last.y[0].item(), 3), [round(v, 3) for v in last.personal.flatten().tolist()]
    (2.0, [1.0, 1.5, 3.5])

    Source: Li, Hu, Beirami and Smith, Ditto: fair and robust federated learning through
    personalization, ICML 2021; theirs has a server.
    """
    _check(penalty=penalty, personal_lr=personal_lr)

    def step_of(common: Algorithm, state: State, gradient: Gradient, step: Step) -> _Found:
        v, kept = state.kept.model, state._replace(kept=state.kept.base)
        direction, carried = common.direction(kept, Known(gradient()), step)
        pulled = penalty * (v - common.model(kept))
        return direction, Personal(carried, v - personal_lr * (gradient(v) + pulled))

    return _beside("Ditto", base, lr, step_of)


_Found = tuple[Tensor, Personal]


def _beside(
    name: str,
    base: Base,
    lr: Rate,
    direction: Callable[[Algorithm, State, Gradient, Step], _Found],
) -> Algorithm:
    """A base method with personal models beside what it keeps."""
    from pushsum.algorithms import parse  # the table names this file's methods, too

    try:
        common = parse(base, lr=lr) if isinstance(base, str) else callable(base) and base(lr)
    except TypeError as error:  # such as msgp, which needs momentum, too
        raise ValueError(f"base = {base!r}: {error}: give a function of lr alone") from None
    if not isinstance(common, Algorithm):
        raise ValueError(
            f"base = {base!r}: give the name of a method, or a function of lr that returns one, "
            "e.g. base=ps.algorithms.push_diging"
        )
    if common.asks != "model" or common.mean_gradient or common.holds_mass:
        raise ValueError(
            f"base = {common.name}: take a method of one gradient per step that has nothing under "
            "way, such as SGP or Push-DIGing"
        )
    if common.name != "SGP":
        name = f"{name} over {common.name}"

    def inner(state: State) -> State:
        return state._replace(kept=state.kept.base)

    def start(x0: Tensor, step: Step) -> Personal:
        return Personal(common.start(x0, step), x0)

    def send(state: State, now: Personal, move: Tensor, step: Step) -> Sent:
        return common.send(inner(state), now.base, move, step)

    def receive(state: State, now: Personal, move: Tensor, got: Got, step: Step) -> State:
        after = common.receive(inner(state), now.base, move, got, step)
        return after._replace(kept=Personal(after.kept, now.model))

    return replace(
        common,
        name=name,
        start=start,
        direction=lambda state, gradient, step: direction(common, state, gradient, step),
        send=send,
        receive=receive,
        model=lambda state: common.model(inner(state)),
        personal=lambda state: state.kept.model,
        asks="points",
    )


def _check(**given: float) -> None:
    for name, value in given.items():
        checks.number(name, value, lambda value: value > 0, "a finite number > 0")
