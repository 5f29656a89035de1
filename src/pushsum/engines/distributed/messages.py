"""Point-to-point messages of one step: posted together, waited for one by one, counted."""

from collections.abc import Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from pushsum.engines.arithmetic import ring_bytes
from pushsum.engines.distributed.peers import Peers

SUM = -1  #: in the place of a peer
THERE = 1e-4  #: seconds in which a wait ends whose message is there; no back end tells


class Message(NamedTuple):
    """A tensor to or from a peer; messages of a step between the same two differ by `tag`."""

    peer: int
    tag: int
    tensor: Tensor


class Mail:
    """What one step sends and receives.

    Args:
        peers: the processes.
        t: the step, for what goes wrong.
    """

    def __init__(self, peers: Peers, t: int) -> None:
        self.peers, self.t = peers, t
        self.bytes = 0  #: given to the wire
        self.waited = 0.0  #: seconds for which this process could do nothing but wait
        self.ended = 0.0  #: when the last message came that was not there when it was asked for
        self._sent: dict[int, list[tuple[int, Any]]] = {}
        self._awaited: dict[tuple[int, int], Any] = {}

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Hand messages to the wire; nothing is waited for."""
        group = self.peers.group
        operations = [dist.P2POp(dist.irecv, m.tensor, m.peer, group, m.tag) for m in receives] + [
            dist.P2POp(dist.isend, m.tensor, m.peer, group, m.tag) for m in sends
        ]
        if not operations:
            return
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise self.peers.lost(operations[0].peer, self.t, error) from None
        # a back end may answer with one work for all operations
        works = works if len(works) == len(operations) else works * len(operations)
        for message, work in zip(receives, works, strict=False):
            self._awaited[message.peer, message.tag] = work
        for message, work in zip(sends, works[len(receives) :], strict=True):
            self._sent.setdefault(message.tag, []).append((message.peer, work))
            self.bytes += message.tensor.numel() * message.tensor.element_size()

    def post_sum(self, tag: int, tensor: Tensor) -> None:
        """Begin to add up a tensor over all nodes, in place."""
        n = self.peers.n
        try:
            work = dist.all_reduce(tensor, group=self.peers.group, async_op=True)
        except RuntimeError as error:
            raise self.peers.lost((self.peers.rank + 1) % n, self.t, error) from None
        self._awaited[SUM, tag] = work
        self.bytes += ring_bytes(n, self.peers.rank, tensor.numel() * tensor.element_size())

    def wait_for_sum(self, tag: int) -> None:
        """Until the sum is there."""
        self._wait((self.peers.rank + 1) % self.peers.n, self._awaited.pop((SUM, tag)))

    @property
    def complete(self) -> bool:
        """Whether everything that was expected has been waited for."""
        return not self._awaited

    def wait(self, peer: int, tag: int) -> None:
        """Until the message of this peer has arrived."""
        self._wait(peer, self._awaited.pop((peer, tag)))

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
        if now - start > THERE or not self.ended:
            self.waited += now - start
            self.ended = now
