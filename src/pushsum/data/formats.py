"""Readers for files that may be hostile.

Nothing is extracted to disk, nothing is executed, and no more is read or allocated than the
caller said a genuine file can need. Whatever is wrong with a file comes out as a ValueError
that names it.
"""

import gzip
import io
import pickle
import pickletools
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pushsum.names import one_line


@contextmanager
def refusing(name: str, expected: str) -> Iterator[None]:
    """Turns whatever a parser raises on bad bytes into a ValueError that names the file.

    The parsers of the standard library raise a dozen unrelated exceptions on bad input, so all
    are caught except those of the operating system.
    """
    try:
        yield
    except gzip.BadGzipFile as error:
        raise ValueError(f"{name} is not {expected}: {error}") from error
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{name} is not {expected}: {one_line(error)}") from error


def members(
    path: Path, largest: Callable[[str], int | None], total: int
) -> Iterator[tuple[str, bytes]]:
    """The wanted members of a .tar.gz as (name, content), in the order of the archive.

    Only regular files are read, each once; names are compared, never used as paths.

    Args:
        path: the archive.
        largest: name -> how long this member may be, or None if it is not wanted.
        total: how much the whole archive may unpack to; reading stops there.
    """
    seen: set[str] = set()
    with (
        refusing(path.name, "a sound archive"),
        gzip.open(path) as unpacked,
        tarfile.open(fileobj=_Bounded(unpacked, total), mode="r|", bufsize=1 << 20) as archive,
    ):
        for member in archive:
            limit = largest(member.name)
            if limit is None:
                continue
            if not member.isreg() or member.issparse():
                raise ValueError(f"{member.name!r} is not a regular file")
            if member.size > limit:
                raise ValueError(f"{member.name!r} has {member.size} bytes, more than {limit}")
            if member.name in seen:
                raise ValueError(f"{member.name!r} occurs twice")
            seen.add(member.name)
            content = archive.extractfile(member)
            assert content is not None
            data = content.read()
            if len(data) != member.size:
                raise ValueError(f"{member.name!r} is cut short")
            yield member.name, data


def gunzip(data: bytes, name: str, limit: int) -> bytes:
    """The content of a gzip file, if it is at most `limit` bytes long."""
    with refusing(name, "a sound gzip file"):
        stream = zlib.decompressobj(wbits=31)
        return _whole(stream.decompress(data, limit + 1), stream.eof, limit)


def idx(data: bytes, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The uint8 array of an IDX file (the format of MNIST), which must have this shape."""
    expected = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[: len(expected)] != expected:
        raise ValueError(f"{name} is not an IDX file of {shape} bytes")
    if len(data) != len(expected) + np.prod(shape):
        raise ValueError(f"{name} is not as long as its header says")
    return np.frombuffer(data, np.uint8, offset=len(expected)).reshape(shape)


# --------------------------------------------------------------------------- pickles


def cifar_pickle(data: bytes, name: str, label: str, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (m, pixels) and labels (m,) of one batch of the Python version of CIFAR, uint8.

    The file is a pickle by Python 2 of a dict of strings, lists and one array. The three names
    it may look up are answered with inert stand-ins; everything else is refused.
    """
    with refusing(name, "a batch of CIFAR"):
        for operation, argument, _ in pickletools.genops(data):
            if operation.name.endswith("PUT") and int(argument or 0) > _MEMO:
                raise ValueError(f"it numbers its objects up to {argument}")
        batch = _Restricted(io.BytesIO(data), encoding="latin1").load()
        array, labels = batch["data"], batch[label]
        if type(array) is not _Array or array.dtype != "u1" or array.shape[1:] != (pixels,):
            raise ValueError(f"its data is not rows of {pixels} bytes")
        flat = np.frombuffer(array.content, np.uint8)
        x = flat.reshape(array.shape, order="F" if array.by_columns else "C")
        return np.ascontiguousarray(x), np.array(labels, dtype=np.uint8)


_MEMO = 1_000_000  # the unpickler allocates as many entries as the largest number says


class _Array:
    """What the pickle of a numpy array says, without numpy acting on it."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    by_columns: bool = False
    content: bytes = b""

    def __setstate__(self, state: tuple[int, tuple[int, ...], "_Type", bool, str]) -> None:
        _, self.shape, kind, self.by_columns, content = state
        self.dtype, self.content = kind.code, content.encode("latin1")


class _Type:
    def __init__(self, code: str, *_: int) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment mean nothing for single bytes


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "numpy.core.multiarray", "_reconstruct":
                return lambda kind, shape, code: _Array()
            case "numpy", "ndarray":
                return None  # handed to _reconstruct and ignored there
            case "numpy", "dtype":
                return _Type
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such file needs")


# --------------------------------------------------------------------------- pictures


def png(data: bytes, name: str, height: int, width: int) -> np.ndarray:
    """The (height, width, 3) uint8 pixels of an RGB PNG file, which must have this size."""
    with refusing(name, f"a PNG file of {width} x {height} RGB pixels"):
        chunks = list(_png_chunks(data))
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        if not chunks or chunks[0] != (b"IHDR", header) or chunks[-1] != (b"IEND", b""):
            raise ValueError("its header or its end is another")
        size = height * (1 + 3 * width)
        stream = zlib.decompressobj()
        packed = b"".join(content for kind, content in chunks if kind == b"IDAT")
        rows = _whole(stream.decompress(packed, size + 1), stream.eof, size)
        if len(rows) != size:
            raise ValueError("there are too few pixels")
        lines = np.frombuffer(rows, np.uint8).reshape(height, 1 + 3 * width)
        if lines[:, 0].max() > 4:
            raise ValueError(f"there is no filter {lines[:, 0].max()}")
        return _unfiltered(lines[:, 1:].reshape(height, width, 3), lines[:, 0])


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    signature = b"\x89PNG\r\n\x1a\n"
    if data[: len(signature)] != signature:
        raise ValueError("it does not begin like one")
    at = len(signature)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(kind + content) != checksum:
            raise ValueError("a checksum does not fit")
        yield kind, content
        at += 12 + length


def _unfiltered(lines: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Undoes PNG's filters 0..4 on (height, width, 3) bytes.

    A pixel depends on its left, upper and upper left neighbours, so all pixels with the same
    row + column = k, a front, can be done at once. Slot s of a front holds the pixel of the one
    row r = s (mod width) that it crosses: `width` slots suffice, however many rows there are.
    """
    height, width, _ = lines.shape
    fronts = np.zeros((height + 2 * width, width, 3), dtype=np.uint8)
    step, slot, channel = fronts.strides
    slanted = [  # the same bytes, seen as rows and columns again, `width` rows at a time
        as_strided(fronts[top:], (min(width, height - top), width, 3), (step + slot, step, channel))
        for top in range(0, height, width)
    ]
    for top, view in zip(range(0, height, width), slanted, strict=True):
        view[:] = lines[top : top + width]

    kind = np.zeros((width, 1), dtype=np.intp)
    nothing, left, corner = np.zeros((3, width, 3), dtype=np.int16)
    for k in range(height + width - 1):
        above = np.roll(left, 1, axis=0)
        begins = k % width  # a row has ended in this slot, row k begins
        left[begins] = corner[begins] = 0
        kind[begins] = filters[k] if k < height else 0
        mean, paeth = (left + above) >> 1, _paeth(left, above, corner)
        fronts[k] += np.choose(kind, [nothing, left, above, mean, paeth]).astype(np.uint8)
        left, corner = fronts[k].astype(np.int16), above
    return np.concatenate(slanted)


def _paeth(left: np.ndarray, above: np.ndarray, corner: np.ndarray) -> np.ndarray:
    """Whichever of the three is nearest to left + above - corner; in doubt the first."""
    to_left, to_above = abs(above - corner), abs(left - corner)
    to_corner = abs(left + above - 2 * corner)
    other = np.where(to_above <= to_corner, above, corner)
    return np.where((to_left <= to_above) & (to_left <= to_corner), left, other)


# --------------------------------------------------------------------------- limits


class _Bounded(io.RawIOBase):
    """A stream that ends in an error after `limit` bytes, whatever it unpacks to."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more than a genuine one")
        return data


def _whole(data: bytes, ended: bool, limit: int) -> bytes:
    if len(data) > limit:
        raise ValueError(f"it unpacks to more than {limit} bytes")
    if not ended:
        raise ValueError("it is cut short")
    return data
