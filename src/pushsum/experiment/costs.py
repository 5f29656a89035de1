"""What a step costs the network: bytes, and modelled time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pushsum.config import Link
from pushsum.engines.arithmetic import ring_bytes
from pushsum.engines.engine import HEAD, Setup

TIMES = ("compute", "transfer", "weighting_hidden", "weighting_exposed", "total")


@dataclass(frozen=True)
class Costs:
    """What a method sends, and how long that takes.

    Attributes:
        setup: step -> what a run goes on with after it.
        vectors: how many d-vectors a node pushes, pulls and averages in an exchange.
        vector: bytes of one.
        link: what a channel can carry.
        slowest: how many times longer than others the node computes that all wait for.
    """

    setup: Callable[[int], Setup]
    vectors: tuple[int, int, int]
    vector: int
    link: Link
    slowest: float = 1.0

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

    def seconds(self, compute: float, weighting: float, sent: int) -> dict[str, float]:
        """What a step would take with one machine like this per node and the configured links.

        Weights are computed while parameters are on the wire (the paper's Fig. 1): only what
        exceeds the transfer is exposed, or with `link.overlap=false` all of it.
        """
        n, (push, pull, mean) = self.setup(0).topology.n, self.vectors
        carried = (push + pull + 2 * mean * (n - 1) / n) * self.vector  # a ring: all but one, twice
        wire = 8 * carried / (1e9 * self.link.gigabits) + self.link.latency
        transfer = wire if sent else 0.0
        compute *= self.slowest
        hidden = min(weighting, transfer) if self.link.overlap else 0.0
        exposed = weighting - hidden
        total = compute + transfer + exposed
        return dict(zip(TIMES, (compute, transfer, hidden, exposed, total), strict=True))
