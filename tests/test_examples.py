"""The examples run as they are, in one process or several, and reach what they should."""

import difflib
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import pushsum as ps
from tests.ranks import DEADLINE, on_ranks

ROOT = Path(__file__).parent.parent
EXAMPLES = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
ONE_FEATURE = ["decentralized", "accumulation", "scaler", "own"]
RECIPES = ["with_fabric", "with_accelerate"]


def play(name, *arguments):
    """Run an example in this process; its variables and what it printed."""
    sys.argv = [str(EXAMPLES[name]), *arguments]
    printed = StringIO()
    with redirect_stdout(printed):
        names = runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    return names, printed.getvalue()


def run(rank, names, options=None):
    """Some examples as one rank of torchrun: what remains of each."""
    os.environ |= options or {}
    found = {}
    for name in names:
        left, printed = play(name)
        node, model, samples = left["node"], left["model"], left["samples"]
        layers = [type(part) for part in model.modules()]
        found[name] = {
            "accuracy": accuracy(printed, rank),
            "a": node.a,
            "steps": node.t,
            "average": torch.cat([p.detach().flatten() for p in model.parameters()]),
            "own": node._state.whole.x[0] / node.a,
            "samples": len(samples),
            "batches": [len(left[key]) for key in ("loader",) if key in left],
            "wrapped": DistributedDataParallel in layers,
            "scale": left["scaler"].get_scale() if "scaler" in left else None,
        }
    return found


def recipes(rank):
    """The recipes, and what becomes of a model that the library is asked to prepare as ever."""
    found = run(rank, RECIPES, {"ACCELERATE_USE_CPU": "true"})  # else it sees one process here
    from accelerate import Accelerator
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model = torch.nn.Linear(2, 2)
    wrapped = [fabric.setup_module(model), Accelerator().prepare_model(torch.nn.Linear(2, 2))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for module, given in [
        (wrapped[0], optimizer),
        (wrapped[1], optimizer),
        (model, Accelerator().prepare_optimizer(optimizer)),
    ]:
        with pytest.raises(ValueError, match="give the") as refusal:
            ps.PushSum(module, given)
        found[str(refusal.value)] = True
    return found


def accuracy(printed, rank):
    (found,) = re.findall(rf"node {rank}: accuracy ([01]\.[0-9]{{3}})", printed)
    return float(found)


def agree(ranks, least):
    """All nodes hold the same average, learned from data that no node has alone."""
    for node in ranks:
        assert node["steps"] == 200
        assert node["accuracy"] >= least
        assert torch.equal(node["average"], ranks[0]["average"])
        apart = (node["own"] - node["average"]).norm() / node["average"].norm()
        assert apart < 0.1
    assert sum(node["a"] for node in ranks) == pytest.approx(len(ranks), abs=1e-12)
    assert sum(node["samples"] for node in ranks) == 1437


def test_examples_run_under_torchrun():
    ranks = on_ranks(3, run, ONE_FEATURE, torchrun=True)
    for name in ONE_FEATURE:
        agree([found[name] for found in ranks], least=0.93)
    # the scaler began far too high, so steps were skipped, and yet everybody took all of them
    assert all(found["scaler"]["scale"] < 2.0**24 for found in ranks)


def test_recipes_keep_the_model_and_the_data_of_the_node():
    ranks = on_ranks(2, recipes, torchrun=True)
    for name in RECIPES:
        agree([found[name] for found in ranks], least=0.93)
        assert not any(found[name]["wrapped"] for found in ranks)
    assert [found["with_fabric"]["batches"] for found in ranks] == [[200], [200]]
    for found in ranks:
        assert list(found)[2:] == [
            "the model is wrapped in DistributedDataParallel, which averages all gradients: "
            "give the plain module",
            "optimizer is a AcceleratedOptimizer, whose steps cannot be followed: give the "
            "optimizer of torch.optim as it was before a library wrapped it",
        ]


@pytest.mark.parametrize("name", ["with_lightning", "with_transformers"])
def test_trainers_keep_the_model_and_the_data_of_the_node(name):
    ranks = on_ranks(2, run, [name], torchrun=True)
    agree([found[name] for found in ranks], least=0.93)
    assert not any(found[name]["wrapped"] for found in ranks)


def test_the_real_torchrun():
    command = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    answer = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command, EXAMPLES["decentralized"]],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert sorted(accuracy(answer.stdout, rank) for rank in (0, 1))[0] >= 0.93
    assert "Warning" not in answer.stderr


def test_plain_python_is_one_node_alone(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    _, alone = play("single")
    names, printed = play("decentralized")
    assert names["node"].n == 1
    assert names["node"].ledger.bytes == 0
    assert f"node 0: {alone}" == printed  # nobody to talk to: the plain loop
    assert float(alone.split()[1]) >= 0.95


def test_examples_of_simulate_reach_what_they_should(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    regression, _ = play("regression")
    assert regression["together"].results["r2"] > 0.9
    assert max(one.results["r2"] for one in regression["alone"]) < 0.5
    personal, printed = play("personal")
    local = personal["made"].records[-1]["local"]
    common, own = (local[models]["loss"]["mean"] for models in ("nodes", "personal"))
    assert own < 0.2 * common
    assert [float(word) for word in re.findall(r"\d+\.\d+", printed)] == [
        pytest.approx(value, abs=0.006) for value in (common, own)
    ]
    text, _ = play("language_model")
    assert text["made"].records[0]["test"]["perplexity"] > 20
    assert text["made"].results["perplexity"] < 6


def resume(rank, folder):
    """The whole run; then again from the middle, as after a stop."""
    finished = Path(folder) / f"step200-node{rank}.pt"
    play("checkpoint", folder)
    whole = torch.load(finished)
    finished.unlink()
    torch.manual_seed(99)
    left, _ = play("checkpoint", folder)
    assert left["saved"][-1] == 150
    again = torch.load(finished)
    return [whole, again]


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    for whole, again in on_ranks(2, resume, str(tmp_path), torchrun=True):
        assert whole["node"].pop("facts") == again["node"].pop("facts")
        torch.testing.assert_close(whole, again, rtol=0, atol=0)


def test_the_decentralized_loop_is_a_small_diff():
    """The page of the examples shows the lines that are added to the plain loop."""
    lines = [
        EXAMPLES[name].read_text().split('"""\n', 2)[-1] for name in ("single", "decentralized")
    ]
    diff = list(difflib.unified_diff(*(text.splitlines() for text in lines), lineterm="", n=0))
    changed = [line for line in diff[2:] if line[0] in "+-"]
    assert len(changed) <= 10
    page = (ROOT / "examples" / "README.md").read_text()
    (block,) = re.findall(r"```diff\n(.*?)```", page, flags=re.DOTALL)
    assert [line for line in block.splitlines() if line[0] in "+-"] == changed


def test_examples_are_short_and_listed():
    listed = (ROOT / "examples" / "README.md").read_text()
    for name, path in EXAMPLES.items():
        assert len(path.read_text().splitlines()) <= 85, name
        assert f"({path.name})" in listed
