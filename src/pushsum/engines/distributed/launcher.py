"""Start one process per node on this machine; `torchrun` does it on many.

The processes meet at a store in the launcher, which outlives all of them and which nobody else can
reach. Their messages go through ports of the loopback interface.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from pushsum.engines.distributed.peers import Meeting
from pushsum.engines.distributed.store import PipeStore, serve
from pushsum.engines.parent import ask_to_end, end_with_parent, interrupts_held_back
from pushsum.engines.runtime import STOPPED, Stopped

GRACE = 9.0  #: seconds that processes have to stop in, after a signal
PRELOADED = ["torch", "pushsum.training", "pushsum.engines.distributed.runtime"]


def launch(n: int, work: Callable[..., None], *arguments: Any, patience: float) -> int:
    """Run `work(*arguments, meeting)` in n processes of one group; the worst of their exit codes.

    A signal is passed on. When a process fails the others end by themselves, because they miss
    it; those that are stopped are killed then, and so are those that have not ended after
    `patience` seconds, or `GRACE` after a signal. All of them end with this process.
    Raises `Stopped` if a signal ended them all before they could say anything.
    """
    # the server of this context imports torch once; its children then start at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    content = HashStore()
    pipes = [context.Pipe() for _ in range(n)]
    processes = [
        context.Process(target=_rank, args=(rank, n, end, work, arguments), name=f"node {rank}")
        for rank, (_, end) in enumerate(pipes)
    ]
    with _Stopping(processes) as stopping:
        with interrupts_held_back():
            forkserver.ensure_running()
        for process, (own, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()
            threading.Thread(target=serve, args=(own, content), daemon=True).start()
            if stopping.since is not None:
                stopping.pass_on()
                break
        _until_all_ended([p for p in processes if p.pid is not None], patience, stopping)
    if all(_unsaid(process.exitcode, stopping) for process in processes):
        raise Stopped("stopped")
    return max(_code(process.exitcode, stopping) for process in processes)


def _rank(
    rank: int, n: int, launcher: Connection, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    end_with_parent()
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    os.environ |= {name: str(value) for name, value in here.items()}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with contextlib.suppress(OSError):  # what `ps` and `top` show, where there is /proc
        Path("/proc/self/comm").write_text(f"pushsum-{rank}")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // n))
    work(*arguments, Meeting(PipeStore(launcher), rank, n))


class _Stopping:
    """SIGTERM and SIGINT go on to all processes, those that are still to be started included."""

    def __init__(self, processes: list[Any]) -> None:
        self.processes = processes
        self.since: float | None = None

    def __enter__(self) -> "_Stopping":
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running():
            process.kill()
            process.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.since = self.since or monotonic()
        self.pass_on()

    def pass_on(self) -> None:
        for process in self._running():
            ask_to_end(process)

    def _running(self) -> list[Any]:
        return [p for p in self.processes if p.pid is not None and p.is_alive()]


def _until_all_ended(processes: list[Any], patience: float, stopping: _Stopping) -> None:
    """Or until those that should have ended have not: they are killed on the way out."""
    running = {process.sentinel: process for process in processes}
    deadline = float("inf")
    while running and monotonic() < deadline:
        for sentinel in wait(list(running), timeout=0.5):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                deadline = min(deadline, monotonic() + patience)
        if stopping.since is not None:
            deadline = min(deadline, stopping.since + GRACE)
        elif deadline < float("inf"):
            for process in running.values():
                if _is_stopped(process.pid):
                    process.kill()


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by SIGSTOP say; no, where there is no /proc."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "Tt"
    return False


def _unsaid(exitcode: int | None, stopping: _Stopping) -> bool:
    """Whether the signal came before a process listened, or was even started."""
    return stopping.since is not None and exitcode in (None, -signal.SIGTERM)


def _code(exitcode: int | None, stopping: _Stopping) -> int:
    """As a shell has it: 128 + the signal that ended a process."""
    if _unsaid(exitcode, stopping):
        return STOPPED
    if exitcode is None:
        return 1
    return exitcode if exitcode >= 0 else 128 - exitcode
