"""Reports of what is not classification, and of what nodes reach on test data of their own."""

import json
import re

import pytest

from pushsum import report, sweep
from pushsum.report import curves, formats
from pushsum.report.results import collect
from pushsum.report.runs import find
from pushsum.report.tables import notes, tables
from tests import fake_runs

R2 = {"name": "r2", "higher_is_better": True, "percent": False}
PERPLEXITY = {"name": "perplexity", "higher_is_better": False, "percent": False}


def runs_of(place, measure, **values):
    """Runs of these algorithms with seeds 0, 1, ... whose last records have these values."""
    name = measure["name"]
    for algorithm, found in values.items():
        for seed, value in enumerate(found):
            test = {name: value, "loss": 1.0 + seed}
            local = {
                "nodes": {name: dict.fromkeys(("mean", "min", "max"), value)},
                "personal": {name: {"mean": value + 0.1, "min": value, "max": value + 0.2 + seed}},
            }
            path = fake_runs.run(
                place / f"{algorithm}-{seed}",
                algorithm=algorithm,
                seed=seed,
                config={"data.name": f"of-{name}"},
                last={"test": test, "validation": test, "local": local},
            )
            about = json.loads((path / "meta.json").read_text()) | {"measure": measure}
            (path / "meta.json").write_text(json.dumps(about))
    return collect(*find(place))


@pytest.mark.parametrize(
    ("measure", "best", "head"),
    [(R2, "MSGP", "R²"), (PERPLEXITY, "SGP", "Perplexity")],
)
def test_a_table_shows_what_the_task_is_measured_by(measure, best, head, tmp_path):
    found = runs_of(tmp_path, measure, SGP=[0.5, 0.6, 0.7], MSGP=[0.52, 0.62, 0.725])
    name = measure["name"]
    (table,) = tables(found)
    assert [m.head for m in table.measures] == [head, "Loss"]
    entries = {row.method: row.entries[name][0] for row in table.rows}
    assert {method: (e.first, e.best) for method, e in entries.items()} == {
        method: (method == best,) * 2 for method in ("SGP", "MSGP")
    }
    (other,) = {"SGP", "MSGP"} - {best}
    assert entries[other].behind.mean == pytest.approx((1 if other == "MSGP" else -1) * 0.065 / 3)
    text = formats.markdown(found)
    assert f"| SGP | {head} | {'**' * (best == 'SGP')}0.600 ± 0.100" in text
    cells = {cell["method"]: cell for cell in report.data(tmp_path)["cells"]}
    assert cells["SGP"]["measure"] == measure
    assert cells["SGP"][name]["mean"] == pytest.approx(0.6)
    assert cells["SGP"]["runs"][1][name] == 0.6
    assert [cells[m][name]["bold"] for m in (best, other)] == [True, False]
    assert not [key for key in (*cells["SGP"], *cells["SGP"]["runs"][0]) if "accuracy" in key]
    for file in report.write(tmp_path).values():
        assert not re.search(r"\bacc(uracy)?\b", file.read_text(), re.IGNORECASE), file.name


def test_curves_of_settings_that_are_measured_differently(tmp_path):
    runs_of(tmp_path / "a", R2, SGP=[0.5, 0.6])
    runs_of(tmp_path / "b", PERPLEXITY, SGP=[4.0])
    fake_runs.run(tmp_path / "c", algorithm="SGP")
    drawn = curves.curves(collect(*find(tmp_path)))
    keys = {m["key"]: m["percent"] for m in drawn["measures"]}
    assert {k: p for k, p in keys.items() if k in ("accuracy", "r2", "perplexity")} == {
        "accuracy": True,
        "r2": False,
        "perplexity": False,
    }
    last = {
        key: setting["panels"][0]["series"][0]["y"][key][0][-1]
        for setting in drawn["settings"]
        for key in setting["panels"][0]["series"][0]["y"]
        if key in ("r2", "personal r2", "validation r2", "perplexity")
    }
    assert last == {"r2": 0.55, "personal r2": 0.65, "validation r2": 0.55, "perplexity": 4.0}
    said = notes(collect(*find(tmp_path)))
    assert {"R²: larger is better.", "Perplexity: smaller is better."} <= set(said)


def test_what_personal_models_gain_on_the_nodes_own_test_data(tmp_path):
    accuracy = {"name": "accuracy", "higher_is_better": True, "percent": True}
    runs_of(tmp_path, accuracy, Ditto=[0.5, 0.6])
    fake_runs.run(tmp_path / "before", algorithm="SGP", config={"data.name": "of-accuracy"})
    page = report.write(tmp_path)["html"].read_text()
    part = page[page.index('<section id="local">') :]
    (row,) = re.findall("<tr><td>.*</tr>", part[: part.index("</section>")])
    numbers = re.findall(r"[\d.]+(?= |<)", re.sub("<small>.*?</small>", "", row))
    assert numbers[-3:] == ["55.00", "65.00", "10.00"]
    cells = {cell["method"]: cell for cell in report.data(tmp_path)["cells"]}
    assert cells["Ditto"]["personal"]["mean"] == pytest.approx(65)
    assert "personal" not in cells["SGP"]


@pytest.mark.parametrize(("measure", "chosen"), [(R2, 0.1), (PERPLEXITY, 0.01)])
def test_step_sizes_are_chosen_by_what_the_task_is_measured_by(
    measure, chosen, tmp_path, monkeypatch
):
    cells = sweep.read(None, ["steps=1", "topology.nodes=2"], tune="algorithm.lr=0.01,0.1,1")
    assert sweep.run(cells, tmp_path, 1, lambda cell, what: None) == []
    values = {0.01: (2.0, 3.0), 0.1: (4.0, 5.0), 1: (None, 1.0)}  # the loss prefers others
    for trial in sweep.trials(cells):
        place = tmp_path / sweep.TRIALS / trial.name
        value, loss = values[trial.config.algorithm.lr]
        record = {"validation": {measure["name"]: value, "loss": loss}}
        (place / "records.jsonl").write_text(json.dumps(record) + "\n")
        about = json.loads((place / "meta.json").read_text()) | {"measure": measure}
        (place / "meta.json").write_text(json.dumps(about))
    (cell,) = sweep.tuned(cells, tmp_path)
    assert cell.config.algorithm.lr == chosen
    assert cell.notes["tune"]["tried"] == [[0.01, 2.0], [0.1, 4.0], [1, None]]
