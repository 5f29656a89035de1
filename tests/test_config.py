"""Configurations: typed, overridable, and every mistake one line."""

import random

import pytest
import yaml

from pushsum import config, methods, sweep, training
from pushsum.experiment import Experiment
from pushsum.sweep import running


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
        ("nodes=4", "unknown key nodes: did you mean topology.nodes?"),
        ("topology=ring", "topology has keys of its own: did you mean topology.name=ring?"),
        ("link=3", "link = 3: link has keys of its own: link.wire, link.gigabits, link.latency"),
        ("model.hidden=64", "model.hidden = 64: should be a list, e.g. model.hidden=[64]"),
        ("algorithm.name=sgapp", "unknown algorithm 'sgapp' (did you mean SGAP?): choose from SGP"),
        ("model.norm=grup", "'batch', 'frozen' or 'group' (did you mean group?)"),
        ("topology.kind=ring", "unknown key topology.kind: did you mean topology."),
        ("algorithm.learning_rate=1", "unknown key algorithm.learning_rate"),
        (
            "algorithm.momentun=1",
            "unknown key algorithm.momentun: did you mean algorithm.momentum?",
        ),
        ("topology.name=foll", "unknown topology 'foll' (did you mean full?): choose from full,"),
        ("topology.nodes=2.5", "topology.nodes = 2.5: should be a valid integer"),
        ("zzz=1", "unknown key zzz: keys are seed, epochs"),
        ("foo", "override 'foo': write key=value"),
        ("seed=0,1", "seed = '0,1': a run has one value; lists are for pushsum sweep"),
        ("algorithm.name=SGP,SGAP", "algorithm.name = 'SGP,SGAP': a run has one value; lists are"),
        ("topology.name=full,ring", "topology.name = 'full,ring': a run has one value; lists are"),
        ("model.hidden=64,32", "should be a list, e.g. model.hidden=[64,32]"),
        ("=3", "override '=3': write key=value"),
        ("gradients=loops", "gradients = 'loops': should be 'loop', 'threads' or 'vmap'"),
        ("data.name=[1", "override 'data.name=[1': while parsing"),
        ("epochs=true", "epochs = True: should be a valid integer"),
        ("seed=false", "seed = False: should be a valid integer"),
        ("sweep={grid: {}}", "this is the file of a sweep: pushsum sweep FILE --into runs/NAME"),
        ("seed=-1", "seed = -1: should be greater than or equal to 0"),
        ("algorithm.options={a: 1}", "algorithm.options belong to algorithm.optimizer"),
        (
            "algorithm.schedule={kind: steps, milestones: [1, 2], factor: 1.0e+200}",
            "algorithm.schedule.factor = 1e+200: after 2 milestones the step size is beyond",
        ),
        ("seed=" + "[" * 20_000, "its brackets are too deep"),
    ],
)
def test_mistakes_are_one_line_that_names_the_value(override, message):
    text = refusal(override)
    assert message in text
    assert "\n" not in text


def test_names_have_one_spelling_whatever_their_case():
    words = ("algorithm.name=msgap", "topology.name=Divide", "model.name=ResNet18")
    words += (
        "data.name=CIFAR-10",
        "algorithm.optimizer=adamw",
        "algorithm.weighting=FAR_FIRST:c=2",
    )
    found = config.read(None, words).values
    assert {key: found[key] for key in (word.partition("=")[0] for word in words)} == {
        "algorithm.name": "MSGAP",
        "topology.name": "divide",
        "model.name": "resnet18",
        "data.name": "cifar10",
        "algorithm.optimizer": "AdamW",
        "algorithm.weighting": "far-first:c=2",
    }


@pytest.mark.parametrize(
    ("name", "weighting"),
    [("SGAP", "moreau(k=1, v=0.1)"), ("MSGAP", "moreau(k=1, v=0.1)"), ("QGM", "uniform")],
)
def test_methods_have_the_weights_of_their_papers_unless_told(name, weighting):
    built = Experiment(config.read(None, [f"algorithm.name={name}", "topology.name=full"]))
    assert built.meta()["weighting"] == weighting
    options = {"momentum": 0.5} if methods.takes(name, "momentum") else {}
    assert methods.find(name).function(lr=0.1, **options).weighting.name == weighting


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


def test_numbers_are_read_as_people_write_them():
    overrides = ["algorithm.optimizer=AdamW", "algorithm.options={weight_decay: 1e-4, eps: 1E-8}"]
    assert config.read(None, overrides).algorithm.options == {"weight_decay": 1e-4, "eps": 1e-8}
    assert config.read(None, ["steps=1e4"]).steps == 10_000


def test_a_section_with_nothing_below_it_has_its_defaults(tmp_path):
    (tmp_path / "a.yaml").write_text("split:\nalgorithm:\n  schedule:\n")
    assert config.read(tmp_path / "a.yaml") == config.Config()


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


SHORT = config.Evaluation(batch=360, nodes=False)


def test_random_overrides_end_in_a_value_or_one_line(tmp_path):
    rng = random.Random(0)
    keys = [*config.valid_keys(), "nonsense", "algorithm.nonsense", "data.name.deep", ""]
    accepted, refusals = [], []
    for _ in range(3000):
        overrides = [
            f"{rng.choice(keys)}{rng.choice(['=', '=', '=', '=', ''])}{rng.choice(WORDS)}"
            for _ in range(rng.randint(1, 4))
        ]
        try:
            accepted.append(config.read(None, overrides))
        except ValueError as error:
            refusals.append(str(error))
    assert len(accepted) > 50
    built = 0
    for c in accepted:
        small = c.model_copy(update={"topology": c.topology.model_copy(update={"nodes": 3})})
        try:
            ready = Experiment(small)
            ready.batch(1, range(small.topology.nodes))
            if built % 6 == 0 and ready.layout.d < 100_000:
                short = small.model_copy(update={"steps": 2, "evaluation": SHORT})
                training.run(Experiment(short), tmp_path / str(built))
            built += 1
        except (ValueError, OSError) as error:
            refusals.append(str(error))
    assert built > 40
    assert all(text and "\n" not in text for text in refusals)


def test_sweeps_are_grids_of_cells(tmp_path):
    cells = sweep.read(None, ["algorithm.name=SGP,SGAP", "seed=0,1", "epochs=1"])
    assert [c.name for c in cells] == ["SGP_0", "SGP_1", "SGAP_0", "SGAP_1"]
    assert cells[-1].config.seed == 1
    assert sweep.alternatives("moreau:k=1,v=0.1,lazy:c=1") == ["moreau:k=1,v=0.1", "lazy:c=1"]
    assert sweep.alternatives("[8,4]") == ["[8,4]"]
    widths = sweep.read(None, ["model.hidden=[8],[16,4]", "steps=1"])
    assert [c.config.model.hidden for c in widths] == [(8,), (16, 4)]
    assert sweep.alternatives("") == [""]
    with pytest.raises(ValueError, match="neither a file nor a recipe"):
        sweep.read("nowhere")
    chosen = sweep.read("digits", ["algorithm.name=SGAP,SGP", "topology.name=full"])
    assert [c.name for c in chosen] == ["SGP_0.25", "SGAP_0.25_moreau-k=1,v=0.1"]
    with pytest.raises(ValueError, match="no cell of the recipe has that value"):
        sweep.read("digits", ["algorithm.name=SGD"])
    path = tmp_path / "r.yaml"
    path.write_text("sweep: {cell: 1}")
    with pytest.raises(ValueError, match="the section sweep holds `cells`, `grid` and `tune` only"):
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
    for name in ("nowhere", str(path)):
        path.write_text(f"sweep: {name}\n")
        with pytest.raises(ValueError, match=rf"^sweep: {name} is not a recipe \(digits, "):
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


def test_a_sweep_measures_once_for_cells_that_compute_alike(tmp_path, monkeypatch):
    measured = []
    measure = lambda built, world: measured.append(built.config.batch) or "vmap"
    monkeypatch.setattr(training, "measured", measure)
    words = ["batch=16,32", "seed=0,1", "algorithm.name=SGP,SGAP", "steps=1", "model.hidden=[4]"]
    cells = sweep.read(None, words)
    note = lambda cell, what: None
    assert sweep.run(cells[:3], tmp_path, 1, note) == []
    assert measured == [16]
    monkeypatch.setattr(training, "measured", lambda *args: "loop")
    assert sweep.run(cells, tmp_path, 1, note) == []  # 16 stays as it was begun
    chosen = [config.read(tmp_path / cell.name / "config.yaml").gradients for cell in cells]
    assert chosen == ["vmap"] * 4 + ["loop"] * 4


def test_one_cell_does_not_end_a_sweep(tmp_path, monkeypatch):
    def broken(c):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(running, "Experiment", broken)
    cell = sweep.read(None, ["gradients=loop"])[0]
    assert sweep.run_cell(cell, tmp_path) == "ZeroDivisionError: a fault"


BAD_SWEEPS = ["{cells: [1, 2]}", "{cells: {a: 1}}", "{cells: 3}", "{grid: {seed: 3}}",
              "{grid: [1]}", "{grid: {1: [1]}}", "{cells: [{1: 2}]}", "3", "[1]"]  # fmt: skip


@pytest.mark.parametrize("section", BAD_SWEEPS)
def test_sweep_sections_that_are_refused(section, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(f"sweep: {section}")
    with pytest.raises(ValueError, match=r"r.yaml: (sweep\.|the section sweep)") as caught:
        sweep.read(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: {hidden: 2020-01-01}\nsweep: {grid: {seed: [1, 2]}}", "model.hidden = "),
        (b"sweep: {grid: {seed: [2020-01-01, [2020-01-01]]}}", "seed = "),
        (b"[" * 20_000, "r.yaml: not valid YAML: its brackets are too deep"),
        (b"seed: 2020-99-99", "seed = '2020-99-99': should be a valid integer"),
        (b"\xff\xfe\xfd", "r.yaml: not valid YAML: 'utf-8' codec"),
    ],
)
def test_sweep_files_that_are_refused(content, message, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        sweep.read(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("slurm", [None, {}])
def test_nothing_runs_beside_cells_of_another_configuration(slurm, tmp_path):
    said = []
    note = lambda cell, what: said.append(what)
    words = ["model.hidden=[4]", "seed=0,1,2"]
    begun = sweep.read(None, [*words, "steps=1", "gradients=loop"])[1:]
    assert sweep.run(begun[:1], tmp_path, 1, note) == []
    said.clear()
    message = (
        r"^.* holds 1 cell of another configuration \(1 has steps = 1, here 3\): "
        r"name another --into$"
    )
    with pytest.raises(ValueError, match=message):
        sweep.run(sweep.read(None, [*words, "steps=3"]), tmp_path, 1, note, slurm)
    assert sweep.run(begun, tmp_path, 1, lambda cell, what: None) == []
    wider = sweep.read(None, ["model.hidden=[5]", *words[1:], "steps=1"])
    with pytest.raises(ValueError, match=r"holds 2 cells of another .* \(1 has model.hidden = \[4"):
        sweep.run(wider, tmp_path, 1, note, slurm)
    assert said == []
    assert not (tmp_path / "0").exists()


def test_a_cell_that_measures_goes_on_as_it_began(tmp_path):
    words = ["model.hidden=[4]", "steps=1"]
    note = lambda cell, what: None
    assert sweep.run(sweep.read(None, [*words, "gradients=loop"]), tmp_path, 1, note) == []
    assert sweep.run(sweep.read(None, words), tmp_path, 1, note, slurm={}) == []


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["model.hidden=[64],[32,16],[]"], ["64", "32,16", "empty"]),
        (
            ["algorithm.optimizer=Adam", "algorithm.options={eps: 0.1, amsgrad: true},{eps: 1}"],
            ["eps-0.1,amsgrad-true", "eps-1"],
        ),
        (["data.augment=true,false"], ["augment=true", "augment=false"]),
    ],
)
def test_names_of_cells_do_not_begin_with_a_dash(words, names):
    assert [cell.name for cell in sweep.read(None, words)] == names


def test_lists_of_overrides():
    with pytest.raises(ValueError, match="while parsing"):
        sweep.read(None, ["seed=[1"])
    assert sweep.alternatives("{eps: 0.1, weight_decay: 0.1}") == ["{eps: 0.1, weight_decay: 0.1}"]
