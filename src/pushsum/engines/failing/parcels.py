"""`outbox`: parcels for every link, which are sent again until they are acknowledged."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pushsum.engines.failing.links import Links
from pushsum.faults import LOST

MOST_PARCELS = 64  #: nodes, of which every two may have a link with parcels of its own


class Parcels(NamedTuple):
    """The outboxes; [i, j] is the link i -> j."""

    sealed: Tensor  #: (n, n) int64, the number of the last parcel
    applied: Tensor  #: (n, n) the last one that the receiver has applied
    acked: Tensor  #: (n, n) the last one of which the sender knows that
    since: Tensor  #: (n, n) the exchange in which the last one was sealed
    copies: Tensor  #: (D + 1, n, n) numbers of parcels under way; [0] wait for a sleeping receiver
    answers: Tensor  #: (D + 1, n, n) numbers of acknowledgements under way
    waiting_a: Tensor  #: (n, n) float64, what is to be sealed next
    parcel_a: Tensor  #: (n, n) float64, what was sealed last
    waiting: tuple[Tensor, ...] = ()  #: (n, n, d) each
    parcel: tuple[Tensor, ...] = ()

    @classmethod
    def none(cls, n: int, depth: int) -> "Parcels":
        """Before the first exchange."""
        shapes = [(n, n)] * 4 + [(depth, n, n)] * 2
        numbers = [torch.zeros(shape, dtype=torch.int64) for shape in shapes]
        scalars = [torch.zeros(n, n, dtype=torch.float64) for _ in range(2)]
        return cls._make([*numbers, *scalars, (), ()])

    @property
    def open(self) -> Tensor:
        """(n, n) bool: sealed, and not yet applied."""
        return self.sealed > self.applied

    @property
    def link_a(self) -> Tensor:
        """(n, n) of a that is in each outbox."""
        return self.waiting_a + torch.where(self.open, self.parcel_a, 0.0)

    @property
    def link_x(self) -> Tensor | None:
        """(n, n, d) float64 of x, where it is pushed; None before the first exchange."""
        if not self.waiting:
            return None
        some = self.open.to(self.parcel[0].device)[..., None]
        return self.waiting[0].double() + torch.where(some, self.parcel[0], 0.0)

    @property
    def under_way_a(self) -> float:
        return float(self.link_a.sum())

    @property
    def under_way_x(self) -> Tensor | float:
        """(d,) float64, or 0 before the first exchange; where x is pushed."""
        found = self.link_x
        return 0.0 if found is None else found.sum((0, 1))

    def changed(
        self, scalar: Callable[[Tensor], Tensor], vector: Callable[[int, Tensor], Tensor]
    ) -> "Parcels":
        """See `Standing.changed`."""
        waiting, parcel = (
            tuple(vector(k, value) for k, value in enumerate(values))
            for values in (self.waiting, self.parcel)
        )
        return self._replace(
            waiting_a=scalar(self.waiting_a),
            parcel_a=scalar(self.parcel_a),
            waiting=waiting,
            parcel=parcel,
        )

    def clear(self, node: int) -> None:
        """In place: a node's outboxes, and those of others for it, are new."""
        for part in (*self[:4], self.waiting_a, self.parcel_a, *self.waiting, *self.parcel):
            part[node], part[:, node] = 0, 0
        for part in (self.copies, self.answers):
            part[:, node], part[:, :, node] = 0, 0


class Outbox:
    """One exchange of parcels: shares are put in, some are sealed, sent, applied, acknowledged."""

    def __init__(self, links: Links, before: Parcels, d: int) -> None:
        self.links, self.before, self.after, self.d = links, before, before, d
        self.rooms: dict[str, list[Tensor]] = {"waiting": [], "parcel": []}

    def scalars(self, weights: Tensor, a: Tensor) -> Tensor:
        """(n,) what the nodes hold of a."""
        self._weigh(weights)
        waiting = self.before.waiting_a + self.share * a[:, None]
        parcel = torch.where(self.seals, waiting, self.before.parcel_a)
        waiting = torch.where(self.seals, 0.0, waiting)
        self.after = self.after._replace(waiting_a=waiting, parcel_a=parcel)
        return self.stays * a + torch.where(self.applies, parcel, 0.0).sum(0)

    def _weigh(self, weights: Tensor) -> None:
        """What happens to the parcels of every link in this exchange."""
        f, p = self.links, self.before
        graph, number = f.graph, f.number
        n, senders, receivers = graph.n, graph.senders, graph.receivers
        away = ~graph.loops
        self.share = torch.zeros(n, n, dtype=torch.float64)
        self.share[senders[away], receivers[away]] = torch.where(f.open, weights, 0.0)[away]
        self.stays = torch.where(f.awake, weights[graph.loops], 0.0)
        filled = (p.waiting_a != 0) | (self.share != 0)
        self.seals = filled & (p.acked == p.sealed) & f.awake[:, None]
        sealed = p.sealed + self.seals
        # ------------------ copies, where the graph has the link, and nothing is acknowledged
        link = torch.zeros(n, n, dtype=torch.bool)
        link[senders[away], receivers[away]] = (f.awake[senders] & f.there[receivers])[away]
        sends = link & (sealed > p.acked)
        fate = torch.full((n, n), LOST)
        fate[senders, receivers] = f.fate
        copies = _shifted(p.copies)
        _post(copies, sends, fate, sealed)
        arrived = copies[0] * f.awake
        copies[0] = copies[0] * ~f.awake
        self.applies = arrived == p.applied + 1
        applied = p.applied + self.applies
        # ------------------ acknowledgements go back on the same connection
        answers = _shifted(p.answers)
        i, j = (arrived > 0).nonzero().T
        back = torch.full((n, n), LOST)
        back[i, j] = f.plan.fates(number, j, i, acks=True)
        _post(answers, arrived > 0, back, applied)
        reached = answers[0] * f.awake[:, None]
        answers[0] = answers[0] * ~f.awake[:, None]
        acked = torch.maximum(p.acked, reached)
        since = torch.where(self.seals, number, p.since)
        i, j = sends.nonzero().T
        self.copies_sent = i, j, fate[i, j]
        self.after = p._replace(
            sealed=sealed, applied=applied, acked=acked, since=since, copies=copies, answers=answers
        )

    def vector(self, k: int, sent: Tensor, some: slice, kind: torch.dtype) -> Tensor:
        """(n, width) float64, what they hold of the k-th pushed value."""
        p, n, d = self.before, self.links.graph.n, self.d
        device = sent.device
        share, seals = self.share.to(device), self.seals.to(device)[..., None]
        waiting = share[..., None] * sent.double()[:, None]
        if len(p.waiting) > k:
            waiting += p.waiting[k][..., some]
            old = p.parcel[k][..., some].double()
        else:
            old = torch.zeros_like(waiting)
        parcel = torch.where(seals, waiting, old).to(kind)
        waiting = torch.where(seals, 0.0, waiting).to(kind)
        for name, part in (("waiting", waiting), ("parcel", parcel)):
            if len(self.rooms[name]) <= k:
                self.rooms[name].append(part.new_empty(n, n, d))
            self.rooms[name][k][..., some] = part
        applied = torch.where(self.applies.to(device)[..., None], parcel.double(), 0.0).sum(0)
        return self.stays.to(device)[:, None] * sent.double() + applied

    def finished(self) -> Parcels:
        """What it leaves for the next exchange."""
        waiting, parcel = (tuple(held) for held in self.rooms.values())
        return self.after._replace(waiting=waiting, parcel=parcel)


def _shifted(slots: Tensor) -> Tensor:
    """One step nearer; of a link's numbers the largest counts."""
    nearer = torch.zeros_like(slots)
    nearer[:-1] = slots[1:]
    nearer[0] = torch.maximum(nearer[0], slots[0])
    return nearer


def _post(slots: Tensor, some: Tensor, fate: Tensor, number: Tensor) -> None:
    for late in range(len(slots)):
        here = some & (fate == late)
        slots[late] = torch.where(here, torch.maximum(slots[late], number), slots[late])
