"""What changes while a run goes on."""

from dataclasses import dataclass

from torch import Tensor

from pushsum.config import Config
from pushsum.engines.engine import Engine, Moment


def phases(engine: Engine) -> tuple[str, ...]:
    """Of which the seconds are counted."""
    return ("gradients", "evaluation", "total", *engine.seconds)


@dataclass
class RunState:
    """What this process has of a run; all that a checkpoint holds."""

    config: Config  #: with the strategy that was chosen
    moment: Moment
    buffers: dict[str, Tensor]
    bytes: int
    seconds: dict[str, float]
    modelled: dict[str, float]
    losses: list[float]  #: of the steps that the next record tells of, or this step's
    recorded: int = -1  #: the last step that has a record
    source: str = ""  #: the checkpoint it is from, which may hold anything until a step was taken

    @property
    def step(self) -> int:
        """How many steps were taken."""
        return self.moment.t
