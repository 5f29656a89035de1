"""Real processes for the tests: one per node, each with a port of its own run and a deadline."""

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist

from pushsum import topology, weighting

CONTEXT = multiprocessing.get_context("forkserver")  # its server imports torch once for all
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "pushsum.engines.distributed.node",
        "pushsum.training",
        "tests.ranks",
    ]
)
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of that server, as `pushsum run` sets it
DEADLINE = 900.0  #: seconds after which a test fails: only what is broken takes as long


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition, however long the machine takes."""
    deadline = monotonic() + DEADLINE
    while not condition():
        assert monotonic() < deadline, f"not within {DEADLINE:g} s: {what}"
        sleep(0.02)


def in_session(leader: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def on_ranks(
    n: int, work: Callable[..., Any], *arguments: Any, torchrun: bool = False
) -> list[Any]:
    """`work(rank, *arguments)` in n processes that form a process group; what each returned.

    As `torchrun`: no group yet, but the environment that torchrun would start them with.
    """
    with running(n, work, *arguments, torchrun=torchrun) as ranks:
        return ranks.results()


class running:
    """The processes while they run, for tests that stop or kill some of them."""

    def __init__(
        self, n: int, work: Callable[..., Any], *arguments: Any, torchrun: bool = False
    ) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        # the store lives here, so that it outlives any rank
        self.store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=DEADLINE),
            master_listen_fd=listener.detach(),
        )
        self.pipes, self.processes = [], []
        for rank in range(n):
            mine, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=_rank, args=(rank, n, port, torchrun, theirs, work, arguments), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def __enter__(self) -> "running":
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
            pipe.close()

    def results(self) -> list[Any]:
        """What every rank returned; raises what one of them raised."""
        return [self.result(rank) for rank in range(len(self.processes))]

    def result(self, rank: int) -> Any:
        assert self.pipes[rank].poll(DEADLINE), f"rank {rank} did not answer"
        problem, answer = pickle.loads(self.pipes[rank].recv_bytes())
        assert problem is None, f"rank {rank}:\n{problem}"
        return answer


def _rank(
    rank: int,
    n: int,
    port: int,
    torchrun: bool,
    pipe: Any,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        if torchrun:
            os.environ |= _environment(rank, n, port)
        else:
            limit = timedelta(seconds=DEADLINE)
            store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=n, timeout=limit)
            store.set(f"met/{rank}", "")
            store.wait([f"met/{r}" for r in range(n)])  # one that leaves at once leaves no mess
        answer = None, work(rank, *arguments)
    except BaseException:
        answer = traceback.format_exc(), None
    pipe.send_bytes(pickle.dumps(answer))  # plainly: torch would lend the pipe its memory
    pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _environment(rank: int, n: int, port: int) -> dict[str, str]:
    ranks = {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
    sizes = {name: str(n) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")}
    return {
        **ranks,
        **sizes,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


# --------------------------------------------------------------------------- a network that starves


def starving_path() -> tuple[topology.Topology, weighting.Weighting]:
    """0 -> 1 -> 2 -> 3, and back to 0: node 3 keeps a millionth and gets next to nothing."""
    edges = [(0, 1), (1, 2), (2, 3), (1, 0), (2, 0), (3, 0)]
    return topology.from_edges(4, edges), weighting.own(_starving, floor=1e-300)


def _starving(adjacency: torch.Tensor, d2: torch.Tensor) -> torch.Tensor:
    W = 2.0**-53 * adjacency.T.double()
    W.fill_diagonal_(2.0**-20)
    W[0] += 1 - W.sum(0)
    return W
