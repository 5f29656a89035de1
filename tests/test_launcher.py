"""`pushsum run --engine distributed` as a user starts it: real terminals' signals, no orphans."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LONG = ["epochs=100000", "model.hidden=[8]", "topology.nodes=3", "gradients=loop"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pushsum", "run", *words, "--engine", "distributed"]


def start(*words: str, how=command) -> subprocess.Popen[str]:
    return subprocess.Popen(
        how(*words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what is left of it can be found
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


@pytest.fixture
def cleanup():
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
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

    again = start("--resume", "--into", into)
    cleanup.append(again)
    before = len((tmp_path / "run" / "records.jsonl").read_text().splitlines())
    records = tmp_path / "run" / "records.jsonl"
    until(lambda: len(records.read_text().splitlines()) > before, 90, "it does not go on")
    again.kill()  # the launcher, without warning
    until(lambda: in_session(again.pid) == [], 15, "orphans")
    again.communicate()


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
    victim = next(pid for pid in in_session(process.pid) if _rank_of(pid) == 1)
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 137
    lines = [line for line in errors.splitlines() if line.startswith("pushsum: ")]
    assert len(lines) == 2, errors
    for node, line in zip((0, 2), sorted(lines), strict=True):
        assert line.startswith(f"pushsum: node {node}: node 1 is lost: its process ended")
        assert "; last checkpoint: step " in line
        assert line.endswith(f"pushsum run --engine distributed --resume --into {into}")
    until(lambda: in_session(process.pid) == [], 5, "orphans")


def _rank_of(pid: int) -> int | None:
    """A rank says so in its name, which `ps` shows."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return int(name.removeprefix("pushsum-")) if name.startswith("pushsum-") else None


def test_bad_input_is_one_line(tmp_path):
    process = start("algorithm.lr=-1", "--into", str(tmp_path / "run"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.splitlines() == ["pushsum: algorithm.lr = -1: should be greater than 0"]
