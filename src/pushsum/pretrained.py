"""ImageNet weights by name: got ready once, then a run starts from them.

A prepared file is a safetensors file with torchvision's names, in float32. Its metadata tell the
network, the source and, if BatchNorm's running statistics must be recomputed, what they are of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pushsum import files, models
from pushsum.data import default_root, fetch, store
from pushsum.data.store import Progress
from pushsum.names import unknown

#: torchvision's IMAGENET1K_V1; a file's name ends with the first digits of its SHA-256
OFFICIAL = {
    "resnet18": "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "resnet50": "https://download.pytorch.org/models/resnet50-0676ba61.pth",
}


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue.

    Attributes:
        name: what `prepare` and `model.pretrained` call it.
        ready: whether it is prepared.
        source: where the prepared file comes from; empty if it is not ready.
        statistics: what BatchNorm's running statistics are of; empty if they need no recomputing.
        where: the file that is, or will be, loaded.
    """

    name: str
    ready: bool
    source: str
    statistics: str
    where: Path


def catalogue() -> list[Entry]:
    """All weights that have a name.

    >>> [entry.name for entry in catalogue()]
    ['resnet18', 'resnet50']
    """
    return [_entry(name, _place(name)) for name in OFFICIAL]


def find(name: str) -> Path:
    """The prepared file of that name."""
    entry = _entry(name, _place(name))
    if not entry.ready:
        raise ValueError(f"{name} is not prepared: run `pushsum weights prepare {name}`")
    return entry.where


def prepare(
    name: str,
    into: Path | None = None,
    source: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Entry:
    """Writes the weights of that name as a file that `model.pretrained` reads.

    What is ready already is left alone, unless a source is given. If anything fails, or is
    interrupted, everything is as it was before.

    Args:
        name: of the `catalogue`.
        into: the file to write, by default NAME.safetensors beside the prepared data sets.
        source: a .safetensors file, or a state dictionary saved by torch, to use instead of
            torchvision's own file.
        progress: called with what is being done, how much of it is, and of how much, if known.
    """
    if name not in OFFICIAL:
        raise ValueError(unknown("weights", name, OFFICIAL))
    path = _place(name) if into is None else Path(into).expanduser()
    if path.suffix != ".safetensors":
        raise ValueError(f"into = {path}: name a file that ends in .safetensors")
    if source is None and _entry(name, path).ready:
        return _entry(name, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if source is not None:
        _convert(name, Path(source).expanduser(), path, progress)
    else:
        _fetch(name, path, progress)
    return _entry(name, path)


def write(
    path: Path, name: str, state: Mapping[str, Tensor], source: str, statistics: str = ""
) -> None:
    """Writes a state with torchvision's names, provided that it is one of the network `name`."""
    state = {n: t for n, t in state.items() if not n.endswith(".num_batches_tracked")}
    wanted = models.build(name, (3, 224, 224), 1000, stem="imagenet").state_dict()
    if fault := models.compared(wanted, state)[1]:
        raise ValueError(f"{source} {fault}: it is not {name} as torchvision names its parts")
    copies = {name: t.float() for name, t in state.items()}
    about = {"network": name, "source": source, "statistics": statistics}
    files.write_tensors(path, copies, about)


def about(path: Path) -> dict[str, str]:
    """What a prepared file tells of itself; nothing if it is not one."""
    try:
        with files.opened(path), safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, ValueError, SafetensorError):
        return {}


def _place(name: str) -> Path:
    return default_root() / f"{name}.safetensors"


def _entry(name: str, path: Path) -> Entry:
    told = about(path)
    ready = told.get("network") == name
    source, statistics = (told.get(k, "") if ready else "" for k in ("source", "statistics"))
    return Entry(name, ready, source, statistics, path)


def _fetch(name: str, path: Path, progress: Progress) -> None:
    url = OFFICIAL[name]
    with TemporaryDirectory(prefix=f".{name}-", dir=path.parent) as folder:
        file = Path(folder, PurePosixPath(url).name)
        try:
            fetch.download(url, file, progress)
            _convert(name, file, path, progress)
        except ValueError as error:
            raise ValueError(
                f"{name} could not be downloaded ({error}): get {file.name} in another way, then "
                f"run `pushsum weights prepare {name} --from {file.name}`; or run `python -m "
                f"study.pretrained {name}.safetensors` in the repository of pushsum"
            ) from error


def _convert(name: str, file: Path, path: Path, progress: Progress) -> None:
    """A given file -> the prepared one."""
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    official = PurePosixPath(OFFICIAL[name])
    if file.name == official.name:
        start, digest = official.stem.rpartition("-")[2], store.file_hash(file, progress)
        if not digest.startswith(start):
            raise ValueError(
                f"{file}: its SHA-256, {digest}, does not begin with {start}: it is damaged or not "
                "the official file; get it again"
            )
    progress(f"write {path.name}", 0, None)
    if file.suffix == ".safetensors":
        state, told = models.read_safetensors(file), about(file)
    else:
        state, told = _read_pickle(file), {}
    if all(key.startswith("module.") for key in state):  # torch.nn.DataParallel
        state = {key.removeprefix("module."): t for key, t in state.items()}
    write(path, name, state, told.get("source", file.name), told.get("statistics", ""))


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """A state dictionary saved by torch, read by an unpickler that runs no code."""
    flat = "a flat mapping of names to tensors: write it with torch.save(model.state_dict(), FILE)"
    try:
        content = torch.load(path, "cpu", weights_only=True)
        state = {str(key): value for key, value in content.items()}
    except OSError:
        raise
    except Exception as error:  # unpicklers raise whatever bad bytes lead them to
        raise ValueError(f"{path} is damaged, or not {flat}") from error
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{path}: {key!r} is not a tensor; it should hold {flat}")
    return state
