"""What a plan leaves of the graphs."""

from collections.abc import Callable, Iterator

import numpy as np

from pushsum import checks
from pushsum.faults.plans import Plan
from pushsum.faults.presets import as_plan
from pushsum.faults.rules import CRASHED, HERE
from pushsum.topology import Certificate, Topology


def certificate(faults: Plan | str, graphs: Topology, steps: int = 1000) -> Certificate:
    """Period, diameter and horizon of the messages that get through, measured over so many steps.

    Late messages count as edges of the step in which they arrive. Nodes that are away for good are
    left out. It is what was measured, and no guarantee: by chance, anything may be lost for
    any time. The hold rule is not looked at: it takes edges away while a node is held.

    >>> from pushsum.faults import plan
    >>> from pushsum.topology import full
    >>> certificate(plan(loss=0.3), full(6), steps=200)
    Certificate(period=2, diameter=2, horizon=3)
    """
    checks.count("steps", steps, "over how many it is measured")
    faults = as_plan(faults) or Plan()
    faults.check(graphs.n)
    stay = (faults.status(steps, graphs.n) < CRASHED).numpy()
    if not stay.any():
        raise ValueError(f"{faults}: after {steps} steps no node is there")
    arrived = [graph[np.ix_(stay, stay)] for graph in _arrived(faults, graphs, steps)]
    horizon = _longest(arrived, np.matmul, np.all)
    period = _longest(arrived, np.logical_or, lambda union: _hops(union) is not None)
    if not horizon or not period:
        raise ValueError(
            f"{faults} on {graphs}: in {steps} steps, what gets through does not connect the nodes "
            "that stay: measure more steps, or take more links or fewer faults"
        )
    windows = (arrived[first : first + period] for first in range(steps - period + 1))
    return Certificate(period, max(_hops(np.any(w, axis=0)) or 0 for w in windows), horizon)


def _arrived(faults: Plan, graphs: Topology, steps: int) -> Iterator[np.ndarray]:
    """(n, n) bool per step: whose messages get through in it to whom; everybody hears himself."""
    n = graphs.n
    coming = np.zeros((faults.longest + 1, n, n), dtype=bool)  # [k] in k steps
    for t in range(1, steps + 1):
        senders, receivers = graphs.edges(t)
        there = faults.status(t, n) == HERE
        sends = there & ~faults.asleep(t, n)
        fate = faults.fates(t, senders, receivers)
        some = (fate >= 0) & sends[senders] & there[receivers]
        coming[fate[some].numpy(), senders[some].numpy(), receivers[some].numpy()] = True
        yield coming[0] | np.eye(n, dtype=bool)
        coming = np.roll(coming, -1, axis=0)
        coming[-1] = False


def _longest(
    graphs: list[np.ndarray],
    grown: Callable[[np.ndarray, np.ndarray], np.ndarray],
    complete: Callable[[np.ndarray], object],
) -> int:
    """The most steps from any start until what grows is complete; 0 if it never is.

    Starts too near the end do not count.
    """
    longest = 0
    for start in range(len(graphs)):
        held = np.eye(len(graphs[0]), dtype=bool)
        for steps, graph in enumerate(graphs[start:], 1):
            held = grown(held, graph)
            if complete(held):
                longest = max(longest, steps)
                break
        else:
            return longest
    return longest


def _hops(adjacency: np.ndarray) -> int | None:
    """Within how many hops everybody reaches everybody; None: never."""
    reached, hops = np.eye(len(adjacency), dtype=bool), 0
    while not reached.all():
        grown = reached @ adjacency
        if (grown == reached).all():
            return None
        reached, hops = grown, hops + 1
    return hops
