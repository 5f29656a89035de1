"""Batches: which samples a node works on at step t, as a network is fed with them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from pushsum.data import Dataset, augment
from pushsum.engines.gradients import Batch
from pushsum.randomness import stream


@dataclass(frozen=True)
class Feed:
    """A data set as networks are fed with it: scaled, on a device, floats in their precision."""

    dataset: Dataset
    device: torch.device
    dtype: torch.dtype = torch.float32

    def train(
        self, indices: np.ndarray, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """These training samples and their targets, augmented at random if there is a generator."""
        chosen = torch.from_numpy(indices)
        x = self.dataset.scaled(self.dataset.train_x[chosen])
        x = x if generator is None else augment(x, generator)
        return self._on_device(x), self._on_device(self.dataset.train_y[chosen])

    def test(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All test samples and their targets, so many at a time."""
        pairs = zip(self.dataset.test_x.split(size), self.dataset.test_y.split(size), strict=True)
        for x, targets in pairs:
            yield self._on_device(self.dataset.scaled(x)), self._on_device(targets)

    def _on_device(self, x: Tensor) -> Tensor:
        x = x.to(self.device, self.dtype if x.is_floating_point() else None)
        # convolutions on a CPU are about a third faster this way, and equal to rounding
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


@dataclass(frozen=True)
class Sampler:
    """Which samples a node draws at step t: a pure function, so that nothing needs saving.

    Each node goes through its own samples in a new random order per pass; the incomplete batch
    at the end of a pass is left out. A node with fewer samples than a batch uses all of them.
    """

    parts: list[np.ndarray]
    size: int
    seed: int
    streams: list[int]  #: nodes of the same stream draw alike
    reshuffle: bool = True
    augmented: bool = False
    random: bool = False  #: whether the forward pass draws at random

    def indices(self, node: int, t: int) -> np.ndarray:
        """The samples of a node at step t."""
        held = self.parts[node]
        size = min(self.size, len(held))
        pass_number, position = divmod(t - 1, len(held) // size)
        order = self._order(node, pass_number if self.reshuffle else 0)
        chosen: np.ndarray = held[order[position * size : (position + 1) * size]]
        return chosen

    @cached_property
    def _order(self) -> Callable[[int, int], np.ndarray]:
        """(node, pass) -> the order of its samples; the present one of each node is kept."""

        def order(node: int, pass_number: int) -> np.ndarray:
            draw = stream(self.seed, "batches", self.streams[node], pass_number)
            return draw.permutation(len(self.parts[node]))

        return lru_cache(maxsize=len(self.parts))(order)

    def batch(self, feed: Feed, t: int, nodes: Sequence[int]) -> Batch:
        """What these nodes work on at step t."""
        indices = [self.indices(node, t) for node in nodes]
        seeds = self._seeds("forward", t, nodes)
        if len({len(chosen) for chosen in indices}) == 1 and not self.augmented:
            x, targets = feed.train(np.concatenate(indices))
            shape = (len(nodes), len(indices[0]))
            return Batch(x.unflatten(0, shape), targets.unflatten(0, shape), seeds)
        each = zip(nodes, indices, strict=True)
        pairs = [feed.train(mine, self._generator(node, t)) for node, mine in each]
        return Batch([x for x, _ in pairs], [targets for _, targets in pairs], seeds)

    def everything(
        self, feed: Feed, nodes: Sequence[int], most: int
    ) -> Iterator[tuple[Batch, Tensor]]:
        """All samples of these nodes: batches, and which share of its samples each node has there.

        As many batches for every node, none of them empty and few longer than `most`.
        """
        parts = [self.parts[node] for node in nodes]
        count = min(*map(len, parts), -(-max(map(len, parts)) // most))
        each = zip(*(np.array_split(part, count) for part in parts), strict=True)
        for number, some in enumerate(each):
            shares = [len(p) / len(part) for p, part in zip(some, parts, strict=True)]
            x, y = zip(*(feed.train(chosen) for chosen in some), strict=True)
            yield Batch(x, y, self._seeds("all", number, nodes)), torch.tensor(shares)

    def _generator(self, node: int, t: int) -> torch.Generator | None:
        if not self.augmented:
            return None
        return torch.Generator().manual_seed(self._seed("augment", self.streams[node], t))

    def _seeds(self, what: str, t: int, nodes: Sequence[int]) -> list[int] | None:
        """Of what the forward passes of these nodes draw at random, if they do."""
        return [self._seed(what, node, t) for node in nodes] if self.random else None

    def _seed(self, what: str, number: int, t: int) -> int:
        return int(stream(self.seed, what, number, t).integers(2**62))
