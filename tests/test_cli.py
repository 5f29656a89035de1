"""The command line as a user meets it: words, numbers, exit codes, and never a traceback."""

import json
import os
import re
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from xml.etree import ElementTree

import pytest
import typer

from pushsum import __version__, cli


def lines_of(text: str) -> dict[str, str]:
    """'period B   3   any ...' -> {'period B': '3', ...}"""
    rows = [
        [part.strip() for part in line.split("  ") if part.strip()] for line in text.split("\n")
    ]
    return {row[0]: row[1] for row in rows if len(row) >= 2}


def test_help_imports_nothing_that_takes_long():
    command = [sys.executable, "-X", "importtime", "-m", "pushsum", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "topology" in answer.stdout
    assert "demo" in answer.stdout
    imported = set(re.findall(r"\| +(\w+)", answer.stderr))
    assert "typer" in imported
    assert imported.isdisjoint({"torch", "numpy", "pydantic", "rich", "yaml"})


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

_, wanted, *words = sys.argv
sys.argv[1:] = words
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
sys.meta_path.insert(0, Interrupt())
from pushsum.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("importing", "words"),
    [("typer", ["--help"]), ("torch", ["run", "--into", "never"]), ("pydantic", ["run", "a=1"])],
)
def test_an_interrupt_at_the_start_is_one_line(importing, words, tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, importing, *words]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (130, "pushsum: interrupted\n")


def test_topology_help_lists_every_name(pushsum):
    from pushsum.topology import MAKERS

    _, out, _ = pushsum("topology", "--help")
    assert all(name in out for name in MAKERS)


def test_topology_prints_the_certificate_and_draws(pushsum):
    code, out, err = pushsum("topology", "exponential", "--nodes", "6", "-w", "moreau:k=0.1,v=0.1")
    assert (code, err) == (0, "")
    rows = lines_of(out)
    assert rows["period B"] == "3"
    assert rows["diameter Delta"] == "2"
    assert rows["horizon H"] == "3"
    assert rows["out-degree K"] == "2"
    assert rows["delta"] == "0.0409091"
    assert rows["lambda"] == "1 - 2.3e-05"
    assert rows["C"] == "5.8e+04"
    assert "8.5e+08" in out  # the paper's C with Delta * B = 6
    assert "0 ╲ ● · · · ·   0 ╲ · ● · · ·   0 ╲ · · · ● ·" in out


@pytest.mark.parametrize("name", ["edges.csv", "mine.py:graphs"])
def test_a_topology_of_ones_own_in_every_command(name, pushsum, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n2,0\n0,2\n")
    (tmp_path / "mine.py").write_text(
        "from pushsum.topology import from_edges\n"
        "def graphs(n):\n    return from_edges(n, [(0, 1), (1, 2), (2, 0), (0, 2)])\n"
    )
    code, out, err = pushsum("topology", name, "-n", "3", "--json", "--plot", "drawn.svg")
    assert (code, err) == (0, "")
    assert json.loads(out)["horizon"] == 2
    assert ElementTree.parse(tmp_path / "drawn.svg").getroot().tag.endswith("svg")
    few = (f"topology.name={name}", "topology.nodes=3", "steps=2", "model.hidden=[2]")
    assert pushsum("run", *few, "--into", "runs/one")[0] == 0
    assert json.loads((tmp_path / "runs/one/meta.json").read_text())["certificate"]["horizon"] == 2
    assert pushsum("sweep", *few, "seed=0,1", "--into", "runs/many")[0] == 0
    assert pushsum("report", "runs", "--into", "report")[0] == 0
    assert f",{name}," in (tmp_path / "report/table.csv").read_text()


@pytest.mark.parametrize(
    ("name", "nodes", "numbers"),
    [
        ("full", 6, (1, 1, 1)),
        ("divide", 6, (1, 3, 3)),
        ("exponential", 6, (3, 2, 3)),
        ("random", 6, (8, 1, 8)),
        ("ring", 7, (1, 6, 6)),
        ("full", 1, (1, 0, 1)),
    ],
)
def test_topology_json(pushsum, name, nodes, numbers):
    code, out, _ = pushsum("topology", name, "--nodes", str(nodes), "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["period"], answer["diameter"], answer["horizon"]) == numbers
    assert answer["nodes"] == nodes
    assert answer["published"]["exponent"] == max(1, numbers[0] * numbers[1])


def test_constants_beyond_a_float_are_valid_json(pushsum):
    _, out, _ = pushsum("topology", "ring", "-n", "500", "-w", "moreau:k=1,v=0.1", "--json")
    answer = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert answer["C"] is None
    assert answer["log10_C"] == pytest.approx(693.3, abs=0.1)
    _, text, _ = pushsum("topology", "ring", "-n", "500", "-w", "moreau:k=1,v=0.1")
    assert lines_of(text)["C"] == "10^693"


def test_the_options_of_random_reach_it(pushsum):
    _, out, _ = pushsum("topology", "random", "--period", "3", "--inner", "1", "--json")
    assert json.loads(out)["period"] == 3
    assert json.loads(out)["out_degree"] == {"smallest": 3, "largest": 6}


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_topology_plot(pushsum, tmp_path, suffix):
    target = tmp_path / f"graphs.{suffix}"
    code, out, _ = pushsum("topology", "divide", "--plot", str(target))
    assert code == 0
    assert str(target) in out.replace("\n", "")
    if suffix == "svg":
        assert ElementTree.fromstring(target.read_text()).tag.endswith("svg")
    else:
        assert target.read_bytes().startswith(b"\x89PNG")


def test_demo_tells_the_same_story_as_its_json(pushsum, tmp_path):
    target = tmp_path / "distances.svg"
    quick = ("demo", "--no-training", "--steps", "40", "--plot", str(target))
    code, out, _ = pushsum(*quick, "--json")
    outcomes = json.loads(out)["quadratic"]
    assert code == 0
    assert len(outcomes) == 4 * 6
    assert {o["algorithm"] for o in outcomes} == {
        "consensus", "SGP", "MSGP", "SGAP", "MSGAP", "S-ADDOPT"
    }  # fmt: skip
    assert all(o["violations"] == 0 for o in outcomes)
    full = {o["algorithm"]: o for o in outcomes if o["topology"] == "Full"}
    assert full["SGP"]["distance"] < 1e-12 < full["SGAP"]["distance"]
    assert full["S-ADDOPT"]["log10_bound"] is None
    words = "".join(ElementTree.fromstring(target.read_text()).itertext())
    assert "Theorem 1 for SGAP" in words
    code, out, _ = pushsum(*quick)
    assert code == 0
    assert "held in 800 of 800 steps" in " ".join(out.split())
    assert f"{full['SGAP']['gap']:.1e}" in out


def test_demo_trains_and_reports(pushsum, tmp_path):
    into = tmp_path / "demo"
    code, out, _ = pushsum("demo", "--steps", "3", "--epochs", "2", "--into", str(into), "--json")
    cells = json.loads(out)["digits"]
    assert code == 0
    assert len(cells) == 20
    assert all(cell["accuracy"] > 0.3 for cell in cells)
    assert (into / "distances.svg").exists()
    page = (into / "report.html").read_text()
    best = max(cell["accuracy"] for cell in cells)
    assert f"{100 * best:.2f}" in page
    code, out, _ = pushsum("demo", "--steps", "3", "--epochs", "2", "--into", str(into))  # skips
    assert code == 0
    assert f"{100 * best:.1f}" in out
    assert {(c["algorithm"], c["weighting"], c["lr"]) for c in cells} == {
        ("SGP", "uniform", 0.25),
        ("MSGP", "uniform", 0.05),
        ("SGAP", "moreau(k=1, v=0.1)", 0.25),
        ("MSGAP", "moreau(k=1, v=0.1)", 0.05),
        ("S-ADDOPT", "uniform", 0.1),
    }
    assert "report.html" in out


def test_version(pushsum):
    assert pushsum("--version") == (0, f"pushsum {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topology", "foo"], "unknown topology 'foo': choose from full, divide, exponential, "
                              "random, ring"),
        (["topology", "exp"], "unknown topology 'exp' (did you mean exponential?)"),
        (["topology", "ring", "--nodes", "0"], "n = 0: the number of nodes is an integer >= 1"),
        (["topology", "ring", "--nodes", "-3"], "n = -3: the number of nodes"),
        (["topology", "ring", "--nodes", "2.5"], "'--nodes' / '-n': '2.5' is not an integer"),
        (["topology", "random", "--inner", "2"], "inner = 2.0: a probability lies in [0, 1]"),
        (["topology", "random", "--inner", "x"], "'--inner': 'x' is not a number"),
        (["topology", "random", "--seed", "-1"], "seed = -1: a seed is an integer >= 0"),
        (["topology", "full", "-w", "moreau:k=0,v=0.1"], "k = 0.0: this weighting needs"),
        (["topology", "full", "-w", "moreau:k=nan,v=0.1"], "k = nan: this weighting needs"),
        (["topology", "full", "-w", "moreau:k=1,v=1"], "v = 1.0: this weighting needs 0 < v < 1"),
        (["topology", "full", "-w", "moreau:k=1"], "write moreau:k=0.1,v=0.1"),
        (["topology", "full", "-w", "lazy:k=1"], "lazy takes c: write lazy:c=0.1"),
        (["topology", "full", "-w", "lazy:c=x"], "c needs a number, not 'x'"),
        (["topology", "full", "-w", "moro"], "unknown weighting 'moro' (did you mean moreau?)"),
        (["topology", "full", "--plot", "a.gif"], "'a.gif': a picture is a .svg or a .png file"),
        (["topology", "full", "--plot", "no/where.svg"], "there is no directory 'no'"),
        (["topology", "divide", "-n", "10000000"], "n = 10000000: at most 20000 nodes"),
        (["topology", "full", "-n", str(10**30)], "at most 20000 nodes"),
        (["topology", "random", "--period", str(10**23)], "at most 1000000000 steps"),
        (["topology", "ring", "--inner", "0.5"], "--inner belongs to random, not to ring"),
        (["topology"], "Missing argument 'NAME'. Choose from full, divide, exponential, random, r"),
        (["topology", "ring", "3"], "(3): did you mean --nodes 3?"),
        (["topology", "ring", "3", "4"], "(3 4)\n"),
        (["run", "epochs", "3"], "epochs: did you mean epochs=3?"),
        (["run", "seed=1", "lr", "0.1"], "lr: did you mean algorithm.lr=0.1?"),
        (["run", __file__, "epochs", "3"], "epochs: did you mean epochs=3?"),
        (["sweep", "epochs", "seed=1,2"], "epochs: did you mean epochs=VALUE?"),
        (["run", "seed=0,1", "--dry-run"], "seed = '0,1': a run has one value; lists are for push"),
        (["report", __file__], "test_cli.py: this is a file; give a run's directory, or one with"),
        (["evaluate", __file__], "test_cli.py: this is a file; give a run's directory, or one"),
        (["topology", "full", "--bogus"], "No such option: --bogus"),
        (["run", "--epochs", "3"], "--epochs: keys of the configuration are written without "),
        (["demo", "--epochs"], "Option '--epochs' requires an argument."),
        (["demo", "--steps", "0"], "--steps 0: at least one step is needed"),
        (["demo", "--plot", "a.gif"], "'a.gif': a picture is a .svg or a .png file"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(pushsum, arguments, message):
    code, out, err = pushsum(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("pushsum: ")
    assert err.count("\n") == 1


def test_a_full_disk_leaves_no_half_written_picture(pushsum, tmp_path, monkeypatch):
    target = tmp_path / "graphs.svg"
    target.write_text("the old picture")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pushsum.files.os.fsync", full)
    code, _, err = pushsum("topology", "full", "--plot", str(target))
    assert code == 2
    assert "No space left on device" in err
    assert target.read_text() == "the old picture"
    assert os.listdir(tmp_path) == ["graphs.svg"]


def test_plain_pushsum_prints_its_help(pushsum):
    code, out, err = pushsum()
    assert code == 2
    assert "Usage: pushsum" in out
    assert err == ""


@pytest.mark.parametrize(("typed", "meant"), [("s", "sweep"), ("sweep --tu", "--tune")])
def test_shells_complete_commands_and_options(typed, meant):
    words = {"COMP_WORDS": f"pushsum {typed}", "COMP_CWORD": str(len(typed.split()))}
    answer = subprocess.run(
        [sys.executable, "-m", "pushsum"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | words | {"_PUSHSUM_COMPLETE": "complete_bash"},
    )
    assert answer.stdout.split() == [meant]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_gets_something(pushsum, encoding, monkeypatch):
    written = BytesIO()
    with TextIOWrapper(written, encoding=encoding) as terminal, monkeypatch.context() as here:
        here.setattr(sys, "stdout", terminal)
        code, _, err = pushsum("topology", "ring")
        terminal.flush()
        assert b"horizon H" in written.getvalue()
    assert (code, err) == (0, "")


def test_a_narrow_terminal_loses_no_digits(pushsum, tmp_path):
    plot = ["--plot", str(tmp_path / "a.svg")]
    code, out, _ = pushsum("demo", "--no-training", "--steps", "3", *plot, columns=40)
    assert code == 0
    assert "…" not in out


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m pushsum topology random | head -1"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert answer.stderr == ""


TINY = ["steps=2", "model.hidden=[4]", "gradients=loop"]


def test_tensorboard_gets_the_records(pushsum, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, _, _ = pushsum("run", *TINY, "--into", str(tmp_path / "run"), "--tensorboard")
    assert code == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    (_, final) = events.Scalars("test/accuracy")
    assert final.step == 2
    assert final.value == pytest.approx(last["test"]["accuracy"])
    assert "nodes/accuracy/min" in events.Tags()["scalars"]


def test_tensorboard_touches_no_run_of_another_and_forgets_what_is_run_again(pushsum, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    into = ["--into", str(tmp_path), "--tensorboard"]
    assert pushsum("run", *TINY, "--into", str(tmp_path))[0] == 0
    assert pushsum("run", *TINY, *into)[0] == 2
    assert not (tmp_path / "tensorboard").exists()
    for _ in range(2):  # from step 0, twice: what came after it is told again
        assert pushsum("run", "--resume", "--from-step", "0", *into)[0] == 0
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("test/accuracy")] == [2]


def test_run_prints_its_records_as_json(pushsum, tmp_path):
    code, out, err = pushsum("run", *TINY, "--into", str(tmp_path), "--json")
    assert code == 0
    assert out == (tmp_path / "records.jsonl").read_text()
    assert "accuracy" in err
    plan = json.loads(pushsum("run", *TINY, "--dry-run", "--json")[1])
    assert (plan["steps"], plan["config"]["steps"]) == (2, 2)


def test_sweep_plans_trials_as_text_and_as_json(pushsum):
    words = ["sweep", "algorithm.name=SGP,MSGP", "--tune", "algorithm.lr=0.1,1", "--dry-run"]
    assert pushsum(*words)[1] == "SGP\nMSGP\n2 cells, after 4 trials\n"
    found = json.loads(pushsum(*words, "--json")[1])
    assert [cell["name"] for cell in found] == [
        "SGP_0.1", "SGP_1", "MSGP_0.1", "MSGP_1", "SGP", "MSGP"
    ]  # fmt: skip
    assert found[1]["config"]["algorithm"]["lr"] == 1
    assert found[-1]["tune"] == {"algorithm.lr": [0.1, 1]}


def test_a_sweep_tells_what_was_chosen(pushsum, tmp_path):
    words = [*TINY, "algorithm.name=SGP,MSGP", "--into", str(tmp_path)]
    code, out, err = pushsum("sweep", *words, "--tune", "algorithm.lr=0.01,0.1")
    assert code == 0
    chosen = json.loads((tmp_path / "MSGP" / "meta.json").read_text())["tune"]["chosen"]
    assert f"MSGP: algorithm.lr={chosen} (validation 0.01: 0." in out
    assert "the best value lies at the end of what was tried" in err
    assert "share algorithm.lr" not in err


def test_a_shell_completes_commands():
    asked = {"_PUSHSUM_COMPLETE": "complete_bash", "COMP_WORDS": "pushsum sw", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "pushsum"]
    answer = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["sweep"]


def test_a_loss_that_is_large_is_short():
    assert [cli.common.decimal(loss) for loss in (2.30258, 1.2345e31)] == ["2.3026", "1.2e31"]


def test_a_finished_run_can_be_made_longer_and_nothing_else(pushsum, tmp_path):
    into = ["--into", str(tmp_path)]
    assert pushsum("run", *TINY, *into)[0] == 0
    code, out, _ = pushsum("run", "--resume", *into)
    assert (code, out.split(" accuracy")[0]) == (0, f"{tmp_path}: had finished already:")
    assert pushsum("run", "--resume", "steps=3", *into)[0] == 0
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [0, 2, 3]
    code, _, err = pushsum("run", "--resume", "steps=4", "batch=3", *into)
    assert code == 2
    assert "leave the others out (only epochs and steps may change)" in err


def test_weights_that_cannot_do_what_they_are_for_are_pointed_out(pushsum):
    odd = {
        (
            "algorithm.name=SGAP",
            "algorithm.weighting=moreau:k=0.1,v=0.1",
            "topology.name=ring",
        ): "moreau(k=0.1, v=0.1) on ring(6): 100 % of the links are one-way",
        (
            "algorithm.name=SGAP",
            "algorithm.weighting=far-first",
        ): "on exponential(6): every node has one receiver at a time",
        ("algorithm.name=SGP", "algorithm.weighting=lazy:c=0.5"): "has no effect with SGP",
        ("algorithm.name=SGAP", "topology.name=divide"): "",
        ("topology.name=ring",): "",
    }
    for words, warning in odd.items():
        code, _, err = pushsum("run", "--dry-run", *words)
        assert code == 0
        assert warning in err if warning else not err
    assert "note: moreau" in pushsum("topology", "ring", "-w", "moreau(k=1, v=0.1)")[1]


def test_a_cell_that_cannot_be_built_does_not_keep_the_others_from_running(pushsum, tmp_path):
    weightings = "algorithm.weighting=lazy(c=0.5),lazy(c=2)"
    code, out, err = pushsum("sweep", *TINY, weightings, "seed=0,1", "--into", str(tmp_path))
    assert code == 2
    assert "not finished: lazy-c=2-_0, lazy-c=2-_1" in err
    assert "lazy-c=2-_1: failed like lazy-c=2-_0" in out + err  # what is wrong is said once
    finished = sorted(path.parent.name for path in tmp_path.glob("*/records.jsonl"))
    assert finished == ["lazy-c=0.5-_0", "lazy-c=0.5-_1"]


def test_progress_without_a_terminal_is_lines_with_the_time_left(pushsum, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.common, "EVERY", 0)
    for command, where in (("run", ""), ("sweep", "run: ")):
        _, _, err = pushsum(command, *TINY, "--into", str(tmp_path / command), columns=40)
        line = rf"^{where}step 1/2  \d:\d\d:\d\d left$"
        assert re.search(line, err, flags=re.MULTILINE)
    records = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert len(records) == 2


def test_every_key_is_listed_with_its_default_and_its_meaning(pushsum):
    from pushsum.config import valid_keys

    code, out, _ = pushsum("run", "--keys")
    assert code == 0
    begun = [line for line in out.splitlines()[1:] if line[:1].strip()]  # others go on
    rows = [line.split(maxsplit=2) for line in begun]
    assert all(len(row) == 3 for row in rows), "a key without a meaning"
    keys = [row[0] for row in rows]
    assert [key for key in valid_keys() if key in keys] == keys
    sections = {key.rpartition(".")[0] for key in keys} - {""}
    assert set(valid_keys()) - set(keys) == sections
    assert ["algorithm.lr", "0.05", "step size"] in rows


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("120", 120), ("20", 80)])
def test_what_is_no_terminal_gets_wrapped_keys_without_blanks(columns, width, monkeypatch, capsys):
    from pushsum.cli.run import _print_keys
    from pushsum.config import described

    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(typer.Exit):
        _print_keys(True)
    lines = capsys.readouterr().out.splitlines()
    assert width - 12 < max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
    words = {word for row in described() for word in " ".join(row).split()}
    shown = {word for line in lines[1:] for word in line.split()}
    assert shown <= words, "broken words"


def own_file(path, x):
    import numpy as np

    y = np.arange(len(x)) % 3
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return f"data.name={path}"


def test_a_dry_run_shows_the_data(pushsum, tmp_path):
    import numpy as np

    name = own_file(tmp_path / "colour.npz", np.zeros((300, 24, 24, 3), np.uint8))
    _, out, err = pushsum("run", "--dry-run", name)
    assert " data       colour.npz: 300 + 6 samples of 3x24x24, 3 classes\n" in out
    assert err == ""


def test_a_batch_that_no_node_can_fill_is_warned_of(pushsum, tmp_path):
    import numpy as np

    name = own_file(tmp_path / "few.npz", np.zeros((300, 3)))
    words = ["run", "--dry-run", name, "split.kind=iid", "topology.nodes=3"]
    assert pushsum(*words, "batch=100")[2] == ""
    assert pushsum(*words, "batch=101")[2] == (
        "pushsum: warning: batch = 101, but no node has more than 100 samples: every step takes "
        "all of them; choose a smaller one\n"
    )


def test_epochs_are_those_that_the_steps_make(pushsum, tmp_path):
    words = ["run", "model.hidden=[4]", "gradients=loop", "batch=100", "epochs=3"]  # 7 per epoch
    assert "steps      21 (3 epochs of 7)" in pushsum(*words, "--dry-run")[1]
    assert "steps      17 (2.43 epochs of 7)" in pushsum(*words, "steps=17", "--dry-run")[1]
    err = pushsum(*words, "steps=17", "--into", str(tmp_path / "a"))[2]
    assert "epoch 2/2.43 " in err
    assert "epoch 2.43/2.43 " in err


def test_many_labels_are_shown_in_ranges(pushsum, tmp_path):
    import numpy as np

    y = np.arange(300) % 100
    arrays = {"x_train": np.zeros((300, 3), np.float32), "y_train": y}
    arrays |= {"x_test": arrays["x_train"], "y_test": y}
    np.savez(tmp_path / "own.npz", **arrays)
    _, out, _ = pushsum("run", "--dry-run", f"data.name={tmp_path / 'own.npz'}")
    lines = [line.split() for line in out.splitlines()]
    heads = next(line for line in lines if line[:1] == ["node"])
    assert heads == ["node", *(f"{k}-{k + 9}" for k in range(0, 100, 10)), "all"]
    assert ["0", *["30"] * 5, *["·"] * 5, "150"] in lines


def test_recipes_are_named_where_they_are_looked_for(pushsum):
    from pushsum.sweep import recipes

    _, out, _ = pushsum("sweep", "--help")
    assert all(name in out for name in recipes())
    code, _, err = pushsum("run", "digits", "--dry-run")
    assert code == 2
    assert "it is a recipe: pushsum sweep digits --into runs/digits" in err
    assert "recipe" not in pushsum("run", "nowhere.yaml", "--dry-run")[2]


def test_a_file_of_a_cell_with_dials_in_its_name_is_a_file(pushsum, tmp_path):
    file = tmp_path / "SGAP_moreau-k=1,v=0.1" / "config.yaml"
    file.parent.mkdir()
    file.write_text('algorithm: {name: SGAP, weighting: "lazy:c=0.25"}\n')
    code, out, _ = pushsum("run", str(file), "--dry-run")
    assert code == 0
    assert "SGAP, lazy(c=0.25) weights" in out
    assert pushsum("sweep", str(file), "seed=0,1", "--dry-run")[1].splitlines()[-1] == "2 cells"


def test_published_runs_without_their_weights_are_warned_of(pushsum, tmp_path):
    words = ["model.name=resnet-small", "model.stem=imagenet", "model.fresh_last_layer=true"]
    small = ["model.width=2", "steps=1", "gradients=loop"]
    warning = "pushsum: warning: resnet-small starts from random numbers, where the published runs"
    assert warning in pushsum("run", "--dry-run", *words)[2]
    assert warning in pushsum("run", *words, *small, "--into", str(tmp_path / "a"))[2]
    err = pushsum("sweep", *words, *small, "seed=0,1", "--into", str(tmp_path / "b"))[2]
    assert err.count(warning) == 1
    assert "warning" not in pushsum("run", "--dry-run")[2]


def test_a_sweep_through_submitit(pushsum, tmp_path):
    """Without a cluster submitit runs the jobs here, in processes of their own."""
    words = ["sweep", *TINY, "seed=0,1", "--into", str(tmp_path), "--slurm", "timeout_min=5"]
    code, out, _ = pushsum(*words)
    assert code == 0
    assert "2 of 2 cells are finished" in out
    assert json.loads((tmp_path / "1" / "meta.json").read_text())["finished"]
    code, _, err = pushsum("sweep", *TINY, "--into", str(tmp_path / "b"), "--slurm", "nonsense")
    assert code == 2
    assert "write KEY=VALUE" in err
    code, _, err = pushsum("sweep", *TINY, "--into", str(tmp_path / "b"), "--slurm", "bogus=1")
    assert code == 2
    assert "--slurm: " in err


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("torch.utils.tensorboard", ["run", "--tensorboard"], "tensorboard"),
        ("wandb", ["run", "--log", "wandb"], "wandb"),
        ("mlflow", ["run", "--log", "mlflow"], "mlflow"),
        ("submitit", ["sweep", "--slurm", "timeout_min=5"], "slurm"),
    ],
)
def test_extras_are_installed_from_the_clone(module, words, extra, pushsum, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    code, _, err = pushsum(*words, *TINY, "--into", str(tmp_path / "a"))
    assert code == 2
    assert f"{extra} needs the extra: pip install -c constraints.txt '.[{extra}]'" in err


def test_run_and_sweep_by_hand(pushsum, tmp_path):
    code, out, err = pushsum("run", *TINY, "--into", str(tmp_path / "a"))
    assert code == 0
    assert "accuracy" in out
    assert "epoch 0/0.0909 " in err
    code, _, err = pushsum("run", *TINY, "--into", str(tmp_path / "a"))
    assert code == 2
    assert err.endswith(
        f"{tmp_path / 'a'} holds a run already: name another directory, or go on with: "
        f"pushsum run --resume --into {tmp_path / 'a'}\n"
    )
    code, _, err = pushsum("run", *TINY)
    assert code == 2
    assert "--into" in err
    code, out, _ = pushsum("run", "--dry-run", "topology.name=random")
    assert code == 0
    assert "random(6): B = 8, Delta = 1, H = 8" in out
    code, out, _ = pushsum("sweep", "digits", "--dry-run")
    assert code == 0
    assert out.endswith("20 cells\n")
    assert pushsum("sweep", *TINY, "--dry-run")[1] == "run\n1 cell\n"
    code, out, _ = pushsum("sweep", *TINY, "seed=0,1", "--jobs", "2", "--into", str(tmp_path / "s"))
    assert code == 0
    code, out, _ = pushsum("report", str(tmp_path / "s"))
    assert code == 0
    assert (tmp_path / "s" / "report.html").exists()
    code, out, err = pushsum("sweep", *TINY, "seed=0,1,2", "batch=7", "--into", str(tmp_path / "s"))
    assert (code, out) == (2, "")
    assert "holds 2 cells of another configuration (0 has batch = 32, here 7): name ano" in err
    assert err.count("\n") == 1


def test_data_list(pushsum):
    code, out, _ = pushsum("data", "list", "--json")
    names = [row["name"] for row in json.loads(out)]
    assert code == 0
    assert names == ["digits", "cifar10", "cifar100", "fashion-mnist", "quickdraw"]
    code, _, err = pushsum("data", "prepare", "cifar11")
    assert code == 2
    assert "cifar10" in err
