"""Runs whose nodes are processes: the simulator's records, stopping together, failing well."""

import json
import os
import random
import select
import signal
import time
from pathlib import Path

import pytest
import torch

from pushsum import checkpoint, config, training
from pushsum.engines.distributed import runtime as runtime_module
from pushsum.engines.distributed.peers import PeerLost, Peers
from pushsum.engines.distributed.runtime import Processes
from pushsum.experiment import Experiment
from pushsum.experiment.evaluation import Evaluator
from tests.ranks import DEADLINE, on_ranks, running, until

SMALL = ["model.hidden=[8]", "batch=16", "epochs=2", "gradients=loop", "topology.nodes=4"]
MOMENTS = int(os.environ.get("PUSHSUM_MOMENTS", "2"))  # at which a node is killed or stopped
TIMEOUT = 4.0  #: of runs that lose a node


def train(rank, directory, overrides, resume=False, timeout=DEADLINE):
    built = Experiment(config.read(None, [*SMALL, *overrides]))
    torch.distributed.barrier()  # nobody is late because the machine is busy
    peers = Peers(timeout)
    try:
        runtime = Processes(peers, built.config.model_dump(mode="json"))
        return training.run(built, Path(directory), resume=resume, runtime=runtime)
    except (PeerLost, training.Stopped, ValueError) as end:
        return f"{type(end).__name__}: {end}"


def train_counting(rank, directory, overrides):
    """The bytes that this process gave to the wire in its exchanges."""
    made = []
    original = Processes.engine

    def engine(self, setup):
        made.append(original(self, setup))
        return made[-1]

    Processes.engine = engine
    train(rank, directory, overrides)
    return sum(one.ledger.bytes for one in made)


def records(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]


def shared(row: dict) -> dict:
    """What does not depend on the clock."""
    return {k: v for k, v in row.items() if k not in ("seconds", "modelled", "overlap")}


def assert_close(mine, theirs, where="record"):
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys()
        for key in theirs:
            assert_close(mine[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list):
        for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert_close(a, b, f"{where}[{k}]")
    elif theirs is None:
        assert mine is None
    else:
        assert mine == pytest.approx(theirs, rel=2e-5, abs=1e-7), where


CASES = {
    "SGAP": ["algorithm.name=SGAP", "algorithm.weighting=moreau:k=0.1,v=0.1"],
    "MSGAP": [
        "algorithm.name=MSGAP",
        "topology.name=random",
        "algorithm.weighting=scale-free-moreau",
    ],
    "far-first": ["algorithm.name=SGAP", "topology.name=random", "algorithm.weighting=far-first"],
    "S-ADDOPT": ["algorithm.name=S-ADDOPT", "link.wire=bfloat16"],
    "AllReduce": ["algorithm.name=AllReduce", "algorithm.momentum=0.5"],
    "Adam": ["algorithm.optimizer=Adam", "algorithm.lr=0.005", "topology.name=divide"],
    "BatchNorm": ["model.name=resnet-small", "model.hidden=null", "model.width=2", "steps=6"],
}


@pytest.mark.parametrize("case", CASES)
def test_the_records_are_the_simulators(case, tmp_path):
    torch.set_num_threads(1)
    overrides = ["steps=20", *CASES[case]]
    found = on_ranks(4, train_counting, str(tmp_path / "many"), overrides)
    built = Experiment(config.read(None, [*SMALL, *overrides]))
    training.run(built, tmp_path / "one")
    many, one = records(tmp_path / "many"), records(tmp_path / "one")
    for mine, theirs in zip(many, one, strict=True):
        assert_close(shared(mine), shared(theirs))
    last = many[-1]
    assert last["bytes"] == one[-1]["bytes"]
    overlap, seconds = last["overlap"], last["seconds"]
    assert overlap["transfer_hidden"] + overlap["transfer_exposed"] == pytest.approx(
        seconds["transfer"]
    )
    assert 0 < overlap["transfer_exposed"] <= seconds["transfer"] < seconds["total"]
    assert last["bytes"] == sum(found)
    meta = json.loads((tmp_path / "many" / "meta.json").read_text())
    assert (meta["engine"], meta["finished"]) == ("distributed", True)


def test_a_complete_graph_with_uniform_weights_is_an_all_reduce(tmp_path):
    overrides = ["steps=6", "algorithm.name=SGP", "topology.name=full"]
    on_ranks(4, train_counting, str(tmp_path / "many"), overrides)
    built = Experiment(config.read(None, [*SMALL, *overrides]))
    training.run(built, tmp_path / "one")
    many, one = records(tmp_path / "many"), records(tmp_path / "one")
    for mine, theirs in zip(many, one, strict=True):
        assert_close(shared(mine | {"bytes": 0}), shared(theirs | {"bytes": 0}))
    vector = 4 * built.layout.d
    assert many[-1]["bytes"] == 6 * 2 * 3 * (vector + 16)  # 2 (n - 1) / n vectors, a and t
    how = [
        json.loads((tmp_path / d / "meta.json").read_text())["exchange"] for d in ("many", "one")
    ]
    assert how == ["all-reduce", "messages"]


def test_goes_on_bit_for_bit_after_a_signal_to_one_node(tmp_path):
    overrides = ["topology.name=random", "topology.period=3"]
    with running(4, train, str(tmp_path / "cut"), [*overrides, "epochs=1000"]) as ranks:
        wait_for_records(tmp_path / "cut", 2)
        os.kill(ranks.processes[2].pid, signal.SIGTERM)
        ends = ranks.results()
    assert len(set(ends)) == 1
    assert ends[0].startswith("Stopped: saved step ")
    more = f"steps={training.newest(tmp_path / 'cut', 'distributed', 4) + 50}"
    on_ranks(4, train, str(tmp_path / "cut"), [*overrides, "epochs=1000", more], True)
    on_ranks(4, train, str(tmp_path / "whole"), [*overrides, "epochs=1000", more])
    mine, whole = records(tmp_path / "cut"), records(tmp_path / "whole")
    assert [shared(row) for row in mine] == [shared(row) for row in whole]


def wait_for_records(directory: Path, count: int) -> None:
    path = directory / "records.jsonl"
    until(lambda: path.exists() and len(records(directory)) >= count, "records")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_lost_node_ends_the_run_everywhere(how, moment, tmp_path):
    chance = random.Random(moment * 100 + how)
    overrides = ["epochs=1000", f"topology.name={chance.choice(['full', 'divide', 'random'])}"]
    victim = chance.randrange(4)
    with running(4, train, str(tmp_path), overrides, False, TIMEOUT) as ranks:
        wait_for_records(tmp_path, 2)
        time.sleep(chance.uniform(0, 0.5))  # any moment will do
        os.kill(ranks.processes[victim].pid, how)
        ends = [ranks.result(rank) for rank in range(4) if rank != victim]
    for end in ends:
        assert end.startswith(f"PeerLost: node {victim} is lost"), end
    assert_all_can_go_on(tmp_path)


def assert_all_can_go_on(directory: Path) -> None:
    step = training.newest(directory, "distributed", 4)
    assert step is not None
    for node in range(4):
        assert checkpoint.load(directory / "checkpoints" / f"node-{node}", step).step == step


def test_nodes_that_save_some_steps_apart_keep_one_that_all_have(tmp_path):
    """A checkpoint after every step, on a ring: the others get some steps further, each its own."""
    overrides = ["topology.name=ring", "batch=2000", "epochs=100000", "evaluation.every=100000"]
    first = tmp_path / "checkpoints" / "node-0"
    with running(4, train, str(tmp_path), [*overrides, "steps=null"], False, TIMEOUT) as ranks:
        until(lambda: max(checkpoint.generations(first), default=0) >= 10, "checkpoints")
        os.kill(ranks.processes[2].pid, signal.SIGSTOP)
        for rank in (0, 1, 3):
            assert ranks.result(rank).startswith("PeerLost: node 2 is lost")
    assert_all_can_go_on(tmp_path)
    assert len(checkpoint.generations(first)) <= 6  # and not all


def train_but_stop_while_testing(rank, directory):
    """Node 1 is stopped in the middle of a record, when others may be waiting for its word."""
    original = Evaluator.nodes

    def nodes(self, *arguments):
        if rank == 1 and len(records(Path(directory))) == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(self, *arguments)

    Evaluator.nodes = nodes
    return train(rank, directory, ["epochs=1000"], False, TIMEOUT)


def test_a_node_that_stops_during_a_record_is_named(tmp_path):
    with running(4, train_but_stop_while_testing, str(tmp_path)) as ranks:
        ends = [ranks.result(rank) for rank in (0, 2, 3)]
    assert all(end.startswith("PeerLost: node 1 is lost") for end in ends), ends


def train_but_wait(rank, directory, seconds, patience):
    """In step 3 every node is told to stop while it computes, and goes on for some time."""
    runtime_module.PATIENCE = patience
    original = training.loop.one_step

    def one_step(built, runtime, now, t, compute, exchange):
        def slowly(y, batch):
            g, losses = compute(y, batch)
            if t == 3:
                os.kill(os.getpid(), signal.SIGTERM)
                while not runtime.stopping:
                    time.sleep(0.01)
                time.sleep(seconds)
            return g, losses

        original(built, runtime, now, t, slowly, exchange)

    training.loop.one_step = one_step
    overrides = ["model.name=resnet-small", "model.hidden=null", "model.width=2", "steps=6"]
    return train(rank, directory, overrides)


def test_a_step_that_nobody_has_sent_is_given_up_to_save(tmp_path):
    ends = on_ranks(4, train_but_wait, str(tmp_path), 0, DEADLINE)
    line = f"Stopped: saved step 2; go on with: pushsum run --resume --into {tmp_path}"
    assert set(ends) == {line}
    overrides = ["model.name=resnet-small", "model.hidden=null", "model.width=2", "steps=6"]
    on_ranks(4, train, str(tmp_path), overrides, True)
    on_ranks(4, train, str(tmp_path / "whole"), overrides)
    mine, whole = records(tmp_path), records(tmp_path / "whole")
    assert [shared(row) for row in mine] == [shared(row) for row in whole]


def test_a_pass_that_takes_too_long_is_not_waited_for(tmp_path):
    with running(4, train_but_wait, str(tmp_path), 2 * DEADLINE, 3.0) as ranks:
        for process in ranks.processes:
            process.join(timeout=DEADLINE)
            assert process.exitcode == 1


def count_keys(rank):
    """How many keys the store has after a few and after many questions."""
    peers = Peers(60)
    found = []
    with Processes(peers, {}) as runtime:
        for _ in range(2):
            for _ in range(10):
                assert runtime.on_leader(lambda: "answer") == "answer"
                runtime.gather({"x": torch.ones(3)})
                runtime.all_gather([rank])
            runtime.gather({"x": torch.ones(3)})  # all have forgotten what was before the last
            found.append(torch.distributed.distributed_c10d._get_default_store().num_keys())
            runtime.gather({"x": torch.ones(3)})
    return found


def test_what_has_been_heard_is_forgotten():
    for before, after in on_ranks(3, count_keys):
        assert after <= before + 6  # not all nodes are equally far


def listen(rank):
    """Another signal than those to stop, whose handler rings the same bell."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with Processes(Peers(60), {}) as runtime:
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: not select.select([runtime._ear], [], [], 0)[0], "it hears the bell")
        return runtime.stopping


def test_only_signals_to_stop_stop():
    assert on_ranks(1, listen) == [False]


def test_a_node_that_diverges_tells_the_others_why(tmp_path):
    ends = on_ranks(4, train, str(tmp_path), ["algorithm.lr=1.0e+38", "algorithm.name=SGP"])
    assert all("diverged at step" in end for end in ends), ends


def test_what_node_0_refuses_is_refused_everywhere(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "records.jsonl").write_text("{}\n{}\n")
    ends = on_ranks(4, train, str(tmp_path), [])
    assert all("holds a run already" in end for end in ends)


def differing(rank, directory):
    return train(rank, directory, [f"algorithm.lr={0.1 + rank}"])


def test_processes_with_different_configurations_are_refused(tmp_path):
    line = "Disagreement: the nodes differ in algorithm.lr: 0.1 at node 0, 1.1 at node 1"
    assert on_ranks(2, differing, str(tmp_path)) == [line, line]
    assert not any(tmp_path.iterdir())
