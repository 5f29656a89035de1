"""How long nodes wait for messages; a model, like all times of links."""

from torch import Tensor


def waiting_seconds(cover: float, busy: Tensor, latency: Tensor, slack: Tensor) -> float:
    """How long a step lasts beyond its gradient, until the slowest message is there.

    One with slack 0 is needed in the step in which it was sent: all wait for it. One that is needed
    s exchanges later has their time, a part of it where s < 1. A link is busy with one message at a
    time, however late they may be, while latencies of several overlap:

        wait = max over messages of  max(busy - cover, (busy + latency - s cover) / max(s, 1))

    Args:
        cover: seconds that the nodes compute from one exchange to the next.
        busy: (E,) seconds for which each message occupies its link.
        latency: (E,) seconds that it is under way besides.
        slack: (E,) after how many exchanges it is needed.

    >>> from torch import tensor
    >>> links = tensor([1.0, 2.0]), tensor([0.0, 4.0])
    >>> [waiting_seconds(1.5, *links, tensor([s, s])) for s in (0, 0.5, 1, 2, 9)]
    [6.0, 5.25, 4.5, 1.5, 0.5]
    """
    if len(busy) == 0:
        return 0.0
    late = (busy + latency - slack * cover) / slack.clamp(min=1)
    return max(0.0, float(late.maximum(busy - cover).max()))
