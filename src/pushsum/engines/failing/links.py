"""What happens along the edges of one exchange."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from pushsum.engines.mixing import Graph
from pushsum.faults import LOST, Plan


@dataclass(frozen=True, eq=False)
class Links:
    """Who is there, who sends, and what becomes of it."""

    plan: Plan
    number: int  #: of the exchange
    graph: Graph
    there: Tensor  #: (n,) bool, who can receive
    awake: Tensor  #: (n,) bool, who takes part
    open: Tensor  #: (E,) bool, whether something is given along an edge, self-loops apart
    fate: Tensor  #: (E,) int64, `LOST` or by how many exchanges a message is late

    @cached_property
    def everybody(self) -> bool:
        """Whether all nodes take part."""
        return bool(self.awake.all())

    @cached_property
    def through(self) -> Tensor:
        """(E,) bool, what is given and arrives, now or later."""
        return self.open & (self.fate != LOST)
