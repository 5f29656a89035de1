"""Named random streams: one seed, any number of independent sources.

Everything random in `pushsum` draws from a stream that is named by what it is for, so that
drawing more numbers for one purpose never moves the numbers of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The random stream that belongs to `names`, a pure function of its arguments.

    >>> first, again = stream(0, "graph", 3), stream(0, "graph", 3)
    >>> int(first.integers(1000)) == int(again.integers(1000))
    True
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, names)))


def uniforms(seed: int, *names: str | int, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform numbers in [0, 1), the same in every version of numpy.

    Graphs are drawn with these: every process of a run must draw the same ones. They come from
    the raw output of the bit generator, the part of numpy whose stream is promised not to change.
    """
    raw = np.random.PCG64(_sequence(seed, names)).random_raw(int(np.prod(shape)))
    return (raw >> np.uint64(11)).reshape(shape) * 2.0**-53


def key(seed: int, *names: str | int) -> int:
    """64 random bits that belong to `names`, for generators that are functions of a counter."""
    return int(_sequence(seed, names).generate_state(1, np.uint64)[0])


def _sequence(seed: int, names: tuple[str | int, ...]) -> np.random.SeedSequence:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed = {seed!r}: a seed is an integer >= 0")
    key = [n if isinstance(n, int) else int.from_bytes(n.encode(), "little") for n in names]
    return np.random.SeedSequence(int(seed), spawn_key=key)


@contextmanager
def torch_seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Within, torch's own generators start from the seed; afterwards they are as they were."""
    import torch

    gpu = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpu):
        torch.default_generator.manual_seed(seed)
        if gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
