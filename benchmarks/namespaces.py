"""Processes that talk over links of a given speed: Linux network namespaces, a bridge, `tc tbf`.

Every rank has a namespace of its own, and one more holds the bridge that joins them: nothing of
the machine's own network is touched, and removing the namespaces removes everything. The names
carry the id of this process, so that only what it has made is removed.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from time import sleep
from typing import NamedTuple

INTERFACE = "wire"  #: what the one link of a rank is called in its namespace
#: How the messages on a link share it, whatever this machine's own choice is. Every kernel has it,
#: and the shares are even; under BBR ten messages at once got 0.7 to 0.95 of a link, by chance.
CONGESTION_CONTROL = "reno"


class Seat(NamedTuple):
    """Where one rank runs."""

    prefix: tuple[str, ...]  #: put in front of its command
    interface: str  #: what it talks over
    meeting_point: str  #: host:port on which rank 0 is to listen


def obstacle() -> str | None:
    """Why there can be no links of a given speed on this machine; None: there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"no {' and '.join(missing)}: install iproute2"
    probe = f"pushsum-{os.getpid()}-probe"
    if fails(["ip", "netns", "add", probe]):  # a container's root may lack the right
        return "this machine does not let us make network namespaces"
    _run("ip", "netns", "delete", probe)
    return None


def on_loopback(n: int) -> list[Seat]:
    """Seats that share this machine's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return [Seat((), "lo", f"127.0.0.1:{port}")] * n


@contextmanager
def linked(n: int, gbit: float) -> Iterator[list[Seat]]:
    """Seats joined by links of so many Gbit/s in both directions, while the block runs."""
    hub = f"pushsum-{os.getpid()}-hub"
    with ExitStack() as stack:

        def namespace(name: str) -> None:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)

        namespace(hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        seats = []
        for rank in range(n):
            name, port = f"pushsum-{os.getpid()}-{rank}", f"port{rank}"
            namespace(name)
            peer = ("peer", "name", port, "netns", hub)
            _run("ip", "-n", name, "link", "add", INTERFACE, "type", "veth", *peer)
            _run("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", name, "address", "add", f"10.0.0.{rank + 1}/24", "dev", INTERFACE)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", INTERFACE, "up")
            for where, device in ((name, INTERFACE), (hub, port)):  # what it sends, what it gets
                limit = ("rate", f"{gbit:g}gbit", "burst", "256kb", "limit", "2mb")
                _run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", *limit)
            share = f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control"
            _run("ip", "netns", "exec", name, "sh", "-c", share)
            seats.append(Seat(("ip", "netns", "exec", name), INTERFACE, "10.0.0.1:29500"))
        yield seats


def run_ranks(seats: Sequence[Seat], command: Sequence[str]) -> list[str]:
    """Run a command once per rank, with torch.distributed's variables set; what each printed.

    Whatever happens, no rank is left behind: when one fails, the others are ended.
    """
    # one thread each; and no word about addresses that no name server knows
    settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    ranks: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        outputs = [stack.enter_context(TemporaryFile("w+")) for _ in seats]
        stack.callback(_end, ranks)
        for rank, (seat, output) in enumerate(zip(seats, outputs, strict=True)):
            host, port = seat.meeting_point.split(":")
            meeting = {"RANK": str(rank), "WORLD_SIZE": str(len(seats))}
            meeting |= {"MASTER_ADDR": host, "MASTER_PORT": port}
            meeting |= {"GLOO_SOCKET_IFNAME": seat.interface}
            environment = os.environ | settings | meeting
            line = [*seat.prefix, *command]
            ranks.append(subprocess.Popen(line, env=environment, stdout=output, text=True))
        while any(rank.poll() is None for rank in ranks):
            if any(rank.returncode for rank in ranks):
                break
            sleep(0.1)
        failed = [str(number) for number, rank in enumerate(ranks) if rank.returncode]
        if failed:
            raise SystemExit(f"rank {', '.join(failed)} failed; the lines above may say why")
        for output in outputs:
            output.seek(0)
        return [output.read() for output in outputs]


def _end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


def fails(command: Sequence[str]) -> bool:
    """Whether a command cannot be run, or ends with an error; what it prints is dropped."""
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode != 0
    except OSError:
        return True
