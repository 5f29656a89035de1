"""Test samples of each node's own, and what common and personal models reach on them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pushsum as ps
from pushsum import config, training
from pushsum.data import partition
from pushsum.experiment import Experiment

N = 5
DRAW = np.random.default_rng(0)
LABELS, TEST = DRAW.integers(0, 7, size=700), DRAW.integers(0, 7, size=300)


@pytest.mark.parametrize(
    "parts",
    [
        partition.clusters(LABELS, N, shared=False),
        partition.iid(LABELS, N),
        partition.dirichlet(LABELS, N, alpha=0.2),
        partition.shards(LABELS, N),
        partition.quantity(LABELS, N, alpha=0.4),
    ],
)
def test_test_samples_are_divided_in_the_proportions_of_the_training_samples(parts):
    own = partition.of_test(parts, LABELS, TEST)
    assert sorted(np.concatenate(own).tolist()) == [*range(len(TEST))]
    trained, tested = (partition.histogram(*of, 7) for of in ((parts, LABELS), (own, TEST)))
    expected = trained / np.bincount(LABELS) * np.bincount(TEST)
    assert np.abs(tested - expected).max() < 1
    assert not np.array_equal(own[0], partition.of_test(parts, LABELS, TEST, seed=1)[0])


def test_nodes_that_share_all_samples_of_some_labels_share_their_test_samples():
    own = partition.of_test(partition.clusters(LABELS, N), LABELS, TEST)
    first, second = (np.flatnonzero(TEST < 3).tolist(), np.flatnonzero(TEST >= 3).tolist())
    assert [part.tolist() for part in own] == [first, first, second, second, second]


def test_every_node_has_a_test_sample_as_long_as_there_is_one_of_its_labels():
    parts = [np.arange(99), np.array([99]), np.array([100])]
    labels = np.array([0] * 99 + [0, 1])
    own = partition.of_test(parts, labels, [0, 0, 0])
    assert [part.tolist() for part in own] == [[0, 1, 2], [0], []]


SMALL = ["topology.nodes=4", "topology.name=ring", "batch=16", "steps=6", "model.hidden=[8]"]


def ended(*words):
    built, lines = Experiment(config.read(None, [*SMALL, *words])), []
    now = training.in_memory(built, lambda step, line: lines.append(line) if line else None)
    return built, now, lines[-1]


def test_records_tell_what_models_reach_on_the_nodes_own_test_samples():
    built, now, line = ended("algorithm.name=ditto", "split.kind=dirichlet", "seed=3")
    moment, d = now.moment, built.dataset
    rows = {"nodes": moment.y, "personal": built.algorithm.personal(moment.state)}
    assert not torch.equal(rows["nodes"], rows["personal"])
    for models, row in rows.items():
        found = []
        for node, part in enumerate(built.test_parts):
            model = built.evaluator.node_model(row, now.buffers, node, now.step)
            answers = model(d.scaled(d.test_x[part])).argmax(1)
            found.append(float((answers == d.test_y[part]).float().mean()))
        spread = line["local"][models]["accuracy"]
        assert [spread[k] for k in ("mean", "min", "max")] == pytest.approx(
            [np.mean(found), min(found), max(found)]
        )
        assert spread["mean"] != line[models]["accuracy"]["mean"]
    assert set(ended("algorithm.name=sgp")[2]["local"]) == {"nodes"}
    assert ended("evaluation.nodes=false", "algorithm.name=ditto")[2]["local"] is None


def test_nodes_that_are_away_do_not_count():
    built, now, line = ended("algorithm.name=ditto", "faults.crash=2@3-9", "algorithm.lr=0.5")
    living = [0, 1, 3]
    for models, row in {
        "nodes": now.moment.y,
        "personal": built.algorithm.personal(now.moment.state),
    }.items():
        reached = built.evaluator.nodes(range(4), row, now.buffers, now.step)
        for part, told in (("everywhere", line[models]), ("local", line["local"][models])):
            losses = [getattr(reached[node], part)["loss"] for node in living]
            assert told["loss"]["mean"] == pytest.approx(np.mean(losses))
            assert told["loss"]["max"] == max(losses)


def test_the_own_test_samples_of_simulate():
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    net = nn.Linear(2, 1)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    sets = [(x, torch.full((30,), float(k))) for k in range(3)]

    def before(**options):
        made = ps.simulate(net, "mse", sets, steps=1, algorithm="Ditto", **options)
        return made.records[0]["local"]["personal"]["loss"]

    assert before() == {"mean": pytest.approx(5 / 3), "min": 0, "max": pytest.approx(4)}
    tests = [TensorDataset(a[:5], 3 * y[:5]) for a, y in sets]
    assert before(test=tests) == {"mean": pytest.approx(15), "min": 0, "max": pytest.approx(36)}
    together = before(test=(torch.cat([x, x]), torch.cat([sets[0][1], sets[2][1]])))
    assert (together["min"], together["max"]) == (0, pytest.approx(4))
    with pytest.raises(ValueError, match="test: a list of 2 parts, and there are 3 nodes"):
        before(test=tests[:2])


def test_a_function_may_say_which_test_samples_are_whose(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def data(nodes):\n"
        "    x = torch.arange(24.).reshape(12, 2)\n"
        "    pieces = [torch.utils.data.TensorDataset(p, p[:, 0]) for p in x.split(3)]\n"
        "    return pieces, pieces[:nodes]\n"
    )
    name = f"data.name={tmp_path}/mine.py:data"
    built = Experiment(config.read(None, [*SMALL, name]))
    assert [part.tolist() for part in built.test_parts] == np.arange(12).reshape(4, 3).tolist()
    with pytest.raises(ValueError, match=r"topology\.nodes = 3: mine is divided among 4 nodes"):
        Experiment(config.read(None, [*SMALL, name, "topology.nodes=3"]))
