"""`pushsum run --engine distributed` as a user starts it: real terminals' signals, no orphans."""

import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from pushsum import training
from pushsum.cli import main
from pushsum.engines.distributed.launcher import launch
from pushsum.engines.runtime import Stopped
from tests.ranks import CONTEXT, DEADLINE, in_session, until
from tests.test_processes import records, shared

LONG = ["epochs=100000", "model.hidden=[8]", "topology.nodes=3", "gradients=loop"]
LOOPBACK = "0100007F"  # 127.0.0.1, as /proc has it


def command(*words: str) -> list[str]:
    return [*plainly(*words), "--engine", "distributed"]


def plainly(*words: str) -> list[str]:
    return [sys.executable, "-m", "pushsum", "run", *words]


def start(*words: str, how=command, stdin=subprocess.DEVNULL, **more) -> subprocess.Popen[str]:
    return subprocess.Popen(
        how(*words),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what is left of it can be found
        env=os.environ | more,
    )


def until_none_is_left(process: subprocess.Popen[str]) -> None:
    until(lambda: in_session(process.pid) == [], "all processes have ended")


def until_it_runs(directory: Path) -> None:
    path = directory / "records.jsonl"
    until(lambda: path.exists() and path.read_text().count("\n") >= 2, "the run begins")


def complaints(errors: str) -> list[str]:
    """All but the records."""
    return [line for line in errors.splitlines() if not line.startswith("epoch ")]


@pytest.fixture
def cleanup():
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        with process:
            process.wait()


def test_run_stop_and_go_on(tmp_path, cleanup):
    into = str(tmp_path / "run")
    process = start(*LONG, "--into", into)
    cleanup.append(process)
    until_it_runs(tmp_path / "run")
    assert listening([process.pid]) == set()  # the launcher waits for nobody
    assert listening(in_session(process.pid)) == {LOOPBACK}
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "pushsum: saved step" in errors
    assert errors.count("saved step") == 1
    until_none_is_left(process)
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["finished"] is False

    other = start("--resume", "--into", into, "--engine", "simulator", how=plainly)
    cleanup.append(other)
    assert complaints(other.communicate(timeout=DEADLINE)[1]) == [
        "pushsum: the run was made by the distributed engine: go on with: pushsum run "
        f"--engine distributed --resume --into {into}"
    ]

    again = start("--resume", "--into", into, how=plainly)  # it knows its engine
    cleanup.append(again)
    before = len(records(tmp_path / "run"))
    until(lambda: len(records(tmp_path / "run")) > before, "it goes on")
    again.kill()  # the launcher, without warning
    until_none_is_left(again)


def listening(pids: list[int]) -> set[str]:
    """On which addresses processes listen for the first message of anybody."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(fd)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def pass_the_time(meeting) -> None:
    time.sleep(2 * DEADLINE)


def test_a_signal_while_processes_are_being_started_reaches_all(monkeypatch):
    started = []
    start_one = ForkServerProcess.start

    def start_and_stop(process):
        start_one(process)
        started.append(process)
        if len(started) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            assert process.exitcode is None or process.exitcode == -signal.SIGTERM

    def stop_within_the_second(process):
        if len(started) == 1:
            os.kill(os.getpid(), signal.SIGTERM)  # now none but the first can be told
        start_one(process)
        started.append(process)

    for way in (start_and_stop, stop_within_the_second):
        started.clear()
        monkeypatch.setattr(ForkServerProcess, "start", way)
        with pytest.raises(Stopped, match="stopped"):
            launch(3, pass_the_time, patience=DEADLINE)
        assert not any(process.is_alive() for process in started)


def test_nodes_do_not_outlive_their_launcher(tmp_path, cleanup):
    """Not even one that is stopped, and could notice nothing."""
    process = start(*LONG, "--into", str(tmp_path / "run"))
    cleanup.append(process)
    until_it_runs(tmp_path / "run")
    os.kill(the_node(process, 1), signal.SIGSTOP)
    process.kill()
    until_none_is_left(process)
    assert complaints(process.communicate()[1]) == []


@pytest.mark.parametrize("everyone", [False, True])
def test_an_interrupt_stops_it_whoever_gets_it(everyone, tmp_path, cleanup):
    """From a terminal all processes get it, from `kill -INT` the launcher alone."""
    into = tmp_path / "run"
    mine, theirs = pty.openpty()
    process = start(*LONG, "--into", str(into), stdin=theirs)
    cleanup.append(process)
    os.close(theirs)
    until_it_runs(into)
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    os.close(mine)
    assert process.returncode == 130, errors
    (line,) = complaints(errors)
    assert line.startswith("pushsum: saved step ")


def test_an_interrupt_while_it_starts_is_no_traceback(tmp_path, cleanup):
    """All processes of the terminal get it: while a server of processes imports torch, say."""
    process = start(*LONG, "--into", str(tmp_path / "run"))
    cleanup.append(process)
    until(lambda: len(in_session(process.pid)) > 1, "it has started others")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert all(line.startswith("pushsum: ") for line in complaints(errors)), errors
    until_none_is_left(process)


def test_a_stop_reaches_a_node_that_was_stopped_otherwise(tmp_path, cleanup):
    into = tmp_path / "run"
    process = start(*LONG, "--into", str(into))
    cleanup.append(process)
    until_it_runs(into)
    os.kill(the_node(process, 1), signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, errors
    (line,) = complaints(errors)
    assert line.startswith("pushsum: saved step ")
    until_none_is_left(process)


def stop_or_fail(meeting) -> None:
    """Node 1 is stopped, then node 0 fails."""
    if meeting.rank == 1:
        meeting.store.set("pid", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    stat = Path(f"/proc/{int(meeting.store.get('pid'))}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    sys.exit(1)


def test_a_stopped_node_is_killed_when_another_has_failed(cleanup):
    never = "from tests.test_launcher import *; print(launch(2, stop_or_fail, patience=1e9))"
    process = start(never, how=lambda code: [sys.executable, "-c", code])
    cleanup.append(process)
    assert process.communicate(timeout=DEADLINE) == ("137\n", "")


def torchrun(*words: str) -> list[str]:
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    there = ["--rdzv-endpoint", "localhost:0", "-m", "pushsum", "run"]
    return [sys.executable, *run, *there, *words, "--engine", "distributed"]


def test_torchrun_starts_it_too(tmp_path, cleanup):
    into = tmp_path / "run"
    process = start(*LONG, "topology.nodes=2", "steps=30", "--into", str(into), how=torchrun)
    cleanup.append(process)
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    assert f"{into}: accuracy" in output
    assert json.loads((into / "meta.json").read_text())["finished"] is True


def test_a_node_that_is_killed_is_named_with_what_to_do(tmp_path, cleanup):
    """The command that is offered goes on as if nothing had been."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    process = start(*LONG, "--into", str(cut))
    cleanup.append(process)
    until_it_runs(cut)
    os.kill(the_node(process, 1), signal.SIGKILL)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 137
    lines = complaints(errors)
    assert len(lines) == 2, errors
    for node, line in zip((0, 2), sorted(lines), strict=True):
        assert line.startswith(f"pushsum: node {node}: node 1 is lost: its process ended")
        assert "; last checkpoint: step " in line
        assert line.endswith(f"pushsum run --engine distributed --resume --into {cut}")
    until_none_is_left(process)
    offered = shlex.split(lines[0].partition("go on with: ")[2])
    more = f"steps={training.newest(cut, 'distributed', 3) + 50}"
    again = start(*offered[1:], more, how=lambda *words: [sys.executable, "-m", "pushsum", *words])
    undisturbed = start(*LONG, more, "--into", str(whole))
    cleanup += [again, undisturbed]
    for one in (again, undisturbed):
        _, errors = one.communicate(timeout=DEADLINE)
        assert one.returncode == 0, errors
    assert [shared(row) for row in records(cut)] == [shared(row) for row in records(whole)]


def the_node(launcher: subprocess.Popen[str], rank: int) -> int:
    return next(pid for pid in in_session(launcher.pid) if _rank_of(pid) == rank)


def _rank_of(pid: int) -> int | None:
    """A rank says so in its name, which `ps` shows."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return int(name.removeprefix("pushsum-")) if name.startswith("pushsum-") else None


def test_bad_input_is_one_line(pushsum, tmp_path):
    words = ["algorithm.lr=-1", "--engine", "distributed", "--into", str(tmp_path / "run")]
    line = "pushsum: algorithm.lr = -1: should be greater than 0\n"
    assert pushsum("run", *words) == (2, "", line)


# --------------------------------------------------------------------------- without any launcher


class Node:
    """`pushsum run` in a process that the environment alone tells of the others."""

    def __init__(self, environment: dict[str, str], words: list[str], told: Path) -> None:
        told.touch()
        self.told = told
        self.process = CONTEXT.Process(target=_node, args=(environment, words, told))
        self.process.start()

    def end(self) -> tuple[int | None, str]:
        """Its exit code and what it said, when it has ended."""
        self.process.join(DEADLINE)
        return self.process.exitcode, self.told.read_text()


def _node(environment: dict[str, str], words: list[str], told: Path) -> None:
    os.environ |= environment
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(told, os.O_WRONLY), 2)
    sys.argv = ["pushsum", "run", *words]
    main()


@pytest.fixture
def by_hand(tmp_path) -> Iterator[Callable[..., dict[int, Node]]]:
    """Starts nodes without a launcher: node 0 keeps the store."""
    nodes: dict[int, Node] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def begin(ranks=(0, 1, 2), timeout=DEADLINE, more=()) -> dict[int, Node]:
        where = ["--into", str(tmp_path / "run"), "--timeout", str(timeout)]
        for rank in ranks:
            words = [*LONG, *where, "--engine", "distributed", *dict(more).get(rank, ())]
            told, own = tmp_path / f"told-{rank}", {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            nodes[rank] = Node(common | own, words, told)
        return nodes

    yield begin
    for node in nodes.values():
        node.process.kill()
        node.process.join()
        node.process.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_process_that_keeps_the_store_may_be_lost_too(how, victim, tmp_path, by_hand):
    nodes = by_hand(timeout=20)
    until_it_runs(tmp_path / "run")
    os.kill(nodes[victim].process.pid, how)
    for rank in {0, 1, 2} - {victim}:
        _, errors = nodes[rank].end()
        (line,) = complaints(errors)
        assert "last checkpoint: step " in line
        if victim == 1:
            assert f"node {rank}: node 1 is lost" in line
        else:
            assert "meeting point (127.0.0.1:" in line
            assert "in the process of node 0" in line


def test_nobody_loses_the_store_at_the_end_of_a_run(by_hand):
    for node in by_hand(more={rank: ["steps=5"] for rank in range(3)}).values():
        code, errors = node.end()
        assert (code, complaints(errors)) == (0, [])


def test_a_process_that_never_comes_is_one_line(by_hand):
    for node in by_hand(ranks=(0, 2), timeout=5).values():
        (line,) = complaints(node.end()[1])
        assert "not all processes connected to the processes' meeting point (127.0.0.1:" in line
        assert line.endswith("nothing is saved, so start again")


def test_what_one_node_lacks_ends_all_at_once(tmp_path, by_hand):
    nodes = by_hand(more={1: ["data.name=cifar10", f"data.root={tmp_path}"]})
    ends = [nodes[rank].end()[1] for rank in range(3)]
    own = ends[1].removeprefix("pushsum: node 1: ")
    assert str(tmp_path) in own
    for rank in (0, 2):
        assert ends[rank].startswith(f"pushsum: node {rank}: node 1 gave up: {own.strip()}")
