"""Records told elsewhere. W&B and MLflow are stand-ins with the calls that are made of them.

The real ones (78 MB, and 95 MB for mlflow-skinny alone) are too heavy for every test run.
"""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from pushsum import config, loggers, training
from pushsum.experiment import Experiment

TINY = ["steps=2", "model.hidden=[4]", "gradients=loop", "evaluation.every=0.05"]


class FakeWandB(ModuleType):
    """What was told, by the id of the run."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = {}

    def init(self, *, project, name, dir, config, id, resume):
        assert (project, resume) == ("pushsum", "allow")
        told = self.runs.setdefault(id, [])
        told.append(("start", name, config["steps"]))
        return SimpleNamespace(
            define_metric=lambda name, step_metric: None,
            log=lambda row: told.append((row["step"], row["test/accuracy"])),
            finish=lambda exit_code: told.append(("end", exit_code)),
        )


class FakeMLflow(ModuleType):
    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.MlflowClient = {}, lambda: self

    def create_run(self, experiment, run_name):
        run = f"id{len(self.runs)}"
        self.runs[run] = [("start", run_name)]
        return SimpleNamespace(info=SimpleNamespace(run_id=run))

    def update_run(self, run, status):
        self.runs[run].append((status,))

    def log_param(self, run, key, value):
        if key == "steps":
            assert not any(row[0] == "steps" for row in self.runs[run])  # MLflow refuses another
            self.runs[run].append((key, value))

    def log_metric(self, run, key, value, step):
        if key == "test/accuracy":
            self.runs[run].append((step, value))

    def set_terminated(self, run, status):
        self.runs[run].append((status,))


def go(name, into, overrides, resume=False):
    built = Experiment(config.read(into / "config.yaml" if resume else None, overrides))
    training.run(built, into, resume=resume, loggers=[loggers.logger(name, into)])
    lines = (into / "records.jsonl").read_text().splitlines()
    return [(r["step"], r["test"]["accuracy"]) for r in map(json.loads, lines)]


def test_wandb_hears_of_one_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandB())
    go("WandB", tmp_path / "a", TINY)
    rows = go("wandb", tmp_path / "a", ["steps=3"], resume=True)
    (told,) = fake.runs.values()
    first, second = ("start", "a", 2), ("start", "a", 3)
    assert told == [first, *rows[:3], ("end", 0), second, *rows[3:], ("end", 0)]


def test_mlflow_hears_of_one_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", fake := FakeMLflow())
    go("mlflow", tmp_path / "a", TINY)
    rows = go("mlflow", tmp_path / "a", ["steps=3"], resume=True)
    (told,) = fake.runs.values()
    assert told == [
        ("start", "a"), ("steps", 2), ("RUNNING",), *rows[:3], ("FINISHED",),
        ("RUNNING",), *rows[3:], ("FINISHED",),
    ]  # fmt: skip


OWN = """
from pathlib import Path

class Mine:
    told = []
    def __init__(self, directory):
        if directory.name == "b":
            self.on_start = lambda config, meta: 1 / 0
    def on_start(self, config, meta):
        self.told.append((config["seed"], meta["nodes"]))
    def on_record(self, step, record):
        self.told.append((step, record["step"]))
    def on_end(self, finished):
        Path(__file__).with_name("told").write_text(repr((self.told, finished)))
"""


def test_a_logger_of_ones_own_and_one_that_fails(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    name = f"{tmp_path / 'mine.py'}:Mine"
    go(name, tmp_path / "a", TINY)
    assert (tmp_path / "told").read_text() == "([(0, 6), (0, 0), (1, 1), (2, 2)], True)"
    with pytest.raises(ValueError, match=r"^Mine cannot be told of the run: division by zero$"):
        go(name, tmp_path / "b", TINY)
    with pytest.raises(ValueError, match=r"^unknown logger 'wand' \(did you mean wandb\?\)"):
        loggers.logger("wand", tmp_path)
