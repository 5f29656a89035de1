"""Who was heard, and when: the state behind the buffers of Algorithm 1.

A node's buffer x_ij is what j sent at the step at which i last heard it, and expires B steps later.
"""

from typing import NamedTuple

import torch
from torch import Tensor

NEVER = 0  #: the step at which a node was heard that was not heard at all; steps count from 1


class Arrivals(NamedTuple):
    """The last message from each node to each other, as long as it counts."""

    n: int
    steps: tuple[tuple[int, Tensor], ...] = ()
    """newest first: a step, and the pairs (i heard j) that were last heard then, as i n + j"""

    def expired(self, t: int, lifetime: int) -> "Arrivals":
        """Without those that no longer count after step t."""
        return self._replace(steps=tuple(s for s in self.steps if s[0] > t - lifetime))

    def heard(self, sent: int, senders: Tensor, receivers: Tensor) -> "Arrivals":
        """With messages that were sent at any step, perhaps late: of a pair the newest counts."""
        fresh = (receivers * self.n + senders)[senders != receivers].sort().values
        for step, pairs in self.steps:
            if step >= sent:
                fresh = fresh[~torch.isin(fresh, pairs)]
        older = {s: pairs[~torch.isin(pairs, fresh)] for s, pairs in self.steps if s < sent}
        newer = {s: pairs for s, pairs in self.steps if s >= sent}
        newer[sent] = torch.cat([fresh, newer[sent]]).sort().values if sent in newer else fresh
        steps = sorted((newer | older).items(), reverse=True)
        return self._replace(steps=tuple((step, pairs) for step, pairs in steps if len(pairs)))

    def lasting(self, t: int, lifetime: int) -> "Arrivals":
        """Those that count beyond step t + 1, for which the distances are known."""
        return self._replace(steps=tuple(s for s in self.steps if s[0] >= t + 2 - lifetime))

    def last(self, holders: Tensor, heard: Tensor) -> Tensor:
        """For each pair, the step at which the one last heard the other, or `NEVER`."""
        wanted = holders * self.n + heard
        found = torch.full_like(wanted, NEVER)
        for step, pairs in self.steps:
            place = torch.searchsorted(pairs, wanted).clamp(max=len(pairs) - 1)
            found[pairs[place] == wanted] = step
        return found

    def pairs(self) -> tuple[Tensor, Tensor]:
        """All pairs that count, holders and heard, sorted."""
        every = torch.cat([pairs for _, pairs in self.steps] or [torch.empty(0, dtype=torch.int64)])
        every = every.sort().values
        return every // self.n, every % self.n
