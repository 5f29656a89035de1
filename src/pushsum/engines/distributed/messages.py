"""Point-to-point messages of one step: posted together, waited for one by one, counted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pushsum.engines.arithmetic import ring_bytes
from pushsum.engines.distributed.peers import Peers

SUM = -1  #: in the place of a peer
THERE = 1e-4  #: seconds in which a wait ends whose message is there; no back end tells


@dataclass
class Ledger:
    """Where the time of the exchanges went, in seconds, and the bytes that were sent.

    `transfer` is how long messages were under way, and `waiting` the part of it in which the
    process could do nothing else. `weighting_exposed` is the part of `weighting` for which no
    message was under way.
    """

    bytes: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("weighting", "weighting_exposed", "mixing", "transfer", "waiting"), 0.0
        )
    )

    @contextmanager
    def spend(self, *names: str) -> Iterator[None]:
        """Add the time of a block under these names."""
        start = perf_counter()
        yield
        spent = perf_counter() - start
        for name in names:
            self.seconds[name] += spent


class Mail:
    """What one step sends and receives.

    Args:
        peers: the processes.
        t: the step, for what goes wrong.
        ledger: where bytes and seconds are counted.
    """

    def __init__(self, peers: Peers, t: int, ledger: Ledger) -> None:
        self.peers, self.t, self.ledger = peers, t, ledger
        self._sent: dict[int, list[tuple[int, Any]]] = {}
        self._awaited: dict[tuple[int, int], Any] = {}
        self._counted: float | None = None  #: until when `transfer` has been counted
        self._has_waited = False

    def post(self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """Hand messages to the wire, by peer; those of a step between the same two differ by tag.

        Nothing is waited for.
        """
        if not sends and not receives:
            return
        group = self.peers.group
        operations = [dist.P2POp(dist.irecv, t, j, group, tag) for j, t in receives.items()]
        operations += [dist.P2POp(dist.isend, t, j, group, tag) for j, t in sends.items()]
        self._counted = self._counted or perf_counter()
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise self.peers.lost(operations[0].peer, self.t, error) from None
        # a back end may answer with one work for all operations
        works = works if len(works) == len(operations) else works * len(operations)
        self._awaited |= {(j, tag): work for j, work in zip(receives, works, strict=False)}
        self._sent[tag] = list(zip(sends, works[len(receives) :], strict=True))
        self.ledger.bytes += sum(tensor.nbytes for tensor in sends.values())

    def post_sum(self, tag: int, tensor: Tensor) -> None:
        """Begin to add up a tensor over all nodes, in place."""
        self._counted = self._counted or perf_counter()
        try:
            work = dist.all_reduce(tensor, group=self.peers.group, async_op=True)
        except RuntimeError as error:
            raise self.peers.lost(self.peers.next, self.t, error) from None
        self._awaited[SUM, tag] = work
        self.ledger.bytes += ring_bytes(self.peers.n, self.peers.rank, tensor.nbytes)

    @property
    def unused(self) -> bool:
        """Whether nothing has been posted."""
        return self._counted is None

    @property
    def complete(self) -> bool:
        """Whether everything that was expected has been waited for."""
        return not self._awaited

    def wait(self, peer: int, tag: int) -> None:
        """Until the message of this peer has arrived, or the `SUM` over all."""
        self._wait(self.peers.next if peer == SUM else peer, self._awaited.pop((peer, tag)))

    def wait_for_sent(self, tag: int) -> None:
        """Until what was sent under this tag may be overwritten."""
        for peer, work in self._sent.pop(tag, ()):
            self._wait(peer, work)

    def _wait(self, peer: int, work: Any) -> None:
        start = perf_counter()
        try:
            work.wait(timedelta(seconds=self.peers.patience))
        except RuntimeError as error:
            raise self.peers.lost(peer, self.t, error) from None
        now = perf_counter()
        if now - start > THERE or not self._has_waited:
            self._has_waited = True
            self.ledger.seconds["waiting"] += now - start
            self.ledger.seconds["transfer"] += now - (self._counted or start)
            self._counted = now
