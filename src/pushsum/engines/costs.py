"""What a step costs the network: bytes, and modelled time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pushsum.engines.arithmetic import ring_bytes
from pushsum.engines.engine import HEAD, Setup


@dataclass(frozen=True)
class Costs:
    """What a method sends.

    Attributes:
        setup: step -> what a run goes on with after it.
        vectors: how many d-vectors a node pushes, pulls and averages in an exchange.
        vector: bytes of one.
    """

    setup: Callable[[int], Setup]
    vectors: tuple[int, int, int]
    vector: int

    def bytes_from(self, nodes: Sequence[int], t: int) -> int:
        """What nodes send in step t: along every edge its vectors and a head, by ring the means."""
        setup, (push, pull, mean) = self.setup(t - 1), self.vectors
        n = setup.topology.n
        averaged = sum(ring_bytes(n, node, mean * self.vector) for node in nodes)
        if push + pull == 0:
            return averaged
        senders, receivers = setup.edges(t)
        away = senders[senders != receivers]
        edges = len(away) if len(nodes) == n else int(torch.isin(away, torch.tensor(nodes)).sum())
        return averaged + edges * ((push + pull) * self.vector + HEAD)

    def bytes_in(self, t: int) -> int:
        """What all nodes send in step t."""
        return self.bytes_from(range(self.setup(t - 1).topology.n), t)

    def channel_bytes(self, n: int) -> float:
        """What one channel carries in an exchange, apart from the heads of messages."""
        push, pull, mean = self.vectors
        return (push + pull + 2 * mean * (n - 1) / n) * self.vector  # a ring: all but one, twice
