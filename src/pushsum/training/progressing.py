"""What changes while a run goes on."""

from dataclasses import dataclass

from torch import Tensor

from pushsum import algorithms
from pushsum.config import Config


@dataclass
class Progressing:
    """What this process has of a run; all that a checkpoint holds."""

    config: Config  #: with the strategy that was chosen
    step: int
    state: algorithms.State
    buffers: dict[str, Tensor]
    bytes: int
    seconds: dict[str, float]
    modelled: dict[str, float]
    losses: list[float]  #: of the steps since the last record
    recorded: int = -1  #: the last step that has a record
