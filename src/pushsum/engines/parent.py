"""Processes and the one that started them."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the first is not everywhere
    from multiprocessing.context import ForkServerContext, SpawnContext


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends, however it does.

    It kills a stopped process, too, which could notice nothing. Checkpoints appear whole or not at
    all, so that a run goes on from its last one. Linux only; elsewhere processes are left behind.
    """
    parent = multiprocessing.parent_process()
    if parent is None or sys.platform != "linux":
        return
    import fcntl

    pipe = parent.sentinel  # the parent holds its other end
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([pipe], timeout=0):  # it had ended before
        os._exit(1)


def one_import_for_all(module: str) -> "ForkServerContext | SpawnContext":
    """Starts processes from a server that has imported the module; on Windows each does it."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    with interrupts_held_back():  # its processes do not get SIGINT either
        forkserver.ensure_running()
    return context


def ask_to_end(process: BaseProcess) -> None:
    """SIGTERM, and on with a process that was stopped: it would not hear it."""
    process.terminate()
    if sys.platform != "win32" and process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGCONT)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Processes that are started here do not get SIGINT, which a terminal sends to all of them.

    The one that starts them gets it a little later, and tells them. Not on Windows.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # when it starts it lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
