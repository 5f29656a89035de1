"""Runs and configurations that come from somebody else are data: bounded, quoted, never obeyed."""

import csv
import errno
import hashlib
import inspect
import json
import math
import os
import pickle
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save
from typer.testing import CliRunner

import fake_runs
from pushsum import (
    algorithms,
    checkpoint,
    config,
    data,
    files,
    iterate,
    methods,
    models,
    report,
    sweep,
    topology,
    trained,
    training,
)
from pushsum.cli import app, main
from pushsum.data import store
from pushsum.experiment import Experiment
from pushsum.names import flat
from pushsum.report import curves, pictures, runs
from pushsum.report.results import collect

LAUGHS = "a: &a [1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b}\n  <<: [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
NOT_READ = "anchors, aliases and tags are not read: write the value itself"
ESCAPES = "\x1b]0;owned\x07\x1b[31mred\u202egnp.exe\u2066\x9b1m\n\r\tend"


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """What waits for a pipe waits for ever: then the test has failed."""

    def end(number: int, frame: object) -> None:
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refusal(read: Any, *given: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read(*given)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 2000
    return text


# --------------------------------------------------------------------------- YAML


@pytest.mark.parametrize("bomb", [LAUGHS, MERGES], ids=["aliases", "merges"])
def test_a_small_file_cannot_stand_for_a_large_one(tmp_path: Path, bomb: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(bomb)
    assert NOT_READ in refusal(config.read, path)
    assert NOT_READ in refusal(sweep.read, str(path))
    good, bad = fake_runs.run(tmp_path / "good"), fake_runs.run(tmp_path / "bad", seed=1)
    with (bad / "config.yaml").open("a") as file:
        file.write(bomb)
    found = report.find(tmp_path)
    assert [run.path for run in found.runs] == [good]
    assert NOT_READ in found.skipped[0].reason


@pytest.mark.parametrize(
    "text",
    ["!!bool x", "!!int ''", "!!float x", "!!timestamp x", "!!binary x", "!!set {a}", "!!null x",
     "!!omap [a: 1]", "!!pairs [a]", "!!python/object/apply:os.getpid []", "! x", "&a 1", "[*a]"],
)  # fmt: skip
def test_tags_and_aliases_are_refused_in_one_line(text: str) -> None:
    assert NOT_READ in refusal(config.read, None, [f"seed={text}"])


@pytest.mark.parametrize("text", ["0b_", "0x_", "? [1]\n: 2", "\x1b[31m", "9" * 5000, "[" * 40])
def test_what_is_no_value_is_refused_in_one_line(text: str) -> None:
    refusal(config.read, None, [f"seed={text}"])


def test_a_key_that_is_given_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("epochs: 1\nalgorithm: {lr: 0.1, momentum: 0.5, lr: 0.2}\n")
    assert refusal(config.read, path).endswith("not valid YAML: 'lr' is given twice (line 2)")


@pytest.mark.parametrize(
    "content",
    [
        {"a\nb\x1b[31m": 1},
        {"k" * 900: 1},
        {"seed": list(range(10_000))},
        {"model": ["x" * 900] * 9},
        {"model": {"hidden": "x" * 900}},
        {"algorithm": {"name": ESCAPES}},
        {"algorithm": {"lr": 10**800}},
    ],
)
def test_a_message_is_one_short_line_whatever_it_names(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump(content))
    refusal(config.read, path)


def test_dates_are_words() -> None:
    assert "seed = '2020-99-99': should be a valid integer" in refusal(
        config.read, None, ["seed=2020-99-99"]
    )


def test_no_key_is_deeper_than_any_configuration(tmp_path: Path) -> None:
    deep = ".".join("a" * 400)
    assert "no key has so many parts" in refusal(config.read, None, [f"{deep}=1"])
    path = tmp_path / "deep.yaml"
    path.write_text(f"sweep: {{grid: {{{deep}: [1]}}}}")
    assert "no key has so many parts" in refusal(sweep.read, str(path))


def test_a_small_grid_cannot_stand_for_a_million_runs(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    keys = ("seed", "batch", "epochs", "steps", "checkpoint", "topology.nodes")
    path.write_text(f"sweep: {{grid: {ten(keys)}}}")
    assert refusal(sweep.read, str(path)) == (
        "the sweep has 1,000,000 cells, more than 10,000: split it"
    )


def ten(keys: tuple[str, ...]) -> str:
    return json.dumps({key: list(range(1, 11)) for key in keys})


# --------------------------------------------------------------------------- files

KINDS = ("pipe", "link", "link to nothing", "device", "directory", "large")


def replaced(path: Path, kind: str) -> None:
    """Something else in the place of a file."""
    kept = shutil.move(path, path.parent.parent / "outside.txt")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(kept)
        case "link to nothing":
            path.symlink_to("nothing")
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case "large":
            path.touch()
            os.truncate(path, 1 << 40)


@pytest.mark.parametrize("name", ["config.yaml", "meta.json", "records.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_only_files_of_the_run_itself_are_read(tmp_path: Path, name: str, kind: str) -> None:
    good = fake_runs.run(tmp_path / "good")
    replaced(fake_runs.run(tmp_path / "bad", seed=1) / name, kind)
    found = report.find(tmp_path)
    assert [run.path for run in found.runs] == [good]
    ((path, reason),) = found.skipped
    assert path.name == "bad"
    assert str(tmp_path) not in reason


def test_the_command_warns_of_what_it_leaves_out(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "good")
    for k in range(12):
        replaced(fake_runs.run(tmp_path / f"bad{k:02}\x1b[31m") / "meta.json", "pipe")
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 0
    *lines, last = done.stderr.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("pushsum: warning: ")
    assert lines[0].endswith("bad00\ufffd[31m is left out: meta.json is not a regular file")
    assert last == "pushsum: warning: 2 more are left out: the page names them"
    assert done.stdout.splitlines()[0].endswith("report.html")


def test_a_configuration_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    assert refusal(config.read, path) == "pipe.yaml is not a regular file"
    os.mkfifo(tmp_path / ".lock")
    with (
        pytest.raises((ValueError, OSError), match=r"\.lock|No such device"),
        files.alone(tmp_path / ".lock"),
    ):
        pass


def test_a_sweep_does_not_wait_for_what_a_cell_left(tmp_path: Path) -> None:
    (cell,) = sweep.read(None, ["steps=1", "model.hidden=[4]", "gradients=loop"])
    for name in ("meta.json", "config.yaml"):
        (tmp_path / cell.name).mkdir(exist_ok=True)
        os.mkfifo(tmp_path / cell.name / name)
    assert not sweep.cell.meta(tmp_path / cell.name, "finished")
    assert sweep.cell.stored(tmp_path / cell.name) is None
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "meta.json").write_text("[]")
    assert not sweep.cell.meta(tmp_path / "list", "finished")


def test_directories_may_be_deep_and_links_are_not_followed(tmp_path: Path) -> None:
    good = fake_runs.run(tmp_path / "good")
    (tmp_path / "again").symlink_to(tmp_path)
    deep = tmp_path.joinpath(*"a" * 150)
    deep.mkdir(parents=True)
    (deep / "meta.json").touch()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 120)
    try:
        assert list(runs.candidates(tmp_path)) == [deep, good]
    finally:
        sys.setrecursionlimit(limit)


# --------------------------------------------------------------------------- records and meta

RECORD = {
    "step": 0,
    "epoch": 0.0,
    "bytes": 0,
    "test": {"accuracy": 0.5, "loss": 1.0},
    "consensus": {"theorem": 0.0, "mean_square": 0.0},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": "7"}, "step = '7' is not a number of steps"),
        ({"step": 10**4000}, "step = 1000"),
        ({"step": -1}, "step = -1 is not"),
        ({"step": True}, "step = true is not"),
        ({"epoch": float("nan")}, "epoch is not a number"),
        ({"epoch": None}, "epoch is not a number"),
        ({"bytes": [1]}, "[1] is not a number"),
        ({"test": [0.5, 1.0]}, "test is not a mapping"),
        ({"test": None}, "no 'loss'"),
        ({"consensus": "far"}, "consensus is not a mapping"),
        ({"nodes": 3}, "nodes is not a mapping"),
        ({"nodes": {"accuracy": [1]}}, "nodes.accuracy is not a mapping"),
        ({"modelled": "x" * 1000}, "modelled is not a mapping"),
        ({"train_loss": "x" * 1000}, "'xxxx"),
    ],
    ids=str,
)
def test_a_record_of_other_types_is_named(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    good, bad = fake_runs.run(tmp_path / "good"), fake_runs.run(tmp_path / "bad", seed=1)
    (bad / "records.jsonl").write_text(json.dumps(RECORD | change) + "\n")
    found = report.find(tmp_path)
    assert [run.path for run in found.runs] == [good]
    (why,) = (why for _, why in found.skipped)
    assert why.startswith(f"records.jsonl line 1: {reason}")
    assert len(why) < 200


@pytest.mark.parametrize(
    "number",
    [float("nan"), float("inf"), 10**400, -(10**400), None],
    ids=["nan", "inf", "large", "small", "none"],
)
def test_numbers_beyond_all_measure_count_as_none(tmp_path: Path, number: Any) -> None:
    change = {
        "bytes": number,
        "train_loss": number,
        "test": {"accuracy": number, "loss": number},
        "consensus": {"theorem": number},
        "nodes": {"accuracy": {"mean": number, "min": number}},
        "weights": [[number]],
    }
    path = fake_runs.run(tmp_path / "r")
    (path / "records.jsonl").write_text(json.dumps(RECORD | change) + "\n")
    fake_runs.run(tmp_path / "s", seed=1)
    assert "NaN" in report.write(tmp_path)["md"].read_text()


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ("[" * 100_000, "meta.json is not JSON"),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", "the brackets in meta.json are too deep"),
        ('{"steps": 1' + "0" * 400 + "}", "a number has more than 300 digits"),
        ('{"steps": 1' + "0" * 5000 + "}", "meta.json is not JSON"),
    ],
    ids=["text", "depth", "digits", "too many digits"],
)
def test_meta_that_would_take_too_much(tmp_path: Path, meta: str, reason: str) -> None:
    fake_runs.run(tmp_path / "good")
    (fake_runs.run(tmp_path / "bad", seed=1) / "meta.json").write_text(meta)
    assert [why for _, why in report.find(tmp_path).skipped] == [reason]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("topology.nodes", 10**300, "topology.nodes = 1000"),
        ("seed", 10**301, "a number has more than 300 digits"),
        ("data.name", ["digits"], "config.yaml has no data.name"),
        ("model.width", list(range(1000)), "model.width has more than 1000 characters"),
        ("algorithm.options", {str(k): 0 for k in range(1000)}, "config.yaml has 1,0"),
    ],
)
def test_configurations_that_no_run_has(tmp_path: Path, key: str, value: Any, reason: str) -> None:
    fake_runs.run(tmp_path / "good")
    fake_runs.run(tmp_path / "bad", seed=1, config={key: value})
    ((_, why),) = report.find(tmp_path).skipped
    assert reason in why


def test_odd_types_elsewhere_do_no_harm(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "good")
    path = fake_runs.run(
        tmp_path / "odd",
        seed=1,
        config={
            "algorithm.lr": [{"a": None}],
            "algorithm.weighting": {"x": 1},
            "epochs": {"b": [1]},
            "topology.inner": "many",
            "topology.name": "random",
            "split.kind": ["iid"],
            "link.gigabits": {"c": 1},
        },
    )
    about = json.loads((path / "meta.json").read_text())
    about |= {"d": "x", "git": [1], "torch": {"a": 1}, "certificate": [1], "diverged": [1]}
    (path / "meta.json").write_text(json.dumps(about | {"split": [[1], [1, 2]], "steps": {}}))
    assert "2 runs,\nnone unfinished, none left out." in report.write(tmp_path)["html"].read_text()


def test_a_line_without_an_end_is_not_read_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_LINE", 10_000)
    fake_runs.run(tmp_path / "good")
    path = fake_runs.run(tmp_path / "bad", seed=1) / "records.jsonl"
    path.write_text(path.read_text() + '{"step": 1, "x": "' + "x" * 20_000)
    ((_, why),) = report.find(tmp_path).skipped
    assert why == "records.jsonl line 11: it has more than 10,000 bytes"


def test_of_very_many_records_some_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_RECORDS", 8)
    fake_runs.run(tmp_path / "a", records=31)
    fake_runs.run(tmp_path / "b", seed=1, records=14, finished=False)
    long, short = report.load(tmp_path)
    assert [record.step // 250 for record in long.records] == [0, 8, 16, 24, 30]
    assert [record.step // 250 for record in short.records] == [0, 2, 4, 6, 8, 10, 12, 13]
    (setting,) = collect([long, short]).settings
    series = curves._series(setting.cells["SGAP, moreau", "Full"], 400)
    assert series["x"]["epochs"] == [0, 8, 16, 24, 30]
    (cell,) = pictures.weights(setting).values()
    assert [drawn.title for drawn in cell.maps] == ["step 2000", "step 6000", "step 7500"]
    lines = (tmp_path / "a" / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a" / "records.jsonl").write_text("".join([*lines[:20], *lines[3:6]]))
    (gone_back, _) = report.load(tmp_path)
    assert [record.step // 250 for record in gone_back.records] == [0, 5]


def test_the_page_stays_small_however_much_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nodes in (2, 3, 4, 5):
        fake_runs.grid(tmp_path / str(nodes), ["SGP", "SGAP"], ["full"], [0], nodes=nodes)
    whole = report.write(tmp_path)["html"].read_text()
    assert "No more than" not in whole
    assert "These are the first" not in whole
    monkeypatch.setattr(pictures, "MOST_DRAWN", 2)
    monkeypatch.setattr(pictures, "MOST_SPLITS", 2)
    monkeypatch.setattr("pushsum.report.page.MOST_RUNS", 5)
    monkeypatch.setattr(pictures, "MOST_MATRICES", 3)
    monkeypatch.setattr("pushsum.report.page.MOST_DESCRIBED", 2)
    monkeypatch.setattr(curves, "ALL_POINTS", 40)
    page = report.write(tmp_path)["html"].read_text()
    assert page.count("No more than the first 2 are drawn.") == 2
    assert page.count("No more than the first 3 are drawn.") == 1
    assert "These are the first 2 of 4 settings." in page
    assert "These are the first 5 of 8 runs." in page
    drawn = curves.curves(collect(*report.find(tmp_path)))["settings"]
    lengths = {len(s["x"]["steps"]) for one in drawn for p in one["panels"] for s in p["series"]}
    assert lengths == {5}


# --------------------------------------------------------------------------- checkpoints


def forged(directory: Path, tensors: bytes, notes: Any, step: Any = 5) -> None:
    """A generation whose hashes fit, whatever it holds."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "step-5.safetensors").write_bytes(tensors)
    about = {"step": step, "sha256": hashlib.sha256(tensors).hexdigest(), "notes": notes}
    about["check"] = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    (directory / "step-5.json").write_text(json.dumps(about))


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


GOOD = save({"x": torch.ones(3)})


@pytest.mark.parametrize(
    ("tensors", "notes", "step"),
    [
        (GOOD, [], 5),
        (GOOD, None, 5),
        (GOOD, {}, 6),
        (GOOD, {}, "5"),
        (b"", {}, 5),
        (b"\xff" * 16, {}, 5),
        (header(x=[]) + b"", {}, 5),
        (header(x={"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}) + b"abcd", {}, 5),
        (header(x={"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 4]}) + b"abcd", {}, 5),
        (header(x={"dtype": "XX", "shape": [1], "data_offsets": [0, 4]}) + b"abcd", {}, 5),
        (header(x={"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}) + b"abcd", {}, 5),
        (header(x={"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}) + b"abcd", {}, 5),
        (header(x={"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}) + b"abc", {}, 5),
        (header(x={"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}) + b"abcd", {}, 5),
    ],
    ids=map(str, range(14)),
)
def test_a_forged_checkpoint_is_refused_in_one_line(
    tmp_path: Path, tensors: bytes, notes: Any, step: Any
) -> None:
    forged(tmp_path / "checkpoints", tensors, notes, step)
    assert "step-5.safetensors is corrupt" in refusal(checkpoint.load, tmp_path / "checkpoints")


def test_a_good_checkpoint_is_loaded(tmp_path: Path) -> None:
    forged(tmp_path, GOOD, {"a": 1})
    assert checkpoint.load(tmp_path).notes == {"a": 1}
    for name in ("step-²", "step-05", "step--5", "step-" + "9" * 40, "step-"):
        (tmp_path / f"{name}.json").touch()
    assert checkpoint.generations(tmp_path) == [5]


@pytest.mark.parametrize("name", ["step-5.json", "step-5.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "link to nothing", "directory"])
def test_a_checkpoint_is_made_of_files(tmp_path: Path, name: str, kind: str) -> None:
    forged(tmp_path / "checkpoints", GOOD, {})
    replaced(tmp_path / "checkpoints" / name, kind)
    assert "step-5.safetensors is corrupt" in refusal(checkpoint.load, tmp_path / "checkpoints")


@pytest.mark.parametrize("below", ["", "node-0"])
def test_nothing_outside_the_run_is_removed(tmp_path: Path, below: str) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    for place in (outside, outside / "node-0"):
        for step in (1, 2, 3, 4):
            checkpoint.save(place, step, {"x": torch.ones(1)}, {})
        (place / "step-9.safetensors").touch()
        (place / ".step-9.json.0123abcd").touch()
    before = sorted(outside.rglob("*"))
    run.mkdir()
    if below:
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / below).symlink_to(outside)
    else:
        (run / "checkpoints").symlink_to(outside)
    for place in (run / "checkpoints" / below, run / "checkpoints" / "node-0"):
        for act, given in (
            (checkpoint.drop_after, (1,)),
            (checkpoint.thin_out, (9,)),
            (checkpoint.save, (10, {"x": torch.ones(1)}, {})),
        ):
            assert "is a link, and what it leads to may be another's" in refusal(act, place, *given)
    assert "is a link" in refusal(checkpoint.remove_incomplete, run / "checkpoints")
    assert sorted(outside.rglob("*")) == before


def test_nothing_is_made_where_a_link_leads(tmp_path: Path) -> None:
    """A link that leads nowhere: whoever opens it to write makes a file there."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    built = made("steps=1")
    (run / "config.yaml").write_text(yaml.safe_dump(built.config.model_dump(mode="json")))
    (run / "records.jsonl").symlink_to(elsewhere)
    (run / ".lock").symlink_to(elsewhere)
    assert refusal(training.run, built, run).startswith(".lock is a link")
    (run / ".lock").unlink()
    training.run(built, run, resume=True)  # nothing was saved, so it starts
    assert not (run / "records.jsonl").is_symlink()
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    "last",
    ["pipe", "", "{", "[]", '{"validation": 3}', '{"step": 1}', '{"validation": {"loss": "x"}}'],
)
def test_a_trial_of_somebody_else_ends_in_one_line(tmp_path: Path, last: str) -> None:
    cells = sweep.read(None, ["steps=1"], tune="algorithm.lr=0.1,0.2")
    for trial in sweep.trials(cells):
        place = tmp_path / sweep.TRIALS / trial.name
        place.mkdir(parents=True)
        (place / "meta.json").write_text('{"finished": true, "measure": null}')
        (place / "config.yaml").write_text(yaml.safe_dump(trial.config.model_dump(mode="json")))
        if last == "pipe":
            os.mkfifo(place / "records.jsonl")
        else:
            (place / "records.jsonl").write_text(last)
    if "loss" in last:  # nothing is known of either: the first
        (chosen,) = sweep.tuned(cells, tmp_path)
        assert isinstance(chosen, sweep.Cell)
        assert chosen.config.algorithm.lr == 0.1
    else:
        refusal(lambda: list(sweep.tuned(cells, tmp_path)))


def test_a_full_disk_is_said_of_which_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/table\.md'"),
        files.appearing(tmp_path / "table.md"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_drafts_are_files(tmp_path: Path) -> None:
    (tmp_path / ".a.01234567").mkdir()
    (tmp_path / ".b.01234567").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / ".c.01234567").symlink_to("kept")
    files.remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.01234567", "kept"]


# --------------------------------------------------------------------------- what is written


def test_no_cell_of_the_csv_is_a_formula(tmp_path: Path) -> None:
    names = {"algorithm": "=cmd|' /C calc'!A0", "topology": "@SUM(1)", "weighting": "+1+1"}
    fake_runs.run(tmp_path / "r", **names, config={"model.name": "-2+3", "data.name": "x"})
    fake_runs.run(tmp_path / "s", algorithm="SGAP", topology="-5", weighting="\t=1")
    fake_runs.run(tmp_path / "t", algorithm="\uff1d1", topology="x", seed=1)  # a wide =
    rows = csv.DictReader(report.write(tmp_path)["csv"].read_text().splitlines())
    keys = ("setting", "method", "weighting", "topology")
    assert sorted([row[key] for key in keys] for row in rows) == [
        ["'-2+3 + x", "'=cmd|' /C calc'!A0", "uniform", "'@SUM(1)"],
        ["ResNet-18 + CIFAR-10", "'\uff1d1", "uniform", "x"],
        ["ResNet-18 + CIFAR-10", "SGAP, =1", "'=1", "-5"],
    ]


def test_control_characters_reach_nobody(tmp_path: Path) -> None:
    for k, seed in enumerate((0, 0, 1)):
        path = fake_runs.run(
            tmp_path / f"{k}{ESCAPES}",
            algorithm=f"SGAP{ESCAPES}",
            topology=f"x{ESCAPES}",
            weighting=ESCAPES,
            seed=seed,
            finished=False,
            config={
                "model.name": f"m{ESCAPES}",
                "data.name": f"d{ESCAPES}",
                "algorithm.options": {f"k{ESCAPES}": [ESCAPES]},
                "split.kind": ESCAPES,
            },
        )
        about = json.loads((path / "meta.json").read_text())
        about |= dict.fromkeys(("git", "torch", "python", "pushsum", "diverged"), ESCAPES)
        (path / "meta.json").write_text(json.dumps(about))
    (fake_runs.run(tmp_path / f"bad{ESCAPES}") / "meta.json").write_text("{")
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 0
    texts = [done.output, *(path.read_text() for path in tmp_path.glob("*.*") if path.is_file())]
    assert len(texts) == 5
    for text in texts:
        assert all(line.isprintable() for line in text.replace("\xad", "").split("\n"))


def test_a_weighting_from_a_file_is_shown_by_its_name(tmp_path: Path) -> None:
    for folder in ("me", "other"):
        fake_runs.run(tmp_path / folder, weighting=f"/home/{folder}/mine.py:weigh")
    fake_runs.run(
        tmp_path / "c",
        algorithm="SGP",
        config={
            "algorithm.options": {"a": "/home/me/x", "b": ["C:\\me\\y"]},
            "data.name": "~/me/z.npz",
            "model.pretrained": "/home/me/my models/w",
        },
    )
    written = report.write(tmp_path)
    assert collect(*report.find(tmp_path)).methods == (
        "SGP",
        "SGAP, mine.py:weigh",
        "SGAP, mine.py:weigh (2)",
    )
    for path in written.values():
        assert "home" not in path.read_text()
        assert "me/" not in path.read_text()
        assert "me\\" not in path.read_text()
    assert "mine.py:weigh" in written["csv"].read_text()


def test_a_page_says_nothing_of_where_its_runs_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(fake_runs.run(tmp_path / "a", finished=False) / "config.yaml", "directory")
    fake_runs.run(tmp_path / "b", finished=False)
    for directory in (tmp_path, tmp_path / "b"):
        assert str(tmp_path.parent) not in report.write(directory)["html"].read_text()
    monkeypatch.chdir(tmp_path / "b")
    assert "<code>b</code>" in report.write(Path())["html"].read_text()


# --------------------------------------------------------------------------- code

CODE = """
from pathlib import Path
with Path(__file__).with_name("ran").open("a") as file:
    file.write(".")
def keep(adjacency, squared_distances):
    return adjacency.T / adjacency.sum(1)
def graphs(n):
    from pushsum import topology
    return topology.ring(n)
def method(lr, times=1):
    from pushsum import algorithms
    return algorithms.sgp(lambda t: times * lr(t))
"""
OWN = {
    "weighting": {"algorithm": {"name": "SGAP", "weighting": "own.py:keep"}},
    "unused weighting": {"algorithm": {"name": "MSGP", "weighting": "own.py:keep"}},
    "topology": {"topology": {"name": "own.py:graphs", "nodes": 3}},
    "method": {"algorithm": {"name": "own.py:method", "parameters": {"times": 2}}},
    "graph of a static method": {
        "algorithm": {"name": "DEXTRA"},
        "topology": {"name": "own.py:graphs", "nodes": 3},
    },
}
SHORT: dict[str, Any] = {
    "steps": 2,
    "model": {"hidden": [4]},
    "gradients": "loop",
    "topology": {"nodes": 3},
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file of code that tells when it is run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(CODE)
    return tmp_path


def times_run(directory: Path) -> int:
    path = directory / "ran"
    count = len(path.read_text()) if path.exists() else 0
    path.unlink(missing_ok=True)
    return count


def command(*words: object) -> None:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception


@pytest.mark.parametrize("kind", OWN)
def test_files_that_a_file_names_are_run_only_if_they_are_trusted(own: Path, kind: str) -> None:
    (own / "c.yaml").write_text(yaml.safe_dump(SHORT | OWN[kind]))
    for words in (
        ("run", "c.yaml", "--dry-run"),
        ("run", "c.yaml", "--into", "a"),
        ("run", "c.yaml", "--into", "a", "--engine", "distributed"),
        ("sweep", "c.yaml", "seed=0,1", "--into", "b"),
    ):
        said = refusal(command, *words)
        assert f"= {own}/own.py:" in said
        assert "--trust" in said
    (cell,) = sweep.read("c.yaml")
    assert "--trust" in sweep.run_cell(cell, own / "cell")
    assert not (own / "a").exists()
    assert not times_run(own)
    command("run", "c.yaml", "--into", "a", "--trust")
    assert bool(times_run(own)) == (kind != "unused weighting")
    (again,) = sweep.read("c.yaml", trust=True)
    assert pickle.loads(pickle.dumps(again)) == again  # also for those who run it elsewhere
    assert again != cell


@pytest.mark.parametrize("kind", OWN)
def test_a_run_whose_code_is_not_trusted_gives_its_weights(own: Path, kind: str) -> None:
    typed = [f"{key}={value}" for key, value in flat(SHORT | OWN[kind]).items()]
    command("run", *typed, "--into", "a")
    assert bool(times_run(own)) == (kind != "unused weighting")
    command("report", "a")
    command("evaluate", "a")
    model = trained(own / "a")
    _, tensors, _ = checkpoint.load(own / "a" / "checkpoints")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert weights.allclose(tensors["x"].mean(0))
    assert "--trust" in refusal(command, "run", "--resume", "steps=3", "--into", "a")
    assert not times_run(own)
    meta = json.loads((own / "a" / "meta.json").read_bytes())
    digest = hashlib.sha256((own / "own.py").read_bytes()).hexdigest()
    assert meta["code_sha256"] == {f"{own}/own.py": digest}
    command("run", "--resume", "steps=3", "--trust", "--into", "a")
    (own / "own.py").write_text(CODE + "# another one")
    said = refusal(command, "run", "--resume", "steps=4", "--trust", "--into", "a")
    assert said.startswith(f"{own}/own.py has changed since the run began: put the file back")


def test_what_was_typed_vouches_for_itself_alone(own: Path) -> None:
    (own / "c.yaml").write_text(yaml.safe_dump(SHORT | OWN["topology"]))
    typed = ["algorithm.name=SGAP", "algorithm.weighting=own.py:keep"]
    said = refusal(config.read(own / "c.yaml", typed).refuse_untrusted)
    assert said.startswith(f"topology.name = {own}/own.py:graphs: ")
    config.read(None, typed).refuse_untrusted()
    config.read(own / "c.yaml", [*typed, "topology.name=ring"]).refuse_untrusted()
    for cell in sweep.read(None, ["algorithm.weighting=uniform,own.py:keep"]):
        cell.config.refuse_untrusted()


def test_what_a_file_wants_to_be_tuned_is_not_trusted(own: Path) -> None:
    tune = {"algorithm.weighting": ["uniform", "own.py:keep"]}
    (own / "c.yaml").write_text(yaml.safe_dump({**SHORT, "sweep": {"tune": tune}}))
    said = refusal(command, "sweep", "c.yaml", "--into", "b")
    assert said.startswith(f"algorithm.weighting = {own}/own.py:keep: ")
    _, trial = sweep.trials(sweep.read("c.yaml"))
    assert "--trust" in sweep.run_cell(trial, own / "cell")
    assert not times_run(own)
    typed = f"algorithm.weighting={','.join(tune['algorithm.weighting'])}"
    for cells in (sweep.read("c.yaml", trust=True), sweep.read(None, tune=typed)):
        for trial in sweep.trials(cells):
            trial.config.refuse_untrusted()


# --------------------------------------------------------------------------- runs that go on


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four records, of which the first is of step 0."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    training.run(made("steps=3"), directory)
    return directory


def made(*words: str) -> Experiment:
    small = ["model.hidden=[4]", "topology.nodes=3", "gradients=loop", "evaluation.every=0.02"]
    return Experiment(config.read(None, [*small, *words]))


def untimed(directory: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (directory / "records.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k not in ("seconds", "modelled")} for row in lines]


def begun(finished: Path, into: Path, left: str) -> None:
    """What a run leaves that dies before its first checkpoint is complete."""
    shutil.copytree(finished, into, ignore=shutil.ignore_patterns("step-*"))
    first, *_ = (into / "records.jsonl").read_text().splitlines(keepends=True)
    match left:
        case "config":
            (into / "meta.json").unlink()
            (into / "records.jsonl").unlink()
        case "meta":
            (into / "records.jsonl").unlink()
        case "no record":
            (into / "records.jsonl").write_text("")
        case "half a record":
            (into / "records.jsonl").write_text(first[:100])
        case "a record":
            (into / "records.jsonl").write_text(first)
        case "a node's":
            (into / "records.jsonl").write_text(first)
            checkpoint.save(into / "checkpoints" / "node-0", 0, {"x": torch.ones(2)}, {})


@pytest.mark.parametrize("resume", [False, True, None])
@pytest.mark.parametrize(
    "left", ["config", "meta", "no record", "half a record", "a record", "a node's"]
)
def test_what_died_before_it_saved_starts_again(
    finished: Path, tmp_path: Path, left: str, resume: bool | None
) -> None:
    begun(finished, tmp_path / "run", left)
    training.run(made("steps=3"), tmp_path / "run", resume=resume)
    assert untimed(tmp_path / "run") == untimed(finished)
    assert not list(tmp_path.rglob("node-0/step-*"))


@pytest.mark.parametrize("resume", [False, True, None])
def test_records_are_not_lost_with_the_checkpoints(
    finished: Path, tmp_path: Path, resume: bool | None
) -> None:
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("step-*"))
    refusal(training.run, made("steps=3"), tmp_path / "run", lambda step, line: None, resume)
    assert untimed(tmp_path / "run") == untimed(finished)


def test_a_record_that_was_cut_is_made_again_whole(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    training.run(made("steps=3"), tmp_path / "run", resume=True)
    assert untimed(tmp_path / "run") == untimed(finished)


@pytest.mark.parametrize("name", ["config.yaml", "meta.json", "records.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "large"])
def test_a_run_to_go_on_with_is_made_of_files(
    finished: Path, tmp_path: Path, name: str, kind: str
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    replaced(tmp_path / "run" / name, kind)
    with pytest.raises((ValueError, OSError)) as caught:
        command("run", "--resume", "steps=4", "--into", tmp_path / "run")
    assert "\n" not in str(caught.value)


FORGED: dict[str, Any] = {
    "x": [torch.zeros(3), torch.zeros(3, 7), torch.zeros(5, 310), torch.zeros(3, 310).double()],
    "a": [torch.ones(9, dtype=torch.float64), torch.ones(3, 3), torch.ones(3)],
    "memory": [None, [], "x", -1],
    "kept": [None, [], "x", -1],
    "optimizer": [None, [], "x", -1],
    "bytes": [None, [], {}, "x", 10**400],
    "seconds": [None, [], {}, "x", -1, {"total": "x"}],
    "modelled": [None, [], {}, "x", -1, {"total": "x"}],
    "losses": [None, "x", -1, {"a": 1}, [[]], [10**400]],
    "config": [None, [], "x", -1, [[1, 2]]],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, some in FORGED.items() for v in some])
def test_what_no_run_has_saved_is_not_gone_on_with(
    finished: Path, tmp_path: Path, name: str, value: Any
) -> None:
    """Its hashes are right."""
    shutil.copytree(finished, tmp_path / "run")
    step, tensors, notes = checkpoint.load(finished / "checkpoints")
    if isinstance(value, torch.Tensor):
        tensors[name] = value
    else:
        notes[name] = value
    checkpoint.save(tmp_path / "run" / "checkpoints", step, tensors, notes)
    refusal(training.run, made("steps=4"), tmp_path / "run", lambda step, line: None, True)
    if isinstance(value, torch.Tensor):
        assert f" has {name} as torch." in refusal(trained, tmp_path / "run")


@pytest.mark.parametrize("name", ["memory.2.0", "memory.2.1", "memory.2.2"])
@pytest.mark.parametrize("value", [torch.zeros(2, 2), torch.zeros(0), torch.zeros(1).double()])
def test_a_memory_of_other_shapes_is_refused(
    tmp_path: Path, name: str, value: torch.Tensor
) -> None:
    words = ["algorithm.name=SGAP", "algorithm.weighting=moreau:k=1,v=0.1", "topology.name=full"]
    training.run(made(*words, "steps=1"), tmp_path)
    step, tensors, notes = checkpoint.load(tmp_path / "checkpoints")
    assert tensors[name].shape == (6,)
    checkpoint.save(tmp_path / "checkpoints", step, tensors | {name: value}, notes)
    said = refusal(training.run, made(*words, "steps=2"), tmp_path, lambda *_: None, True)
    assert said == "what the exchange remembered is damaged: go on from another step"


def test_another_model_than_the_run_had_is_not_tested(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    content = yaml.safe_load(path.read_text())
    large = (3, 65 * 10**5 + (10**5 + 1) * 10**6 + (10**6 + 1) * 10)  # which nobody should make
    for hidden, shape in (([5], (3, 385)), ([4, 4], (3, 330)), ([10**5, 10**6], large)):
        content["model"]["hidden"] = hidden
        path.write_text(yaml.safe_dump(content))
        assert f"the configuration makes it torch.float32 of shape {shape}" in refusal(
            command, "evaluate", tmp_path / "run"
        )


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "large"])
def test_a_list_of_edges_is_a_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "below" / "edges.csv"
    path.parent.mkdir()
    path.write_text("0,1\n1,0\n")
    assert topology.parse(str(path), 2).edges(1).tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]
    replaced(path, kind)
    assert refusal(topology.parse, str(path), 2).startswith(f"topology {path}: cannot be read: ")


@pytest.mark.parametrize("key", ["faults.trace", "model.pretrained"])
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_a_configuration_names_is_a_file(tmp_path: Path, key: str, kind: str) -> None:
    path = tmp_path / "below" / "named.csv"
    path.parent.mkdir()
    path.touch()
    replaced(path, kind)
    refusal(made, f"{key}={path}")


@pytest.mark.parametrize(
    "words",
    [
        ["topology.name=random", "topology.period=1000000000", "algorithm.name=SGAP"],
        ["algorithm.every=1000000000"],
        ["algorithm.every=1000000000", "algorithm.name=AllReduce"],
    ],
)
def test_a_large_number_is_planned_as_soon_as_a_small_one(words: list[str]) -> None:
    command("run", "--dry-run", *words)


@pytest.mark.parametrize("name", methods.NAMES)
def test_every_method_can_be_planned(name: str) -> None:
    command("run", "--dry-run", f"algorithm.name={name}", "topology.name=full")


def test_a_dry_run_makes_no_network() -> None:
    """Of 400 GB."""
    built = made("model.hidden=[100000,1000000]")
    assert built.meta()["d"] == 65 * 10**5 + (10**5 + 1) * 10**6 + (10**6 + 1) * 10
    assert training.arrays(built) == training.arrays(made())


@pytest.mark.parametrize("blocks", ["[1000000000]", "[600, 600]"])
def test_networks_have_an_end(blocks: str) -> None:
    settings = config.read(None, [f"model={{name: resnet-small, blocks: {blocks}}}"])
    assert "more than 1000 in all" in refusal(Experiment, settings)


def test_a_million_nodes_that_a_run_has_not_are_not_looked_for(
    finished: Path, tmp_path: Path
) -> None:
    for engine in ("simulator", "distributed"):
        shutil.copytree(finished, tmp_path / engine)
        path = tmp_path / engine / "config.yaml"
        content = yaml.safe_load(path.read_text())
        content["topology"] |= {"nodes": 10**9, "name": "ring"}
        path.write_text(yaml.safe_dump(content))
        about = json.loads((tmp_path / engine / "meta.json").read_bytes())
        (tmp_path / engine / "meta.json").write_text(json.dumps(about | {"engine": engine}))
        refusal(command, "evaluate", tmp_path / engine)
        refusal(command, "run", "--resume", "steps=4", "--into", tmp_path / engine)


@pytest.mark.parametrize("change", ["shape", "missing"])
def test_a_tracker_that_does_not_fit_ends_in_one_line(tmp_path: Path, change: str) -> None:
    words = ["algorithm.name=S-ADDOPT"]
    training.run(made(*words, "steps=1"), tmp_path)
    step, tensors, notes = checkpoint.load(tmp_path / "checkpoints")
    name = next(name for name in tensors if name.startswith("kept."))
    tensors[name] = tensors[name].flatten()
    if change == "missing":
        del tensors[name]
    checkpoint.save(tmp_path / "checkpoints", step, tensors, notes)
    said = refusal(training.run, made(*words, "steps=2"), tmp_path, lambda *_: None, True)
    assert f"{tmp_path}/checkpoints: the checkpoint of step 1 " in said


def test_statistics_that_are_missing_end_in_one_line(tmp_path: Path) -> None:
    words = ["model={name: resnet-small, width: 2, blocks: [1], hidden: null}", "steps=1"]
    training.run(made(*words), tmp_path)
    step, tensors, notes = checkpoint.load(tmp_path / "checkpoints")
    del tensors["buffers.bn1.running_mean"]
    checkpoint.save(tmp_path / "checkpoints", step, tensors, notes)
    assert "lacks 'buffers.bn1.running_mean'" in refusal(trained, tmp_path)


def test_what_is_larger_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file of gaps is, which takes no room on disk."""

    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("unable to mmap 1099511635670 bytes: Cannot allocate memory (12)")

    forged(tmp_path, GOOD, {})
    path = tmp_path / "step-5.safetensors"
    monkeypatch.setattr(checkpoint, "load_file", fail)
    monkeypatch.setattr("pushsum.models.safe_open", fail)
    assert "step-5.safetensors is corrupt" in refusal(checkpoint.load, tmp_path)
    assert f"{path} cannot be read: unable" in refusal(models.read_safetensors, path)


@pytest.mark.parametrize("resume", [False, True, None])
def test_checkpoints_of_another_run_are_not_gone_on_with(
    finished: Path, tmp_path: Path, resume: bool | None
) -> None:
    """They are kept, but neither they nor a new run's could be trusted beside each other."""
    shutil.copytree(finished, tmp_path / "run")
    for name in ("meta.json", "records.jsonl"):
        (tmp_path / "run" / name).unlink()
    before = sorted(tmp_path.rglob("step-*"))
    refusal(training.run, made("steps=3"), tmp_path / "run", lambda step, line: None, resume)
    assert sorted(tmp_path.rglob("step-*")) == before


@pytest.mark.parametrize("left", [None, "a: [", "[1]"])
def test_a_trial_without_its_configuration_ends_in_one_line(
    tmp_path: Path, left: str | None
) -> None:
    words = ["steps=1", "model.hidden=[4]", "topology.nodes=3", "gradients=loop"]
    (cell,) = cells = sweep.read(None, words, tune="algorithm.lr=0.1,0.2")
    for trial in sweep.trials(cells):
        place = tmp_path / sweep.TRIALS / trial.name
        assert sweep.run_cell(trial, place) == "finished"
        (place / "config.yaml").unlink()
        if left is not None:
            (place / "config.yaml").write_text(left)
    outcomes: dict[str, str] = {}
    note = lambda cell, what: outcomes.update({cell.name: what})
    assert sweep.run(cells, tmp_path, 1, note) == [cell.name]
    assert "its config.yaml is damaged: remove the trial" in outcomes[cell.name]


# --------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_scalars_that_are_too_small_are_noticed(kind: torch.dtype) -> None:
    """On a comb, node k has half of what node k - 1 has, and hears from that one alone."""
    nodes = 1200
    back = [(k, 0) for k in range(1, nodes)]
    comb = topology.from_edges(nodes, [*back, *((k, k + 1) for k in range(nodes - 1))])
    x0 = torch.ones(nodes, 1, dtype=kind)
    steps = iterate(algorithms.sgp(0.1), comb, lambda y, t: torch.zeros_like(y), x0, 4 * nodes)
    said = refusal(lambda: [None for record in steps if not bool(record.y.isfinite().all())])
    assert f"too small for {str(kind).removeprefix('torch.')}: y = x / a would be wrong" in said


# --------------------------------------------------------------------------- data


def test_of_an_own_file_only_what_is_needed_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.zeros((4, 3), np.float32), np.arange(4)
    path = tmp_path / "own.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, other=np.zeros(1000))
    loaded = []
    read = np.lib.format.read_array
    note = lambda member, **options: loaded.append(member.name) or read(member, **options)
    monkeypatch.setattr(np.lib.format, "read_array", note)
    assert data.load(str(path)).classes == 4
    assert sorted(loaded) == ["x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy"]


@pytest.mark.parametrize("shape", [(10**12,), (2**31, 2), (-1, 3)])
def test_an_array_is_as_long_as_its_file(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Before any memory is taken for it."""
    x, y = np.zeros((4, 3), np.float32), np.arange(4)
    path = tmp_path / "own.npz"
    np.savez(path, y_train=y, x_test=x, y_test=y)
    with zipfile.ZipFile(path, "a") as archive, archive.open("x_train.npy", "w") as member:
        about = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, about)
    said = f"x_train should have {4 * math.prod(shape):,} bytes, and has 0"
    assert refusal(data.load, str(path)).endswith(said)


def test_a_small_file_does_not_stand_for_large_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.zeros((10_000, 30), np.float32), np.arange(10_000) % 3
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x_train=x, y_train=y, x_test=x, y_test=y)
    assert data.load(str(path)).classes == 3
    monkeypatch.setattr(store, "MOST_UNPACKED", 1000)
    assert refusal(data.load, str(path)).endswith(
        "write it with numpy.savez, which does not compress"
    )
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    assert data.load(str(path)).classes == 3


def test_of_two_members_with_one_name_the_one_that_was_looked_at_is_read(tmp_path: Path) -> None:
    x, y, path = np.zeros((4, 3), np.float32), np.arange(4), tmp_path / "own.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train", b"no array")
    assert "own.npz is not a readable .npz file" in refusal(data.load, str(path))


def test_a_table_of_nothing_but_gaps_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.touch()
    os.truncate(path, 1 << 40)
    said = refusal(made, f"data.name={path}")
    assert said.endswith("a line has more than 16,777,216 characters")


@pytest.mark.parametrize("key", ["data.name", "topology.name", "faults.trace"])
def test_what_looks_like_a_file_and_waits_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """As some files of /proc do."""
    path = tmp_path / "waits.csv"
    os.mkfifo(path)
    monkeypatch.setattr(files, "_regular", lambda file, path: os.stat(__file__))
    writer = os.open(path, os.O_RDWR)
    try:
        monkeypatch.setattr(Path, "is_file", lambda path: True)
        assert refusal(config.read, path) == "waits.csv is not a regular file"
        refusal(made, f"{key}={path}")
    finally:
        os.close(writer)


@pytest.mark.parametrize("left", ["pipe", "depth"])
def test_a_data_set_that_a_configuration_brings_along_is_data(tmp_path: Path, left: str) -> None:
    (tmp_path / "cifar10.npz").touch()
    if left == "pipe":
        os.mkfifo(tmp_path / "cifar10.json")
    else:
        (tmp_path / "cifar10.json").write_text("[" * 100_000)
    said = refusal(made, "data.name=cifar10", f"data.root={tmp_path}")
    assert said.endswith("run `pushsum data prepare cifar10` again")


@pytest.mark.parametrize("change", ["none", "names", "shape", "labels", "statistics"])
def test_a_data_set_that_is_another_one_is_noticed(tmp_path: Path, change: str) -> None:
    """Its length and its hash are those that stand beside it."""
    x, y = np.zeros((8000, 1, 28, 28), np.uint8), np.zeros(8000, np.uint8)
    arrays = {"train_x": x, "train_y": y, "test_x": x[:2000], "test_y": y[:2000]}
    arrays |= {name: np.ones(1, np.float32) for name in ("mean", "std")}
    arrays |= {
        "none": {},
        "names": {"more": y},
        "shape": {"train_x": x[:, :, :27]},
        "labels": {"test_y": y[:2000] + np.uint8(100)},
        "statistics": {"std": np.ones(3, np.float32)},
    }[change]
    store.write(tmp_path / "quickdraw.npz", arrays, {})
    if change == "none":
        assert data.load("quickdraw", tmp_path).classes == 100
    else:
        assert " does not hold quickdraw: run " in refusal(data.load, "quickdraw", tmp_path)


# --------------------------------------------------------------------------- the terminal


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [StringIO, Terminal])
def test_names_steer_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[StringIO]
) -> None:
    """Nor are they taken for rich's markup."""
    x, y = np.zeros((90, 3), np.float32), np.arange(90) % 3
    path = tmp_path / "[red]a\x1b]0;owned\x07\u202eb.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    tune = {"data.name": [str(path), str(path)]}
    content = {"steps": 1, "model": {"hidden": [3]}, "topology": {"nodes": 3}, "gradients": "loop"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(content | {"data": {"name": str(path)}}))
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(content | {"sweep": {"tune": tune}}))
    edges = path.with_suffix(".csv")
    edges.write_text("0,1\n1,0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", out := kind())
    for words in (
        ["run", "c.yaml", "--dry-run"],
        ["sweep", "t.yaml", "--into", "t"],
        ["topology", edges.name, "--nodes", "2", "--plot", f"{edges.stem}.svg"],
    ):
        with pytest.raises(SystemExit):
            run_command(words)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # what rich itself writes
    assert shown.replace("\n", "").isprintable()
    assert shown.count("[red]a\ufffd]0;owned") >= 3


def run_command(words: list[str]) -> None:
    with mock.patch.object(sys, "argv", ["pushsum", *words]):
        main()
