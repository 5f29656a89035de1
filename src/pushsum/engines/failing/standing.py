"""What a run under a plan carries from step to step, besides the nodes' state."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum.engines import tree
from pushsum.engines.failing.mail import Mail
from pushsum.engines.failing.parcels import Parcels
from pushsum.faults import LOST
from pushsum.optimizers import Rule

NOT_SENT = LOST - 1  #: the fate of what nobody sends


class Flight(NamedTuple):
    """Messages under way, of those whose values weightings compare."""

    due: int  #: the exchange in which they arrive
    sent: int  #: the exchange in which they were sent
    senders: Tensor
    receivers: Tensor


class Messages(NamedTuple):
    """What happened to messages under a fault plan, self-loops apart."""

    sent: int = 0
    lost: int = 0
    late: int = 0
    lost_on: Tensor = torch.empty(0, 0, dtype=torch.int64)
    """(n, n), [i, j] of those from i to j; (0, 0) if there are too many nodes to draw"""

    def and_these(self, senders: Tensor, receivers: Tensor, fates: Tensor) -> "Messages":
        """With those of one more exchange; of fates that are `NOT_SENT` nothing is counted."""
        lost, links = fates == LOST, self.lost_on
        if len(links):
            links = links.index_put((senders[lost], receivers[lost]), torch.tensor(1), True)
        return Messages(
            self.sent + int((fates != NOT_SENT).sum()),
            self.lost + int(lost.sum()),
            self.late + int((fates > 0).sum()),
            links,
        )


class UnderWay(NamedTuple):
    """What the nodes have sent, and nobody has received yet."""

    x: Tensor  #: (d,) float64
    a: float


class Standing(NamedTuple):
    """What a run under a plan carries from step to step, besides the nodes' state."""

    buffers: Any  #: what weightings remember
    alive: Tensor  #: (n,) bool
    awake: Tensor  #: (n,) bool, who took part in the last step
    fired: Tensor  #: (n,) int64, the last exchange in which each node took part
    due: int  #: the exchange with which trackers start anew; 0: none
    ghosts: Tensor  #: (n - living, d) the last y of nodes that are away
    mail: Mail
    parcels: Parcels | None
    flights: tuple[Flight, ...]
    messages: Messages

    @property
    def stores(self) -> list[Mail | Parcels]:
        """Where mass may be that is at no node."""
        return [self.mail] if self.parcels is None else [self.mail, self.parcels]

    @property
    def a(self) -> float:
        """Under way."""
        return sum(store.under_way_a for store in self.stores)

    def changed(
        self, scalar: Callable[[Tensor], Tensor], vector: Callable[[int, Tensor], Tensor]
    ) -> "Standing":
        """With other a and other pushed vectors, of which the k-th is given with k, under way."""
        boxes = None if self.parcels is None else self.parcels.changed(scalar, vector)
        return self._replace(mail=self.mail.changed(scalar, vector), parcels=boxes)


def restored(
    tensors: Mapping[str, Tensor], notes: Any, buffers: Callable[[Any], Any]
) -> Standing | None:
    """What was saved; `buffers` makes what weightings remember."""
    pattern = Standing._make([None] * len(Standing._fields))._replace(
        mail=Mail._make([None, None, (), ()]),
        parcels=Parcels._make([*[None] * 8, (), ()]),
        flights=(),
        messages=Messages(),
    )
    found = tree.restored(pattern, tensors, notes)
    if found is None:
        return None
    flights = tuple(Flight(*flight) for flight in found.flights)
    standing: Standing = found._replace(buffers=buffers(found.buffers), flights=flights)
    return standing


# --------------------------------------------------------------------------- some nodes of a tree


def rows(some: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of the one or the other."""
    mask = some.to(new.device).reshape(-1, *[1] * (new.ndim - 1))
    return torch.where(mask, new, old)


def rows_of(some: Tensor, new: Any, old: Any) -> Any:
    """Trees of tensors with a row per node: rows of the one where `some`, else of the other."""
    others = iter(tree.leaves(old))

    def pick(v: Tensor) -> Tensor:
        other = next(others)
        return rows(some, v, other) if v.ndim and len(v) == len(some) else v

    return tree.mapped(pick, new)


def optimizer_rows(rule: Rule, some: Tensor, new: Any, old: Any = None) -> Any:
    """What an optimizer keeps: of some nodes the new, of the others the old; None: nothing yet."""
    if rule.by_node:  # so many parameters of the first node, as many of the second, ...
        each = len(new.state) // len(some)
        before = [{}] * len(new.state) if old is None or not old.state else old.state
        kept = zip(some.repeat_interleave(each).tolist(), new.state, before, strict=True)
        return new._replace(state=[mine if yes else theirs for yes, mine, theirs in kept])
    if old is None or len(tree.leaves(old)) != len(tree.leaves(new)):
        old = tree.mapped(torch.zeros_like, new)
    return rows_of(some, new, old)
