"""The report: what is read, how it is sorted, what is written; made-up runs with known answers."""

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
from html.parser import HTMLParser
from math import isnan, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import fake_runs
from pushsum import demo, report, sweep
from pushsum.algorithms import NAMES
from pushsum.cli import app
from pushsum.drawing import svg
from pushsum.drawing.svg import PALETTE
from pushsum.measures import ACCURACY, LOSS
from pushsum.report import curves, failures, formats, paper, pictures
from pushsum.report.results import Results, collect
from pushsum.report.runs import find
from pushsum.report.tables import notes, paired, tables, warnings

ROWS = ("SGP", "MSGP", "SGAP, moreau", "MSGAP, moreau", "S-ADDOPT")
HOSTILE = "</script><script>alert('&\"')</script>"


def results(directory: Path) -> Results:
    return collect(*find(directory))


def row(found: Results, method: str, measure: str = "accuracy") -> list[float | None]:
    (line,) = (x for x in tables(found)[0].rows if x.method == method)
    return [None if e is None else e.estimate.mean for e in line.entries[measure]]


def exactly(accuracy: float, loss: float | None = 1.0) -> dict[str, Any]:
    return {"test": {"accuracy": accuracy, "loss": loss}}


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_runs.grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def written(grid: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    paths = report.write(grid, tmp_path_factory.mktemp("out") / "new" / "place")
    return {suffix: path.read_text(encoding="utf-8") for suffix, path in paths.items()}


# --------------------------------------------------------------------------- reading


def test_every_run_at_or_below_the_directory_is_found(grid: Path, tmp_path: Path) -> None:
    assert len(report.load(grid)) == 60
    alone = fake_runs.run(tmp_path / "alone")
    assert [run.path for run in report.load(alone)] == [alone]
    shutil.copytree(alone, tmp_path / "a" / "b" / "c")
    assert [run.path.name for run in report.load(tmp_path)] == ["c", "alone"]


def test_a_run_knows_what_it_was(tmp_path: Path) -> None:
    (run,) = report.load(fake_runs.run(tmp_path / "r", seed=3, algorithm="MSGAP", records=4))
    assert (run.algorithm, run.weighting, run.seed, run.nodes) == (
        "MSGAP",
        "moreau(k=0.1, v=0.1)",
        3,
        6,
    )
    assert run.finished
    assert [record.step for record in run.records] == [0, 250, 500, 750]
    assert isnan(run.records[0].train_loss)  # null: nothing was trained yet
    assert run.split[0] == (5000,) * 5 + (0,) * 5


def test_algorithms_that_ignore_the_weighting_are_uniform(tmp_path: Path) -> None:
    for algorithm in ("SGP", "MSGP", "S-ADDOPT"):
        fake_runs.run(tmp_path / algorithm, algorithm=algorithm, weighting="lazy:c=0.5")
    assert {run.weighting for run in report.load(tmp_path)} == {"uniform"}


@pytest.mark.parametrize("cut", [1, 2, 40, 400])
def test_a_half_written_last_line_is_ignored(tmp_path: Path, cut: int) -> None:
    path = fake_runs.run(tmp_path / "r") / "records.jsonl"
    path.write_bytes(path.read_bytes()[: -cut - 1])
    (run,) = report.load(tmp_path)
    assert len(run.records) == 9


def test_a_last_line_that_only_lacks_its_end_counts(tmp_path: Path) -> None:
    path = fake_runs.run(tmp_path / "r") / "records.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    (run,) = report.load(tmp_path)
    assert len(run.records) == 10


def test_a_run_that_went_back_and_on_again_counts_once(tmp_path: Path) -> None:
    path = fake_runs.run(tmp_path / "r") / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:7] + lines[5:]))
    (run,) = report.load(tmp_path)
    assert [record.step for record in run.records] == [250 * k for k in range(10)]


def broken(path: Path, how: str) -> None:
    records = path / "records.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    config = yaml.safe_load((path / "config.yaml").read_text())
    match how:
        case "missing":
            (path / "config.yaml").unlink()
        case "yaml":
            (path / "config.yaml").write_text("a: [")
        case "list":
            (path / "meta.json").write_text("[]")
        case "json":
            (path / "meta.json").write_text('{"finished": tr')
        case "empty":
            records.write_text("")
        case "middle":
            records.write_text("".join([*lines[:3], '{"step": 7\n', *lines[3:]]))
        case "field":
            records.write_text("".join([lines[0], '{"step": 250, "epoch": 1}\n']))
        case "text":
            changed = lines[1].replace('"bytes": ', '"bytes": "x", "b": ')
            records.write_text(lines[0] + changed)
        case "name":
            del config["algorithm"]["name"]
            (path / "config.yaml").write_text(yaml.safe_dump(config))
        case "nodes":
            config["topology"]["nodes"] = "six"
            (path / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "there is no config.yaml"),
        ("yaml", "config.yaml is not YAML: while parsing"),
        ("list", "config.yaml and meta.json should each be a mapping"),
        ("json", "meta.json is not JSON"),
        ("empty", "nothing has been recorded yet"),
        ("middle", "records.jsonl line 4: Expecting"),
        ("field", "records.jsonl line 2: no 'test'"),
        ("text", "records.jsonl line 2: 'x' is not a number"),
        ("name", "config.yaml has no algorithm.name"),
        ("nodes", "config.yaml: topology.nodes = 'six' is not an integer >= 1"),
    ],
)
def test_a_broken_run_is_left_out_and_named(tmp_path: Path, how: str, reason: str) -> None:
    good = fake_runs.run(tmp_path / "good")
    broken(fake_runs.run(tmp_path / "bad", seed=1), how)
    found = report.find(tmp_path)
    assert [run.path for run in found.runs] == [good]
    ((path, why),) = found.skipped
    assert path.name == "bad"
    assert why.startswith(reason)
    assert "\n" not in why
    page = report.write(tmp_path)["html"].read_text()
    assert "Left out: 1 run" in page
    assert "<code>bad</code>" in page


def test_no_run_at_all_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*: no run is there: give a directory that .*$"):
        report.load(tmp_path)
    with pytest.raises(ValueError, match="there is no such directory"):
        report.load(tmp_path / "nowhere")
    for k in range(5):
        broken(fake_runs.run(tmp_path / f"bad{k}"), "empty")
    with pytest.raises(
        ValueError, match=r"^[^\n]*\(bad0: nothing has been recorded yet; .* and 2 more\)[^\n]*$"
    ):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


# --------------------------------------------------------------------------- sorting


def test_rows_and_columns_stand_as_in_the_paper(grid: Path) -> None:
    found = results(grid)
    assert found.methods == ("SGP", "MSGP", "SGAP, moreau", "MSGAP, moreau", "S-ADDOPT")
    (table,) = tables(found)
    assert table.setting.name == "ResNet-18 + CIFAR-10"
    assert table.heads == ["Full", "Divide", "Exp", "Random", "Average"]
    assert [row.method for row in table.rows] == list(found.methods)
    assert [list(row.entries) for row in table.rows] == [["accuracy", "loss"]] * 5


def test_a_cell_is_mean_and_sample_deviation_of_the_last_records(tmp_path: Path) -> None:
    values = [0.5, 0.52, 0.6]
    for seed, value in enumerate(values):
        fake_runs.run(tmp_path / str(seed), seed=seed, last=exactly(value, 2 * value))
    (setting,) = results(tmp_path).settings
    cell = setting.cells["SGAP, moreau", "Full"]
    assert cell.estimate() == pytest.approx((54, 5.2915), abs=1e-4)
    assert cell.estimate("loss") == pytest.approx((fmean(values) * 2, stdev(values) * 2))
    assert formats.markdown(results(tmp_path)).splitlines()[4:6] == [
        "| SGAP, moreau | Acc (%) | 54.00 ± 5.29 (62.97) |",
        "| lr 0.01, moreau(k=0.1, v=0.1) | Loss | 1.080 ± 0.106 (1.327) |",
    ]


def test_one_seed_has_no_deviation_and_one_row_no_best(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r", last=exactly(0.5, 1.5))
    text = formats.markdown(results(tmp_path))
    assert "| SGAP, moreau | Acc (%) | 50.00 (62.97) |\n" in text
    assert "±" not in text
    assert "**" not in text


def seeds(place: Path, **accuracies: list[float]) -> Results:
    """Runs of these algorithms with seeds 0, 1, ... that end with these accuracies."""
    for algorithm, values in accuracies.items():
        for seed, value in enumerate(values):
            path = place / f"{algorithm}-{seed}"
            fake_runs.run(path, algorithm=algorithm, seed=seed, last=exactly(value, 1 - value))
    return results(place)


def bold(found: Results) -> list[tuple[str, str]]:
    return [
        (row.method, measure)
        for row in tables(found)[0].rows
        for measure, (entry, *_) in row.entries.items()
        if entry is not None and entry.best
    ]


def test_what_is_best_beyond_the_seeds_is_bold(tmp_path: Path) -> None:
    found = seeds(tmp_path, SGP=[0.5, 0.6, 0.7], MSGP=[0.52, 0.62, 0.725], SGAP=[0.1, 0.2, 0.3])
    assert bold(found) == [("MSGP", "accuracy"), ("MSGP", "loss")]  # though seeds differ by more
    sgp, msgp, _ = tables(found)[0].rows
    (behind,) = (e.behind for e in sgp.entries["accuracy"] if e)
    half = 4.303 * stdev([2, 2, 2.5]) / 3**0.5
    assert behind == pytest.approx((-6.5 / 3, -6.5 / 3 - half, -6.5 / 3 + half, 3))
    assert [e.behind for e in msgp.entries["accuracy"] if e] == [None]
    text = formats.markdown(found)
    assert r"|  | vs best | −2.17 \[−2.88, −1.45\] |" in text
    assert "|  | vs best | best |" in text


@pytest.mark.parametrize(
    "msgp",
    [[0.9, 0.61, 0.71], [0.9], [0.6, 0.7, 0.8], [0.9, 0.4, 0.5]],
    ids=["seeds disagree", "one seed", "no spread", "not even the best"],
)
def test_what_the_seeds_leave_open_is_not_bold(tmp_path: Path, msgp: list[float]) -> None:
    assert bold(seeds(tmp_path, SGP=[0.5, 0.6, 0.7][: len(msgp)], MSGP=msgp)) == []


def test_differences_are_those_of_the_same_seeds(tmp_path: Path) -> None:
    ours, theirs = {(0, ""): 1.0, (1, ""): 2.0, (2, ""): 9.0}, {(1, ""): 1.5, (0, ""): 0.0}
    assert paired(ours, theirs) == pytest.approx((0.75, 0.75 - 12.706 / 4, 0.75 + 12.706 / 4, 2))
    assert paired({(0, ""): 1.0}, {(1, ""): 1.0}) is None
    assert paired({(0, ""): nan}, {(0, ""): 1.0}) is None
    many = {(k, ""): float(k % 2) for k in range(62)}
    none = dict.fromkeys(many, 0.0)
    half = 2.0 * stdev(many.values()) / 62**0.5  # t with 61 degrees of freedom is 1.9996
    assert paired(many, none) == pytest.approx((0.5, 0.5 - half, 0.5 + half, 62), abs=1e-4)


def test_momentum_and_none_with_one_step_size_are_warned_of(tmp_path: Path) -> None:
    assert warnings(seeds(tmp_path / "a", SGP=[0.5], SGAP=[0.5])) == []
    (warning,) = warnings(seeds(tmp_path / "b", SGP=[0.5], MSGP=[0.5]))
    assert re.findall(r"\d+(?:\.\d+)?", warning) == ["0.8", "0.01", "0.8", "5", "5"]
    fake_runs.run(tmp_path / "c" / "1", algorithm="SGP")
    fake_runs.run(tmp_path / "c" / "2", algorithm="MSGP", config={"algorithm.lr": 0.002})
    assert warnings(results(tmp_path / "c")) == []


def tuned(path: Path, lr: float) -> None:
    """As if this step size had been chosen from three."""
    about = json.loads((path / "meta.json").read_text())
    about["tune"] = {"tried": [[0.01, 0.5], [lr, 0.7], [0.5, None]], "chosen": lr}
    (path / "meta.json").write_text(json.dumps(about))


def test_step_sizes_that_were_tuned_are_one_row_with_all_that_was_tried(tmp_path: Path) -> None:
    for seed, lr in enumerate((0.03, 0.06)):
        path = tmp_path / str(seed)
        tuned(fake_runs.run(path, algorithm="MSGP", seed=seed, config={"algorithm.lr": lr}), lr)
    fake_runs.run(tmp_path / "sgp", algorithm="SGP", config={"algorithm.lr": 0.03})
    found = results(tmp_path)
    assert found.methods == ("SGP", "MSGP")
    assert warnings(found) == []
    sgp, msgp = (row.setup for row in tables(found)[0].rows)
    assert sgp == "lr 0.03, uniform"
    assert msgp == ("lr 0.03 (best of 3 tried) or lr 0.06 (best of 3 tried), momentum 0.8, uniform")
    page = report.write(tmp_path)["html"].read_text()
    assert re.findall('class="try chosen">(.*?)</span>', page) == ["0.03: 70.00", "0.06: 70.00"]
    assert page.count('class="try') == 6


@pytest.mark.parametrize("tried", [None, 3, [[1]], [[1, 2, 3]], [["a", 1]], [], {"a": 1}])
def test_what_is_no_list_of_tries_is_none(tmp_path: Path, tried: Any) -> None:
    path = fake_runs.run(tmp_path / "r")
    about = json.loads((path / "meta.json").read_text()) | {"tune": {"tried": tried}}
    (path / "meta.json").write_text(json.dumps(about))
    (run,) = report.load(tmp_path)
    assert run.tried == ()


def test_records_on_one_graph_of_the_cycle_are_said_to_be(tmp_path: Path) -> None:
    def said(name: str, steps: list[int]) -> list[str]:
        path = fake_runs.run(tmp_path / name, topology="exponential", records=5) / "records.jsonl"
        lines = map(json.loads, path.read_text().splitlines())
        moved = [line | {"step": step} for line, step in zip(lines, steps, strict=True)]
        path.write_text("".join(json.dumps(line) + "\n" for line in moved))
        return [note for note in notes(results(tmp_path / name)) if note.startswith("Exp: ")]

    assert len(said("same", [0, 30, 60, 90, 100])) == 1
    assert said("other", [0, 30, 61, 90, 100]) == []


def test_runs_without_accuracy_have_a_table_of_losses(tmp_path: Path) -> None:
    for algorithm, loss in (("SGP", 2.0), ("MSGP", 1.0)):
        path = fake_runs.run(tmp_path / algorithm, algorithm=algorithm) / "records.jsonl"
        lines = [json.loads(x) | {"test": {"loss": loss}} for x in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (table,) = tables(results(tmp_path))
    assert table.measures == [LOSS]
    assert "| SGP | Loss | 2.000 (1.429) |" in report.write(tmp_path)["md"].read_text()


def test_a_missing_seed_and_a_missing_cell(tmp_path: Path) -> None:
    fake_runs.grid(tmp_path, ["SGP", "SGAP"], ["full", "divide"], [0, 1])
    shutil.rmtree(tmp_path / "sgp-full-1")
    shutil.rmtree(tmp_path / "sgap-divide-0")
    shutil.rmtree(tmp_path / "sgap-divide-1")
    found = results(tmp_path)
    (setting,) = found.settings
    assert isnan(setting.cells["SGP", "Full"].estimate().std)
    assert not isnan(setting.cells["SGP", "Divide"].estimate().std)
    assert row(found, "SGAP, moreau")[1:] == [
        None,
        None,
    ]  # and so no average that would not compare
    assert row(found, "SGP")[2] == pytest.approx(fmean(row(found, "SGP")[:2]))  # type: ignore[arg-type]
    assert "Cells have 1 to 2 runs." in notes(found)


def test_several_weightings_of_a_method_are_rows_of_their_own(tmp_path: Path) -> None:
    for weighting in ("moreau:k=0.1,v=0.1", "lazy:c=0.5", "scale-free-moreau:c=1,v=0.1", "uniform"):
        fake_runs.run(tmp_path / weighting, weighting=weighting)
    fake_runs.run(tmp_path / "sgp", algorithm="SGP", weighting="lazy:c=0.5")
    assert results(tmp_path).methods == (
        "SGP",
        "SGAP, moreau",
        "SGAP, scale-free-moreau",
        "SGAP, lazy",
        "SGAP, uniform",
    )


def test_a_k_chosen_per_topology_stays_one_row(tmp_path: Path) -> None:
    for topology, k in [("full", 0.1), ("divide", 0.01), ("exponential", 1.0)]:
        fake_runs.run(tmp_path / topology, topology=topology, weighting=f"moreau:k={k},v=0.1")
    found = results(tmp_path)
    assert found.methods == ("SGAP, moreau",)
    assert found.settings[0].setup("SGAP, moreau") == (
        "lr 0.01, moreau(k=0.1, v=0.1) on Full, moreau(k=0.01, v=0.1) on Divide, "
        "moreau(k=1.0, v=0.1) on Exp"
    )
    fake_runs.run(tmp_path / "lazy", weighting="lazy:c=0.5")
    assert results(tmp_path).methods == ("SGAP, moreau", "SGAP, lazy")


def test_a_row_says_a_methods_own_parameters_and_how_often_it_exchanges(tmp_path: Path) -> None:
    own = {"algorithm.parameters": {"delay": 2}, "algorithm.every": 4}
    fake_runs.run(tmp_path / "a", algorithm="OSGP", config=own)
    fake_runs.run(tmp_path / "b", algorithm="SGP")
    found = results(tmp_path).settings[0]
    assert found.setup("OSGP") == "lr 0.01, delay 2, every 4, uniform"
    assert found.setup("SGP") == "lr 0.01, uniform"


def test_every_row_of_every_table_says_what_it_ran_with(tmp_path: Path) -> None:
    for algorithm, weighting in {"SGP": "far-first", "SGAP": "lazy:c=0.5", "MSGAP": "far"}.items():
        fake_runs.run(tmp_path / algorithm, algorithm=algorithm, weighting=weighting)
    written = {suffix: path.read_text() for suffix, path in report.write(tmp_path).items()}
    setups = ["lr 0.01, uniform", "lr 0.01, lazy(c=0.5)", "lr 0.01, momentum 0.8, far"]
    assert re.findall(r"^\| ([^|]*) \| Loss", written["md"], re.MULTILINE) == setups
    assert re.findall(r"\{\\tiny (lr [^}]*)\}", written["tex"]) == setups
    assert re.findall(r'<small class="below">(lr .*?)</small></th>', written["html"]) == setups
    rows = rows_of(tmp_path / "table.csv")
    assert [(r["lr"], r["momentum"], r["weighting"]) for r in rows] == [
        ("0.01", "0", "uniform"),
        ("0.01", "0", "lazy(c=0.5)"),
        ("0.01", "0.8", "far"),
    ]


def test_parameters_swept_on_one_topology_are_rows_of_their_own(tmp_path: Path) -> None:
    for k in ("0.1", "1"):
        for lr in (0.01, 0.1):
            config = {"algorithm.lr": lr, "algorithm.momentum": lr}
            fake_runs.run(tmp_path / f"{k}-{lr}", weighting=f"moreau:k={k},v=0.1", config=config)
    methods = results(tmp_path).methods
    assert methods == (
        "SGAP, moreau(k=0.1, v=0.1), lr=0.01",
        "SGAP, moreau(k=1, v=0.1), lr=0.01",
        "SGAP, moreau(k=0.1, v=0.1), lr=0.1",
        "SGAP, moreau(k=1, v=0.1), lr=0.1",
    )  # its momentum has no effect


def test_a_run_is_not_told_apart_by_what_it_does_not_have(tmp_path: Path) -> None:
    plain, adam = tmp_path / "plain", tmp_path / "adam"
    fake_runs.run(plain, algorithm="MSGP")
    fake_runs.run(adam, algorithm="MSGP", config={"algorithm.optimizer": "Adam"})
    text = (adam / "config.yaml").read_text()
    (adam / "config.yaml").write_text(re.sub(" *momentum: .*\n", "", text))
    assert results(tmp_path).methods == (
        "MSGP, optimizer=Adam",
        "MSGP, momentum=0.8, optimizer=null",
    )


def test_settings_are_never_mixed(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "a")
    fake_runs.run(tmp_path / "b", config={"split.kind": "iid"})
    fake_runs.run(tmp_path / "c", nodes=8)
    fake_runs.run(tmp_path / "d", config={"data.name": "cifar100", "device": "cuda"})
    fake_runs.run(tmp_path / "e", seed=1, config={"device": "cuda", "gradients": "vmap"})
    assert [setting.name for setting in results(tmp_path).settings] == [
        "ResNet-18 + CIFAR-10 (split.kind=clusters, nodes=6)",
        "ResNet-18 + CIFAR-10 (split.kind=clusters, nodes=8)",
        "ResNet-18 + CIFAR-10 (split.kind=iid, nodes=6)",
        "ResNet-18 + CIFAR-100",
    ]


def test_settings_that_differ_in_much_are_numbered_and_explained(tmp_path: Path) -> None:
    other = {"epochs": 2, "batch": 10, "published.restart": True, "evaluation.batchnorm": "test"}
    fake_runs.run(tmp_path / "a")
    fake_runs.run(tmp_path / "b", config=other)
    first, second = results(tmp_path).settings
    assert {first.name, second.name} == {
        "ResNet-18 + CIFAR-10 (variant 1)",
        "ResNet-18 + CIFAR-10 (variant 2)",
    }
    page = report.write(tmp_path)["html"].read_text()
    text = "batch=10, epochs=2, evaluation.batchnorm=test, published.restart=true"
    assert text in page


def test_variants_of_the_random_topology_are_columns_of_their_own(tmp_path: Path) -> None:
    for period in (4, 8):
        fake_runs.run(tmp_path / str(period), topology="random", config={"topology.period": period})
    (table,) = tables(results(tmp_path))
    assert table.heads == ["Random(period=4)", "Random(period=8)", "Average"]


def test_names_beyond_the_known_come_last(tmp_path: Path) -> None:
    for topology in ("torus", "ring", "random", "full"):
        fake_runs.run(tmp_path / topology, topology=topology, algorithm="Push-DIGing")
    fake_runs.run(tmp_path / "s", algorithm="S-ADDOPT")
    found = results(tmp_path)
    assert tables(found)[0].heads == ["Full", "Random", "Ring", "torus", "Average"]
    assert found.methods == ("S-ADDOPT", "Push-DIGing")
    assert "This topology cannot be drawn here." in report.write(tmp_path)["html"].read_text()


def test_a_copy_of_a_run_counts_once(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "a", finished=False, records=3)
    fake_runs.run(tmp_path / "b")
    found = results(tmp_path)
    assert [run.path.name for run in found.runs] == ["b"]
    assert [(path.name, why) for path, why in found.skipped] == [
        ("a", "same configuration and seed as b")
    ]


def test_users_own_data_is_named_by_its_file(tmp_path: Path) -> None:
    config = {"data.name": "/home/me/leaves.npz", "model.name": "cnn"}
    fake_runs.run(tmp_path / "r", config=config)
    assert results(tmp_path).settings[0].name == "CNN + leaves"


def test_no_file_of_the_report_tells_where_the_users_files_are(tmp_path: Path) -> None:
    names = {"data.name": "/home/me/leaves.npz", "model.pretrained": "/home/me/start.safetensors"}
    fake_runs.run(tmp_path / "a", config=names)
    page = report.write(tmp_path)["html"].read_text()
    assert "<dt>data</dt><dd>leaves.npz</dd>" in page
    assert "<dd>ResNet-18, pretrained=start.safetensors</dd>" in page
    fake_runs.run(tmp_path / "b", config=names | {"data.name": "/home/me/other/leaves.npz"})
    fake_runs.run(tmp_path / "c", config=names | {"model.pretrained": None})
    written = report.write(tmp_path)
    assert [setting.name for setting in results(tmp_path).settings] == [
        f"ResNet-18 + leaves (variant {k})" for k in (1, 2, 3)
    ]
    for path in written.values():
        assert "/home/me" not in path.read_text()


def test_a_default_that_is_written_out_is_the_same_setting(tmp_path: Path) -> None:
    plain = {"model.name": "mlp", "model.hidden": None}
    fake_runs.run(tmp_path / "a", config=plain)
    fake_runs.run(tmp_path / "b", seed=1, config=plain | {"model.hidden": [64]})
    fake_runs.run(tmp_path / "c", config=plain | {"model.hidden": [64]}, records=9)
    found = results(tmp_path)
    assert [setting.name for setting in found.settings] == ["MLP + CIFAR-10"]
    assert [run.path.name for run in found.runs] == ["a", "b"]
    assert [path.name for path, _ in found.skipped] == ["c"]
    fake_runs.run(tmp_path / "d", config=plain | {"model.hidden": [32]})
    assert [setting.name for setting in results(tmp_path).settings] == [
        "MLP + CIFAR-10 (model.hidden=[32])",
        "MLP + CIFAR-10 (model.hidden=[64])",
    ]


def test_how_often_is_tested_makes_no_other_setting(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "a", config={"evaluation.every": 3}, records=4)
    fake_runs.run(tmp_path / "b", seed=1)
    path = fake_runs.run(tmp_path / "c") / "records.jsonl"  # as a, tested more often
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]))
    (tmp_path / "a" / "records.jsonl").write_text("".join([lines[0], lines[3]]))
    found = results(tmp_path)
    assert [setting.name for setting in found.settings] == ["ResNet-18 + CIFAR-10"]
    assert [run.path.name for run in found.runs] == ["c", "b"]
    assert [path.name for path, _ in found.skipped] == ["a"]


# --------------------------------------------------------------------------- the paper


def test_the_papers_table_is_complete_and_its_averages_are_the_printed_ones(
    tmp_path: Path,
) -> None:
    fake_runs.grid(tmp_path / "10", seeds=[0])
    large = {"data.name": "cifar100", "model.name": "resnet50"}
    fake_runs.grid(tmp_path / "100", seeds=[0], config=large)
    found = results(tmp_path)
    printed = {
        "SGP": (59.08, 50.89, 14.55, 24.04),
        "MSGP": (61.19, 41.61, 15.83, 38.16),
        "SGAP": (62.42, 55.00, 13.11, 22.21),
        "MSGAP": (64.64, 49.73, 14.09, 30.24),
        "S-ADDOPT": (58.45, 48.80, 14.25, 23.98),
    }
    small, large = tables(found)
    for k, table in enumerate((small, large)):
        for line in table.rows:
            accuracies, losses = (
                [entry.paper for entry in entries if entry is not None]
                for entries in line.entries.values()
            )
            assert len(accuracies) == len(losses) == 5
            theirs = printed[line.method.partition(",")[0]]
            assert accuracies[-1] == pytest.approx(theirs[k], abs=0.0051)
            # E-3 of the mean cross-entropy / 100
            assert losses[-1] == pytest.approx(theirs[k + 2] / 10, abs=0.00101)


@pytest.mark.parametrize(
    "changes",
    [
        {"weighting": "lazy:c=0.5"},
        {"config": {"model.width": 16}},
        {"config": {"data.name": "digits"}},
        {"topology": "ring"},
        {"algorithm": "Push-DIGing"},
    ],
    ids=str,
)
def test_what_the_paper_did_not_measure_has_no_figure(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    fake_runs.run(tmp_path / "r", **changes)
    (cell,) = results(tmp_path).settings[0].cells.values()
    assert cell.paper is None
    assert not any("paper" in note for note in notes(results(tmp_path)))


def test_how_ours_differs_from_the_papers_is_said(tmp_path: Path) -> None:
    cells = {cell.name: cell.config for cell in sweep.read("table1-published")}
    assert len(cells) == 40
    for name, config in cells.items():
        content = config.model_dump(mode="json")
        content["model"]["pretrained"] = "weights.safetensors"
        content |= {"seed": 3, "device": "cpu", "gradients": "loop"}
        (run,) = report.load(fake_runs.run(tmp_path / name, content=content))
        assert paper.figure(run) is not None
        assert paper.differences(run) == []
    content["steps"] = 6250
    (run,) = report.load(fake_runs.run(tmp_path / "all", content=content))
    assert paper.differences(run) == []
    content["model"] |= {"pretrained": None, "norm": "group", "stem": None}
    content["data"]["augment"] = True
    content["split"] |= {"kind": "iid", "clusters": 3}
    content["algorithm"] |= {"momentum": 0.9, "optimizer": "Adam"}
    content["algorithm"]["schedule"] = {"kind": "constant", "milestones": [], "factor": 0.1}
    content["topology"]["inner"] = 0.6
    content["evaluation"] |= {"batchnorm": "averaged", "batch": 500, "every": 2}
    content["published"] = dict.fromkeys(content["published"], False)
    content["link"]["gigabits"] = 2
    content |= {"steps": 2, "batch": 50}
    fake_runs.run(tmp_path / "other", content=content)
    (note,) = (n for n in notes(results(tmp_path / "other")) if "published runs" in n)
    assert note == (
        "Not as in the published runs, ours: batch = 50 (paper: 100); data.augment = true "
        "(paper: false); split.kind = iid (paper: clusters); model.norm = group (paper: not set); "
        "model.stem = not set (paper: imagenet); algorithm.schedule.kind = constant "
        "(paper: steps); algorithm.optimizer = Adam (paper: not set); topology.inner = 0.6 "
        "(paper: 0.5); evaluation.batchnorm = averaged (paper: test-batch); published.restart = "
        "false (paper: true); published.test_before = false (paper: true); "
        "published.average_of_y = false (paper: true); published.same_batches = false "
        "(paper: true); published.per_receiver = false (paper: true); model.pretrained = not set "
        "(paper: ImageNet weights); steps = 2 (paper: 6250)."
    )


def test_k_and_momentum_that_differ_from_the_papers_are_said(tmp_path: Path) -> None:
    config = {"algorithm.momentum": 0.9}
    fake_runs.run(tmp_path, algorithm="MSGAP", config=config, weighting="moreau:k=1,v=0.1")
    (run,) = report.load(tmp_path)
    assert "algorithm.momentum = 0.9 (paper: 0.8)" in paper.differences(run)
    assert "MSGAP with moreau(k=1, v=0.1) (paper: k and v chosen per cell)" in (
        paper.differences(run)
    )


def test_the_authors_curve_stands_beside_a_run_of_the_same_experiment(tmp_path: Path) -> None:
    cells = {cell.name: cell.config for cell in sweep.read("table1-published")}
    content = next(
        config.model_dump(mode="json")
        for config in cells.values()
        if (config.model.name, config.algorithm.name, config.topology.name)
        == ("resnet18", "SGP", "full")
    )
    content["model"]["pretrained"] = "weights.safetensors"
    content |= {"seed": 3, "epochs": 3}
    fake_runs.run(tmp_path / "same", algorithm="SGP", content=content, records=4)
    ours, theirs = series_of(tmp_path / "same")
    assert "authors" not in ours
    assert theirs["x"] == {"epochs": [0, 1, 2, 3], "steps": [0, 250, 500, 750]}
    assert theirs["y"]["accuracy"][0][1:] == pytest.approx([0.602, 0.591, 0.578], abs=0.001)
    content["batch"] = 50
    fake_runs.run(tmp_path / "other", algorithm="SGP", content=content, records=4)
    assert len(series_of(tmp_path / "other")) == 1
    assert {len(curve) for curve in paper.authors().values()} == {25}
    assert len(paper.authors()) == 20


def series_of(directory: Path) -> list[Any]:
    """The lines of the first panel."""
    found: list[Any] = curves.curves(results(directory))["settings"][0]["panels"][0]["series"]
    return found


# --------------------------------------------------------------------------- what went wrong


def test_unfinished_runs_are_marked_and_named(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "a")
    fake_runs.run(tmp_path / "b", seed=1, finished=False)
    path = tmp_path / "b" / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    written = report.write(tmp_path)
    page = written["html"].read_text()
    assert "2 runs,\n1 unfinished, none left out." in page
    assert "<code>b</code>: step 750 of 2250" in page
    assert '<sup title="1 unfinished">†</sup>' in page
    assert "† unfinished, the value so far: 1 of 2 runs." in written["md"].read_text()
    assert r"$^\dagger$" in written["tex"].read_text()
    assert rows_of(written["csv"])[0]["unfinished"] == "1"


def test_a_run_that_diverged_after_its_last_record_is_nan_too(tmp_path: Path) -> None:
    why = "node 0 diverged at step 3: its loss is not finite"
    fake_runs.run(tmp_path / "a", finished=False)
    about = json.loads((tmp_path / "a" / "meta.json").read_text())
    (tmp_path / "a" / "meta.json").write_text(json.dumps(about | {"diverged": why}))
    fake_runs.run(tmp_path / "b", algorithm="SGP")
    written = report.write(tmp_path)
    assert "| SGAP, moreau | Acc (%) | NaN (" in written["md"].read_text()
    assert "†" not in written["md"].read_text()
    assert "NaN: a run of the cell diverged." in notes(results(tmp_path))
    assert f"<code>a</code>: {why}" in written["html"].read_text()


@pytest.mark.parametrize("loss", [None, nan])
def test_a_diverged_run_is_nan_and_never_best(tmp_path: Path, loss: float | None) -> None:
    fake_runs.run(tmp_path / "a", last=exactly(0.1, loss))
    fake_runs.run(tmp_path / "b", seed=1)
    fake_runs.run(tmp_path / "c", algorithm="SGP")
    fake_runs.run(tmp_path / "d", algorithm="MSGP")
    written = report.write(tmp_path)
    assert "| NaN (1.327) |" in written["md"].read_text()
    assert "NaN: a run of the cell diverged." in notes(results(tmp_path))
    rows = rows_of(written["csv"])
    assert {r["method"]: r["loss_mean"] == "nan" for r in rows} == {
        "SGP": False,
        "MSGP": False,
        "SGAP, moreau": True,
    }
    leads = [e.first for r in tables(results(tmp_path))[0].rows for e in r.entries["loss"] if e]
    assert leads[2] is False
    assert leads.count(True) == 1


# --------------------------------------------------------------------------- files


def test_the_files_are_named_and_the_same_every_time(grid: Path, tmp_path: Path) -> None:
    first, second = report.write(grid, tmp_path / "1"), report.write(grid, tmp_path / "2")
    assert {suffix: path.name for suffix, path in first.items()} == {
        "html": "report.html",
        "md": "table.md",
        "csv": "table.csv",
        "tex": "table.tex",
    }
    for suffix, path in first.items():
        assert path.read_bytes() == second[suffix].read_bytes()
    assert sorted(p.name for p in (tmp_path / "1").iterdir()) == sorted(
        p.name for p in first.values()
    )


def test_a_failed_write_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runs.run(tmp_path / "r")
    old = report.write(tmp_path)["html"].read_bytes()
    fake_runs.run(tmp_path / "s", seed=1)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("pushsum.files.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == old
    assert not list(tmp_path.glob(".*"))


def test_a_file_as_target_is_refused(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file: this is a file; give a directory"):
        report.write(tmp_path, tmp_path / "file")


def test_csv_is_long_and_complete(grid: Path, written: dict[str, str]) -> None:
    rows = list(csv.DictReader(written["csv"].splitlines()))
    assert len(rows) == 20
    first = rows[0]
    assert list(first)[:8] == (
        ["setting", "method", "algorithm", "weighting", "lr", "momentum", "topology", "seeds"]
    )
    behind_keys = [f"to_best_{key}" for key in ("mean", "low", "high", "pairs")]
    keys = ["mean", "std", "paper", "best_mean", "bold", *behind_keys]
    assert list(first)[11:20] == [f"accuracy_{key}" for key in keys]
    assert list(first.values())[:8] == (
        ["ResNet-18 + CIFAR-10", "SGP", "SGP", "uniform", "0.01", "0", "Full", "0 1 2"]
    )
    (behind,) = (e.behind for e in tables(results(grid))[0].rows[0].entries["loss"][:1] if e)
    assert behind is not None
    assert float(first["loss_to_best_low"]) == pytest.approx(behind.low)
    assert (float(first["accuracy_paper"]), float(first["loss_paper"])) == (59.31, 1.429)
    (setting,) = results(grid).settings
    cell = setting.cells["SGP", "Full"]
    assert float(first["accuracy_mean"]) == pytest.approx(cell.estimate().mean)
    assert float(first["bytes"]) == pytest.approx(250 * 9 * 30 * 44_695_864)
    assert float(first["modelled_seconds"]) == pytest.approx(9 * 119, rel=0.03)


def test_markdown_rows_are_equally_long_and_names_are_escaped(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r", topology="a|b", config={"data.name": "<b>*x*_y_\n# `z`"})
    text = formats.markdown(results(tmp_path))
    assert text.startswith("### ResNet-18 + &lt;b&gt;\\*x\\*\\_y\\_ \\# \\`z\\`\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {4}
    assert "a\\|b" in rows[0]


def test_latex_is_a_whole_table_with_rows_of_one_length(written: dict[str, str]) -> None:
    text = written["tex"]
    assert text.count("{") == text.count("}")
    assert text.index(r"\begin{table*}") < text.index(r"\begin{tabular}")
    body = text[text.index(r"Topology &") : text.rindex(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {6}
    assert len(lines) == 1 + 5 * 3  # accuracy, loss, difference
    assert r"\textbf{" in text
    assert "±" not in text


def test_latex_escapes_names(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r", config={"data.name": "50%_of $x$ & {y} \\input~^#"})
    text = formats.latex(results(tmp_path))
    assert (
        r"50\%\_of \$x\$ \& \{y\} \textbackslash{}input\textasciitilde{}\textasciicircum{}\#"
    ) in text


def test_json_holds_what_the_tables_do(grid: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(grid), "--json"])
    assert done.exit_code == 0
    assert not list(grid.glob("*.*"))
    cells = json.loads(done.stdout)["cells"]
    assert [(c["method"], c["topology"]) for c in cells][:5] == [
        *(("SGP", topology) for topology in ("Full", "Divide", "Exp", "Random")),
        ("MSGP", "Full"),
    ]
    (table,) = tables(results(grid))
    for cell in cells:
        (line,) = (x for x in table.rows if x.method == cell["method"])
        entry = line.entries["loss"][table.heads.index(cell["topology"])]
        assert entry is not None
        assert (cell["loss"]["mean"], cell["loss"]["bold"]) == (entry.estimate.mean, entry.best)
        if entry.behind is not None:
            assert cell["loss"]["to_best"] == entry.behind._asdict()
        assert fmean(run["loss"] for run in cell["runs"]) == pytest.approx(entry.estimate.mean)
        assert cell["momentum"] == (0.8 if cell["algorithm"].startswith("M") else 0)


def test_json_has_no_nan_and_writes_nothing(tmp_path: Path) -> None:
    config = {"data.name": "digits"}
    fake_runs.run(tmp_path / "r", algorithm="SGP", config=config, last=exactly(0.1, None))
    (cell,) = report.data(tmp_path)["cells"]
    assert cell["loss"] == {
        "mean": None,
        "std": None,
        "paper": None,
        "best_mean": False,
        "bold": False,
        "to_best": {"mean": None, "low": None, "high": None, "pairs": 0},
    }
    for option in ("--watch", f"--into={tmp_path}"):
        done = CliRunner().invoke(app, ["report", str(tmp_path), "--json", option])
        assert isinstance(done.exception, ValueError)


# --------------------------------------------------------------------------- following


def test_the_page_follows_runs_until_all_are_finished(tmp_path: Path) -> None:
    path = fake_runs.run(tmp_path / "runs" / "r", finished=False)
    lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
    about = json.loads((path / "meta.json").read_text())
    (path / "records.jsonl").write_text("".join(lines[:3]))
    pages, now = [], [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 5:
            (path / "records.jsonl").write_text("".join(lines))
        if now[0] == 8:
            (path / "meta.json").write_text(json.dumps(about | {"finished": True}))

    def note(paths: dict[str, Path]) -> None:
        page = paths["html"].read_text()
        pages.append((now[0], Page(page).elements.count(("body", {"data-refresh": "5"}))))

    report.follow(tmp_path / "runs", tmp_path / "out", wait, note, lambda: now[0])
    assert pages == [(0, 1), (5, 1), (8, 1), (38, 0)]  # the last one half a minute after any news


def test_a_page_that_is_no_longer_followed_stays_as_it_is(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r", finished=False)
    heard = "import signal as s; s.signal(s.SIGINT, s.default_int_handler)"  # not in the background
    start = f"{heard}; from pushsum.__main__ import main; main()"
    command = [sys.executable, "-c", start, "report", str(tmp_path), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().endswith(b"report.html")
        assert "data-refresh" in (tmp_path / "report.html").read_text()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (130, b"pushsum: interrupted\n")
    assert "data-refresh" not in (tmp_path / "report.html").read_text()


# --------------------------------------------------------------------------- the page


class Page(HTMLParser):
    """Elements with their attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open.append("/" + tag)

    @property
    def curves(self) -> Any:
        return json.loads(self.scripts[0])


def assert_alone(text: str) -> Page:
    """No address but anchors and empty data, no script but ours, none of a name's making."""
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form action")
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "srcset", "data"):
                assert value == "data:," or (value or "").startswith("#"), (tag, name, value)
            assert not name.startswith("on"), (tag, name)
    outside = re.findall(r"(?:https?:)?//[\w.]+", text.replace("http://www.w3.org/2000/svg", ""))
    assert outside == []
    assert "@import" not in text
    assert "url(" not in text
    assert len(page.scripts) == 2
    return page


def sections(page: str) -> list[str]:
    """Those on the page, which the links at its head name, too."""
    found = re.findall('<section id="(.*?)">', page)
    links = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall('href="#(.*?)"', links) == found
    return found


def test_the_page_needs_nothing_else(written: dict[str, str]) -> None:
    page = assert_alone(written["html"])
    assert len(sections(written["html"])) == 6
    identities = [value for _, attributes in page.elements if (value := attributes.get("id"))]
    assert len(set(identities)) == len(identities)
    targets = {a["href"] for tag, a in page.elements if tag == "a"}
    assert targets <= {f"#{name}" for name in identities}  # a cell links to its runs
    assert "#run-3" in targets
    assert len(written["html"]) < 200_000


def test_each_setting_is_a_table_of_its_own_with_what_it_has(tmp_path: Path) -> None:
    place = tmp_path / "everything"
    fake_runs.grid(place / "a", seeds=[0])
    fake_runs.grid(place / "b", ["SGP"], ["ring"], [0], config={"data.name": "cifar100"})
    html = report.write(place)["html"].read_text()
    assert "<h1>everything</h1>" in html
    assert "<title>everything – pushsum report</title>" in html
    section = html[html.index('<section id="results">') : html.index('<section id="curves">')]
    assert re.findall("<h3>(.*)</h3>", section) == ["ResNet-18 + CIFAR-10", "ResNet-18 + CIFAR-100"]
    first, second = re.findall('<table class="results">(.*?)</table>', section, re.DOTALL)
    head = re.compile(r'<th scope="col" class="head sort">(.*?)</th>')
    assert head.findall(first) == ["Full", "Divide", "Exp", "Random", "Average"]
    assert head.findall(second) == ["Ring"]  # an average of one column would repeat it
    method = re.compile(r'scope="rowgroup" class="stick"><span>(.*?)</span>')
    assert method.findall(first) == list(ROWS)
    assert method.findall(second) == ["SGP"]
    assert "–" not in first + second  # no place without runs


def test_the_title_of_one_setting_is_its_name(written: dict[str, str]) -> None:
    assert "<h1>ResNet-18 + CIFAR-10</h1>" in written["html"]
    assert "<h3>" not in written["html"]


def test_the_title_of_the_working_directory_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runs.run(tmp_path / "all" / "a")
    fake_runs.run(tmp_path / "all" / "b", nodes=8)
    monkeypatch.chdir(tmp_path / "all")
    assert "<h1>all</h1>" in report.write(Path())["html"].read_text()


def test_latex_averages_settings_of_several_topologies_alone(tmp_path: Path) -> None:
    fake_runs.grid(tmp_path / "b", ["SGP"], ["ring"], [0], config={"data.name": "cifar100"})
    text = formats.latex(results(tmp_path))
    assert "Average" not in text
    assert r"\begin{tabular}{llr}" in text
    fake_runs.grid(tmp_path / "a", ["SGP"], ["full", "divide"], [0])
    text = formats.latex(results(tmp_path))
    assert re.findall(r"\\begin\{tabular\}\{(l+r+)\}", text) == ["llrrr", "llr"]
    assert re.findall(r"^Topology & & (.*) ", text, re.MULTILINE) == [
        "Full & Divide & Average",
        "Ring",
    ]


def test_the_policy_allows_our_script_alone(written: dict[str, str]) -> None:
    import base64
    import hashlib

    page = Page(written["html"])
    (policy,) = (a["content"] for _, a in page.elements if a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy == (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; img-src data:"
    )


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    fake_runs.run(
        tmp_path / HOSTILE.replace("/", "∕"),
        algorithm=HOSTILE,
        topology=HOSTILE,
        weighting=HOSTILE,
        finished=False,
        config={"data.name": HOSTILE, "model.name": HOSTILE, "split.kind": HOSTILE},
    )
    meta = json.loads(next(tmp_path.glob("*/meta.json")).read_text())
    meta |= {"git": HOSTILE, "torch": HOSTILE, "steps": HOSTILE}
    meta |= {"certificate": {"period": HOSTILE}, "pushsum": HOSTILE}
    next(tmp_path.glob("*/meta.json")).write_text(json.dumps(meta))
    page = assert_alone(report.write(tmp_path)["html"].read_text())
    assert page.curves["methods"] == [HOSTILE]
    assert page.curves["settings"][0]["panels"][0]["topology"] == HOSTILE
    assert "alert" not in page.scripts[1]


def test_thirty_nodes_and_a_hundred_classes_stay_small(tmp_path: Path) -> None:
    fake_runs.grid(
        tmp_path, topologies=["full", "ring", "exponential"], seeds=[0], nodes=30, classes=100
    )
    assert len(report.write(tmp_path)["html"].read_bytes()) < 1_000_000


def test_curves_are_means_over_seeds_with_their_range(grid: Path) -> None:
    found = results(grid)
    drawn = curves.curves(found)
    json.dumps(drawn, allow_nan=False)
    panel = drawn["settings"][0]["panels"][0]
    assert (panel["topology"], len(panel["series"])) == ("Full", 5)
    series = panel["series"][2]
    runs = found.settings[0].cells["SGAP, moreau", "Full"].runs
    at_end = [run.last.main for run in runs]
    mean, low, high = series["y"]["accuracy"]
    assert [mean[-1], low[-1], high[-1]] == pytest.approx(
        [fmean(at_end), min(at_end), max(at_end)], rel=1e-5
    )
    assert series["y"]["train_loss"][0][0] is None
    assert series["x"]["steps"] == [250 * k for k in range(10)]
    assert series["x"]["bytes"][-1] == pytest.approx(runs[0].last.bytes, rel=1e-5)
    _, low, high = series["y"]["nodes"]
    assert low[3] == pytest.approx(min(r.records[3].nodes.low for r in runs), rel=1e-5)
    assert [m["key"] for m in drawn["measures"] if m["log"]] == ["theorem", "mean_square"]


def test_a_seed_that_stops_early_leaves_the_others_going_on(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "a")
    fake_runs.run(tmp_path / "b", seed=1, records=4, finished=False)
    series = series_of(tmp_path)[0]
    mean, low, high = series["y"]["accuracy"]
    assert len(mean) == 10
    assert low[9] == mean[9] == high[9]
    assert low[3] < mean[3] < high[3]


def test_an_algorithm_has_one_colour_in_every_report_and_in_the_demo(tmp_path: Path) -> None:
    fake_runs.grid(tmp_path / "all", NAMES, ["full"], [0])
    every = [(k % len(PALETTE), k // len(PALETTE)) for k in range(len(NAMES))]
    assert curves.curves(results(tmp_path / "all"))["looks"] == every
    assert max(dashes for _, dashes in every) < curves.DASHES
    fake_runs.grid(tmp_path / "pair", ["MSGP", "MSGAP"], ["full"], [0])
    assert curves.curves(results(tmp_path / "pair"))["looks"] == [(1, 0), (3, 0)]
    drawn = demo.chart(
        [
            demo.Outcome("Full", name, "uniform", 1.0, 1.0, [1.0, 2.0], [0.0, 0.0], 0)
            for name in ("consensus", *NAMES[:5])
        ]
    )
    legend = drawn[drawn.index('class="legend"') :]
    shown = {
        name: colour for colour, name in re.findall(r'stroke="(#\w+)".*?>([^<>]+)</text>', legend)
    }
    assert [shown[name] for name in NAMES[:5]] == list(PALETTE[:5])
    assert len(set(shown.values())) == len(shown) == 7


def test_further_rows_of_an_algorithm_take_looks_that_are_left(tmp_path: Path) -> None:
    for k in range(23):
        fake_runs.run(tmp_path / str(k), weighting=f"lazy:c=0.{k + 10}", records=2)
    fake_runs.run(tmp_path / "msgp", algorithm="MSGP", records=2)
    looks = curves.curves(results(tmp_path))["looks"]
    assert looks[:8] == [(1, 0), (2, 0), (0, 0), (3, 0), (4, 0), (5, 0), (6, 0), (0, 1)]
    assert len(set(looks[:21])) == 21
    assert looks[21:] == [(0, 0), (3, 0), (4, 0)]


def test_seeds_tested_at_other_epochs_are_averaged_where_all_were(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "a")
    path = fake_runs.run(tmp_path / "b", seed=1, config={"evaluation.every": 3}) / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:7:3]))
    series = series_of(tmp_path)[0]
    assert series["x"]["epochs"] == [0, 3, 6, 7, 8, 9]


def test_what_was_not_measured_is_not_offered(tmp_path: Path) -> None:
    path = fake_runs.run(tmp_path / "r") / "records.jsonl"
    records = [json.loads(line) | {"nodes": None} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    drawn = curves.curves(results(tmp_path))
    assert "nodes" not in drawn["settings"][0]["panels"][0]["series"][0]["y"]
    keys = [measure["key"] for measure in drawn["measures"]]
    assert keys == ["accuracy", "loss", "train_loss", "theorem", "mean_square"]


def test_long_runs_are_thinned(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r", records=2000, weights=False)
    series = series_of(tmp_path)[0]
    steps = series["x"]["steps"]
    assert len(steps) == curves.MOST_POINTS
    assert (steps[0], steps[-1]) == (0, 250 * 1999)
    assert len(report.write(tmp_path)["html"].read_bytes()) < 200_000


def test_weight_matrices_first_middle_and_last(grid: Path) -> None:
    found = pictures.weights(results(grid).settings[0])
    assert len(found) == 20
    changing, constant = found["SGAP, moreau", "Full"], found["SGP", "Full"]
    assert [m.title for m in changing.maps] == ["step 250", "step 1250", "step 2250"]
    assert not changing.constant
    assert constant.constant
    assert [m.title for m in constant.maps] == ["step 250"]
    assert constant.maps[0].note == "kept 0.167; given 0.104 to 0.208"


def test_what_is_said_below_several_weight_matrices_is_said_of_the_last(
    written: dict[str, str],
) -> None:
    said = re.findall("<small>((?:last: )?kept [^<;]*);", written["html"])
    assert len(said) == 20
    assert set(said) == {"kept 0.167", "last: kept 0.925"}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SGP and S-ADDOPT with 0, 30 and 60 % loss, and SGP with a crash."""
    directory = tmp_path_factory.mktemp("failed")
    accuracies = {"SGP": (0.8, 0.7, 0.6), "S-ADDOPT": (0.9, 0.5, 0.4)}
    for name, values in accuracies.items():
        for loss, accuracy in zip((0.0, 0.3, 0.6), values, strict=True):
            fake_runs.run(
                directory / f"{name}-{loss}",
                algorithm=name,
                faults={"loss": loss} if loss else {},
                last=exactly(accuracy),
            )
    fake_runs.run(directory / "crash", algorithm="SGP", faults={"crash": "2@30-60"})
    return directory


def test_what_failed_is_a_row_for_every_plan(failed: Path) -> None:
    found = {(row.cell.method, row.plan): row for row in failures.rows(results(failed))}
    losses = ("loss=0.3", "loss=0.6")
    assert set(found) == {
        *((name, loss) for name in ("SGP", "S-ADDOPT") for loss in losses),
        ("SGP", "crash='2@30-60'"),
    }
    row = found["SGP", "loss=0.6"]
    assert (row.lost, row.late, row.cell.estimate().mean) == pytest.approx((60, 20, 60))
    assert (row.alive, row.held, row.smallest_a) == (6, 1, 0.04)
    assert found["SGP", "crash='2@30-60'"].alive == 5


def test_accuracy_is_drawn_over_loss(failed: Path) -> None:
    lines = {line.name: (line.x, line.y) for line in failures.under_loss(results(failed), ACCURACY)}
    assert set(lines) == {"SGP", "S-ADDOPT"}
    assert lines["SGP"] == (pytest.approx([0, 30, 60]), pytest.approx([80, 70, 60]))
    assert lines["S-ADDOPT"][1] == pytest.approx([90, 50, 40])


def test_the_page_says_what_failed(failed: Path, tmp_path: Path) -> None:
    page = report.write(failed, tmp_path)["html"].read_text()
    assert_alone(page)
    assert "failures" in sections(page)
    part = page[page.index('<section id="failures">') :]
    part = part[: part.index("</section>")]
    assert part.count("<svg") == 3 + 4  # charts, and links of the runs that lost messages
    assert part.count("rows send, columns receive") >= 4
    assert part.count("<tr>") == 6
    assert "5 of 6" in part


def test_records_without_all_that_failed_can_be_read(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r", faults={"loss": 0.3}, last={"faults": {"alive": 4}})
    (row,) = failures.rows(results(tmp_path))
    assert isnan(row.lost)
    assert row.alive == 4
    assert "failures" in sections(report.write(tmp_path)["html"].read_text())


def test_a_section_without_content_is_not_there(tmp_path: Path) -> None:
    path = fake_runs.run(tmp_path / "r", weights=False)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"split": None, "certificate": None}))
    page = report.write(tmp_path)["html"].read_text()
    assert sections(page) == ["results", "curves", "runs", "topologies"]
    fake_runs.run(tmp_path / "s", seed=1)
    page = report.write(tmp_path)["html"].read_text()
    assert sections(page) == ["results", "curves", "runs", "topologies", "weights", "split"]


def test_heat_maps_shade_by_share_and_join_neighbours() -> None:
    shares = ((0, 0.001, 1, 1), (0.5, 0, nan, 2))
    drawn = svg.cells([[pictures._shade(share) for share in row] for row in shares], 10)
    assert re.findall(r'd="([^"]+)" fill="#0072B2" fill-opacity="([^"]+)"', drawn) == [
        ("M1 0h1v1h-1z", "0.1"),
        ("M0 1h1v1h-1z", "0.5"),
        ("M2 0h2v1h-2zM3 1h1v1h-1z", "1.0"),
    ]


def test_large_matrices_are_drawn_in_blocks() -> None:
    assert pictures._blocks(((1, 3, 5), (5, 7, 9), (0, 2, 4)), 2, 2) == ((4, 7), (1, 4))
    assert [pictures.block(n) for n in (1, 40, 41, 1000)] == [1, 1, 2, 25]


def test_splits_that_differ_between_seeds_are_said_to(tmp_path: Path) -> None:
    for seed in (0, 1):
        path = fake_runs.run(tmp_path / str(seed), seed=seed)
        meta = json.loads((path / "meta.json").read_text())
        meta["split"][0][0] = seed
        (path / "meta.json").write_text(json.dumps(meta))
    (split,) = pictures.splits(results(tmp_path))
    assert split.title == "ResNet-18 + CIFAR-10, seed 0 of 2 different ones"
    assert split.note == "20,000 to 25,000 training samples per node"
    assert split.rows[0] == (0, 20_000, [(0, 0), *[(5000, 100)] * 4, *[(0, 0)] * 5])


def test_splits_of_numbers_are_by_tenths(tmp_path: Path) -> None:
    path = fake_runs.run(tmp_path / "r")
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"classes": 0}))
    (split,) = pictures.splits(results(tmp_path))
    assert split.note.endswith("; column k: targets in the k-th tenth, from 0, the smallest")


def test_a_large_split_is_shown_in_blocks(tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "r", nodes=100, classes=60)
    (split,) = pictures.splits(results(tmp_path))
    assert (split.size, len(split.rows), len(split.rows[0][2])) == ((3, 2), 34, 30)
    assert split.rows[33] == (99, 150_000, [*[(0, 0)] * 15, *[(5000, 100)] * 15])


def test_reading_runs_nothing(grid: Path, tmp_path: Path) -> None:
    """Nor does it wait for torch, unless there is something to draw, or the paper's beside it."""
    plain = fake_runs.run(tmp_path / "plain", config={"data.name": "digits"})
    code = (
        "import sys; from pathlib import Path; import pushsum.report as report; "
        f"report.load(Path({str(grid)!r})); report.data(Path({str(plain)!r})); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
