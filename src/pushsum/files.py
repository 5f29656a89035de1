"""Files that appear complete or not at all, also when the disk is full or the machine stops."""

import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}")


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its name only when it is complete and on disk."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
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
        if _DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock file; ValueError if another process does. The system frees it with the process.

    Where there is no flock (Windows), nothing is held.
    """
    with path.open("ab") as file:
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


def write(path: Path, content: bytes) -> None:
    """Write a whole file that way."""
    with appearing(path) as file:
        file.write(content)
