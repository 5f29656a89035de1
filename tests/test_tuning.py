"""Fair comparisons: samples to choose by, a step size for each method, and what is told of it."""

import json

import numpy as np
import pytest

from pushsum import config, report, sweep, training
from pushsum.data import partition
from pushsum.experiment import Experiment
from pushsum.sweep.reading import HELD_OUT


@pytest.fixture
def table(tmp_path):
    """Tabular data like the breast-cancer set: two classes, 30 features, 569 samples."""
    random = np.random.default_rng(0)
    y = (random.random(569) < 0.63).astype(np.int64)
    mixing = random.standard_normal((8, 30))
    hidden = random.standard_normal((569, 8)) + 0.8 * np.outer(2 * y - 1, random.random(8))
    x = (hidden @ mixing + random.standard_normal((569, 30))).astype(np.float32)
    x /= x.std(0)
    np.savez(
        tmp_path / "table.npz", x_train=x[:426], y_train=y[:426], x_test=x[426:], y_test=y[426:]
    )
    return str(tmp_path / "table.npz")


def settings(table, *more):
    common = (
        "split.kind=iid",
        "model.hidden=[4]",
        "epochs=5",
        "evaluation.nodes=false",
        "checkpoint=5",
    )
    return (f"data.name={table}", *common, "evaluation.every=5", "gradients=vmap", *more)


@pytest.mark.parametrize("split", ["split.kind=clusters", "split.kind=dirichlet"])
def test_what_is_held_out_is_a_part_of_every_nodes_and_nobody_trains_on_it(split):
    whole = Experiment(config.read(None, [split]))
    built = Experiment(config.read(None, [split, "data.validation=0.2"]))
    for before, part in zip(whole.parts, built.parts, strict=True):
        mine = np.intersect1d(before, built.held_out)
        assert len(mine) == pytest.approx(0.2 * len(before), abs=1)
        assert np.array_equal(np.union1d(part, mine), before)
        assert len(np.intersect1d(part, built.held_out)) == 0
    other = Experiment(config.read(None, [split, "data.validation=0.2", "seed=1"]))
    assert not np.array_equal(built.held_out, other.held_out)
    assert np.array_equal(built.evaluator.everything, np.unique(np.concatenate(built.parts)))


def test_a_fraction_that_holds_nothing_out_is_refused():
    with pytest.raises(ValueError, match=r"^data.validation = 0.1: holds nothing out"):
        partition.hold_out([np.arange(3), np.arange(3, 6)], 0.1)


def test_records_tell_what_the_average_model_reaches_on_what_is_held_out(table, tmp_path):
    built = Experiment(config.read(None, settings(table, "data.validation=0.25")))
    last = training.run(built, tmp_path / "run")
    model = training.trained(tmp_path / "run")
    x, y = built.feed.train(built.held_out)
    right = (model(x).argmax(1) == y).double().mean().item()
    assert last["validation"]["accuracy"] == pytest.approx(right)
    assert last["validation"].keys() == last["test"].keys()


GRID = (0.1, 0.3, 1, 3)
TUNE = "algorithm.lr=" + ",".join(map(str, GRID))


def run(cells, into, jobs=1):
    said = []
    failed = sweep.run(cells, into, jobs, lambda cell, what: said.append((cell.name, what)))
    return failed, said


def notes(directory):
    return json.loads((directory / "meta.json").read_text()).get("tune")


def test_no_winner_that_its_own_step_size_contradicts(table, tmp_path):
    methods = ("SGP", "MSGP", "MSGAP")
    words = settings(
        table, f"algorithm.name={','.join(methods)}", "topology.name=divide", "seed=3,4"
    )
    cells = sweep.read(None, words, tune=TUNE)
    assert len(cells) == 6
    assert len(sweep.trials(cells)) == 3 * len(GRID)
    later = [cell for cell in cells if cell.config.seed == 4]  # what is left of a sweep, say
    assert sweep.trials(later) == sweep.trials(cells)
    failed, said = run(cells, tmp_path / "runs")
    assert failed == []
    assert [what for _, what in said].count("finished") == 6 + 3 * len(GRID)
    found = {r.path.name: r for r in report.load(tmp_path / "runs")}
    assert found.keys() == {cell.name for cell in cells}  # trials are not part of the report
    for cell in cells:
        note = notes(tmp_path / "runs" / cell.name)
        tried = dict(note["tried"])
        assert (note["key"], tuple(tried), note["seed"]) == ("algorithm.lr", GRID, 3)
        assert tried[note["chosen"]] == max(tried.values())
        assert found[cell.name].config["algorithm.lr"] == note["chosen"]
        assert found[cell.name].config["data.validation"] == HELD_OUT
        for lr, validation in note["tried"]:  # as its trial has it, which is kept
            trial = tmp_path / "runs" / sweep.TRIALS / f"{cell.name.replace('_4', '_3')}_{lr}"
            assert training.last_record(trial)["validation"]["accuracy"] == validation
    # a second time nothing runs
    failed, said = run(cells, tmp_path / "runs")
    assert failed == []
    assert {what for _, what in said} == {"skipped"}
    # with a step size that they share, momentum wins by far: it moves further
    shared = sweep.read(None, (*words, "algorithm.lr=0.1"))
    assert len(sweep.warnings(shared)) == 1
    assert run(shared, tmp_path / "shared")[0] == []

    def mean(folder, method):
        places = [tmp_path / folder / f"{method}_{seed}" for seed in (3, 4)]
        return np.mean([training.last_record(place)["test"]["accuracy"] for place in places])

    assert mean("shared", "MSGP") > mean("shared", "SGP") + 0.05
    results = [mean("runs", method) for method in methods]
    assert max(results) - min(results) < 0.025


def test_a_stopped_sweep_goes_on_with_its_trials_and_other_grids_are_refused(table, tmp_path):
    words = settings(table, "epochs=1", "algorithm.name=SGP")
    cells = sweep.read(None, words, tune="algorithm.lr=0.1,1")

    def stop(cell, what):
        if what == "finished":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(cells, tmp_path, 1, stop)
    failed, said = run(cells, tmp_path, jobs=2)
    assert failed == []
    assert sorted(said) == [("run", "finished"), ("run_0.1", "skipped"), ("run_1", "finished")]
    wider = sweep.read(None, words, tune="algorithm.lr=0.1,1,0.5")
    with pytest.raises(ValueError, match=r"been tuned among other values|algorithm.lr = "):
        run(wider, tmp_path)


def test_what_diverges_is_tried_once_and_never_chosen(table, tmp_path):
    words = settings(table, "epochs=4", "algorithm.name=SGP")
    cells = sweep.read(None, words, tune="algorithm.lr=1e30,0.1")
    assert run(cells, tmp_path / "a")[0] == []
    note = notes(tmp_path / "a" / "run")
    assert (note["chosen"], note["tried"][0]) == (0.1, [1e30, None])
    assert set(run(cells, tmp_path / "a")[1]) == {
        ("run_1e+30", "skipped"), ("run_0.1", "skipped"), ("run", "skipped")
    }  # fmt: skip
    cells = sweep.read(None, words, tune="algorithm.lr=1e30,1e31")
    failed, said = run(cells, tmp_path / "b")
    assert failed == ["run"]
    assert "no value of algorithm.lr that was tried" in dict(said)["run"]


def test_a_recipe_may_tune_and_gives_its_own_values_up_for_that(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "sweep:\n  tune: {algorithm.lr: [0.1, 1]}\n"
        "  cells: [{algorithm.name: SGP, algorithm.lr: 0.5}, {algorithm.name: MSGP}]\n"
    )
    cells = sweep.read(str(path))
    assert [cell.name for cell in cells] == ["SGP", "MSGP"]
    assert [t.name for t in sweep.trials(cells)] == ["SGP_0.1", "SGP_1", "MSGP_0.1", "MSGP_1"]
    assert [t.config.algorithm.lr for t in sweep.trials(cells)] == [0.1, 1, 0.1, 1]
    for words, said in {
        ("algorithm.lr=0.1",): "algorithm.lr is tuned: leave one of the two out",
        ("data.validation=0",): "tuning needs samples to choose by",
    }.items():
        with pytest.raises(ValueError, match=said):
            sweep.read(str(path), words)
    path.write_text(
        f"sweep: {{tune: {{algorithm.lr: {[0.1] * 101}}}, grid: {{batch: {[1] * 99}}}}}"
    )
    with pytest.raises(ValueError, match="99 cells and 9,999 trials, more than 10,000: split it"):
        sweep.read(str(path))
    for tune in ("3", "{algorithm.lr: 3}", "{seed: [1], epochs: [2]}", "{algorithm.lr: []}"):
        path.write_text(f"sweep: {{tune: {tune}}}\n")
        with pytest.raises(ValueError, match=r"sweep.tune holds a list for one key"):
            sweep.read(str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.name=SGP,MSGP"], "SGP and MSGP share algorithm.lr=0.05, and momentum 0.8 moves"
         " 5 times as far: give MSGP 0.01"),
        (["algorithm.name=SGP,SGAP"], None),
        (["algorithm.name=MSGP,QGM"], None),
        (["algorithm.name=SGP,MSGP", "algorithm.momentum=0"], None),
        (["algorithm.name=SGP,MSGP", "algorithm.optimizer=AdamW"], None),
    ],
)  # fmt: skip
def test_a_step_size_that_methods_with_other_momentum_share_is_warned_of(words, said):
    found = sweep.warnings(sweep.read(None, words))
    assert [text.startswith(said) for text in found] == ([] if said is None else [True])
    assert sweep.warnings(sweep.read(None, words, tune=TUNE)) == []


def test_an_override_chooses_among_the_cells_that_have_the_key(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("sweep: {cells: [{seed: 1}, {faults.loss: 0.3, faults.accounting: none}]}\n")
    cells = sweep.read(str(path), ["faults.accounting=none"])
    assert [cell.config.faults.accounting for cell in cells] == ["none"]
    with pytest.raises(ValueError, match="no cell of the recipe has that value"):
        sweep.read(str(path), ["faults.loss=none"])
