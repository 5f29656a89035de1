"""What a node has heard, and how far away that is: lines 5 and 6 of Algorithm 1.

A node looks at what it receives block by block while the rest is under way, so that the squared
distances for the weights of the next exchange are known as soon as the last block of this one has
arrived. That is the paper's arrangement (Fig. 1: weights are computed while parameters are on the
wire) one step earlier. One buffer per in-neighbour is enough: nothing of exchange k - 1 is needed
while exchange k arrives.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pushsum.engines.arithmetic import BLOCK, LONG, block_distances, distances

if TYPE_CHECKING:
    from pushsum.engines.distributed.exchange import Exchange


class Heard(NamedTuple):
    """What a peer sent when it was last heard."""

    number: int  #: of the exchange
    a: float
    x: Tensor  #: (d,)


class Memory(NamedTuple):
    """What one exchange leaves for the next: buffers, and the squared distances it asks for."""

    heard: dict[int, Heard]
    d2: dict[int, float]


class Buffers:
    """A node's memory while an exchange is under way.

    Args:
        exchange: the engine; vectors that nobody needs any more go to its `pool`.
        number: which exchange.
        before: what the one before left.
        sources: who sends to this node.
        last: whether the tensors of `before` may be written over.
    """

    def __init__(
        self, exchange: "Exchange", number: int, before: Memory, sources: Sequence[int], last: bool
    ) -> None:
        graphs, node = exchange.topology, exchange.peers.rank
        self.number, self.oldest = number, number + 2 - graphs.period
        self.corrected, self.pool, self.last = exchange.weighting.corrected, exchange.pool, last
        self.heard = {j: entry for j, entry in before.heard.items() if j not in sources}
        if last:
            self.pool += [before.heard[j].x for j in sources if j in before.heard]
        sight = exchange.weighting.looks(graphs)
        self._remembered, wanted = set(sources), {*self.heard, *sources}
        if sight == "nothing":
            self._remembered, wanted = set(), set()
        elif sight == "neighbours":  # what is never asked for need not be remembered
            senders, receivers = graphs.edges(number)
            self._remembered &= {*senders[(receivers == node) & graphs.answered(number)].tolist()}
            senders, receivers = graphs.edges(number + 1)
            wanted = {*self.heard, *self._remembered} & {*receivers[senders == node].tolist()}
        self.d2: dict[int, dict[int, float]] = {j: {} for j in wanted}  #: of the next, by column

    def inbox(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Where a peer's vector goes: one that nobody needs any more, or a new one."""
        if self.pool and self.pool[-1].dtype == dtype and len(self.pool[-1]) == x.shape[1]:
            return self.pool.pop()
        return torch.empty(x.shape[1], dtype=dtype, device=x.device)

    def look(self, bucket: slice, own: Tensor, a: float, known: dict[int, Heard]) -> None:
        """How far this part of what peers sent is from what this node sent itself."""
        starts = range(bucket.start, bucket.stop, BLOCK)
        for peer, found in self.d2.items():
            theirs = known[peer]
            scalars = (a, theirs.a) if self.corrected else None
            parts = _distances(own, theirs.x[bucket], scalars, len(theirs.x) >= LONG)
            found |= dict(zip(starts, parts, strict=True))

    def after(self, arrived: dict[int, Heard]) -> Memory:
        """What the exchange leaves for the next one."""
        known = self.heard | {j: arrived[j] for j in self._remembered}
        lasting = {j: entry for j, entry in known.items() if entry.number >= self.oldest}
        free = self.heard | arrived if self.last else arrived
        self.pool += [entry.x for j, entry in free.items() if j not in lasting]
        if not self.last:  # a memory shares nothing with another that may still be used
            shared = lasting.keys() & self.heard
            lasting |= {j: lasting[j]._replace(x=lasting[j].x.clone()) for j in shared}
        return Memory(lasting, {j: _in_order(parts) for j, parts in self.d2.items()})


def _distances(
    own: Tensor, theirs: Tensor, scalars: tuple[float, float] | None, long: bool
) -> list[float]:
    """Of blocks of long rows, or of short rows as they are: as the simulator takes them."""
    if long:
        return block_distances(own, theirs, scalars)
    only = torch.zeros(1, dtype=torch.int64)
    both = None
    if scalars is not None:
        mine, its = torch.tensor(scalars, dtype=torch.float64)[:, None]
        both = mine, its
    found: list[float] = distances(own[None], theirs[None], only, only, both).tolist()
    return found


def _in_order(parts: dict[int, float]) -> float:
    """Their sum, in order and plainly, unlike `sum`, which newer Pythons compensate."""
    total = 0.0
    for first in sorted(parts):
        total += parts[first]
    return total
