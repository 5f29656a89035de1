"""A data set in memory, and random crops and flips of its images."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pushsum import checks
from pushsum.names import counted


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and targets for training and testing.

    Attributes:
        name: what it is called.
        train_x: (m, channels, height, width) uint8 images, floats of any shape, or int64 tokens.
        train_y: (m,) int64 labels in 0..classes-1; (m, t) of sequences; floats of any shape.
        test_x: the same for testing.
        test_y: the same for testing.
        classes: how many labels, or tokens, there are; 0 where targets are floats.
        mean: (channels,) mean of the training images scaled to [0, 1]; of floats that of every
            feature, or 0.
        std: their standard deviation, 1 where they are constant.
        parts: the samples that each node holds, where the data say so.
        test_parts: the test samples of each node's own, where the data say so.
        target_mean: what was taken from float targets, if they are standardized.
        target_std: what they were divided by then.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: Tensor
    std: Tensor
    parts: Sequence[np.ndarray] | None = None
    test_parts: Sequence[np.ndarray] | None = None
    target_mean: Tensor | float = 0.0
    target_std: Tensor | float = 1.0

    def __repr__(self) -> str:
        return f"Dataset({self.name}: {self.size})"

    @property
    def size(self) -> str:
        """To be read by people: '1437 + 360 samples of 1x8x8, 10 classes'."""
        shape = "x".join(map(str, self.train_x.shape[1:]))
        count = f"{len(self.train_y)} + {len(self.test_y)}"
        kind = f"{self.outputs} {'tokens' if self.train_y.ndim > 1 else 'classes'}"
        if self.classes == 0:
            kind = counted(self.outputs, "number") + " to predict"
        return f"{count} samples of {shape}, {kind}"

    @property
    def outputs(self) -> int:
        """How many numbers a network is to answer with, of sequences at every place."""
        return self.classes or prod(self.train_y.shape[1:])

    @cached_property
    def groups(self) -> np.ndarray:
        """(m,) by what splits tell training samples apart: labels; of floats the tenth they are in.

        All sequences are of one group. Of several targets the first counts.
        """
        return self._grouped(self.train_y)

    @cached_property
    def test_groups(self) -> np.ndarray:
        """The same of the test samples, in the tenths of the training targets."""
        return self._grouped(self.test_y)

    def _grouped(self, targets: Tensor) -> np.ndarray:
        y, known = (t.flatten(1)[:, 0] if t.ndim > 1 else t for t in (targets, self.train_y))
        if self.classes:
            return y.numpy() if targets.ndim == 1 else np.zeros(len(y), np.int64)
        return np.searchsorted(np.quantile(known.numpy(), np.arange(1, 10) / 10), y.numpy())

    def scaled(self, x: Tensor) -> Tensor:
        """What a network is fed.

        That is (x / 255 - mean) / std for uint8 images, (x - mean) / std for floats (as they are,
        unless they are to be standardized), and tokens as they are.

        Args:
            x: (..., channels, height, width) uint8, floats or int64, on any device.
        """
        if x.dtype == torch.uint8:
            mean, std = (v.to(x.device).view(-1, 1, 1) for v in (self.mean, self.std))
            return x.to(torch.float32).div_(255).sub_(mean).div_(std)
        if x.is_floating_point() and self._standardized:
            return (x - self.mean.to(x)) / self.std.to(x)
        if x.is_floating_point() or x.dtype == self.train_x.dtype:
            return x
        raise ValueError(f"x is {x.dtype}: samples are torch.uint8 images or torch.float32")

    def predicted(self, outputs: Tensor) -> Tensor:
        """What a network's (b, ...) outputs for float targets mean, in the units of the data."""
        outputs = outputs.reshape(len(outputs), *self.train_y.shape[1:])
        std, mean = (torch.as_tensor(v).to(outputs) for v in (self.target_std, self.target_mean))
        return outputs * std + mean

    @cached_property
    def _standardized(self) -> bool:
        trivial = bool((self.mean == 0).all()) and bool((self.std == 1).all())
        return self.train_x.is_floating_point() and not trivial


def statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel of (m, c, h, w) uint8 images scaled to [0, 1].

    From exact integer sums, so they depend neither on the order nor on the machine.
    """
    total = np.zeros((2, images.shape[1]), dtype=np.int64)
    for start in range(0, len(images), 1000):
        block = images[start : start + 1000].astype(np.uint16)
        total[0] += block.sum(axis=(0, 2, 3), dtype=np.int64)
        total[1] += (block * block).sum(axis=(0, 2, 3), dtype=np.int64)
    first, second = total / (images.size // images.shape[1])
    std = np.sqrt(np.maximum(second - first**2, 0)) / 255
    return (first / 255).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)


def feature_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every feature of (m, ...) floats; 1 where it is constant."""
    mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    constant = std <= 1e-7 * np.abs(mean)
    return np.asarray(mean, np.float32), np.asarray(np.where(constant, 1, std), np.float32)


def augment(x: Tensor, generator: torch.Generator, crop: int = 4, flip: bool = True) -> Tensor:
    """A random crop and a random horizontal flip of every image, the whole batch at once.

    Each image is padded with `crop` zeros on every side and cut back to its size at a random
    place, then mirrored with probability 1/2. On scaled images a zero is the mean colour.

    Args:
        x: (n, b, c, h, w) or (b, c, h, w) floats.
        generator: the source of all randomness; drawn from on its own device.
        crop: by how many pixels an image may move; 0 for not at all.
        flip: whether to mirror.
    """
    if x.ndim not in (4, 5) or not x.is_floating_point():
        raise ValueError(
            f"x is {x.dtype} of shape {tuple(x.shape)}: images are floats of shape "
            "(n, b, c, h, w) or (b, c, h, w): scale them first, and leave other samples alone"
        )
    checks.count("crop", crop, "a number of pixels", least=0)
    images = x.flatten(0, -4)
    m, _, height, width = images.shape
    if crop:
        place = torch.randint(
            2 * crop + 1, (2, m), generator=generator, device=generator.device
        ).to(x.device)
        windows = F.pad(images, (crop,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        images = windows[torch.arange(m, device=x.device), :, place[0], place[1]]
    if flip:
        mirrored = torch.rand(m, generator=generator, device=generator.device) < 0.5
        images = torch.where(mirrored.to(x.device).view(-1, 1, 1, 1), images.flip(-1), images)
    return images.reshape(x.shape)
