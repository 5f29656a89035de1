"""Testing saved runs again, with every BatchNorm policy."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import pushsum as ps
from pushsum import checkpoint, config, training
from pushsum.cli import app
from pushsum.experiment import Experiment

NETWORK = ["model.name=resnet-small", "model.width=2", "batch=8", "steps=4", "gradients=loop"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "a"
    settings = [*NETWORK, "evaluation.batchnorm=recomputed", "topology.nodes=3"]
    return directory, training.run(Experiment(config.read(None, settings)), directory)


def test_the_configured_policy_gives_what_the_run_recorded(finished):
    directory, last = finished
    step, results, _, refused, measure = training.tested(directory)
    assert measure.name == "accuracy"
    assert step == 4
    assert refused == {}
    assert results["recomputed"] == last["test"]
    assert list(results) == ["averaged", "recomputed", "test-batch"]
    assert len({result["loss"] for result in results.values()}) == 3


def test_the_nodes_of_a_distributed_run_are_put_together(finished, tmp_path):
    """One directory per node, of which one is a step ahead."""
    directory, _ = finished
    step, tensors, notes = checkpoint.load(directory / "checkpoints")
    for node in range(3):
        mine = {k: v[node : node + 1] for k, v in tensors.items() if k != "weights"}
        checkpoint.save(tmp_path / "checkpoints" / f"node-{node}", step, mine, notes)
    ahead = {name: torch.zeros_like(value) for name, value in mine.items()}
    checkpoint.save(tmp_path / "checkpoints" / "node-2", step + 1, ahead, notes)
    (tmp_path / "config.yaml").write_bytes((directory / "config.yaml").read_bytes())
    (tmp_path / "meta.json").write_text('{"engine": "distributed"}')
    assert training.tested(tmp_path) == training.tested(directory)


@pytest.mark.parametrize("policy", [None, "averaged", "test-batch"])
def test_the_trained_model_is_the_one_that_was_tested(finished, policy):
    directory, last = finished
    model = ps.trained(directory, policy)
    digits = ps.data.load("digits")
    with torch.no_grad():
        right = model(digits.scaled(digits.test_x)).argmax(1) == digits.test_y
    expected = training.tested(directory).results[policy or "recomputed"]
    assert right.float().mean().item() == pytest.approx(expected["accuracy"])
    assert policy or expected == last["test"]
    parameters = list(model.parameters())
    assert all(p.requires_grad for p in parameters)
    assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)


def test_a_model_without_batchnorm_is_tested_once(tmp_path):
    last = training.run(Experiment(config.read(None, ["model.hidden=[4]", "steps=2"])), tmp_path)
    assert training.tested(tmp_path).results == {"averaged": last["test"]}


def test_the_command_shows_a_row_for_each(finished):
    directory, last = finished
    shown = CliRunner().invoke(app, ["evaluate", str(directory)])
    lines = shown.stdout.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["averaged", "recomputed", "test-batch"]
    assert f"{100 * last['test']['accuracy']:.2f} %" in lines[2]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        training.tested(tmp_path)
    (tmp_path / "config.yaml").write_text("epochs: 1\n")
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(ValueError, match="there is no checkpoint"):
        training.tested(tmp_path)


def test_evaluations_may_come_more_often_than_epochs(tmp_path):
    words = ["model.hidden=[4]", "epochs=1", "evaluation.every=0.25", "topology.name=full"]
    built = Experiment(config.read(None, words))
    training.run(built, tmp_path)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    quarter = round(0.25 * built.steps_per_epoch)
    assert steps == [*range(0, built.steps, quarter), built.steps]


def test_runs_are_found_below_a_directory_and_files_are_passed_over(finished):
    directory, _ = finished
    report = directory.parent / "report.html"
    report.write_text("")
    logs = directory.parent / "slurm"
    logs.mkdir()
    below = CliRunner().invoke(app, ["evaluate", str(directory.parent)])
    beside = CliRunner().invoke(app, ["evaluate", str(report), str(directory), str(logs)])
    assert below.stdout == beside.stdout
    assert len(below.stdout.splitlines()) == 4
    for words, message in (
        ([str(directory), "nowhere"], "nowhere: there is no such directory"),
        ([str(logs)], "slurm: no run is there: give a directory"),
    ):
        assert message in str(CliRunner().invoke(app, ["evaluate", *words]).exception)


def test_a_policy_that_cannot_be_followed_does_not_hide_the_others(tmp_path, capsys):
    """The last of 9 test images is alone, and has one number per channel."""
    rng = np.random.default_rng(0)
    arrays = {
        f"x_{part}": rng.normal(size=(m, 1, 4, 4)) for part, m in (("train", 40), ("test", 9))
    }
    arrays |= {"y_train": np.arange(40) % 2, "y_test": np.arange(9) % 2}
    np.savez(tmp_path / "own.npz", **arrays)
    directory = tmp_path / "[b]runs"
    settings = [*NETWORK, f"data.name={tmp_path / 'own.npz'}", "topology.nodes=2", "steps=2"]
    settings += ["model.blocks=[1, 1, 1]", "evaluation.batch=4"]
    training.run(Experiment(config.read(None, settings)), directory)
    shown = CliRunner().invoke(app, ["evaluate", str(directory)])
    lines = [line.split() for line in shown.stdout.splitlines()[1:]]
    assert [(words[2], words[3] == "–") for words in lines] == [
        ("averaged", False),
        ("recomputed", False),
        ("test-batch", True),
    ]
    assert all(words[0].endswith("[b]runs") for words in lines)
    assert "test-batch: Expected more than 1 value per channel" in shown.stderr
