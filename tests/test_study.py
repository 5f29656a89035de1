"""What the pages say is what was measured."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml

from pushsum import sweep
from pushsum.names import flat
from study import HERE, collect, figures, publish, report
from study import run as running
from study.numbers import MOREAU, Ended, chosen, difference, runs, spread
from study.texts import TEXTS, faults, methods
from study.texts.published import SWITCHES

FOUND = runs()
EVIDENCE = sorted((publish.ROOT / "docs" / "evidence").glob("*.md"))


@pytest.mark.parametrize("page", publish.pages(), ids=lambda p: p.name)
def test_every_number_of_a_page_comes_from_the_results(page):
    before = page.read_text()
    assert publish.filled(before, FOUND) == before, "run: python -m study.publish"


@pytest.mark.parametrize("page", publish.pages(), ids=lambda p: p.name)
def test_a_comment_that_begins_a_line_is_a_block(page):
    """Markdown would end the paragraph, or the list, in front of it."""
    lines = page.read_text().splitlines()
    begun = [line for line in lines if line.lstrip().startswith("<!-- study")]
    assert all(re.fullmatch(r"<!-- study [^<>]+ -->", line) for line in begun)


def test_the_pictures_show_the_results():
    for name, picture in figures.all_of(FOUND).items():
        assert (publish.IMAGES / f"{name}.svg").read_text() == picture, name


def run(seed: int, accuracy: float, **more: str) -> Ended:
    values = {"accuracy": str(accuracy)}
    return replace(Ended("table1", "SGP", "uniform", "full", seed, 0.8, "", values), **more)


def test_differences_are_paired_over_topology_and_seed():
    one = [run(0, 0.5), run(1, 0.7), run(2, 0.6), run(3, 0.1)]
    other = [run(0, 0.4), run(1, 0.5), run(2, 0.6), run(3, 0.9, topology="random")]
    found = difference(one, other, "accuracy")
    assert found is not None
    assert found.pairs == 3
    assert found.mean == pytest.approx(0.1)
    assert found.half == pytest.approx(4.303 * 0.1 / 3**0.5)  # Student's t, two degrees of freedom
    assert not found.clear
    assert difference(one[:1], other, "accuracy") is None


def test_two_runs_in_one_place_are_not_compared():
    with pytest.raises(ValueError, match="two runs on full with seed 0"):
        difference([run(0, 0.5), run(0, 0.6)], [run(0, 0.4), run(1, 0.5)], "accuracy")


def test_topologies_of_a_seed_make_one_mean():
    one = [
        run(s, a, topology=t)
        for t, s, a in (
            ("full", 0, 0.5),
            ("random", 0, 0.7),
            ("full", 1, 0.6),
            ("random", 1, 0.6),
            ("full", 2, 0.9),
        )
    ]
    other = [run(s, 0.5, topology=t) for t in ("full", "random") for s in (0, 1, 2)]
    found = difference(one, other, "accuracy")
    assert found is not None
    assert found.pairs == 2  # the third seed lacks a topology
    assert found.mean == pytest.approx(0.1)
    assert found.half == pytest.approx(0.0)


def test_changed_runs_are_found_only_when_asked_for():
    some = [run(0, 0.5), run(0, 0.6, changed="model.norm=group")]
    assert [r["accuracy"] for r in chosen(some, algorithm="SGP")] == [0.5]
    assert [r["accuracy"] for r in chosen(some, changed="model.norm=group")] == [0.6]
    assert spread(some[:1], "accuracy") == (0.5, 0.0, 1)
    assert spread([], "accuracy") is None


def test_the_sweeps_differ_from_table1_small_in_what_they_say():
    recipe = yaml.safe_load((publish.ROOT / "src/pushsum/recipes/table1-small.yaml").read_text())
    allowed = {
        "again": {"evaluation"},
        "centralized": {"topology"},
        "iid": {"epochs", "evaluation", "split", "topology"},
        "longer": {"epochs", "evaluation"},
        "published": {"topology"},
        "quickdraw": {"data", "epochs", "evaluation"},
        "faults": {"epochs", "evaluation"},
        "methods": {"data", "epochs", "evaluation"},
    }
    for file in (HERE / "sweeps").glob("*.yaml"):
        if file.stem.startswith("finetune-"):  # another experiment
            continue
        found = yaml.safe_load(file.read_text())
        keys = {k for k in recipe.keys() | found.keys() if recipe.get(k) != found.get(k)}
        assert keys - {"sweep"} == allowed.get(file.stem, set()), file.name
        seeds = found["sweep"].get("grid", {}).get("seed")
        others = {"again": [1], "fresh": [3, 4, 5, 6, 7], "methods": [3, 0, 1, 2]}
        assert seeds == others.get(file.stem, [0, 1, 2])


def test_the_fine_tuning_sweeps_are_table1_published_with_weights_and_tests_after_an_epoch():
    recipe = yaml.safe_load(
        (publish.ROOT / "src/pushsum/recipes/table1-published.yaml").read_text()
    )
    allowed = {"epochs", "data.name", "model.name", "model.pretrained", "algorithm.lr"}
    allowed |= {"evaluation.nodes", "published.test_before"}
    constant = {f"algorithm.schedule.{key}" for key in ("kind", "milestones", "factor")}
    constant |= {"published.restart"}
    theirs = flat({key: value for key, value in recipe.items() if key != "sweep"})
    for file in (HERE / "sweeps").glob("finetune-*.yaml"):
        found = yaml.safe_load(file.read_text())
        ours = flat({key: value for key, value in found.items() if key != "sweep"})
        keys = {k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k)}
        assert keys == (allowed if file.stem == "finetune-end" else allowed | constant), file.name


def test_every_switch_is_run_and_shown():
    cells = sweep.read(str(HERE / "sweeps" / "published.yaml"), [])
    configs = (flat(cell.config.model_dump(mode="json")) for cell in cells)
    assert {collect.changed(config) for config in configs} == set(SWITCHES)


def test_what_was_given_is_told_apart_by_halves():
    W = [[0.5, 0.2, 0, 0], [0.25, 0.8, 0, 0], [0.25, 0, 1, 0.4], [0, 0, 0, 0.6]]
    assert collect._given(W) == {"given within": 0.65, "given across": 0.75}


def test_the_ranking_is_by_the_mean_of_the_topologies():
    found = [
        run(s, a, topology=t, algorithm=name, weighting=rule)
        for t in ("divide", "exponential", "random")
        for s in (0, 1)
        for name, rule, a in (("SGP", "uniform", 0.5), ("MSGAP", MOREAU, 0.6))
    ]
    rows = TEXTS["start"](found).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["MSGAP", "SGP"]
    assert "| 50.00 |" in rows[1]
    assert "**-10.00 ± 0.00** (2 seeds)" in rows[1]


def test_the_cost_counts_the_fastest_of_a_kind():
    found = [replace(run(s, 0.5), values={"seconds": str(x)}) for s, x in ((0, 7200), (1, 3600))]
    assert TEXTS["cost"](found).splitlines()[-1] == "| all | 2 | 3.0 | 2.0 |"


def test_what_a_page_asks_for_must_exist():
    with pytest.raises(ValueError, match="study nonsense: choose from"):
        publish.filled("<!-- study nonsense -->?<!-- end -->", FOUND)


def test_a_text_may_have_arguments():
    found = [run(s, a) for s, a in ((0, 0.5), (1, 0.6))]
    found += [run(s, a, algorithm="SGAP", weighting=MOREAU) for s, a in ((0, 0.52), (1, 0.63))]
    text = publish.filled("by <!-- study gap:SGAP:SGP:full -->?<!-- end -->.", found)
    assert text == "by <!-- study gap:SGAP:SGP:full -->+2.50 ± 6.35 (2 seeds)<!-- end -->."
    assert publish.filled("<!-- study gap:SGAP:SGP:random -->?<!-- end -->", found).count("–") == 1


def test_text_is_put_within_a_line_or_around_a_block():
    found = [run(0, 0.5)]
    assert publish.filled("<!-- study order -->?<!-- end -->", found).split() == [
        "<!--", "study", "order", "-->0", "of", "0<!--", "end", "-->",
    ]  # fmt: skip
    block = publish.filled("<!-- study table1 -->\n<!-- end -->", found)
    assert "\n\n| accuracy, % | Full |" in block
    assert publish.filled(block, found) == block


def under_faults(seed, accuracy, changed="", **values):
    found = run(seed, accuracy, topology="random", changed=changed)
    more = {"modelled compute": "10", "modelled transfer": "1", "steps": "100", "run": "faults/x"}
    return replace(found, sweep="faults", values={**found.values, **more, **values})


def test_runs_under_faults_are_told_apart_and_paired():
    slow = "faults.catch_up=5 faults.straggler.3=5.0"
    none = "faults.loss=0.3 faults.accounting=none faults.hold=0.0"
    found = [
        r
        for seed in (0, 1)
        for r in (
            under_faults(seed, 0.5),
            under_faults(seed, 0.48 + seed / 100, "faults.loss=0.3"),
            under_faults(seed, 0.47, f"faults.crash=2@300-500 {slow}"),
            under_faults(seed, 0.49, slow),
            under_faults(seed, 0.1, none, diverged=str(60 + seed)),
        )
    ]
    rows = TEXTS["faults"](found, "random").splitlines()[2:]
    assert rows[0].startswith("| SGP | 50.00 ± 0.00 (2 seeds) | 48.50 ± 0.71 (2 seeds) | – | – |")
    assert "| – | diverged, by step 61 | – | – |" in rows[5]
    time = TEXTS["faults-straggler"](found)
    assert "| SGP, waits | 51 | – | 50.00" in time
    assert "| asynchronous push | 11 | – | 49.00 ± 0.00 (2 seeds) | **-1.00" in time
    assert TEXTS["planned"](found, "faults") == "planned 120, run 10, 2 of which diverged"
    for name, *arguments in (("faults", "random"), ("faults-answers",), ("faults-straggler",)):
        assert TEXTS[name]([], *arguments).count("–") > 6


def test_every_claim_of_the_plan_of_faults_is_answered(monkeypatch):
    slow = "faults.catch_up=5 faults.straggler.3=5.0"
    none = "faults.loss=0.6 faults.accounting=none faults.hold=0.0"
    found, curves = [], []
    for (seed, luck), where in product(enumerate((0.0, 0.002, 0.001)), ("exponential", "random")):
        name = f"faults/sgp_{where}_{seed}"
        curves += [
            {"run": name, "step": str(step), "accuracy": str(0.2 + step / 1000 + luck)}
            for step in (0, 25, 50, 75, 100)
        ]
        here = [
            under_faults(seed, 0.5, run=name),
            under_faults(seed, 0.499 + luck, "faults.loss=0.3"),
            under_faults(seed, 0.45 + luck, "faults.loss=0.6"),
            under_faults(seed, 0.47 + 10 * luck, "faults.crash=2@300-500"),
            under_faults(seed, 0.49, slow),
            under_faults(seed, 0.1, none, diverged=str(60 + seed)),
        ]
        found += [replace(made, topology=where) for made in here]
    monkeypatch.setattr(faults, "read", lambda name: curves)
    answers = {
        line.split("|")[1].strip(): line.split("|")[4].strip()
        for line in TEXTS["faults-answers"](found).splitlines()
    }
    assert answers["SGP, 30 % lost: within 1 point of itself"] == "+0.00 ± 0.25: confirmed"
    assert answers["SGP, 60 % lost: within 2 points of itself"] == "**-4.90 ± 0.25**: refuted"
    assert answers["SGP, a crash: within 1 point of itself"] == "-2.00 ± 2.48: undecided"
    plain = answers["plain Push-SUM, 60 % lost: diverges, or ends 5 points behind SGP"]
    assert plain == "all diverged: confirmed"
    waiting = answers["SGP that waits, when asynchronous push ends: 5 points behind it"]
    assert waiting == "**-26.40 ± 0.25**: confirmed"  # 22.6 after a quarter of the steps, and 49
    sooner = answers["asynchronous push: 4 times sooner than SGP that waits"]
    assert sooner == "4.6 times: confirmed"
    rows = TEXTS["faults-verdict"](found).splitlines()
    assert rows[2] == "| Loss | 1 | 1 | 0 | 6 |"
    assert rows[5] == "| Straggler | 3 | 0 | 0 | 1 |"
    some = TEXTS["faults-answers"]([made for made in found if made.topology == "random"])
    assert "| – | +0.00 ± 0.25: confirmed | – |" in some


def on_images(seed, algorithm, accuracies, vectors=1, changed="", **values):
    """A run of the study of methods with a record every 100 steps, and its curve."""
    name = f"methods/{algorithm}{changed}_{seed}"
    curve = [
        {
            "run": name,
            "step": str(100 * k),
            "gigabytes": str(vectors * k / 10),
            "transfer": str(vectors * k / 100),
            "accuracy": str(accuracy),
        }
        for k, accuracy in enumerate(accuracies)
    ]
    last = {key: curve[-1][key] for key in ("run", "gigabytes", "accuracy")}
    more = {"steps": curve[-1]["step"], "modelled compute": str((len(curve) - 1) * 10.0)}
    more |= {"modelled transfer": curve[-1]["transfer"], "algorithm.lr": "0.1"}
    more |= {"tried": "0.05:0.3 0.1:0.4 0.5:nan"}
    found = run(seed, 0.0, topology="divide", algorithm=algorithm, changed=changed)
    return replace(found, sweep="methods", values={**last, **more, **values}), curve


def test_methods_are_compared_at_equal_steps_and_at_equal_bytes(monkeypatch):
    made = []
    for seed, luck in ((3, 0.0), (0, 0.0), (1, 0.01)):
        made.append(on_images(seed, "SGP", (0.1, 0.3, 0.40 + luck)))
        made.append(on_images(seed, "Push-DIGing", (0.1, 0.35, 0.45 + luck), vectors=2))
        every_4 = (0.1, 0.25, 0.395 + luck)
        made.append(on_images(seed, "MSGP", every_4, 0.25, "algorithm.every=4"))
        made.append(on_images(seed, "MSGP", (0.1, 0.3, 0.41 + luck)))
    made.append(on_images(0, "QGM", (0.1, 0.2), diverged="150", accuracy=""))
    made += [on_images(seed, "QGM", (0.1, 0.2, 0.5 + seed / 200)) for seed in (1, 2)]
    found = [ended for ended, _ in made]
    curves = [row for _, curve in made for row in curve]
    monkeypatch.setattr(methods, "read", lambda name: curves)
    rows = TEXTS["methods"](found, "divide").splitlines()[2:]
    assert rows[0] == "| SGP | 0.1 | 40.50 ± 0.71 (2 seeds) |  | 0.200 | 20.0 | 0.02 |"
    assert "| 45.50 ± 0.71 (2 seeds) | **+5.00 ± 0.00** (2 seeds) | 0.400" in rows[5]
    # the survivor is 10 points ahead, which is no success of a method that diverged
    assert rows[7].startswith("| QGM | 0.1 | 50.75 ± 0.35 (2 seeds) | 1 of QGM diverged | 0.200 |")
    each = TEXTS["methods-runs"](found).splitlines()
    assert each[2] == "| SGP | 40.00 | 41.00 | – | 40.00 | – | – | – | – |"
    assert each[9] == "| QGM | diverged, by step 150 | 50.50 | 51.00 | – | – | – | – | – |"

    def column(name, k):
        lines = TEXTS[name](found).splitlines()[2:]
        return {line.split("|")[1].strip(): line.split("|")[k].strip() for line in lines}

    answers = column("methods-differences", 2)
    assert answers["Push-DIGing − SGP, equal steps: ahead?"] == "**+5.00 ± 0.00** (2 seeds), yes"
    late = answers["Push-DIGing − SGP, equal gigabytes: ahead?"]  # 35 against 40 and 41
    assert late == "-5.50 ± 6.35 (2 seeds), undecided"
    seldom = answers["MSGP, every 4 − MSGP, equal gigabytes: ahead?"]  # 39.5, 40.5 against 30
    assert seldom.startswith("**+10.00 ± 6.35**")
    assert seldom.endswith("yes")
    cost = answers["MSGP, every 4 − MSGP, equal steps: less than 1 point behind?"]
    assert cost == "**-1.50 ± 0.00** (2 seeds), no"
    assert answers["QGM − SGP, equal steps: ahead?"] == "1 of QGM diverged, no"
    assert column("methods-findings", 2) == {
        "gradient tracking": "yes",  # one of three is ahead, whatever the others are
        "gradient tracking, for its bytes": "–",
        "momentum": "yes",
        "exchanging less often": "–",  # not with 4; with 16 there is no run
        "overlap": "–",
    }
    both = column("methods-differences", 4)  # of which there is one
    assert not any("seeds" in answer for answer in both.values())
    tried = TEXTS["methods-rates"](found, "divide").splitlines()
    assert tried[2] == "| SGP | – | 30.00 | **40.00** | – | diverged |  |"
    steps, percent = {name: line for name, *line in methods.lines(found, "divide", "steps")}["SGP"]
    assert (steps, percent) == ([0, 100, 200], pytest.approx([10, 30, 40.5]))
    assert list(methods.lines([], "divide", "steps")) == []
    stuck = [on_images(seed, "SGP", (0.1,), diverged="9", accuracy="")[0] for seed in (0, 1)]
    others = [made for made in found if made.algorithm != "SGP"]
    answers = TEXTS["methods-differences"](others + stuck).splitlines()
    assert answers[3].startswith(
        "| Push-DIGing − SGP, equal steps: ahead? | 2 of SGP diverged, yes"
    )


# --------------------------------------------------------------------------- what is run


def test_every_sweep_is_run_and_every_row_is_of_a_cell():
    files = {file.stem for file in (HERE / "sweeps").glob("*.yaml")}
    assert sorted(running.SWEEPS) == sorted(files | {"table1"})
    cells = {f"{name}/{cell.name}" for name in running.SWEEPS for cell in running.cells(name)}
    assert {row["run"] for row in collect.read("runs")} <= cells


def test_what_has_been_measured_is_not_missing():
    later = {name for name in running.SWEEPS if name.startswith("finetune-")} | {
        "fresh",
        "faults",
        "methods",
    }
    assert {name: running.missing(name) for name in running.SWEEPS if name not in later} == {
        name: [] for name in running.SWEEPS if name not in later
    }
    for cell in running.missing("fresh"):  # what the first confirmation left out
        moreau = ("random", "moreau:k=1,v=0.1")
        place = cell.config.topology.name, cell.config.algorithm.weighting
        assert cell.config.seed in (6, 7) or place == moreau, cell.name


@pytest.fixture
def small_study(tmp_path, monkeypatch):
    """Two sweeps of three and one cells, one of which has its row."""
    plan = {"epochs": 1, "steps": 1, "sweep": {"grid": {"seed": [0, 1, 2]}}}
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "seeds.yaml").write_text(yaml.safe_dump(plan))
    (tmp_path / "sweeps" / "alone.yaml").write_text(yaml.safe_dump({**plan, "sweep": {}}))
    (tmp_path / "runs.csv").write_text("run,accuracy\nseeds/1,0.5\nseeds/7,0.5\n")
    monkeypatch.setattr(running, "HERE", tmp_path)
    monkeypatch.setattr(running, "SWEEPS", ("seeds", "alone"))
    monkeypatch.setattr(collect, "RESULTS", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_missing_cells_are_listed(small_study, capsys):
    running.main(["--dry-run"])
    assert capsys.readouterr().out.split("\n")[:-1] == [
        "seeds/0",
        "seeds/2",
        "alone/run",
        "3 cells",
    ]
    running.main(["--dry-run", "alone"])
    assert capsys.readouterr().out == "alone/run\n1 cell\n"
    running.main(["--dry-run", "*/2", "seeds"])
    assert capsys.readouterr().out == "seeds/2\nseeds/0\n2 cells\n"
    assert not (small_study / "runs").exists()


@pytest.mark.parametrize("words", [["seed"], ["--jobs", "0"]])
def test_words_that_are_refused(words, small_study, capsys):
    with pytest.raises(SystemExit):
        running.main(words)
    assert re.search("unknown sweep 'seed'|--jobs 0: at least one", capsys.readouterr().err)


def test_the_missing_cells_are_run_and_collected_and_then_not_missing(small_study, capsys):
    running.main([])
    ended = [line for line in capsys.readouterr().out.splitlines() if not line.endswith("started")]
    assert ended == ["seeds/0: finished", "seeds/2: finished", "alone/run: finished"]
    assert sorted(path.name for path in Path("runs/study/seeds").iterdir()) == ["0", "2"]
    running.main([])  # what is on disk but not yet collected
    assert "alone/run: skipped" in capsys.readouterr().out
    collect.main(Path("runs/study"))
    rows = {row["run"]: row["accuracy"] for row in collect.read("runs")}
    assert sorted(rows) == ["alone/run", "seeds/0", "seeds/1", "seeds/2", "seeds/7"]
    assert rows["seeds/1"] == "0.5"
    capsys.readouterr()
    running.main(["--dry-run"])
    assert capsys.readouterr().out == "0 cells\n"


def test_cells_that_fail_do_not_stop_the_others(small_study, monkeypatch, capsys):
    plan = small_study / "sweeps" / "seeds.yaml"
    plan.write_text(plan.read_text() + "model: {name: cnn, pretrained: resnet.safetensors}\n")
    prepared = []
    monkeypatch.setattr(running.pretrained, "main", prepared.append)
    with pytest.raises(SystemExit, match="not finished: seeds/0, seeds/2"):
        running.main([])
    assert prepared == [small_study / "resnet.safetensors"]
    assert "alone/run: finished" in capsys.readouterr().out


def test_without_runs_the_results_stay_as_they_are(small_study, monkeypatch, capsys):
    before = (small_study / "runs.csv").read_text()
    (small_study / "curves.csv").write_text("run,step\nseeds/1,1\n")
    collect.main(Path("runs/study"))
    assert (small_study / "runs.csv").read_text() == before
    assert (small_study / "curves.csv").read_text() == "run,step\nseeds/1,1\n"


def test_the_example_of_a_report_can_be_made_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report.main(["epochs=1", "steps=1", "topology.name=full", "seed=0,1"], tmp_path / "page.html")
    assert capsys.readouterr().out.count("finished") == 10
    assert "MSGAP" in (tmp_path / "page.html").read_text()
