"""What one rank of the wall-clock benchmark does: train in several ways and measure every step.

    python -m benchmarks.trainers links|decent-dp ROUNDS

prints what the steps cost as JSON; torch.distributed's variables say who the other ranks are.
"""

import gc
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

import pushsum as ps
from pushsum import models
from pushsum.engines.distributed.messages import Ledger
from pushsum.topology import Topology

BATCH = 1
WARM_UP, STEPS = 2, 3
LR, MOMENTUM, MOREAU = 0.01, 0.8, "moreau:k=0.01,v=0.1"
TIMEOUT = 120.0


class Trainer(NamedTuple):
    """One way to train, set up for a model."""

    step: Callable[[], float]  #: takes a step; the seconds of its forward and backward pass
    spent: Callable[[], Mapping[str, float]] = dict  #: the ledger's seconds and bytes so far
    close: Callable[[], object] = lambda: None


Maker = Callable[[nn.Module], Trainer]


def for_links() -> dict[str, Maker]:
    """The paper's five algorithms and what they are compared with; + is overlap with backward."""
    found: dict[str, Maker] = {"alone": alone}
    for name, weighting, momentum in (
        ("SGP", "uniform", 0.0),
        ("SGAP", MOREAU, 0.0),
        ("MSGP", "uniform", MOMENTUM),
        ("MSGAP", MOREAU, MOMENTUM),
    ):
        found[name] = pushing("full", weighting, momentum)
        found[f"{name} +"] = pushing("full", weighting, momentum, overlap=True)
    return found | {
        "S-ADDOPT": pushing("full", algorithm="s-addopt"),
        "DDP": all_reduce,
        "SGP exponential": pushing("exponential"),
        "SGP exponential +": pushing("exponential", overlap=True),
    }


def for_decent_dp() -> dict[str, Maker]:
    """The graphs that decent-dp has as well: a ring of alternating pairs, and all with all."""
    n = int(os.environ["WORLD_SIZE"])
    pairs = [torch.zeros(n, n) for _ in range(2)]
    for i in range(n):
        for graph, j in zip(pairs, (i ^ 1, ((i + 1) ^ 1) - 1), strict=True):
            graph[i, j % n] = 1
    ring = ps.topology.from_graphs(pairs)
    return {
        "alone": alone,
        "ring: pushsum": pushing(ring),
        "ring: pushsum +": pushing(ring, overlap=True),
        "ring: decent-dp": decent_dp("ring"),
        "complete: pushsum": pushing("full"),
        "complete: pushsum +": pushing("full", overlap=True),
        "complete: decent-dp": decent_dp("complete"),
    }


# ----------------------------------------------------------------- the ways to train


def alone(model: nn.Module) -> Trainer:
    """No exchange: what a step costs at least."""
    return Trainer(_ordinary(model, model, _optimizer(model, 0.0)))


def pushing(
    topology: str | Topology,
    weighting: str = "uniform",
    momentum: float = 0.0,
    overlap: bool = False,
    algorithm: str = "sgp",
) -> Maker:
    """`PushSum` in an ordinary loop."""

    def make(model: nn.Module) -> Trainer:
        optimizer = _optimizer(model, momentum)
        node = ps.PushSum(
            model,
            optimizer,
            topology,
            weighting,
            algorithm=algorithm,
            overlap=overlap,
            timeout=TIMEOUT,
        )
        return Trainer(
            _ordinary(model, model, optimizer), lambda: _entries(node.ledger), node.close
        )

    return make


def all_reduce(model: nn.Module) -> Trainer:
    """torch's own DistributedDataParallel: every rank gets the mean gradient."""
    return Trainer(_ordinary(DistributedDataParallel(model), model, _optimizer(model, 0.0)))


def decent_dp(topology: str) -> Maker:
    """decent-dp, which moves and sends within backward and receives in the next one."""

    def make(model: nn.Module) -> Trainer:
        import_module("loguru").logger.disable("decent_dp")
        wrapper = import_module("decent_dp.ddp").DecentralizedDataParallel(
            model,
            lambda named: torch.optim.SGD([p for _, p in named], lr=LR),
            topology=topology,
        )
        return Trainer(_passes(wrapper), close=wrapper.global_avg)  # waits for what is under way

    return make


def _optimizer(model: nn.Module, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)


def _ordinary(
    forward: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[], float]:
    passes = _passes(forward)

    def step() -> float:
        model.zero_grad()
        seconds = passes()
        optimizer.step()
        return seconds

    return step


def _passes(forward: nn.Module) -> Callable[[], float]:
    """Forward and backward on this rank's made-up images; the seconds they take."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    images = torch.randn(BATCH, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)

    def passes() -> float:
        start = perf_counter()
        F.cross_entropy(forward(images), labels).backward()
        return perf_counter() - start

    return passes


def _entries(ledger: Ledger) -> dict[str, float]:
    return {**ledger.seconds, "bytes": ledger.bytes}


# ----------------------------------------------------------------- measuring


def measure(makers: Mapping[str, Maker], rounds: int) -> dict[str, Any]:
    """Every way once a round, so that all share the machine's noise: steps by way and round."""
    costs: dict[str, list[list[dict[str, float]]]] = {name: [] for name in makers}
    for number in range(rounds):
        for name, make in makers.items():
            if dist.get_rank() == 0:
                print(f"  round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            model = models.build("resnet18", (3, 32, 32), 10)
            trainer = make(model)
            for _ in range(WARM_UP):
                trainer.step()
            dist.barrier()
            costs[name].append([_cost(trainer) for _ in range(STEPS)])
            dist.barrier()
            trainer.close()
            del model, trainer
            gc.collect()
    return {"link": bandwidth(all_busy=False), "links": bandwidth(all_busy=True), "costs": costs}


def _cost(trainer: Trainer) -> dict[str, float]:
    """One step: seconds by what was done, bytes, and how busy this machine's cores were."""
    before, sent, own, (busy, ticks) = dict(trainer.spent()), _sent(), process_time(), _cores()
    start = perf_counter()
    passes = trainer.step()
    cost = {"step": perf_counter() - start, "passes": passes, "own": process_time() - own}
    now, all_ticks = _cores()
    cost |= {"busy": (now - busy) / max(1, all_ticks - ticks), "bytes": _sent() - sent}
    return cost | {name: value - before[name] for name, value in trainer.spent().items()}


def _cores() -> tuple[int, int]:
    """Ticks in which a core was busy, whoever kept it so; all ticks."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    ticks = [int(word) for word in line.split()[1:]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _sent() -> int:
    """What this rank's interface has sent, by the system's count; all ranks share loopback."""
    name, ranks = os.environ["GLOO_SOCKET_IFNAME"], dist.get_world_size()
    sent = int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text())
    return sent // ranks if name == "lo" else sent


def bandwidth(all_busy: bool) -> float:
    """Bytes per second from rank 0 to rank 1; or from every rank to the next, all at once."""
    rank, n = dist.get_rank(), dist.get_world_size()
    outbox, inbox = torch.ones(2**24), torch.ones(2**24)
    seconds = []
    for _ in range(4):
        dist.barrier()
        start = perf_counter()
        works = []
        if all_busy or rank == 1:
            works.append(dist.irecv(inbox, (rank - 1) % n))
        if all_busy or rank == 0:
            works.append(dist.isend(outbox, (rank + 1) % n))
        for work in works:
            assert work is not None
            work.wait()
        seconds.append(perf_counter() - start)
    return 4 * len(outbox) / median(seconds[1:])


def meet() -> None:
    """Form the process group; the meeting point listens on the ranks' own network alone."""
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = socket.create_server((host, port)).detach() if rank == 0 else None
    store = TCPStore(host, port, is_master=rank == 0, master_listen_fd=listener)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n)


if __name__ == "__main__":
    torch.set_num_threads(1)
    meet()
    what, rounds = sys.argv[1:]
    makers = {"links": for_links, "decent-dp": for_decent_dp}[what]()
    print(json.dumps(measure(makers, int(rounds))))
    dist.destroy_process_group()
