"""What a model is trained for, and what is measured of it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """A loss to train with, and measures of a test.

    Attributes:
        loss: (outputs, targets) -> mean loss of a batch.
        measures: name -> (outputs, targets) -> the sum over the samples of a batch.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    measures: dict[str, Callable[[Tensor, Tensor], Tensor]]


CLASSIFICATION = Task(
    F.cross_entropy,
    {
        "accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).sum(),
        "loss": lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="sum"),
    },
)
