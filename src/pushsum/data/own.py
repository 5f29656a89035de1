"""Data of one's own: arrays, files of arrays, tables, and functions that return data."""

import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pushsum import files, own_code
from pushsum.data import store
from pushsum.data.dataset import Dataset, feature_statistics, statistics
from pushsum.names import one_line
from pushsum.randomness import stream

MOST_LINE = 1 << 24  #: characters of a table: a file of nothing but gaps has no end of a line
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def dataset(
    name: str,
    arrays: Mapping[str, np.ndarray],
    classes: int,
    parts: Sequence[np.ndarray] | None = None,
    test_parts: Sequence[np.ndarray] | None = None,
) -> Dataset:
    """Arrays train_x, train_y, test_x and test_y that are as they should be."""
    if "mean" in arrays:
        mean, std = arrays["mean"], arrays["std"]
    elif arrays["train_x"].dtype == np.uint8:
        mean, std = statistics(arrays["train_x"])
    else:
        mean, std = np.zeros(1, np.float32), np.ones(1, np.float32)
    y = {k: arrays[k].astype(np.int64 if classes else np.float32) for k in ("train_y", "test_y")}
    return Dataset(
        name,
        torch.from_numpy(arrays["train_x"]),
        torch.from_numpy(y["train_y"]),
        torch.from_numpy(arrays["test_x"]),
        torch.from_numpy(y["test_y"]),
        classes,
        torch.from_numpy(mean),
        torch.from_numpy(std),
        parts,
        test_parts,
    )


def standardized(found: Dataset) -> Dataset:
    """The same samples; `scaled` gives every feature mean 0 and deviation 1, float targets have it.

    By the statistics of the training samples. Images are scaled anyway.
    """
    if not found.classes:
        mean, std = map(torch.from_numpy, feature_statistics(found.train_y.numpy()))
        y = [(v - mean) / std for v in (found.train_y, found.test_y)]
        found = replace(found, train_y=y[0], test_y=y[1], target_mean=mean, target_std=std)
    if found.train_x.dtype == torch.uint8:
        return found
    if not found.train_x.is_floating_point():
        raise ValueError(f"data.standardize: {found.name} holds tokens, not numbers: leave it out")
    mean, std = map(torch.from_numpy, feature_statistics(found.train_x.numpy()))
    return replace(found, mean=mean, std=std)


def content_hash(found: Dataset) -> str:
    """SHA-256 of all samples and targets."""
    digest = hashlib.sha256()
    for tensor in (found.train_x, found.train_y, found.test_x, found.test_y):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    for part in (*(found.parts or ()), *(found.test_parts or ())):
        digest.update(part.tobytes())
    return digest.hexdigest()


# --------------------------------------------------------------------------- where it comes from


def from_npz(path: Path) -> Dataset:
    """Of a file with four arrays."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    found = store.read(path, ARRAYS)
    if missing := [name for name in ARRAYS if name not in found]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: write it with "
            "numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    return checked(path.stem, found, str(path))


def from_table(path: Path, target: str | None, test: float) -> Dataset:
    """Of a .csv file with a heading; words and integers in the target's column are classes."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    with store.refusing(str(path), "a readable .csv file"), files.opened(path) as content:
        text = TextIOWrapper(content, newline="")
        heading, *lines = [line for line in csv.reader(_lines(text)) if line] or [[]]
    heading = [word.strip() for word in heading]
    if target not in heading:
        names = one_line(", ".join(heading), 200)
        raise ValueError(f"data.target = {target}: name the column to predict of {path}: {names}")
    if not 0 < test < 1:
        raise ValueError(f"data.test = {test}: a part of the rows lies between 0 and 1")
    place = heading.index(target)
    for number, line in enumerate(lines, 2):
        if len(line) != len(heading):
            raise ValueError(
                f"{path}: row {number} has {len(line)} values, the heading {len(heading)}"
            )
    x = np.array(
        [
            [_number(path, row, heading[k], word) for k, word in enumerate(line) if k != place]
            for row, line in enumerate(lines, 2)
        ],
        dtype=np.float64,
    )
    y = _target([line[place].strip() for line in lines])
    order = stream(0, "test").permutation(len(y))
    held = round(test * len(y))
    if not 0 < held < len(y):
        raise ValueError(f"data.test = {test}: of {len(y)} rows none would be left; choose another")
    rows = {"test": np.sort(order[:held]), "train": np.sort(order[held:])}
    arrays = {f"{axis}_{part}": v[rows[part]] for axis, v in (("x", x), ("y", y)) for part in rows}
    return checked(path.stem, arrays, str(path))


def _lines(file: TextIOWrapper) -> Iterator[str]:
    while line := file.readline(MOST_LINE):
        if len(line) == MOST_LINE:
            raise ValueError(f"a line has more than {MOST_LINE:,} characters")
        yield line


def _number(path: Path, row: int, column: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(
            f"{path}: row {row}, column {column}: {one_line(word, 50)!r} is not a number: encode "
            "words as numbers, and leave out rows with gaps"
        ) from None


def _target(words: Sequence[str]) -> np.ndarray:
    """Numbers if one of them has a decimal point or exponent; else classes, in their order."""
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return np.unique(words, return_inverse=True)[1]
    if all(word.lstrip("+-").isdigit() for word in words):
        return np.unique(numbers, return_inverse=True)[1]
    return np.array(numbers)


def from_function(text: str, nodes: int | None, seed: int) -> Dataset:
    """What a function of FILE.py returns.

    It may ask for `nodes` and `seed`, and returns (x_train, y_train, x_test, y_test), a mapping of
    these, or (train, test): two map-style torch data sets, which are read into memory. Either may
    end with the samples of each node, a list of arrays of indices into the training samples; in
    the place of `train`, and of `test`, there may be a list of data sets, one for each node.
    """
    given = {"nodes": nodes, "seed": seed}
    returned = own_code.called("data", text, given)
    where, parts, test_parts = f"data {text}", None, None
    if isinstance(returned, Mapping):
        if missing := [name for name in ARRAYS if name not in returned]:
            keys = one_line(", ".join(map(str, returned)), 200)
            raise ValueError(
                f"{where}: the mapping lacks {', '.join(missing)}: its keys are {keys}"
            )
        returned = [returned.get(name) for name in (*ARRAYS, "parts")]
        returned = returned if returned[-1] is not None else returned[:-1]
    if not isinstance(returned, tuple | list) or not 2 <= len(returned) <= 5:
        raise ValueError(
            f"{where}: returned {type(returned).__name__}, expected (x_train, y_train, x_test, "
            "y_test) or (train, test)"
        )
    if len(returned) % 2:
        *returned, parts = returned
    if len(returned) == 4:
        arrays = dict(zip(ARRAYS, (_array(where, value) for value in returned), strict=True))
    else:
        train, test = returned
        x, y, held = joined(where, train)
        x_test, y_test, test_parts = joined(where, test)
        parts = held if held is not None else parts
        arrays = dict(zip(ARRAYS, (x, y, x_test, y_test), strict=True))
    return checked(Path(text).stem, arrays, where, parts, test_parts, tokens=True)


def joined(where: str, samples: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray] | None]:
    """(x, y) of samples, and of a list with those of each node also who has which."""
    parts = samples if isinstance(samples, list) else [samples]
    if not parts:
        raise ValueError(f"{where}: the list is empty, expected the samples of each node")
    pairs = [in_memory(where, part) for part in parts]
    for k, name in enumerate(("x", "y")):
        kinds = {(pair[k].dtype, pair[k].shape[1:]) for pair in pairs}
        if len(kinds) > 1:
            raise ValueError(
                f"{where}: the nodes' {name} differ in type or shape: {sorted(map(str, kinds))}"
            )
    x, y = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    ends = np.cumsum([len(pair[1]) for pair in pairs])
    held = np.split(np.arange(ends[-1]), ends[:-1]) if isinstance(samples, list) else None
    return x, y, held


def in_memory(where: str, samples: Any) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) arrays, of such a pair or of a map-style data set of (sample, target)."""
    if isinstance(samples, tuple) and len(samples) == 2:
        return _array(where, samples[0]), _array(where, samples[1])
    try:
        pairs = [samples[k] for k in range(len(samples))]
        x, y = (np.stack([_array(where, v) for v in column]) for column in zip(*pairs, strict=True))
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"{where}: {type(samples).__name__} is neither a pair of arrays (x, y) nor a data set "
            f"of (sample, target) that are all of one shape: {one_line(error)}"
        ) from None
    return x, y


def _array(where: str, value: Any) -> np.ndarray:
    try:
        found = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{where}: {type(value).__name__} is no array: {one_line(error)}"
        ) from None
    return found


# --------------------------------------------------------------------------- at the door


def checked(
    name: str,
    found: Mapping[str, np.ndarray],
    where: str,
    parts: Sequence[Any] | None = None,
    test_parts: Sequence[Any] | None = None,
    tokens: bool = False,
) -> Dataset:
    """A data set of arrays that somebody gave; `where` is what messages call them.

    Args:
        name: of the data set.
        found: x_train, y_train, x_test and y_test.
        where: see above.
        parts: the indices of each node's training samples.
        test_parts: the same of its own test samples.
        tokens: whether integer samples are tokens, and labels may be missing; those with a target
            at every place are anyway.
    """
    tokens = tokens or found["y_train"].ndim > 1
    x = {p: _samples(where, f"x_{p}", found[f"x_{p}"], tokens) for p in ("train", "test")}
    if (x["train"].shape[1:], x["train"].dtype) != (x["test"].shape[1:], x["test"].dtype):
        raise ValueError(
            f"{where}: x_train ({x['train'].dtype}, {x['train'].shape[1:]}) and x_test "
            f"({x['test'].dtype}, {x['test'].shape[1:]}) must hold samples of one type and shape"
        )
    y = {part: _targets(where, f"y_{part}", found[f"y_{part}"], len(x[part])) for part in x}
    kinds = [(v.dtype.kind == "f", v.shape[1:]) for v in y.values()]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{where}: y_train and y_test must hold targets of one type and shape")
    if y["train"].dtype.kind == "f":
        classes = 0
    elif y["train"].ndim == 1 and not tokens:
        classes = _labels(where, *y.values())
    else:
        also = x.values() if y["train"].ndim > 1 and x["train"].dtype.kind == "i" else ()
        if min(v.min() for v in (*y.values(), *also)) < 0:
            raise ValueError(f"{where}: labels and tokens are integers >= 0")
        classes = int(max(v.max() for v in (*y.values(), *also))) + 1
    arrays = {f"{part}_x": v for part, v in x.items()} | {f"{part}_y": v for part, v in y.items()}
    held, tested = _parts(where, parts, len(x["train"])), _parts(where, test_parts, len(x["test"]))
    return dataset(name, arrays, classes, held, tested)


def _samples(where: str, name: str, x: np.ndarray, tokens: bool) -> np.ndarray:
    if x.ndim and not x.size:
        raise ValueError(f"{where}: {name} is empty")
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = np.moveaxis(x, 3, 1)
    if x.dtype.kind == "f" and x.ndim > 1:
        return _finite(where, name, x)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x)
    if tokens and x.dtype.kind in "iu" and x.ndim > 1:
        return x.astype(np.int64, order="C")
    scale = " / 255" * (x.dtype == np.uint8)
    raise ValueError(
        f"{where}: {name} is {x.dtype} of shape {x.shape}: samples are uint8 images "
        f"(m, c, h, w) or floats (m, ...): write x.astype('float32'){scale}"
    )


def _targets(where: str, name: str, y: np.ndarray, count: int) -> np.ndarray:
    if y.ndim == 0 or len(y) != count or y.dtype.kind not in "iuf" or not y.size:
        raise ValueError(
            f"{where}: {name} must be {count} integers >= 0 or floats, one for each of "
            f"x_{name.partition('_')[2]}, not {y.dtype} of shape {y.shape}"
        )
    return _finite(where, name, y) if y.dtype.kind == "f" else y


def _finite(where: str, name: str, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = values.astype(np.float32, order="C")
    if not (finite := np.isfinite(values).reshape(len(values), -1).all(axis=1)).all():
        raise ValueError(
            f"{where}: {name}[{finite.argmin()}] is not finite, or too large for float32"
        )
    return values


def _labels(where: str, *y: np.ndarray) -> int:
    labels = np.union1d(*y)
    if labels[0] != 0 or labels[-1] != len(labels) - 1:
        raise ValueError(
            f"{where}: there are {len(labels)} labels, from {labels[0]} to {labels[-1]}: number "
            f"them 0 to {len(labels) - 1}, by numpy.searchsorted(numpy.union1d(y_train, y_test), y)"
        )
    return len(labels)


def _parts(where: str, parts: Sequence[Any] | None, count: int) -> list[np.ndarray] | None:
    if parts is None:
        return None
    found = [np.asarray(_array(where, part)).ravel() for part in parts]
    for node, part in enumerate(found):
        if not part.size or part.dtype.kind not in "iu" or part.min() < 0 or part.max() >= count:
            raise ValueError(
                f"{where}: the part of node {node} must be some indices from 0 to {count - 1}"
            )
    return [part.astype(np.int64) for part in found]
