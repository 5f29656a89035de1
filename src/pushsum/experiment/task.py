"""What a model is trained for, and what is measured of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from pushsum import own_code
from pushsum.data import Dataset
from pushsum.engines.gradients import Loss
from pushsum.measures import ACCURACY, LOSS, PERPLEXITY, R2, Measure
from pushsum.names import unknown

Sums = Callable[[Tensor, Tensor], Tensor]  #: (outputs, targets) -> the sum over the batch's samples
LOSSES = ("cross-entropy", "mse")


@dataclass(frozen=True)
class Task:
    """A loss to train with, and measures of a test.

    Attributes:
        loss: (outputs, targets) -> mean loss of a batch.
        measures: name -> the sum over the samples of a batch; one of them is the loss.
        headline: what tables tell first.
        derived: name -> what follows from the means of all measures.
    """

    loss: Loss
    measures: dict[str, Sums]
    headline: Measure
    derived: dict[str, Callable[[dict[str, float]], float]]

    def results(self, means: dict[str, float]) -> dict[str, float]:
        """Of the means over all samples, what is recorded."""
        found = means | {name: rule(means) for name, rule in self.derived.items()}
        return {name: value for name, value in found.items() if not name.startswith("_")}


def task(loss: str | Loss | None, dataset: Dataset, outputs: Tensor) -> Task:
    """What fits the data's targets.

    Args:
        loss: one of `LOSSES`, FILE.py:function or a function; None: by the targets.
        dataset: that is trained on.
        outputs: of the network for the first two training samples.
    """
    targets = dataset.train_y[:2].to(outputs.device)
    usual = "cross-entropy" if dataset.classes else "mse"
    if loss in LOSSES and loss != usual:
        kind = "labels" if dataset.classes else "floats"
        raise ValueError(f"loss = {loss}: the targets are {kind}: take {usual}, or one of your own")
    if isinstance(loss, str) and loss not in LOSSES:
        if not own_code.is_named(loss):
            raise ValueError(unknown("loss", loss, LOSSES) + ", or FILE.py:function")
        loss = own_code.load_function("loss", loss)
    own = loss if callable(loss) else None
    if dataset.classes == 0:
        found = _regression(dataset) if outputs.numel() == targets.numel() else None
    elif targets.ndim == 1:
        found = _CLASSIFICATION if _fits(outputs, targets, dataset.classes) else None
    else:
        found = _SEQUENCES if _fits(outputs, targets, dataset.classes) else None
    if found is None:
        if own is None:
            wanted = targets.shape if dataset.classes == 0 else (*targets.shape, dataset.classes)
            raise ValueError(
                f"loss = {usual}: the model makes {tuple(outputs.shape)} of two samples, expected "
                f"{tuple(wanted)}: change its outputs, or name a loss of your own"
            )
        return Task(own, {"loss": _summed(own)}, LOSS, {})
    if own is None:
        return found
    return Task(own, found.measures | {"loss": _summed(own)}, found.headline, found.derived)


def _fits(outputs: Tensor, targets: Tensor, classes: int) -> bool:
    """Whether there is a number for every class, or more of them, at every place."""
    return outputs.shape[:-1] == targets.shape and outputs.shape[-1] >= classes


def _summed(loss: Loss) -> Sums:
    return lambda outputs, targets: len(targets) * loss(outputs, targets)


# --------------------------------------------------------------------------- classification


_CLASSIFICATION = Task(
    F.cross_entropy,
    {
        "accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).sum(),
        "loss": lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="sum"),
    },
    ACCURACY,
    {},
)


# --------------------------------------------------------------------------- sequences


def sequence_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over all places of (b, t, tokens) outputs and (b, t) targets."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


_SEQUENCES = Task(
    sequence_cross_entropy,
    {
        "accuracy": lambda outputs, targets: (
            (outputs.argmax(-1) == targets).double().flatten(1).mean(1).sum()
        ),
        "_nats": _summed(sequence_cross_entropy),
        "loss": _summed(sequence_cross_entropy),
    },
    PERPLEXITY,
    {"perplexity": lambda means: math.exp(min(means["_nats"], 700.0))},
)


# --------------------------------------------------------------------------- regression


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error; (b, 1) outputs are as good as (b,)."""
    return F.mse_loss(outputs.reshape(targets.shape), targets)


def _regression(dataset: Dataset) -> Task:
    targets = dataset.test_y.double()
    variance = float((targets - targets.mean(0)).square().mean()) or math.nan
    return Task(
        mean_square,
        {
            "_mse": _summed(mean_square),
            "loss": _summed(mean_square),
            "mae": lambda outputs, targets: (
                len(targets) * F.l1_loss(outputs.reshape(targets.shape), targets)
            ),
        },
        R2,
        {"r2": lambda means: 1 - means["_mse"] / variance},
    )
