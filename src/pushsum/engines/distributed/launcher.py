"""Start one process per node on this machine; `torchrun` does it on many.

The processes meet at a store that lives in the launching process and listens on loopback only, so
that it outlives any of them and nobody else can reach it.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

PRELOADED = ["torch", "pushsum.training", "pushsum.engines.distributed.world"]


def launch(n: int, work: Callable[..., None], *arguments: Any, patience: float) -> int:
    """Run `work(*arguments)` in n processes of one group; the worst of their exit codes.

    A signal is passed on. When a process fails the others end by themselves, because they miss
    it; those that have not after `patience` seconds are killed.
    """
    # the server of this context imports torch once; its children then start at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with _store() as port:
        processes = [
            context.Process(
                target=_rank, args=(rank, n, port, work, arguments), name=f"node {rank}"
            )
            for rank in range(n)
        ]
        with _passing_on(processes):
            for process in processes:
                process.start()
            _until_all_ended(processes, patience)
    return max(_code(process.exitcode) for process in processes)


def _rank(
    rank: int, n: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    os.environ |= {name: str(value) for name, value in here.items()}
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store exists: nobody is to open another
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with contextlib.suppress(OSError):  # what `ps` and `top` show, where there is /proc
        Path("/proc/self/comm").write_text(f"pushsum-{rank}")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // n))
    work(*arguments)


@contextlib.contextmanager
def _store() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(minutes=5),
        master_listen_fd=listener.detach(),
    )
    yield port
    del store


@contextlib.contextmanager
def _passing_on(processes: list[Any]) -> Iterator[None]:
    """SIGTERM goes on to all processes; SIGINT has reached them, if it came from a terminal."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and sys.stdin.isatty():
            return
        for process in processes:
            if process.pid is not None and process.is_alive():
                process.terminate()

    before = {s: signal.signal(s, pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for process in processes:
            if process.pid is not None and process.is_alive():
                process.kill()
                process.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _until_all_ended(processes: list[Any], patience: float) -> None:
    running = {process.sentinel: process for process in processes}
    deadline: float | None = None
    while running:
        for sentinel in wait(list(running), timeout=0.5):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0 and deadline is None:
                deadline = monotonic() + patience
        if deadline is not None and monotonic() > deadline:
            return  # what is left is killed on the way out


def _code(exitcode: int | None) -> int:
    """As a shell has it: 128 + the signal that ended a process."""
    if exitcode is None:
        return 1
    return exitcode if exitcode >= 0 else 128 - exitcode
