"""Arrays on disk: prepared data sets with a sidecar of hashes, and a user's own .npz files.

A prepared data set is NAME.npz (plain arrays, not compressed) beside NAME.json, which says how
long the file must be, what it must hold and its SHA-256. Both appear whole or not at all.
"""

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from pushsum import files
from pushsum.data.formats import refusing

Progress = Callable[[str, int, int | None], None]  #: (what is being done, done, of how many)


def write(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Writes the arrays to `path` and their hashes, with `about`, to its sidecar.

    The sidecar is written last: without it, or with one that does not fit, there is no data set.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.appearing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type] # a stub that takes arrays for a flag
    sidecar = {
        **about,
        "bytes": path.stat().st_size,
        "sha256": file_hash(path),
        "arrays": {
            key: {"shape": list(a.shape), "dtype": a.dtype.str, "sha256": content_hash(a)}
            for key, a in arrays.items()
        },
    }
    files.write(path.with_suffix(".json"), json.dumps(sidecar, indent=2).encode() + b"\n")


def fault(path: Path, thorough: bool = False) -> str | None:
    """What is wrong with the data set prepared at `path`; None if nothing is.

    Looks at sizes and headers; `thorough` reads the file and compares its SHA-256 too.
    """
    try:
        sidecar = json.loads(path.with_suffix(".json").read_bytes())
        expected = {k: (tuple(a["shape"]), a["dtype"]) for k, a in sidecar["arrays"].items()}
        if path.stat().st_size != sidecar["bytes"]:
            return f"{path} is {path.stat().st_size} bytes long, not {sidecar['bytes']}"
        if {k: (shape, dtype.str) for k, (shape, dtype) in headers(path).items()} != expected:
            return f"{path} does not hold the arrays that {path.stem}.json names"
        if thorough and file_hash(path) != sidecar["sha256"]:
            return f"{path} has changed since it was written"
    except FileNotFoundError as error:
        return f"{error.filename} does not exist"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{path} or its sidecar cannot be read ({error})"
    return None


def headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of every array of an .npz file, checked against the bytes it holds."""
    found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    with refusing(str(path), "a readable .npz file"), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                shape, dtype = _header(file)
                if dtype.hasobject:
                    raise ValueError("it holds Python objects; save plain numbers")
                if file.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
                    raise ValueError(f"{member.filename} is not as long as it says")
            found[member.filename.removesuffix(".npy")] = shape, dtype
    return found


def read(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """These arrays of an .npz file, or all; never unpickles. The zip's checksums are checked."""
    headers(path)
    with refusing(str(path), "a readable .npz file"), np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in (arrays if names is None else names)}


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


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    return shape, dtype
