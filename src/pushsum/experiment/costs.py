"""What a step costs the network: bytes, and modelled time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pushsum.config import Link
from pushsum.engines.arithmetic import ring_bytes
from pushsum.engines.engine import HEAD, Setup
from pushsum.engines.pace import waiting_seconds
from pushsum.faults import HERE, LOST, Plan, Values

TIMES = ("compute", "transfer", "weighting_hidden", "weighting_exposed", "total")


@dataclass(frozen=True)
class Costs:
    """What a method sends, and how long that takes.

    Attributes:
        setup: step -> what a run goes on with after it.
        vectors: how many d-vectors a node pushes, pulls and averages in an exchange.
        vector: bytes of one.
        link: what a channel can carry.
        plan: what fails, and who is slow.
    """

    setup: Callable[[int], Setup]
    vectors: tuple[int, int, int]
    vector: int
    link: Link
    plan: Plan

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

    def bytes_per_step(self) -> float:
        """The mean of all steps; of graphs that never repeat, of the first 64 exchanges."""
        setup = self.setup(0)
        cycle, every = setup.topology.cycle or 64, setup.every
        exchanges = sum(self.bytes_in(every * k) for k in range(1, cycle + 1))
        alone = self.bytes_in(1) if every > 1 else 0
        return (exchanges / cycle + (every - 1) * alone) / every

    def seconds(self, t: int, compute: float, weighting: float) -> dict[str, float]:
        """What step t would take with one machine like this per node and the configured links.

        All wait for the slowest of those that take part, and for messages, each as long as the
        method and its delay leave it no time (`waiting_seconds`). Nobody waits for what is lost, or
        for a node at its own pace and its messages.

        Weights are computed while nodes wait for parameters (the paper's Fig. 1): only what
        exceeds the wait is exposed, or with `link.overlap=false` all of it.

        Args:
            t: the step.
            compute: seconds of a gradient, at a node that is not slow.
            weighting: seconds in which a node computes its weights.
        """
        setup, (push, pull, mean) = self.setup(t - 1), self.vectors
        n, exchange = setup.topology.n, -((setup.start - t) // setup.every)  # of a move: the next
        awake = (self.plan.status(exchange, n) == HERE) & ~self.plan.asleep(exchange, n)
        compute *= float(self.plan.slowness(n).where(awake, 1.0).max())
        transfer = 0.0
        if mean:  # by ring: all but one part, twice
            nodes = torch.arange(n)
            carried = 2 * mean * (n - 1) / n * self.vector
            times = self._on_the_wire(carried, nodes, nodes.roll(-1))
            transfer += waiting_seconds(0.0, *times, torch.zeros(n)) * (n > 1)
        if push + pull:
            senders, receivers = setup.edges(t)
            fates = self.plan.fates(exchange, senders, receivers)
            prompt = awake & ~self.plan.at_own_pace(n)
            needed = prompt[senders] & prompt[receivers] & (fates != LOST) & (senders != receivers)
            times = self._on_the_wire(
                (push + pull) * self.vector, senders[needed], receivers[needed]
            )
            slack = fates[needed] + setup.algorithm.late / setup.every
            transfer += waiting_seconds(setup.every * compute, *times, slack)
        hidden = min(weighting, transfer) if self.link.overlap else 0.0
        exposed = weighting - hidden
        total = compute + transfer + exposed
        return dict(zip(TIMES, (compute, transfer, hidden, exposed, total), strict=True))

    def _on_the_wire(
        self, size: float, senders: Tensor, receivers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(E,) seconds for which messages of so many bytes occupy their links, and latencies."""
        share, latency = self._links
        parts = share.of_edges(senders, receivers, torch.minimum)
        seconds = 8 * size / (1e9 * self.link.gigabits * parts)
        return seconds, latency.of_edges(senders, receivers, torch.maximum)

    @cached_property
    def _links(self) -> tuple[Values, Values]:
        return self.link.values()
