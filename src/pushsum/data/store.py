"""Arrays on disk: prepared data sets with a sidecar of hashes, and a user's own .npz files.

A prepared data set is NAME.npz (plain arrays, not compressed) beside NAME.json, which says how
long the file must be and its SHA-256. Both appear whole or not at all.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np

from pushsum import files
from pushsum.names import one_line
from pushsum.reading import MOST_META, json_value

MOST_UNPACKED = 1 << 30  #: bytes that a file of any size may stand for
Progress = Callable[[str, int, int | None], None]  #: (what is being done, done, of how many)


def write(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Writes the arrays to `path` and their hashes, with `about`, to its sidecar.

    The sidecar is written last: without it, or with one that does not fit, there is no data set.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.appearing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type] # a stub that takes arrays for a flag
    sidecar = {**about, "bytes": path.stat().st_size, "sha256": file_hash(path)}
    files.write(path.with_suffix(".json"), json.dumps(sidecar, indent=2).encode() + b"\n")


def fault(path: Path, thorough: bool = False) -> str | None:
    """What is wrong with the data set prepared at `path`; None if nothing is.

    Looks at its size; `thorough` reads the file and compares its SHA-256 too.
    """
    try:
        sidecar = json_value(files.content(path.with_suffix(".json"), MOST_META))
        if path.stat().st_size != sidecar["bytes"]:
            return f"{path} is {path.stat().st_size} bytes long, not {sidecar['bytes']}"
        if thorough and file_hash(path) != sidecar["sha256"]:
            return f"{path} has changed since it was written"
    except FileNotFoundError as error:
        return f"{error.filename} does not exist"
    except (ValueError, KeyError, TypeError) as error:
        return f"{path.with_suffix('.json')} cannot be read ({error})"
    return None


def read(path: Path, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or these of them that it has; never unpickles."""
    with (
        refusing(str(path), "a readable .npz file"),
        files.opened(path) as file,
        ZipFile(file) as archive,
    ):
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        members = {name: members[name] for name in members if not names or name in names}
        _refuse_bombs(archive, members, path.stat().st_size)
        return {name: _array(archive, info) for name, info in members.items()}


def _array(archive: ZipFile, info: ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _refuse_bombs(archive: ZipFile, members: Mapping[str, ZipInfo], size: int) -> None:
    """ValueError if a small file stands for arrays that may not fit in memory."""
    total = 0
    for name, info in members.items():
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            header = np.lib.format.read_array_header_1_0
            header = header if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, kind = header(member)
            claimed, held = prod(shape) * kind.itemsize, info.file_size - member.tell()
        if claimed != held and not kind.hasobject:  # which are refused in any case
            raise ValueError(f"{name} should have {claimed:,} bytes, and has {held:,}")
        total += held
    if total > max(MOST_UNPACKED, 100 * size):
        raise ValueError(
            f"its {size:,} bytes stand for {total:,}: write it with numpy.savez, which does not "
            "compress"
        )


@contextmanager
def refusing(name: str, expected: str) -> Iterator[None]:
    """Turns whatever a parser raises on bad bytes into a ValueError that names the file.

    Parsers raise a dozen unrelated exceptions on bad input, so all are caught except those of the
    operating system.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{name} is not {expected}: {one_line(error)}") from error


def content_hash(array: np.ndarray) -> str:
    """SHA-256 of the raw bytes, images with the channels last (as their publishers store them)."""
    if array.ndim == 4:
        array = np.moveaxis(array, 1, -1)
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def file_hash(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file."""
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            if progress:
                progress(f"check {path.name}", file.tell(), total)
    return digest.hexdigest()
