"""`pushsum run --engine distributed` as a user starts it: real terminals' signals, no orphans."""

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from pushsum.engines.distributed.launcher import launch
from pushsum.engines.world import Stopped
from tests.test_processes import records, shared

LONG = ["epochs=100000", "model.hidden=[8]", "topology.nodes=3", "gradients=loop"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pushsum", "run", *words, "--engine", "distributed"]


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


def until(condition, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def has_records(directory: Path) -> bool:
    path = directory / "records.jsonl"
    return path.exists() and len(path.read_text().splitlines()) >= 2


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
    until(lambda: has_records(tmp_path / "run"), 90, "the run does not begin")
    assert listening_addresses(process.pid) == {"0100007F"}  # 127.0.0.1 alone
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begun < 10
    assert process.returncode == 130
    assert "pushsum: saved step" in errors
    assert errors.count("saved step") == 1
    until(lambda: in_session(process.pid) == [], 5, "orphans")
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["finished"] is False

    other = start("--resume", "--into", into, "--engine", "simulator", how=plainly)
    cleanup.append(other)
    assert complaints(other.communicate(timeout=60)[1]) == [
        "pushsum: the run was made by the distributed engine: go on with: pushsum run "
        f"--engine distributed --resume --into {into}"
    ]

    again = start("--resume", "--into", into, how=plainly)  # it knows its engine
    cleanup.append(again)
    before = len((tmp_path / "run" / "records.jsonl").read_text().splitlines())
    records = tmp_path / "run" / "records.jsonl"
    until(lambda: len(records.read_text().splitlines()) > before, 90, "it does not go on")
    again.kill()  # the launcher, without warning
    until(lambda: in_session(again.pid) == [], 15, "orphans")
    again.communicate()


def plainly(*words: str) -> list[str]:
    return [sys.executable, "-m", "pushsum", "run", *words]


def pass_the_time() -> None:
    time.sleep(60)


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
        begun = time.monotonic()
        with pytest.raises(Stopped, match="stopped"):
            launch(3, pass_the_time, patience=60)
        assert time.monotonic() - begun < 20
        assert not any(process.is_alive() for process in started)


def test_one_node_does_not_outlive_its_launcher(tmp_path, cleanup):
    into = tmp_path / "run"
    process = start(*LONG, "topology.nodes=1", "topology.name=full", "--into", str(into))
    cleanup.append(process)
    until(lambda: has_records(into), 90, "the run does not begin")
    process.kill()
    until(lambda: in_session(process.pid) == [], 10, "orphans")
    assert "pushsum: saved step" in process.communicate()[1]


@pytest.mark.parametrize("everyone", [False, True])
def test_an_interrupt_stops_it_whoever_gets_it(everyone, tmp_path, cleanup):
    """From a terminal all processes get it, from `kill -INT` the launcher alone."""
    into = tmp_path / "run"
    mine, theirs = pty.openpty()
    process = start(*LONG, "--into", str(into), stdin=theirs)
    cleanup.append(process)
    until(lambda: has_records(into), 90, "the run does not begin")
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=15)
    os.close(mine)
    os.close(theirs)
    assert process.returncode == 130, errors
    (line,) = complaints(errors)
    assert line.startswith("pushsum: saved step ")


def test_a_stop_does_not_wait_for_a_node_that_was_stopped_otherwise(tmp_path, cleanup):
    into = tmp_path / "run"
    process = start(*LONG, "--into", str(into), "--timeout", "60")
    cleanup.append(process)
    until(lambda: has_records(into), 90, "the run does not begin")
    os.kill(the_node(process, 1), signal.SIGSTOP)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begun < 12
    assert process.returncode == 137
    for line in complaints(errors):
        assert re.match(r"pushsum: node [02]: .*node 1 (does not answer|is lost)", line), errors
    assert len(complaints(errors)) == 2
    until(lambda: in_session(process.pid) == [], 5, "orphans")


def listening_addresses(leader: int) -> set[str]:
    """On which addresses a session's processes listen for the first message of anybody."""
    inodes = set()
    for pid in in_session(leader):
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


def torchrun(*words: str) -> list[str]:
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "3", "--rdzv-backend", "c10d"]
    there = ["--rdzv-endpoint", "localhost:0", "-m", "pushsum", "run"]
    return [sys.executable, *run, *there, *words, "--engine", "distributed"]


def test_torchrun_starts_it_too(tmp_path, cleanup):
    into = tmp_path / "run"
    process = start(*LONG, "steps=30", "--into", str(into), how=torchrun)
    cleanup.append(process)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert f"{into}: accuracy" in output
    assert json.loads((into / "meta.json").read_text())["finished"] is True


def test_a_node_that_is_killed_is_named_with_what_to_do(tmp_path, cleanup):
    into = tmp_path / "run"
    process = start(*LONG, "--into", str(into), "--timeout", "5")
    cleanup.append(process)
    until(lambda: has_records(into), 90, "the run does not begin")
    os.kill(the_node(process, 1), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 137
    lines = [line for line in errors.splitlines() if line.startswith("pushsum: ")]
    assert len(lines) == 2, errors
    for node, line in zip((0, 2), sorted(lines), strict=True):
        assert line.startswith(f"pushsum: node {node}: node 1 is lost: its process ended")
        assert "; last checkpoint: step " in line
        assert line.endswith(f"pushsum run --engine distributed --resume --into {into}")
    until(lambda: in_session(process.pid) == [], 5, "orphans")


def test_the_command_it_offers_goes_on_as_if_nothing_had_been(tmp_path, cleanup):
    short = [*LONG[1:], "epochs=40", "evaluation.every=5", "checkpoint=5"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    undisturbed = start(*short, "--into", str(whole))
    cleanup.append(undisturbed)
    undisturbed.communicate(timeout=120)
    process = start(*short, "--into", str(cut), "--timeout", "5")
    cleanup.append(process)
    until(lambda: has_records(cut), 90, "the run does not begin")
    os.kill(the_node(process, 2), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert len(records(cut)) < len(records(whole)), "it was killed too late"
    line, _ = complaints(errors)
    offered = shlex.split(line.partition("go on with: ")[2])
    again = start(*offered[1:], how=lambda *words: [sys.executable, "-m", "pushsum", *words])
    cleanup.append(again)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert [shared(row) for row in records(cut)] == [shared(row) for row in records(whole)]


def the_node(launcher: subprocess.Popen[str], rank: int) -> int:
    return next(pid for pid in in_session(launcher.pid) if _rank_of(pid) == rank)


def _rank_of(pid: int) -> int | None:
    """A rank says so in its name, which `ps` shows."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return int(name.removeprefix("pushsum-")) if name.startswith("pushsum-") else None


def test_bad_input_is_one_line(tmp_path):
    process = start("algorithm.lr=-1", "--into", str(tmp_path / "run"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.splitlines() == ["pushsum: algorithm.lr = -1: should be greater than 0"]


# --------------------------------------------------------------------------- without any launcher


def by_hand(cleanup, into: Path, ranks=(0, 1, 2), **words: str) -> list[subprocess.Popen[str]]:
    """Processes that the environment alone tells of each other: node 0 keeps the store."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    around = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    around |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    common = [*LONG, "--into", str(into), "--timeout", "5"]
    for rank in ranks:
        more = shlex.split(words.get(f"node_{rank}", ""))
        cleanup.append(start(*common, *more, RANK=str(rank), LOCAL_RANK=str(rank), **around))
    return cleanup


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_process_that_keeps_the_store_may_be_lost_too(how, victim, tmp_path, cleanup):
    processes = by_hand(cleanup, tmp_path / "run")
    until(lambda: has_records(tmp_path / "run"), 90, "the run does not begin")
    processes[victim].send_signal(how)
    start = time.monotonic()
    for rank in {0, 1, 2} - {victim}:
        _, errors = processes[rank].communicate(timeout=20)
        assert time.monotonic() - start < 5 + 4
        (line,) = complaints(errors)
        assert "last checkpoint: step " in line
        if victim == 1:
            assert f"node {rank}: node 1 is lost" in line
        else:
            assert "meeting point (127.0.0.1:" in line
            assert "in the process of node 0" in line


def test_nobody_loses_the_store_at_the_end_of_a_run(tmp_path, cleanup):
    short = {f"node_{rank}": "steps=5" for rank in range(3)}
    for process in by_hand(cleanup, tmp_path / "run", **short):
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, complaints(errors)) == (0, [])


def test_a_process_that_never_comes_is_one_line(tmp_path, cleanup):
    for process in by_hand(cleanup, tmp_path / "run", ranks=(0, 2)):
        _, errors = process.communicate(timeout=60)
        (line,) = complaints(errors)
        assert "not all processes came to the processes' meeting point (127.0.0.1:" in line
        assert line.endswith("nothing is saved, so start again")


def test_what_one_node_lacks_ends_all_at_once(tmp_path, cleanup):
    lacking = f"data.name=cifar10 data.root={tmp_path}"
    processes = by_hand(cleanup, tmp_path / "run", node_1=lacking)
    ends = [process.communicate(timeout=60)[1] for process in processes]
    own = ends[1].removeprefix("pushsum: node 1: ")
    assert str(tmp_path) in own
    for rank in (0, 2):
        assert ends[rank].startswith(f"pushsum: node {rank}: node 1 gave up: {own.strip()}")
