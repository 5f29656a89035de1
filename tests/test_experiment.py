"""Experiments: trustworthy records, runs that go on bit for bit, failures that fail well."""

import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file

from pushsum import checkpoint, config, sweep, training
from pushsum.engines import mixing, runtime, simulator
from pushsum.engines.gradients import gradients, stacked_buffers
from pushsum.engines.iterate import iterate
from pushsum.engines.runtime import OneProcess
from pushsum.engines.simulator import Network
from pushsum.experiment import Experiment
from pushsum.experiment.environment import git_hash
from pushsum.experiment.evaluation import Evaluator
from pushsum.experiment.sampling import Sampler
from pushsum.protocol import Known
from pushsum.sweep import running
from pushsum.theory import consensus
from pushsum.training import Diverged, loop, run
from pushsum.training.loop import when_to_record
from pushsum.training.step import refuse_infinite
from tests.live import Live
from tests.ranks import DEADLINE, in_session, until

MOREAU = "algorithm.weighting=moreau:k=0.1,v=0.1"
SMALL = ["model.hidden=[8]", "batch=16", "epochs=2", "steps=30", "gradients=loop"]


@pytest.fixture(autouse=True)
def quiet_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(*overrides: str) -> Experiment:
    return Experiment(config.read(None, [*SMALL, *overrides]))


def records(directory: Path) -> list[dict]:
    lines = (directory / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def without_times(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "modelled")} for row in rows]


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(directory / "checkpoints").tensors


ALGORITHMS = [
    ["algorithm.name=SGP"],
    ["algorithm.name=MSGP"],
    ["algorithm.name=SGAP", MOREAU],
    ["algorithm.name=MSGAP", "topology.name=random", MOREAU],
    ["algorithm.name=MSGAP", "topology.name=random", "algorithm.weighting=far-first"],
    ["algorithm.name=S-ADDOPT", "topology.name=exponential"],
    ["algorithm.name=QGM", "topology.name=divide", MOREAU],
    ["algorithm.optimizer=Adam", "algorithm.lr=0.005", "algorithm.schedule.kind=cosine"],
    ["algorithm.optimizer=Adafactor", "algorithm.lr=0.01"],
    ["model.name=cnn", "model.hidden=null", "data.augment=true"],
    ["model.name=resnet-small", "model.hidden=null", "model.width=2", "steps=8"],
]


# --------------------------------------------------------------------------- same bits


@pytest.mark.parametrize("overrides", ALGORITHMS, ids=" ".join)
def test_a_run_that_is_stopped_goes_on_bit_for_bit(overrides, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(build(*overrides), whole)
    experiment_ = build(*overrides)

    def stop_at(step: int, record) -> None:
        if step == 5 and record is None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(training.Stopped, match=r"^saved step 5; go on with: ") as caught:
        run(experiment_, parts, stop_at)
    assert str(caught.value).endswith(f": pushsum run --resume --into {shlex.quote(str(parts))}")
    run(build(*overrides), parts, resume=True)
    assert without_times(records(parts)) == without_times(records(whole))
    ours, theirs = tensors(parts), tensors(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_seed_gives_the_same_records_and_another_does_not(tmp_path, threads):
    torch.set_num_threads(threads)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(build(f"seed={seed}", "steps=6"), tmp_path / name)
    a, b, c = (without_times(records(tmp_path / name)) for name in "abc")
    assert a == b
    assert a != c


def test_the_seed_of_the_graph_moves_nothing_else():
    one, other = build("topology.name=random"), build("topology.name=random", "topology.seed=9")
    assert all((p == q).all() for p, q in zip(one.parts, other.parts, strict=True))
    assert torch.equal(one.start(), other.start())
    assert torch.equal(one.batch(3, range(6)).inputs[2], other.batch(3, range(6)).inputs[2])
    assert not all(torch.equal(one.graphs.edges(t), other.graphs.edges(t)) for t in range(1, 8))


def test_the_run_is_iterate_on_the_same_problem(tmp_path):
    """Same code path: the final parameters of a run are those of `iterate`, bit for bit."""
    built = build("algorithm.name=SGAP", "topology.name=divide", MOREAU)
    run(built, tmp_path / "run")
    again = build("algorithm.name=SGAP", "topology.name=divide", MOREAU)
    buffers = stacked_buffers(again.model, again.n)
    loss = torch.nn.functional.cross_entropy
    compute = gradients("loop", again.model, loss, buffers)
    *_, last = iterate(
        again.algorithm,
        again.graphs,
        lambda y, t: compute(y, again.batch(t, range(6)))[0],
        again.start(),
        again.steps,
    )
    assert torch.equal(tensors(tmp_path / "run")["x"], last.x)
    assert torch.equal(tensors(tmp_path / "run")["a"], last.a)


# --------------------------------------------------------------------------- what is recorded


def test_records_say_what_happened(tmp_path):
    words = ["algorithm.name=SGAP", MOREAU, "topology.name=exponential", "link.gigabits=0.001"]
    built = build(*words)
    run(built, tmp_path)
    first, *_, last = records(tmp_path)
    assert first["step"] == 0
    assert first["train_loss"] is None
    assert first["consensus"] == {"theorem": 0.0, "mean_square": 0.0}
    assert last["step"] == 30
    assert last["samples"] == 30 * 6 * 16
    d = built.layout.d
    assert last["bytes"] == 30 * 6 * (4 * d + 24)  # one channel per node and step
    assert last["test"]["accuracy"] > 2 * first["test"]["accuracy"]
    assert last["nodes"]["accuracy"]["min"] <= last["nodes"]["accuracy"]["mean"]
    assert 0 < last["a"]["min"] <= 1 <= last["a"]["max"]
    assert last["smallest_weight"] == pytest.approx(0.1 * 0.9 / (1.1 * 2), rel=0.5)
    assert np.allclose(np.array(last["weights"]).sum(0), 1)
    assert last["modelled"]["transfer"] == pytest.approx(30 * 8 * 4 * d / 1e6)
    total = last["modelled"]["compute"] + last["modelled"]["transfer"]
    assert last["modelled"]["total"] == pytest.approx(total + last["modelled"]["weighting_exposed"])
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["finished"] is True
    assert meta["d"] == d
    assert meta["certificate"] == {"period": 3, "diameter": 2, "horizon": 3}
    assert np.array(meta["split"]).sum(1).tolist() == [721] * 3 + [716] * 3
    assert meta["numpy"] == np.__version__
    assert (meta["threads"], meta["device"]) == (1, "cpu")
    resolved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config.parse(resolved) == built.config


def test_without_overlap_no_weighting_is_hidden(tmp_path):
    run(build("link.overlap=false", "link.gigabits=0.001"), tmp_path)
    modelled = records(tmp_path)[-1]["modelled"]
    assert modelled["weighting_hidden"] == 0
    assert modelled["weighting_exposed"] > 0
    parts = ("compute", "transfer", "weighting_exposed")
    assert modelled["total"] == pytest.approx(sum(modelled[part] for part in parts))


def test_consensus_distances_are_summed_in_blocks():
    x = torch.randn(5, 150_000, generator=torch.Generator().manual_seed(0))
    a = torch.linspace(0.5, 1.5, 5)
    y = x / a[:, None]
    found = consensus(x, a, y)
    average, centre = x.double().mean(0), y.double().mean(0)
    assert found.largest == pytest.approx(float((y - average).abs().sum(1).max()), rel=1e-12)
    assert found.mean_square == pytest.approx(float((y - centre).square().sum(1).mean()))


def test_a_whole_run_takes_no_more_than_eight_arrays(tmp_path, monkeypatch):
    """x, y, pushed and gradients; the next x, y and pushed; model and activations; no more."""
    for part in (simulator, mixing):  # blocks that are small beside the arrays, as in large models
        monkeypatch.setattr(part, "BLOCK", 2**14)
    words = ["model.hidden=[700,600]", "batch=2", "evaluation.batch=50", "evaluation.nodes=false"]
    built = build(*words, "algorithm.name=SGAP", "algorithm.weighting=uniform", "steps=3")
    with Live() as live:
        run(built, tmp_path)
    assert live.peak / (4 * built.n * built.layout.d) <= 8


def test_s_addopt_pushes_twice_as_much():
    one, two = build("algorithm.name=SGP"), build("algorithm.name=S-ADDOPT")
    heads = 6 * 24  # step, a and w along every edge
    assert two.costs.bytes_in(1) - heads == 2 * (one.costs.bytes_in(1) - heads)


def test_nodes_that_average_send_whole_bytes_that_add_up():
    built = build("algorithm.name=AllReduce", "topology.nodes=6", "model.hidden=[7]")
    one_by_one = [built.costs.bytes_from([node], 1) for node in range(6)]
    everybody = 2 * 5 * 4 * built.layout.d  # all but one sixth, twice
    assert everybody % 6 != 0
    assert sum(one_by_one) == built.costs.bytes_in(1) == everybody
    assert max(one_by_one) - min(one_by_one) == 1


def test_training_works_on_label_skewed_digits(tmp_path):
    overrides = ["model.hidden=[32]", "epochs=8", "steps=null", "batch=32"]
    run(build(*overrides, "algorithm.name=MSGAP"), tmp_path)
    assert records(tmp_path)[-1]["test"]["accuracy"] > 0.9


@pytest.mark.parametrize("policy", ["averaged", "recomputed", "test-batch"])
def test_batchnorm_policies_reach_the_test(policy, tmp_path):
    overrides = ["model.name=resnet-small", "model.hidden=null", "model.width=2", "steps=4"]
    run(build(*overrides, f"evaluation.batchnorm={policy}"), tmp_path)
    assert np.isfinite(records(tmp_path)[-1]["test"]["loss"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=SGP"],
        ["algorithm.name=SGAP", MOREAU],
        ["algorithm.name=MSGAP", "algorithm.weighting=far-first"],
        ["algorithm.name=MSGAP", "topology.name=random", "algorithm.weighting=far-first"],
        ["algorithm.name=S-ADDOPT"],
        ["algorithm.name=QGM"],
        ["algorithm.name=SGP", "algorithm.optimizer=Adam"],
        ["algorithm.name=AllReduce"],
    ],
    ids=str,
)
def test_the_memory_of_the_dry_run_is_what_the_steps_take(overrides, monkeypatch):
    for part in (simulator, mixing):  # blocks that are small beside the arrays, as in large models
        monkeypatch.setattr(part, "BLOCK", 2**14)
    built = build("model.hidden=[8000]", "batch=2", "topology.name=full", *overrides)
    compute = gradients("loop", built.model, F.cross_entropy, stacked_buffers(built.model, built.n))
    network = Network(built.setup(0))
    with Live() as live:
        now = network.begin(built.start())
        for t in range(1, 13):
            g = compute(now.y, built.batch(t, range(built.n)))[0]
            now = network.advance(now, Known(g))
    measured = live.peak / (4 * built.n * built.layout.d)
    assert measured == pytest.approx(training.arrays(built), rel=0.15)


# --------------------------------------------------------------------------- samples


def test_the_sampler_goes_through_the_data_once_per_pass():
    sampler = Sampler([np.arange(10, 20), np.arange(3)], size=4, seed=0, streams=[0, 1])
    first_pass = np.concatenate([sampler.indices(0, t) for t in (1, 2)])
    assert len(set(first_pass)) == 8
    assert set(first_pass) <= set(range(10, 20))
    assert not np.array_equal(sampler.indices(0, 1), sampler.indices(0, 3))
    assert sorted(sampler.indices(1, 5)) == [0, 1, 2]  # fewer samples than a batch: all of them
    assert np.array_equal(sampler.indices(0, 7), sampler.indices(0, 7))


def test_published_batches_are_alike_within_a_cluster_and_in_every_pass():
    built = build("published.same_batches=true")
    assert torch.equal(built.batch(1, range(6)).inputs[0], built.batch(1, range(6)).inputs[2])
    assert not torch.equal(built.batch(1, range(6)).inputs[0], built.batch(1, range(6)).inputs[3])
    per_pass = len(built.parts[0]) // 16
    assert torch.equal(
        built.batch(1, range(6)).inputs[0], built.batch(1 + per_pass, range(6)).inputs[0]
    )
    corrected = build()
    assert not torch.equal(
        corrected.batch(1, range(6)).inputs[0], corrected.batch(1, range(6)).inputs[2]
    )
    odd = build("published.same_batches=true", "topology.nodes=5")  # clusters of two and three
    assert odd.sampler.streams == [0, 0, 2, 2, 2]


def test_published_restart_sets_everything_back(tmp_path):
    overrides = [
        "published.restart=true",
        "algorithm.schedule.kind=steps",
        "algorithm.schedule.milestones=[1]",
        "epochs=2",
        "steps=null",
        "batch=240",
        "algorithm.name=MSGAP",
        MOREAU,
    ]
    built = build(*overrides)
    assert built.steps_per_epoch == 2
    run(built, tmp_path)
    assert [built.began(step) for step in range(5)] == [0, 0, 2, 2, 2]
    assert [row["step"] for row in records(tmp_path)] == [0, 2, 4]
    assert records(tmp_path)[1]["a"] == {"min": 1.0, "max": 1.0}
    saved = checkpoint.load(tmp_path / "checkpoints")
    exchange = runtime.OneProcess(6).engine(built.setup(4))
    memory = {k.removeprefix("memory."): v for k, v in saved.tensors.items()}
    restored = exchange.restored(memory, saved.notes["memory"])
    # graphs from t = 1: nobody who is heard in the first will be sent to
    assert [snapshot.step for snapshot in restored.snapshots] == [2]
    assert [built.rate(t) for t in (1, 2, 3, 4)] == pytest.approx([0.05, 0.05, 0.005, 0.005])


def test_published_switches_change_what_they_say(tmp_path):
    fresh = build("model.fresh_last_layer=true")
    start = fresh.start()
    last = fresh.layout.views(start)
    names = list(fresh.layout.names)
    assert torch.equal(last[names[0]][0], last[names[0]][1])
    assert not torch.equal(last[names[-2]][0], last[names[-2]][1])
    run(build("published.test_before=true", "steps=null", "epochs=1"), tmp_path)
    assert [row["epoch"] for row in records(tmp_path)] == [0.0]


# --------------------------------------------------------------------------- failing well


def test_one_node_trains(tmp_path):
    run(build("topology.nodes=1"), tmp_path)
    assert records(tmp_path)[-1]["test"]["accuracy"] > 0.5


def test_a_node_with_one_class_only_trains(tmp_path):
    run(build("topology.nodes=10", "split.clusters=10", "steps=3"), tmp_path)
    assert (np.array(json.loads((tmp_path / "meta.json").read_text())["split"]) > 0).sum() == 10


SINGLE = ["model.name=resnet-small", "model.hidden=null", "model.width=2", "batch=1",
          "model.blocks=[1,1,1,1]"]  # fmt: skip # four stages leave one pixel of 8x8


def test_a_batch_of_one_is_fine_where_batchnorm_has_pixels(tmp_path):
    run(build(*SINGLE, "model.blocks=[1,1]", "steps=1"), tmp_path / "two")
    run(build(*SINGLE, "model.norm=group", "steps=1"), tmp_path / "group")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["topology.nodes=2000"], "more nodes than"),
        (["data.name=cifar10", "data.root=/nonexistent"], "pushsum data prepare cifar10"),
        (["model.name=resnet81"], "resnet18"),
        (["model.width=4"], "width"),
        (["algorithm.weighting=moreau"], "moreau takes k and v"),
        (["algorithm.optimizer=Adan"], "torch.optim has no optimizer of that name"),
        (["algorithm.optimizer=Adamv"], r"no optimizer of that name \(did you mean Adam\w*\?\)$"),
        (["algorithm.optimizer=LBFGS"], "cannot be used"),
        (["device=gpu"], "unknown device 'gpu'.*: choose from auto, cpu, cuda$"),
        (["device=cuda:99"], "device = 'cuda:99': not available here; auto chooses"),
        (["split.kind=dirichlet", "split.minimum=900"], "minimum"),
        (["split.clusters=7"], "clusters = 7: more than the 6 nodes"),
        (SINGLE, "node 0 has batches of one sample: raise batch, or set model.norm=group"),
        (
            [*SINGLE, "batch=2", "evaluation.batchnorm=test-batch", "evaluation.batch=359"],
            "evaluation.batch = 359: the last of 360 test samples is alone: choose another",
        ),
        (
            [*SINGLE, "batch=2", "evaluation.batchnorm=recomputed", "evaluation.batch=1"],
            "evaluation.batch = 1: raise it",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_it_runs(overrides, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(*overrides)
    assert "\n" not in str(caught.value)


def test_a_directory_that_holds_a_run_is_not_touched(tmp_path):
    run(build("steps=2"), tmp_path)
    before = (tmp_path / "records.jsonl").read_bytes()
    message = r" holds a run already: name another directory, or go on with: pushsum run --re"
    with pytest.raises(ValueError, match=message) as caught:
        run(build("steps=2"), tmp_path)
    assert str(caught.value).endswith(f"--resume --into {shlex.quote(str(tmp_path))}")
    assert (tmp_path / "records.jsonl").read_bytes() == before
    with pytest.raises(ValueError, match="holds no run to resume"):
        run(build(), tmp_path / "elsewhere", resume=True)


def test_the_strategy_that_was_measured_is_the_runs(tmp_path, monkeypatch):
    chosen = iter(["vmap"])
    monkeypatch.setattr(loop, "fastest", lambda *args, **how: (next(chosen), {}))
    run(build("gradients=auto", "steps=2"), tmp_path)
    assert config.read(tmp_path / "config.yaml").gradients == "vmap"
    run(build("gradients=auto", "steps=4"), tmp_path, resume=True)  # not measured again
    assert config.read(tmp_path / "config.yaml").gradients == "vmap"
    with pytest.raises(ValueError, match="gradients = loop, but the run began with vmap"):
        run(build("gradients=loop", "steps=6"), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("topology.nodes=4", "topology.nodes = 4, but the run began with 6: set it back"),
        ("model.hidden=[7]", r"model.hidden = \[7\], but the run began with \[8\]"),
        ("algorithm.name=S-ADDOPT", "algorithm.name = S-ADDOPT, but the run began with MSGP"),
        ("algorithm.lr=0.1", "algorithm.lr = 0.1, but the run began with 0.05"),
        ("algorithm.optimizer=Adam", "began with"),
        ("seed=1", r"seed = 1, .*\(only epochs and steps may change\), or start another run"),
        ("steps=2", "has taken 3 steps already, and is to have 2: raise epochs or steps"),
    ],
)
def test_another_configuration_does_not_go_on_with_a_run(change, message, tmp_path):
    run(build("steps=3"), tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.*") if p.is_file()}
    with pytest.raises(ValueError, match=message) as caught:
        run(build("steps=3", change), tmp_path, resume=True)
    assert "\n" not in str(caught.value)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*.*") if p.is_file()}


def test_a_run_can_be_made_longer(tmp_path):
    run(build("steps=3"), tmp_path)
    run(build("steps=5"), tmp_path, resume=True)
    assert [row["step"] for row in records(tmp_path)] == [0, 3, 5]
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert (meta["steps"], meta["finished"]) == (5, True)
    assert [(r["step"], r["torch"]) for r in meta["resumed"]] == [(3, torch.__version__)]
    assert config.read(tmp_path / "config.yaml").steps == 5


def test_two_processes_do_not_work_on_one_run(tmp_path):
    def meddle(step, record) -> None:
        for resume in (False, True, None):
            with pytest.raises(ValueError, match="another process is at work here") as caught:
                run(build("steps=2"), tmp_path / "run", resume=resume)
            assert "\n" not in str(caught.value)

    run(build("steps=2"), tmp_path / "run", meddle)
    assert [row["step"] for row in records(tmp_path / "run")] == [0, 2]


def test_a_record_is_not_made_twice_after_a_crash(tmp_path, monkeypatch):
    """Stopped in the evaluation of step 4, then killed after its record and before any save."""
    overrides = ["batch=240", "steps=null", "epochs=3"]
    run(build(*overrides), tmp_path / "whole")
    original = Evaluator.nodes

    def stopped(self, *arguments):
        if len(records(tmp_path / "cut")) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    monkeypatch.setattr(Evaluator, "nodes", stopped)
    with pytest.raises(training.Stopped, match="saved step 2"):
        run(build(*overrides), tmp_path / "cut")
    monkeypatch.undo()

    class Killed(Exception):
        pass

    def kill(step, record):
        if record is None:
            raise Killed

    with pytest.raises(Killed):
        run(build(*overrides), tmp_path / "cut", kill, resume=True)
    assert [row["step"] for row in records(tmp_path / "cut")] == [0, 2]
    run(build(*overrides), tmp_path / "cut", resume=True)
    ours, whole = (without_times(records(tmp_path / name)) for name in ("cut", "whole"))
    assert ours == whole


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("meta.json", "", "meta.json is damaged"),
        ("meta.json", "{}", "meta.json is damaged"),
        ("meta.json", "[]", "meta.json is damaged"),
        ("records.jsonl", '{"a": 1}\n{"step": 2}\n', "records.jsonl: line 1 is not a record"),
        ("records.jsonl", '[]\n{"step": 2}\n', "records.jsonl: line 1 is not a record"),
    ],
)
def test_a_damaged_run_is_refused_by_the_name_of_the_file(name, content, message, tmp_path):
    run(build("steps=2"), tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        run(build("steps=3"), tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    run(build("steps=2"), tmp_path)
    _, kept, notes = checkpoint.load(tmp_path / "checkpoints")
    checkpoint.save(tmp_path / "checkpoints", 2, kept, {"losses": notes["losses"]})
    with pytest.raises(ValueError, match="lacks 'config': it is of another version of pushsum"):
        run(build("steps=3"), tmp_path, resume=True)


def own_file(path: Path, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(40, 3)).astype("float32")
    y = np.arange(40) % 4
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


def test_own_data_is_found_from_anywhere_and_must_not_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_file(Path("own.npz"), 0)
    run(build("data.name=own.npz", "batch=4", "steps=2"), tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    stored = tmp_path / "run" / "config.yaml"
    run(Experiment(config.read(stored, ["steps=3"])), tmp_path / "run", resume=True)
    own_file(tmp_path / "own.npz", 1)
    with pytest.raises(ValueError, match=r"own.npz has changed since the run began: put the file"):
        run(Experiment(config.read(stored, ["steps=4"])), tmp_path / "run", resume=True)


def test_a_full_disk_says_what_is_safe_and_how_to_go_on(tmp_path, monkeypatch):
    overrides = ["steps=null", "epochs=2", "batch=240"]

    def fill(step, record) -> None:
        def full(descriptor):
            raise OSError(28, "No space left on device")

        if step == 1:
            monkeypatch.setattr(os, "fsync", full)

    message = (
        r"cannot write to .* \(No space left on device\): step 0 is saved and intact; make room, "
        r"then go on with: pushsum run --resume --into .*run$"
    )
    with pytest.raises(OSError, match=message):
        run(build(*overrides), tmp_path / "run", fill)
    monkeypatch.undo()
    run(build(*overrides), tmp_path / "whole")
    run(build(*overrides), tmp_path / "run", resume=True)
    ours, whole = (without_times(records(tmp_path / name)) for name in ("run", "whole"))
    assert ours == whole


def test_a_reader_of_records_who_has_seen_enough_is_no_full_disk(tmp_path):
    def gone(step, record) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError, match=r"^$"):
        run(build(), tmp_path / "run", gone)


def test_the_revision_is_that_of_the_packages_own_checkout(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
    (tmp_path / "mine.py").write_text("1")
    (tmp_path / "installed.py").write_text("1")
    assert git_hash(tmp_path / "mine.py") is None
    for words in (["init", "-q"], ["add", "mine.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    revision = git_hash(tmp_path / "mine.py")
    assert revision is not None
    assert len(revision) >= 7
    assert git_hash(tmp_path / "installed.py") is None  # merely lies in somebody's checkout
    (tmp_path / "mine.py").write_text("2")
    assert git_hash(tmp_path / "mine.py") == f"{revision}-dirty"


def test_a_cosine_comes_down_whatever_ends_the_run():
    for built in (
        build("algorithm.schedule.kind=cosine", "steps=30"),
        build("algorithm.schedule.kind=cosine", "steps=null"),
    ):
        rates = [built.rate(t) for t in range(1, built.steps + 1)]
        assert rates[0] == 0.05
        assert rates[-1] < 0.05 / built.steps
    assert build("steps=1000").steps == build("steps=null").steps


def test_an_optimizer_that_cannot_work_with_its_options_says_so(tmp_path):
    for options in ("{capturable: true}", "{betas: [0.9]}", "{foreach: true, fused: true}"):
        overrides = ["algorithm.optimizer=Adam", f"algorithm.options={options}", "steps=1"]
        with pytest.raises(ValueError, match=r"^optimizer") as caught:
            run(build(*overrides), tmp_path / options)
        assert "\n" not in str(caught.value)


def test_a_loss_that_is_not_finite_names_node_and_step_and_keeps_the_checkpoint(tmp_path):
    built = build("steps=null", "epochs=3")
    run(build("steps=null", "epochs=1"), tmp_path)
    saved = checkpoint.generations(tmp_path / "checkpoints")
    original = built.batch

    def poisoned(t, nodes):
        batch = original(t, nodes)
        if t == 50:
            batch.inputs[4][0] = float("nan")  # a view of this batch alone
        return batch

    built.batch = poisoned
    with pytest.raises(Diverged, match="node 4 diverged at step 50: its loss is not finite"):
        run(built, tmp_path, resume=True)
    assert saved[0] in checkpoint.generations(tmp_path / "checkpoints")
    about = json.loads((tmp_path / "meta.json").read_text())
    assert about["diverged"].startswith("node 4 diverged at step 50")
    run(build("steps=null", "epochs=3"), tmp_path, resume=True)
    assert json.loads((tmp_path / "meta.json").read_text())["diverged"] is None


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    run(build(), tmp_path)
    place = tmp_path / "checkpoints"
    left = [place / ".step-31.safetensors.0123abcd", place / "step-31.safetensors"]
    left += [place / "node-0" / "step-9.safetensors", tmp_path / ".meta.json.0123abcd"]
    (place / "node-0").mkdir()
    for path in left:
        path.write_text("half")
    before = {path for path in place.iterdir() if path.is_file()} - set(left)
    run(build(), tmp_path, resume=True)
    assert not any(path.exists() for path in left)
    assert {path for path in place.iterdir() if path.is_file()} == before


def test_a_directory_that_holds_no_run_is_left_as_it_is(tmp_path):
    """What looks like a draft may be another program's."""
    others = [tmp_path / ".settings.0123abcd", tmp_path / "b" / ".settings.0123abcd"]
    (tmp_path / "b").mkdir()
    for path in others:
        path.write_text("precious")
    run(build("steps=1"), tmp_path)
    run(build("steps=1"), tmp_path / "a")
    assert all(path.exists() for path in others)


def test_a_sweep_leaves_an_unfinished_distributed_run_to_its_engine(tmp_path):
    run(build(), tmp_path)
    place = tmp_path / "checkpoints"
    (place / "node-0").mkdir()
    for path in place.glob("step-*"):
        path.rename(place / "node-0" / path.name)
    about = json.loads((tmp_path / "meta.json").read_text())
    about |= {"engine": "distributed", "finished": False}
    (tmp_path / "meta.json").write_text(json.dumps(about))
    before = (tmp_path / "records.jsonl").read_text()
    outcome = sweep.run_cell(sweep.Cell("a", build().config), tmp_path)
    assert outcome.startswith("the run was made by the distributed engine: go on with: pushsum run")
    assert (tmp_path / "records.jsonl").read_text() == before


def test_an_infinite_gradient_names_the_tensor(tmp_path):
    built = build()
    g = torch.zeros(6, built.layout.d)
    view = built.layout.views(g[2])
    name = built.layout.names[-1]
    view[name][0] = float("inf")
    with pytest.raises(Diverged, match=f"node 2 diverged at step 7: the gradient of {name}"):
        refuse_infinite(built, OneProcess(6), g, torch.zeros(6), 7)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    tensors_ = {"x": torch.ones(3)}
    checkpoint.save(tmp_path, 1, tensors_, {})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, tensors_, {})
    monkeypatch.undo()
    assert checkpoint.load(tmp_path).step == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1.json", "step-1.safetensors"]


def test_a_corrupt_checkpoint_is_refused_and_the_previous_offered(tmp_path):
    place = tmp_path / "checkpoints"
    for step in (10, 20, 30):
        checkpoint.save(place, step, {"x": torch.full((4,), float(step))}, {"note": step})
    checkpoint.thin_out(place, needed=10)
    assert checkpoint.generations(place) == [30, 20, 10]
    checkpoint.thin_out(place, needed=30)
    assert checkpoint.generations(place) == [30, 20]
    path = place / "step-30.safetensors"
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    with pytest.raises(
        checkpoint.Corrupt, match=r"corrupt \(its hash does not match\): .*20$"
    ) as e:
        checkpoint.load(place)
    assert e.value.older == 20
    old = checkpoint.load(place, 20)
    assert old.tensors["x"].tolist() == [20.0] * 4
    assert old.notes == {"note": 20}
    with pytest.raises(ValueError, match="no checkpoint of step 5, but of 30 and 20"):
        checkpoint.load(place, 5)
    with pytest.raises(ValueError, match="there is no checkpoint to resume from"):
        checkpoint.load(tmp_path / "empty")


def test_a_checkpoint_is_what_safetensors_reads(tmp_path):
    kept = {
        "x": torch.randn(3, 5),
        "a": torch.ones(3, dtype=torch.float64),
        "none": torch.zeros(0, 7),
        "count": torch.tensor(4),
        "half": torch.randn(3).bfloat16(),
        "flags": torch.tensor([True, False, True]),
        "turned": torch.randn(4, 3).T,
    }
    checkpoint.save(tmp_path, 1, kept, {})
    found = load_file(tmp_path / "step-1.safetensors")
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], value) for name, value in kept.items())
    assert checkpoint.load(tmp_path).tensors["x"].equal(kept["x"])


@pytest.mark.parametrize("content", ["[]", "{}", "", "{", '{"step": 20}', "flipped"])
def test_the_json_of_a_checkpoint_is_checked_too(content, tmp_path):
    for step in (10, 20):
        checkpoint.save(tmp_path, step, {"x": torch.ones(1)}, {"bytes": 5})
    path = tmp_path / "step-20.json"
    path.write_text(path.read_text().replace("5}", "6}") if content == "flipped" else content)
    with pytest.raises(ValueError, match=r"step-20.safetensors is corrupt .*step 10"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends(tmp_path, number):
    words = ["run", "--into", str(tmp_path / "run"), *SMALL, "epochs=5000", "steps=null"]
    with started([sys.executable, "-m", "pushsum", *words]) as child:
        until_they_train([tmp_path / "run"])
        child.send_signal(number)
        _, err = child.communicate(timeout=DEADLINE)
    assert child.returncode == 130
    assert f"go on with: pushsum run --resume --into {tmp_path / 'run'}\n" in err
    assert "Traceback" not in err
    step = checkpoint.load(tmp_path / "run" / "checkpoints").step
    assert f"saved step {step}" in err


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, of which nothing is left in the end."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            for pid in in_session(process.pid):
                os.kill(pid, signal.SIGKILL)


def until_they_train(runs: list[Path]) -> None:
    def trains(run: Path) -> bool:
        return (run / "records.jsonl").exists() and len(records(run)) > 1

    until(lambda: all(trains(run) for run in runs), "all have records")


SWEEP = ["seed=0,1,2,3", "model.hidden=[4]", "batch=16", "topology.nodes=2", "gradients=loop",
         "evaluation.every=5", "checkpoint=5000"]  # fmt: skip


def sweep_command(directory: Path, words: list[str]) -> list[str]:
    options = ["--jobs", "2", "--into", str(directory)]
    return [sys.executable, "-m", "pushsum", "sweep", *words, *options]


def stopped_sweep(command: list[str], running: list[Path], send: Callable[[int], None]) -> None:
    """Start a sweep, send a signal once these cells train, and see that all processes end."""
    with started(command) as parent:
        until_they_train(running)
        send(parent.pid)
        _, err = parent.communicate(timeout=DEADLINE)  # until the last process is gone
    assert parent.returncode == 130
    assert err.endswith("pushsum: stopped; the same command goes on\n")
    assert "Traceback" not in err
    assert all(checkpoint.load(d / "checkpoints").step > 0 for d in running)


SLOW_LOSS = """
import time, torch
from itertools import count
from pathlib import Path

gradients = count()

def loss(outputs, targets):
    if torch.is_grad_enabled() and next(gradients) > 10:  # after the first records
        for _ in range(100):
            if Path(__file__).with_name("fast").exists():
                break
            time.sleep(0.01)
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


@pytest.mark.slow
def test_a_signal_ends_a_parallel_sweep_and_a_rerun_finishes_it(tmp_path):
    """Its cells take minutes while it is to be stopped, so that none ends before."""
    (tmp_path / "own.py").write_text(SLOW_LOSS)
    fast, outcomes = tmp_path / "fast", dict[str, str]()
    words = [*SWEEP, "evaluation.every=0.05", "steps=60", f"loss={tmp_path}/own.py:loss"]
    first, *rest = cells = sweep.read(None, words)
    fast.touch()
    assert sweep.run([first], tmp_path, 1, lambda cell, what: None) == []
    fast.unlink()
    running = [tmp_path / cell.name for cell in rest[:2]]
    command = sweep_command(tmp_path, words)
    stopped_sweep(command, running, lambda pid: os.kill(pid, signal.SIGTERM))
    assert not (tmp_path / rest[2].name).exists()
    fast.touch()
    note = lambda cell, what: outcomes.update({cell.name: what})
    assert sweep.run(cells, tmp_path, 1, note) == []
    assert outcomes == {"0": "skipped", "1": "finished", "2": "finished", "3": "finished"}
    steps = [[row["step"] for row in records(tmp_path / name)] for name in "0123"]
    assert steps == steps[:1] * 4


@pytest.mark.slow
def test_control_c_saves_every_run_of_a_parallel_sweep(tmp_path):
    """A terminal sends it to all processes, of which one is to act; another has been stopped."""

    def interrupt(pid: int) -> None:
        os.kill(max(in_session(pid)), signal.SIGSTOP)
        os.killpg(pid, signal.SIGINT)

    command = sweep_command(tmp_path, [*SWEEP, "epochs=5000"])
    stopped_sweep(command, [tmp_path / "0", tmp_path / "1"], interrupt)


@pytest.mark.slow
def test_the_runs_of_a_sweep_do_not_outlive_it(tmp_path):
    """Not even one that is stopped, and could notice nothing."""
    with started(sweep_command(tmp_path, [*SWEEP, "epochs=5000"])) as parent:
        until_they_train([tmp_path / "0", tmp_path / "1"])
        os.kill(max(in_session(parent.pid)), signal.SIGSTOP)
        parent.kill()
        _, err = parent.communicate(timeout=DEADLINE)
        until(lambda: in_session(parent.pid) == [], "all processes have ended")
    assert err == ""


def test_a_process_that_dies_is_one_failed_cell():
    answer, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=os._exit, args=(3,))
    process.start()
    theirs.close()
    assert running._outcome(answer, process) == "its process ended with exit code 3"


def test_going_on_from_an_older_checkpoint_forgets_the_newer(tmp_path):
    overrides = ["steps=null", "epochs=3", "batch=240"]
    built = build(*overrides)
    run(built, tmp_path)
    newest, older = checkpoint.generations(tmp_path / "checkpoints")
    before = without_times(records(tmp_path))

    def stop(step: int, record) -> None:
        if step == older + 1 and record is None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(training.Stopped):
        run(build(*overrides), tmp_path, stop, resume=True, from_step=older)
    assert newest not in checkpoint.generations(tmp_path / "checkpoints")
    assert json.loads((tmp_path / "meta.json").read_text())["finished"] is False
    run(build(*overrides), tmp_path, resume=True)
    assert without_times(records(tmp_path)) == before


def test_a_signal_during_an_evaluation_is_obeyed_at_once(tmp_path, monkeypatch):
    overrides = ["evaluation.batch=1"]
    whole = tmp_path / "whole"
    run(build(*overrides), whole)
    asked, original = 0, Evaluator.nodes

    def nodes(self, numbers, y, buffers, t):
        def asking() -> bool:
            nonlocal asked
            asked += 1
            if asked == 50:
                os.kill(os.getpid(), signal.SIGTERM)
            return self.stopping()

        return original(replace(self, stopping=asking), numbers, y, buffers, t)

    monkeypatch.setattr(Evaluator, "nodes", nodes)
    with pytest.raises(training.Stopped, match="saved step 0"):
        run(build(*overrides), tmp_path / "cut")
    monkeypatch.undo()
    assert asked < 60
    assert records(tmp_path / "cut") == []
    run(build(*overrides), tmp_path / "cut", resume=True)
    assert without_times(records(tmp_path / "cut")) == without_times(records(whole))


NORMED = ["model.name=resnet-small", "model.hidden=null", "model.width=2", "steps=4"]


def test_a_signal_in_the_middle_of_a_step_is_obeyed_at_once(tmp_path):
    run(build(*NORMED), tmp_path / "whole")
    built, original = build(*NORMED), F.cross_entropy
    calls = 0

    def loss(outputs, target):
        nonlocal calls
        calls += 1
        if calls == 8:  # the second of six nodes in step 2
            os.kill(os.getpid(), signal.SIGTERM)
        return original(outputs, target)

    built.task = replace(built.task, loss=loss)
    with pytest.raises(training.Stopped, match="saved step 1;"):
        run(built, tmp_path / "cut")
    assert calls == 8
    run(build(*NORMED), tmp_path / "cut", resume=True)
    both = [without_times(records(tmp_path / name)) for name in ("cut", "whole")]
    assert both[0] == both[1]
    ours, theirs = tensors(tmp_path / "cut"), tensors(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_signal_while_statistics_are_recomputed_is_obeyed_at_once(tmp_path):
    built = build(*NORMED, "evaluation.batchnorm=recomputed", "evaluation.nodes=false")
    asked = 0

    class Asked(OneProcess):
        @property
        def stopping(self):
            nonlocal asked
            asked += 1
            return asked >= 3

        @stopping.setter
        def stopping(self, value):
            pass

    with pytest.raises(training.Stopped, match="saved step 0"):
        run(built, tmp_path, runtime=Asked(6))
    assert asked <= 4  # of 20 batches
    assert records(tmp_path) == []


def test_a_signal_while_the_strategies_are_measured_is_obeyed_at_once(tmp_path):
    built = build("gradients=auto")
    here = OneProcess(6)
    here.stopping = True
    with pytest.raises(training.Stopped, match="before step 1; nothing is saved, so start again"):
        run(built, tmp_path / "run", runtime=here)
    run(built, tmp_path / "run")


def test_parameters_that_overflow_are_not_recorded(tmp_path):
    with pytest.raises(Diverged, match="diverged at step"):
        run(build("algorithm.name=SGP", "algorithm.lr=1.0e+38", "steps=1"), tmp_path)
    assert [row["step"] for row in records(tmp_path)] == [0]
    assert checkpoint.generations(tmp_path / "checkpoints") == [0]


def test_an_experiment_can_be_run_twice(tmp_path):
    built = build(
        "published.restart=true",
        "algorithm.schedule.kind=steps",
        "algorithm.schedule.milestones=[1]",
        "steps=null",
        "batch=240",
    )
    for name in ("a", "b"):
        run(built, tmp_path / name)
    a, b = (without_times(records(tmp_path / name)) for name in "ab")
    assert a == b


def test_vmap_refuses_batches_of_different_size(tmp_path):
    overrides = ["gradients=vmap", "split.kind=dirichlet", "split.alpha=0.1", "batch=200"]
    with pytest.raises(ValueError, match="batches differ in size: use auto, loop or threads"):
        run(build(*overrides), tmp_path)


@pytest.mark.parametrize("policy", ["averaged", "recomputed", "test-batch"])
def test_nodes_own_models_are_tested_with_the_policy_of_the_average(tmp_path, policy):
    """One node is its own average."""
    built = build(*NORMED, f"evaluation.batchnorm={policy}", "topology.nodes=1")
    last = run(built, tmp_path)
    assert last["nodes"]["accuracy"]["mean"] == last["test"]["accuracy"]
    assert last["nodes"]["loss"]["mean"] == last["test"]["loss"]


def test_with_every_steps_between_exchanges_send_nothing(tmp_path):
    whole, seldom = (
        run(build("steps=6", f"algorithm.every={every}"), tmp_path / str(every)) for every in (1, 3)
    )
    assert 3 * seldom["bytes"] == whole["bytes"]


@pytest.mark.parametrize(
    ("words", "interval"),
    [
        (["topology.nodes=6", "evaluation.every=0.1"], 3),  # a multiple of the cycle of 3
        (["topology.nodes=16", "evaluation.every=0.2"], 6),  # shares a factor with 4
        (["topology.nodes=16", "evaluation.every=0.2", "algorithm.every=2"], 6),
        (["topology.nodes=6", "evaluation.every=0.2", "algorithm.every=4"], 6),
        (["topology.nodes=6", "evaluation.every=0.1666", "topology.name=full"], 5),
        (["topology.nodes=8", "evaluation.every=0.2666", "topology.name=random"], 8),
    ],
)
def test_records_fall_on_every_graph_of_a_cycle(words, interval):
    built = build("topology.name=exponential", *words)
    built.steps_per_epoch, built.steps = 30, 1800
    every = built.config.algorithm.every
    cycle = built.graphs.cycle or built.graphs.period
    due = when_to_record(built)
    steps = [t for t in range(built.steps + 1) if due(t)]
    assert (steps[0], steps[-1]) == (0, built.steps)
    assert len(steps) == built.steps // interval + 1
    assert all(0 <= t - k * interval < interval for k, t in enumerate(steps))
    graphs = np.bincount([(t // every - 1) % cycle for t in steps[1:-1]], minlength=cycle)
    assert graphs.min() > 0.4 * graphs.max()
