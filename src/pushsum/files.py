"""Files that appear complete or not at all, and files to read that somebody else may have made."""

import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}")


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its name only when it is complete and on disk.

    That also holds when the disk is full or the machine stops.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # of a full disk
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)


def remove_drafts(directory: Path) -> None:
    """What processes that were killed have left in a directory at which nobody is at work."""
    for path in directory.glob(".*"):
        if _DRAFT.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
            path.unlink(missing_ok=True)


@contextmanager
def opened(path: Path, most: int | None = None, follow: bool = True) -> Iterator[BufferedReader]:
    """A regular file to read: a pipe or a device may never end, or even begin.

    Args:
        path: its name.
        most: so many bytes; ValueError if there are more.
        follow: whether it may be a link, and so lie anywhere.
    """
    if not follow:
        _refuse_link(path)
    with open(path, "rb", opener=_without_waiting) as file:
        status = _regular(file, path)
        if most is not None and status.st_size > most:
            raise ValueError(f"{path.name} has {status.st_size:,} bytes, more than {most:,}")
        yield file


def content(path: Path, most: int, follow: bool = True) -> bytes:
    """All that such a file holds."""
    with opened(path, most, follow) as file:
        found: bytes | None = file.read(most)
    if found is None:  # /proc has files that look regular and wait like pipes
        raise ValueError(f"{path.name} is not a regular file")
    return found


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link: put the file itself there")


def _without_waiting(path: str, flags: int) -> int:
    """For `open`: that of a pipe would wait for whoever is at its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def _regular(file: BufferedIOBase, path: Path) -> os.stat_result:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    return status


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock file; ValueError if another process does. The system frees it with the process.

    Where there is no flock (Windows), nothing is held.
    """
    _refuse_link(path)  # it would make a file wherever that leads
    with open(path, "ab", opener=_without_waiting) as file:
        _regular(file, path)
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{path.parent}: another process is at work here: wait for its end, or name "
                    "another directory"
                ) from None
        yield


def write_tensors(
    path: Path, tensors: "Mapping[str, Tensor]", about: dict[str, str] | None = None
) -> None:
    """Write a safetensors file that way."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with appearing(path) as file:
        try:
            save_file(_apart(tensors), file.name, about)
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from None


def _apart(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """As the format wants them: contiguous, on the CPU, and no two in the same memory."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        t = tensor.detach().cpu().contiguous()
        place = t.untyped_storage().data_ptr()
        found[name] = t.clone() if place in seen else t
        seen.add(place)
    return found


def write(path: Path, content: bytes) -> None:
    """Write a whole file that way."""
    with appearing(path) as file:
        file.write(content)
