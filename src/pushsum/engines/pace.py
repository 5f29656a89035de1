"""How long a step takes where nodes and links are uneven; a model, like all times of links."""

from collections.abc import Sequence
from typing import Literal

Pace = Literal["synchronous", "overlapped", "asynchronous"]


def link_seconds(size: float, gigabits: float, latency: float = 0.0) -> float:
    """What a message of so many bytes takes on a link.

    >>> link_seconds(125e6, gigabits=1.0, latency=0.5)
    1.5
    """
    return 8 * size / (1e9 * gigabits) + latency


def step_seconds(
    compute: float, slowness: Sequence[float], links: Sequence[float], pace: Pace
) -> float:
    """What one step of the network takes.

    Synchronous nodes wait for the slowest of them, and then for the slowest link. Overlapped ones
    send while they compute. Asynchronous ones wait for nobody: a step is one of the fastest node,
    and the slower ones take part in some of them.

    Args:
        compute: seconds of a gradient at the fastest node.
        slowness: how many times slower each node is.
        links: seconds of a message on each link that is used.
        pace: who waits for whom.

    >>> [step_seconds(1.0, [1, 5], [0.5, 2.0], how)
    ...  for how in ("synchronous", "overlapped", "asynchronous")]
    [7.0, 5.0, 1.0]
    """
    slowest, wire = compute * max(slowness), max(links, default=0.0)
    if pace == "asynchronous":
        return compute * min(slowness)
    return max(slowest, wire) if pace == "overlapped" else slowest + wire
