"""Configurations: typed, overridable, and every mistake one line."""

import random

import pytest
import yaml

from pushsum import config, sweep
from pushsum.experiment import Experiment


def refusal(*overrides: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        config.read(None, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.lr=-1", "algorithm.lr = -1: should be greater than 0"),
        ("algorithm.lr=.nan", "algorithm.lr = nan: should be"),
        ("lr=1", "unknown key lr: did you mean algorithm.lr?"),
        ("algorithm.learning_rate=1", "unknown key algorithm.learning_rate"),
        (
            "algorithm.momentun=1",
            "unknown key algorithm.momentun: did you mean algorithm.momentum?",
        ),
        ("algorithm.name=sgp", "algorithm.name = 'sgp': should be 'SGP', 'MSGP'"),
        ("topology.name=foll", "unknown topology 'foll' (did you mean full?): choose from full,"),
        ("topology.nodes=2.5", "topology.nodes = 2.5: should be a valid integer"),
        ("zzz=1", "unknown key zzz: keys are seed, epochs"),
        ("foo", "override 'foo': write key=value"),
        ("=3", "override '=3': write key=value"),
        ("algorithm=3", "algorithm = 3: should be"),
        ("gradients=loops", "gradients = 'loops': should be 'loop', 'threads' or 'vmap'"),
        ("data.name=[1", "override 'data.name=[1': while parsing"),
        ("seed=-1", "seed = -1: should be greater than or equal to 0"),
        ("algorithm.options={a: 1}", "algorithm.options belong to algorithm.optimizer"),
    ],
)
def test_mistakes_are_one_line_that_names_the_value(override, message):
    text = refusal(override)
    assert message in text
    assert "\n" not in text


def test_what_would_be_ignored_is_refused():
    text = refusal("algorithm.optimizer=SGD", "algorithm.momentum=0.8")  # the default, but given
    assert text.startswith("algorithm.momentum has no effect with algorithm.optimizer: leave it")
    text = refusal("published.restart=true", "algorithm.schedule.kind=steps")
    assert text.startswith("published.restart has no effect without algorithm.schedule.milestones")


def test_a_saved_configuration_can_be_read_again():
    c = config.read(None, ["algorithm.optimizer=SGD", "algorithm.options={momentum: 0.9}"])
    assert config.parse(c.model_dump(mode="json")) == c
    assert "momentum" not in c.model_dump()["algorithm"]
    assert config.Config().model_dump()["algorithm"]["momentum"] == 0.8


def test_files_and_overrides(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("epochs: 3\nalgorithm: {name: SGP, lr: 0.2}\n")
    c = config.read(path, ["algorithm.lr=0.3", "model.hidden=[4, 5]"])
    assert (c.epochs, c.algorithm.name, c.algorithm.lr, c.model.hidden) == (3, "SGP", 0.3, (4, 5))
    assert config.parse(yaml.safe_load(yaml.safe_dump(c.model_dump(mode="json")))) == c
    path.write_text("a: [1, ")
    with pytest.raises(ValueError, match="not valid YAML"):
        config.read(path)
    path.write_text("- 1\n")
    with pytest.raises(ValueError, match="a configuration is a mapping"):
        config.read(path)


WORDS = ["0", "1", "-1", "2.5", "nan", ".inf", "true", "null", "x", "[]", "[1]", "{}", "{a: 1}",
         "''", "1e400", "full", "SGAP", "digits", "'2'", "[8, x]", "~", "é", "1_000", "0x10",
         "clusters", "iid", "dirichlet", "shards", "ring", "random", "moreau:k=1,v=0.1", "lazy:c=1",
         "S-ADDOPT", "mlp", "cnn", "group", "recomputed", "[4]", "3", "7", "0.5"]  # fmt: skip


def test_ten_thousand_fuzzed_configurations_end_in_a_value_or_one_line():
    rng = random.Random(0)
    keys = [*config.valid_keys(), "nonsense", "algorithm.nonsense", "data.name.deep", ""]
    accepted, refusals = [], []
    for _ in range(10_000):
        overrides = [
            f"{rng.choice(keys)}{rng.choice(['=', '=', '=', '=', ''])}{rng.choice(WORDS)}"
            for _ in range(rng.randint(1, 4))
        ]
        try:
            accepted.append(config.read(None, overrides))
        except ValueError as error:
            refusals.append(str(error))
    assert len(accepted) > 200
    built = 0
    for c in accepted[:400]:
        small = c.model_copy(update={"topology": c.topology.model_copy(update={"nodes": 3})})
        try:
            Experiment(small).batch(1, range(small.topology.nodes))
            built += 1
        except (ValueError, OSError) as error:
            refusals.append(str(error))
    assert built > 60
    assert all(text and "\n" not in text for text in refusals)


def test_sweeps_are_grids_of_cells(tmp_path):
    cells = sweep.read(None, ["algorithm.name=SGP,SGAP", "seed=0,1", "epochs=1"])
    assert [c.name for c in cells] == ["SGP_0", "SGP_1", "SGAP_0", "SGAP_1"]
    assert cells[-1].config.seed == 1
    assert sweep.alternatives("moreau:k=1,v=0.1,lazy:c=1") == ["moreau:k=1,v=0.1", "lazy:c=1"]
    assert sweep.alternatives("[8,4]") == ["[8,4]"]
    with pytest.raises(ValueError, match="neither a file nor a recipe"):
        sweep.read("nowhere")
    chosen = sweep.read("digits", ["algorithm.name=SGAP,SGP", "topology.name=full"])
    assert [c.name for c in chosen] == ["SGP", "SGAP_moreau-k=1,v=0.1"]
    with pytest.raises(ValueError, match="no cell of the recipe has that value"):
        sweep.read("digits", ["algorithm.name=SGD"])
    path = tmp_path / "r.yaml"
    path.write_text("sweep: {cell: 1}")
    with pytest.raises(ValueError, match="the section sweep holds `cells` and `grid` only"):
        sweep.read(str(path))


@pytest.mark.parametrize(
    ("name", "count"),
    [("digits", 20), ("table1-published", 40), ("table1-corrected", 40), ("table1-small", 36)],
)
def test_recipes_are_valid(name, count):
    assert name in sweep.recipes()
    assert len(sweep.read(name)) == count


def test_the_two_versions_of_table_1_have_the_same_cells():
    published, corrected = sweep.read("table1-published"), sweep.read("table1-corrected")
    assert [c.name for c in published] == [c.name for c in corrected]
    assert all(c.config.published.restart for c in published)
    assert not any(c.config.published.restart for c in corrected)


def test_a_sweep_may_take_the_cells_of_another(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("epochs: 1\nsweep: digits\n")
    assert [c.name for c in sweep.read(str(path))] == [c.name for c in sweep.read("digits")]
    path.write_text("sweep: nowhere\n")
    with pytest.raises(ValueError, match="neither a file nor a recipe"):
        sweep.read(str(path))


def test_a_sweep_skips_what_is_finished_and_names_what_failed(tmp_path):
    cells = sweep.read(None, ["seed=0,1", "steps=2", "model.hidden=[4]", "gradients=loop"])
    said = []
    note = lambda cell, what: said.append((cell.name, what))
    assert sweep.run(cells[:1], tmp_path, 1, note) == []
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "meta.json").write_text("{")  # a crash left this
    assert sweep.run(cells, tmp_path, 1, note) == []
    assert said == [("0", "started"), ("0", "finished"), ("0", "skipped"),
                    ("1", "started"), ("1", "finished")]  # fmt: skip
    bad = sweep.read(None, ["model.width=3", "steps=2"])
    assert sweep.run(bad, tmp_path, 1, note) == ["run"]
    assert "width" in said[-1][1]


def test_a_cell_is_not_taken_for_that_of_another_configuration(tmp_path):
    said = []
    note = lambda cell, what: said.append(what)
    words = ["model.hidden=[4]", "gradients=loop"]
    assert sweep.run(sweep.read(None, [*words, "steps=2"]), tmp_path, 1, note) == []
    assert sweep.run(sweep.read(None, [*words, "steps=3"]), tmp_path, 1, note) == ["run"]
    assert "another configuration" in said[-1]
    with pytest.raises(ValueError, match="while parsing"):
        sweep.read(None, ["seed=[1"])
    assert sweep.alternatives("{eps: 0.1, weight_decay: 0.1}") == ["{eps: 0.1, weight_decay: 0.1}"]
