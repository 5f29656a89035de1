"""Models, losses and data of one's own: in runs that go on bit for bit, and by one call."""

import functools
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pushsum as ps
from pushsum import checkpoint, cli, config, data, training
from pushsum.engines.runtime import OneProcess, Stopped
from pushsum.experiment import Experiment
from tests.test_docs import blocks, run_command

FILE = """
import numpy as np, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, outputs, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(shape[0], width), nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(nn.functional.dropout(torch.relu(self.first(x)), 0.5, self.training))

def wants(shape, colour):
    return nn.Linear(3, 1)

def number():
    return 3

def broken(shape):
    return nn.Linear(7, 1)

def huber(outputs, targets):
    return nn.functional.huber_loss(outputs[:, 0], targets)

def likelihood(outputs, targets):
    mean, scale = outputs.unbind(1)
    return (scale + (targets - mean).square() / scale.exp()).mean()

def two(shape):
    return nn.Linear(shape[0], 2)

def rooms(nodes, seed):
    x = np.random.default_rng(seed).normal(size=(nodes * 20, 3))
    return x, x.sum(1), x[:9], x[:9].sum(1), np.arange(nodes * 20).reshape(nodes, 20)

def sets(nodes):
    draw = torch.Generator().manual_seed(0)
    pieces = [torch.randn(k + 5, 3, generator=draw) for k in range(nodes + 1)]
    made = [torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()) for x in pieces]
    return made[:-1], made[-1]

def sentences():
    codes = np.arange(400).reshape(40, 10) % 7
    return {"x_train": codes[:30], "y_train": (codes[:30] + 1) % 7,
            "x_test": codes[30:], "y_test": (codes[30:] + 1) % 7}

def misnamed():
    return dict.fromkeys(("train_x", "train_y", "test_x", "test_y"), np.ones((4, 2)))

class Follows(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.table = nn.Embedding(outputs, outputs)

    def forward(self, x):
        return self.table(x)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 3)) * [1, 5, 200] + [0, 0, 1000]
    y = x @ [1, 0.2, 0.005] + 0.01 * draw.normal(size=90)
    rows = np.c_[x, y]
    np.savetxt("table.csv", rows, "%.5f", ",", header="a,b,c,y", comments="")
    return tmp_path


TABLE = ["data.name=table.csv", "data.target=y", "data.standardize=true"]
SMALL = ["topology.nodes=3", "batch=8", "epochs=4", "topology.name=ring"]
NET = "model.name=mine.py:Net"


def build(*words):
    return Experiment(config.read(None, [*SMALL, *words]))


def tensors(directory):
    return checkpoint.load(directory / "checkpoints").tensors


# --------------------------------------------------------------------------- data


def test_a_table_is_split_the_same_way_for_every_seed_and_standardized_by_its_training_part(mine):
    table = data.load("table.csv", target="y", test=0.3, standardize=True)
    assert (len(table.train_y), len(table.test_y), table.classes, table.outputs) == (63, 27, 0, 1)
    assert torch.equal(data.load("table.csv", target="y", test=0.3).test_x, table.test_x)
    scaled = table.scaled(table.train_x)
    assert scaled.mean(0).abs().max() < 1e-4
    assert scaled.std(0, unbiased=False).tolist() == pytest.approx([1, 1, 1], abs=1e-4)
    mean, std = (getattr(table.train_x, name)(0) for name in ("mean", "std"))
    expected = (table.test_x - mean) / (std * math.sqrt(62 / 63))
    assert torch.allclose(table.scaled(table.test_x), expected, atol=1e-4)
    plain = data.load("table.csv", target="y", test=0.3)
    assert torch.allclose(table.predicted(table.test_y[:, None]), plain.test_y, atol=1e-4)
    assert abs(float(table.train_y.mean())) < 1e-5
    sizes = np.bincount(table.groups)
    assert (len(sizes), sizes.min(), sizes.max()) == (10, 6, 7)
    first = sorted(table.train_y[torch.from_numpy(table.groups) == 0].tolist())
    assert first == sorted(table.train_y.tolist())[:7]


def test_large_features_and_targets_are_warned_of_unless_they_are_standardized(mine):
    size = build(*TABLE[:2]).dataset.train_x[:, 2].square().mean().sqrt()
    (warned,) = build(*TABLE[:2]).warnings()
    assert warned.startswith(f"table: features are as large as {size:.4g}, ")
    assert build(*TABLE).warnings() == []


@pytest.mark.parametrize(
    ("column", "labels"),
    [(["b", "a", "b", "c"], [1, 0, 1, 2]), (["5", "3", "10", "3"], [1, 0, 2, 0])],
)
def test_words_and_whole_numbers_of_a_table_are_classes_in_their_order(column, labels, tmp_path):
    rows = "\n".join(f"{k},{word}" for k, word in enumerate(column))
    (tmp_path / "t.csv").write_text(f"x,kind\n{rows}\n")
    table = data.load(str(tmp_path / "t.csv"), target="kind", test=0.25)
    found = torch.cat([table.train_y, table.test_y])[
        torch.cat([table.train_x, table.test_x])[:, 0].argsort()
    ]
    assert found.tolist() == labels


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,y\n1,2\n", {}, r"data\.target = None: name the column to predict of .*t\.csv: a, y"),
        ("a,y\n1,2\nx,3\n", {"target": "y"}, r"row 3, column a: 'x' is not a number"),
        ("a,y\n1,2\n1\n", {"target": "y"}, "row 3 has 1 values, the heading 2"),
        ("a,y\n1,2\n2,3\n", {"target": "y", "test": 0.1}, r"data\.test = 0\.1: of 2 rows none"),
        ("a,y\n1,2\n2,nan\n", {"target": "y", "test": 0.5}, r"y_t\w+\[0\] is not finite"),
    ],
)
def test_tables_that_are_refused(text, options, message, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path / "t.csv"), **options)


def test_floats_in_an_npz_file_are_numbers_to_predict(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    y = np.c_[x.sum(1), x[:, 0] - x[:, 1]]
    path = tmp_path / "own.npz"
    np.savez(path, x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    built = build(f"data.name={path}", "algorithm.lr=0.02", "epochs=60")
    assert (built.dataset.outputs, built.task.headline.name) == (2, "r2")
    now = training.in_memory(built)
    model = built.evaluator.average_model(
        now.moment.state.x, now.moment.state.a, now.moment.y, now.buffers, now.step
    )
    found = built.evaluator.test(model)
    outputs = model(built.dataset.test_x).detach().numpy()
    residual = ((outputs - y[30:]) ** 2).mean()
    assert found["loss"] == pytest.approx(residual, rel=1e-4)
    assert found["mae"] == pytest.approx(np.abs(outputs - y[30:]).mean(), rel=1e-4)
    assert found["r2"] == pytest.approx(1 - residual / y[30:].var(0).mean(), rel=1e-4)
    assert found["r2"] > 0.9


def test_data_of_a_function_may_say_who_holds_what(mine):
    built = build("data.name=mine.py:rooms", "seed=3")
    assert [part.tolist() for part in built.parts] == [
        [*range(20 * node, 20 * node + 20)] for node in range(3)
    ]
    expected = np.random.default_rng(3).normal(size=(60, 3)).astype(np.float32)
    assert np.array_equal(built.dataset.train_x.numpy(), expected)
    sets = build("data.name=mine.py:sets")
    assert [len(part) for part in sets.parts] == [5, 6, 7]
    assert (sets.dataset.classes, len(sets.dataset.test_y)) == (2, 8)
    assert sets.data_sha256() == build("data.name=mine.py:sets").data_sha256()
    assert built.data_sha256() != build("data.name=mine.py:rooms", "seed=4").data_sha256()


# --------------------------------------------------------------------------- models and losses


def test_a_model_of_ones_own_starts_from_the_seed_alone(mine):
    starts = []
    for seed in (0, 0, 1):
        torch.rand(5)
        starts.append(build(*TABLE, NET, f"seed={seed}").start())
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert torch.equal(starts[0][0], starts[0][2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.name=mine.py:wants"], r"its parameter colour has no value: it may ask for shape"),
        (["model.name=mine.py:number"], "returned int, expected an nn.Module"),
        (["model.name=mine.py:broken"], r"the model fails on samples \(2, 3\) of torch.float32"),
        (["model.name=mine.py:two"], r"makes \(2, 2\) of two samples, expected \(2,\)"),
        ([NET, "model.hidden=[3]"], r"model\.hidden has no effect with a model of your own"),
        ([NET, "gradients=vmap"], r"gradients = vmap: the model draws random numbers \(dropout\)"),
        ([NET, "gradients=threads"], "gradients = threads: the model draws random"),
        (["loss=cross-entropy"], "loss = cross-entropy: the targets are floats: take mse"),
        (["loss=hinge"], "unknown loss 'hinge'"),
        (["data.name=mine.py:sentences"], r"split\.kind = clusters: sequences have no labels"),
        (["data.name=mine.py:rooms", "data.name=digits", "loss=mse"], "targets are labels: take"),
        (["data.name=mine.py:misnamed"], "lacks x_train, .*, y_test: its keys are train_x, tr"),
    ],
)
def test_what_does_not_fit_is_one_line(words, message, mine):
    with pytest.raises(ValueError, match=message) as refusal:
        build(*TABLE[:2], *words)
    assert "\n" not in str(refusal.value)


def test_files_that_a_configuration_names_are_run_only_if_trusted(mine):
    Path("c.yaml").write_text("loss: mine.py:huber\n")
    with pytest.raises(ValueError, match=r"loss = .*mine\.py:huber: .*add --trust"):
        Experiment(config.read(Path("c.yaml"), TABLE))
    assert Experiment(config.read(Path("c.yaml"), TABLE, trust=True)).task.loss.__name__ == "huber"


def test_a_loss_without_a_measure_that_fits_is_measured_by_itself(mine):
    built = build(*TABLE, "model.name=mine.py:two", "loss=mine.py:likelihood")
    assert built.meta()["measure"] == {"name": "loss", "higher_is_better": False, "percent": False}
    huber = build(*TABLE, NET, "loss=mine.py:huber")
    assert list(huber.evaluator.test(huber.model.eval())) == ["loss", "mae", "r2"]


def test_sequences_are_measured_by_perplexity(mine):
    words = ["data.name=mine.py:sentences", "model.name=mine.py:Follows", "split.kind=iid"]
    built = build(*words, "algorithm.lr=2", "epochs=20")
    lines = []
    training.in_memory(built, lambda step, line: lines.append(line) if line else None)
    for line in lines:
        assert line["test"]["perplexity"] == pytest.approx(math.exp(line["test"]["loss"]))
    assert built.task.headline.name == "perplexity"
    assert lines[0]["test"]["perplexity"] > 5
    assert lines[-1]["test"]["perplexity"] < 1.5
    assert lines[-1]["test"]["accuracy"] == 1


class StopsAt(OneProcess):
    def __init__(self, n, step):
        super().__init__(n)
        self.step = step

    def agree_to_start(self, t):
        self.stopping = t >= self.step
        return not self.stopping


def test_dropout_goes_on_bit_for_bit_after_a_stop(mine):
    words = [*TABLE, NET, "algorithm.lr=0.01", "split.kind=iid"]
    whole = training.run(build(*words), mine / "whole")
    built = build(*words)
    assert built.random
    with pytest.raises(Stopped):
        training.run(built, mine / "parts", runtime=StopsAt(3, 5))
    torch.rand(7)
    resumed = training.run(build(*words), mine / "parts", resume=True)
    assert resumed["test"] == whole["test"]
    ours, theirs = tensors(mine / "whole"), tensors(mine / "parts")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    meta = json.loads((mine / "whole" / "meta.json").read_text())
    assert meta["measure"] == {"name": "r2", "higher_is_better": True, "percent": False}
    assert list(meta["code_sha256"]) == [str(mine / "mine.py")]
    assert yaml_of(mine / "whole", "gradients") == "loop"
    Path("mine.py").write_text(FILE + "\n")
    longer = build(*words, "epochs=5")
    with pytest.raises(ValueError, match=r"mine\.py has changed since the run began"):
        training.run(longer, mine / "whole", resume=True)


def yaml_of(directory, key):
    return config.mapping(directory / "config.yaml")[key]


# --------------------------------------------------------------------------- one call


def test_simulate_is_iterate_with_gradients_of_the_loss():
    """Full batches of a linear model: by hand, in float64."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 12, 3, generator=draw, dtype=torch.float32)
    y = x.sum(2) + torch.arange(4.0)[:, None]
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    start = model.weight.detach().clone()
    made = ps.simulate(
        model, "mse", list(zip(x, y, strict=True)), topology="ring", lr=0.1, batch=12, epochs=20
    )
    assert torch.equal(model.weight, start)
    x, y = x.double(), y.double()

    def gradient(rows, t):
        off = torch.einsum("nbd,nd->nb", x, rows) - y
        return 2 * torch.einsum("nb,nbd->nd", off, x) / 12

    *_, last = ps.iterate(ps.algorithms.sgp(0.1), "ring", gradient, start.repeat(4, 1), steps=20)
    assert torch.allclose(made.model.weight[0], last.average, rtol=1e-10, atol=1e-12)
    rows = torch.stack([node["weight"][0] for node in made.nodes])
    assert torch.allclose(rows, last.y, rtol=1e-10, atol=1e-12)
    off = torch.einsum("nbd,d->nb", x, last.average) - y
    assert made.results["loss"] == pytest.approx(off.square().mean().item(), rel=1e-6)
    assert [record["step"] for record in made.records] == [*range(21)]
    assert made.personal is None


def test_simulate_takes_data_sets_batchnorm_dropout_and_optimizers():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 4, generator=draw)
    y = (x[:, 0] > 0).long()
    parts = [TensorDataset(x[k::3], y[k::3]) for k in range(3)]
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)
    )
    adam = functools.partial(torch.optim.AdamW, lr=0.02)
    seen = []
    run = functools.partial(
        ps.simulate, model, nn.CrossEntropyLoss(), parts, batch=10, epochs=10, optimizer=adam
    )
    made, again = run(test=(x[:40], y[:40]), progress=seen.append), run(test=(x[:40], y[:40]))
    assert made.results == again.results
    assert [record["test"] for record in seen] == [record["test"] for record in made.records]
    assert made.results["accuracy"] > 0.9
    right = (made.model(x[:40]).argmax(1) == y[:40]).float().mean()
    assert right.item() == pytest.approx(made.results["accuracy"])
    assert made.nodes[0].keys() == model.state_dict().keys()
    assert run(seed=1).results != run(seed=0).results


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": [(torch.zeros(4, 2), torch.zeros(3))]}, "y_train must be 4 integers >= 0 or"),
        ({"algorithm": ps.algorithms.sgp(0.1), "lr": 0.1}, "lr = 0.1: the algorithm that was giv"),
        ({"topology": ps.topology.ring(3)}, "topology is of 3 nodes, and there are 2 parts"),
        ({"algorithm": "sgq"}, "unknown algorithm 'sgq'"),
        ({"parts": [3]}, "int is neither a pair of arrays"),
        ({"batch": 0}, "batch = 0: should be greater than or equal to 1"),
    ],
)
def test_simulate_refuses_in_one_line(change, message):
    part = (torch.zeros(4, 2), torch.zeros(4))
    given = {"parts": [part, part], **change}
    with pytest.raises(ValueError, match=message):
        ps.simulate(nn.Linear(2, 1), "mse", given.pop("parts"), **given)


# --------------------------------------------------------------------------- the door


def test_three_files_and_three_commands_give_a_table_and_a_report(tmp_path, monkeypatch):
    """Those of the page, in order."""
    monkeypatch.chdir(tmp_path)
    count = 0
    for language, title, content in blocks("how-to/own.md"):
        if title:
            Path(title).write_text(content)
        elif language == "python":
            exec(content, {})
        elif language == "sh":
            for command in content.replace("\\\n", "").splitlines():
                run_command(command, monkeypatch)
                count += 1
    assert count == 3
    runs = sorted(path.parent.name for path in tmp_path.glob("runs/plants/*/meta.json"))
    assert runs == [f"{name}_{seed}" for name in ("Push-Pull", "SGP") for seed in range(3)]
    for name in runs:
        line = training.last_record(tmp_path / "runs" / "plants" / name)
        assert line["test"]["accuracy"] > 0.6
    for name in ("report.html", "table.md", "table.csv"):
        text = (tmp_path / "runs" / "plants" / name).read_text()
        assert "SGP" in text
        assert "Push-Pull" in text
    table = (tmp_path / "runs" / "plants" / "table.md").read_text()
    assert "±" in table
    assert re.search(r"vs best \| −\d\.\d\d \\\[−\d+\.\d\d, [−+]\d+\.\d\d\\\]", table)


def test_the_command_line_speaks_of_the_measure_that_fits(mine, monkeypatch, capsys):
    words = [*TABLE, NET, *SMALL, "epochs=1", "--into", "runs/r"]
    monkeypatch.setattr(sys, "argv", ["pushsum", "run", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    out, last = capsys.readouterr().out, training.last_record(mine / "runs" / "r")["test"]
    assert out == f"runs/r: r2 {last['r2']:.4f}, loss {last['loss']:.4f}\n"
    tested = training.tested(mine / "runs" / "r", trust=True)
    assert tested.results == {"averaged": last}
    assert tested.measure.name == "r2"


def test_simulate_fails_as_iterate_does():
    x = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(0))
    y = x.sum(2) + torch.arange(3.0)[:, None]
    net = nn.Linear(2, 1, bias=False)
    plan = ps.faults.plan(1, loss=0.4, crash="2@5")

    def gradient(at, t):
        return torch.stack(
            [2 * (x[k] @ at[k] - y[k]) @ x[k] / 8 for k in range(3)]  # of the mean square
        )

    start = net.weight.detach().repeat(3, 1)
    *_, last = ps.iterate(ps.algorithms.sgp(0.05), "full", gradient, start, 12, faults=plan)
    made = ps.simulate(
        net,
        "mse",
        list(zip(x, y, strict=True)),
        algorithm=ps.algorithms.sgp(0.05),
        topology="full",
        batch=8,
        epochs=12,
        faults=plan,
    )
    found = torch.cat([state["weight"] for state in made.nodes])
    torch.testing.assert_close(found[:2], last.y[:2], rtol=0, atol=1e-5)
    torch.testing.assert_close(made.model.weight[0].detach(), last.average, rtol=0, atol=1e-5)
    assert made.records[-1]["faults"]["alive"] == 2
    assert made.records[-1]["faults"]["lost"] == last.messages.lost > 0
