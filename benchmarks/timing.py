"""Measure fairly on a noisy machine: interleave what is compared and take medians."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter


def interleaved(
    pieces: Mapping[str, Callable[[], object]], rounds: int, repeats: int = 1
) -> dict[str, float]:
    """Median seconds of each piece; every round times all of them once, after one round unseen.

    What takes milliseconds is repeated within a round: the caches and threads that the piece
    before left behind are not what is measured.
    """
    times: dict[str, list[float]] = {name: [] for name in pieces}
    for number in range(rounds + 1):
        for name, piece in pieces.items():
            start = perf_counter()
            for _ in range(repeats):
                piece()
            if number:
                times[name].append((perf_counter() - start) / repeats)
    return {name: median(seconds) for name, seconds in times.items()}


def memory(field: str) -> int:
    """Bytes, from /proc/self/status."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
