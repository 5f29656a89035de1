"""A store in the launcher that its own processes alone can reach, each through a pipe.

torch's TCPStore answers whoever connects. Its FileStore keeps every beat of a run on disk, and a
process that is stopped while it holds the file's lock stops all others.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Any

from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

PAUSE = 0.005  #: seconds between two looks at what is waited for
LIMIT = timedelta(minutes=5)  #: of waiting, where none is given; as torch's


def serve(process: Connection, content: HashStore) -> None:
    """Answer one process until it ends, in a thread: one that does not read delays no other."""
    with process, suppress(EOFError, OSError):
        while True:
            name, arguments = process.recv()
            process.send(getattr(content, name)(*arguments))


class PipeStore(Store):
    """The end of a process: the methods of torch's stores that torch and `Peers` use."""

    def __init__(self, launcher: Connection) -> None:
        super().__init__()
        self._launcher, self._lock = launcher, threading.Lock()

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            with self._lock:
                self._launcher.send((name, arguments))
                return self._launcher.recv()
        except (EOFError, OSError):
            raise RuntimeError("the launcher has ended") from None

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        value: bytes = self._ask("get", key)
        return value

    def add(self, key: str, amount: int) -> int:
        total: int = self._ask("add", key, amount)
        return total

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        found: bytes = self._ask("compare_set", key, expected, value)
        return found

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", list(keys)))

    def deleteKey(self, key: str) -> bool:  # as C++ calls it
        return bool(self._ask("delete_key", key))

    def wait(self, keys: Sequence[str], timeout: timedelta = LIMIT) -> None:
        deadline = monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if monotonic() > deadline:
                raise RuntimeError(f"{', '.join(keys)}: not there after {timeout}")
            sleep(PAUSE)

    def clone(self) -> "PipeStore":
        return self  # nobody holds the pipe while waiting, so threads can share it

    def has_extended_api(self) -> bool:
        return False
