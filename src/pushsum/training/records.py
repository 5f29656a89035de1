"""Records: what a run has reached, as one line of JSON."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pushsum import files
from pushsum.engines.engine import with_late
from pushsum.engines.iterate import Iterate
from pushsum.engines.runtime import Abandoned, Runtime
from pushsum.experiment import Experiment
from pushsum.experiment.evaluation import Evaluator, NodeResults
from pushsum.faults import CRASHED
from pushsum.names import finite
from pushsum.protocol import Algorithm
from pushsum.reading import json_value
from pushsum.theory import consensus
from pushsum.training.state import RunState
from pushsum.weighting import dense

MOST_RECORD = 1 << 20  #: bytes
SMALL = 16  #: up to so many nodes, records carry the whole weight matrix


class Diverged(ValueError):
    """A loss, a gradient or a parameter is not finite."""


def record(
    experiment: Experiment, runtime: Runtime, directory: Path | None, now: RunState
) -> dict[str, Any]:
    """Test, and append a line to the records, if any are kept; every process tests its own nodes.

    Raises `Abandoned`, in all processes, if one of them was told to stop meanwhile.
    """
    start = perf_counter()
    tested = replace(experiment.evaluator, stopping=lambda: runtime.stopping)
    personal = experiment.algorithm.personal
    models = {"nodes": now.moment.y}
    if personal is not None:
        models["personal"] = personal(now.moment.state)
    given_up, reached = 0, dict[str, list[NodeResults]]()
    try:
        for name, y in models.items():
            reached[name] = tested.nodes(runtime.nodes, y, now.buffers, now.step)
    except Abandoned:
        given_up, reached = 1, {name: [] for name in models}
    shown = _shown(now, experiment.algorithm, reached)
    parts = runtime.gather(shown | {"given_up": torch.tensor([given_up])})

    def write() -> dict[str, Any]:
        assert parts is not None
        if any(int(part["given_up"]) for part in parts):
            raise Abandoned
        whole = _Whole(parts, now)
        failed = _failed(experiment, now, whole)
        line = _line(experiment, tested, whole, now.step, start) | failed
        if directory is None:
            return line
        with (directory / "records.jsonl").open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return line

    line = runtime.on_leader(write)
    now.seconds["evaluation"] += perf_counter() - start
    now.recorded = now.step
    return line


def _shown(
    now: RunState, algorithm: Algorithm, reached: dict[str, list[NodeResults]]
) -> dict[str, Tensor]:
    """What the process that writes must know of the others, as tensors."""
    moment = now.moment
    x, a = with_late(algorithm, moment.state)
    scalars = [now.bytes, *now.seconds.values(), *now.modelled.values()]
    return {
        "x": x,
        "a": a,
        "own_a": moment.state.a,
        "y": moment.y,
        "weights": moment.weights,
        "losses": torch.tensor(now.losses, dtype=torch.float64),
        "scalars": torch.tensor(scalars, dtype=torch.float64),
        **{
            f"{part}.{name}": _table(getattr(one, part) for one in found)
            for name, found in reached.items()
            for part in NodeResults._fields
        },
        **{f"buffers.{name}": value for name, value in now.buffers.items()},
    }


def _table(results: Iterable[dict[str, float]]) -> Tensor:
    return torch.tensor([list(node.values()) for node in results], dtype=torch.float64)


class _Whole:
    """All nodes, put together from what the processes showed; x and a with what is under way."""

    def __init__(self, parts: list[dict[str, Tensor]], now: RunState) -> None:
        def joined(name: str) -> Tensor:
            return parts[0][name] if len(parts) == 1 else torch.cat([p[name] for p in parts])

        self.x, self.a, self.own_a, self.y = map(joined, ("x", "a", "own_a", "y"))
        self.weights = joined("weights")
        self.reached = {k: joined(k) for k in parts[0] if k.startswith(NodeResults._fields)}
        self.there = torch.ones(len(self.a), dtype=torch.bool)
        alone = len(parts) == 1
        self.buffers = {name: joined(f"buffers.{name}") for name in now.buffers}
        losses = torch.stack([p["losses"] for p in parts])
        each = losses[0] if alone else losses.to(self.x.dtype).mean(0)
        self.losses = each.tolist()
        scalars = torch.stack([p["scalars"] for p in parts])
        self.bytes = int(scalars[:, 0].sum())
        seconds = iter(scalars[:, 1:].mean(0).tolist())  # of a node, on average
        self.seconds = dict(zip(now.seconds, seconds, strict=False))
        self.modelled = dict(zip(now.modelled, seconds, strict=True))


def _failed(experiment: Experiment, now: RunState, whole: _Whole) -> dict[str, Any]:
    """What has failed so far; `whole` is then of the living, and of what is under way."""
    plan = experiment.faults
    if plan is None:
        return {}
    seen = Iterate(now.moment, experiment.setup(now.step))
    alive, late = seen.alive.to(seen.x.device), seen.under_way
    messages = seen.messages
    start = int((plan.status(1, experiment.n) < CRASHED).sum())
    mass = float(seen.a.sum()) + late.a
    whole.x = torch.cat([seen.x[alive], late.x[None].to(seen.x)])
    whole.a = torch.cat([seen.a[alive], seen.a.new_tensor([late.a])])
    whole.own_a = seen.a[alive]
    whole.y, whole.there = whole.y[alive], seen.alive
    whole.buffers = {name: b[alive] for name, b in whole.buffers.items()}
    found = {
        **dict(zip(("sent", "lost", "late"), messages, strict=False)),
        "alive": int(alive.sum()),
        "held": int(seen.held.sum()),
        "smallest_a": float(seen.a[alive].min()),
        "under_way": late.a,
        "mass_error": None if plan.loses_nodes else abs(mass - start),
        "lost_on": messages.lost_on.tolist() if experiment.n <= SMALL else None,
    }
    return {"faults": found}


def _line(
    experiment: Experiment, tested: Evaluator, whole: _Whole, step: int, start: float
) -> dict[str, Any]:
    x, y, weights = whole.x, whole.y, whole.weights
    average = tested.average_model(x, whole.a, y, whole.buffers, step)
    test, validation = tested.test(average), tested.validate(average)
    if not math.isfinite(test["loss"]):
        raise Diverged(
            f"the average model diverged at step {step}: its test loss is not finite; try a "
            "smaller algorithm.lr (the last checkpoint is kept)"
        )
    small = experiment.n <= SMALL and len(weights) > 0
    W = None
    if small:
        senders, receivers = experiment.setup(step - 1).edges(step)
        W = dense(experiment.n, senders, receivers, weights).tolist()
    apart, reached = consensus(x, whole.a, y), _reached(experiment, whole, list(test))
    whole.seconds["evaluation"] += perf_counter() - start
    line = {
        "step": step,
        "epoch": step / experiment.steps_per_epoch,
        "samples": step * sum(min(experiment.config.batch, len(p)) for p in experiment.parts),
        "bytes": whole.bytes,
        "train_loss": float(np.mean(whole.losses)) if whole.losses else None,
        "test": test,
        "validation": validation,
        "nodes": reached.get("everywhere", {}).get("nodes"),
        "local": reached.get("local"),
        "consensus": {"theorem": apart.largest, "mean_square": apart.mean_square},
        "a": {"min": float(whole.own_a.min()), "max": float(whole.own_a.max())},
        "smallest_weight": float(weights[weights > 0].min()) if len(weights) else None,
        "seconds": whole.seconds,
        "modelled": whole.modelled,
        "overlap": _overlap(whole.seconds),
        "weights": W,
    }
    if "personal" in reached.get("everywhere", {}):
        line["personal"] = reached["everywhere"]["personal"]
    told: dict[str, Any] = finite(line)
    return told


def _reached(experiment: Experiment, whole: _Whole, names: list[str]) -> dict[str, dict[str, Any]]:
    """Mean, min and max over the living of what models reach: test samples -> models -> names.

    Who has no test samples of its own is not counted among those who have.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, table in whole.reached.items():
        part, _, models = key.partition(".")
        if not len(table):
            continue
        rows = whole.there
        if part == "local":
            rows = rows & torch.tensor([len(own) > 0 for own in experiment.test_parts])
        columns = zip(names, table[rows].T.tolist(), strict=True)
        found.setdefault(part, {})[models] = {
            name: {"mean": float(np.mean(values)), "min": min(values), "max": max(values)}
            for name, values in columns
            if values
        }
    return found


def _overlap(seconds: dict[str, float]) -> dict[str, float] | None:
    """What of weighting and transfer was hidden behind other work, where messages are real."""
    if "transfer" not in seconds:
        return None
    return {
        "compute": seconds["gradients"],
        "mixing": seconds["mixing"],
        "weighting_hidden": seconds["weighting"] - seconds["weighting_exposed"],
        "weighting_exposed": seconds["weighting_exposed"],
        "transfer_hidden": seconds["transfer"] - seconds["waiting"],
        "transfer_exposed": seconds["waiting"],
    }


def last_record(directory: Path) -> dict[str, Any]:
    """The last whole line of a run's records."""
    path = directory / "records.jsonl"
    with files.opened(path, follow=False) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_RECORD))
        lines = file.read().splitlines()
    answer = json_value(lines[-1]) if lines else None
    if not isinstance(answer, dict):
        raise ValueError(f"{path} does not end with a record")
    return answer
