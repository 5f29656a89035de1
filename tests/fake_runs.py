"""Run directories as an experiment leaves them, with made-up but plausible numbers."""

import json
from collections.abc import Iterable, Iterator
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

import yaml

ALGORITHMS = ("SGP", "MSGP", "SGAP", "MSGAP", "S-ADDOPT")
TOPOLOGIES = ("full", "divide", "exponential", "random")
MOREAU = "moreau:k=0.1,v=0.1"
CERTIFICATES = {"full": (1, 1, 1), "divide": (1, 3, 3), "exponential": (3, 2, 3)}


def run(
    directory: Path,
    *,
    algorithm: str = "SGAP",
    topology: str = "full",
    seed: int = 0,
    weighting: str = MOREAU,
    nodes: int = 6,
    classes: int = 10,
    records: int = 10,
    finished: bool = True,
    weights: bool = True,
    faults: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    content: dict[str, Any] | None = None,
    last: dict[str, Any] | None = None,
) -> Path:
    """Write one run; `config` replaces dotted keys, `last` keys of the last record.

    With `faults`, a section of the configuration, a fifth of the messages is late, and as many are
    lost as it says; in the middle a node is held, and with a crash another one away.

    A whole configuration can be given as `content`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "seed": seed,
        "epochs": 25,
        "steps": None,
        "batch": 100,
        "data": {"name": "cifar10", "root": None, "augment": False},
        "split": {"kind": "clusters", "clusters": 2, "shared": True, "alpha": 0.5},
        "model": {"name": "resnet18", "width": None, "blocks": None, "norm": None},
        "algorithm": {
            "name": algorithm,
            "lr": 0.01,
            "momentum": 0.8,
            "weighting": weighting,
            "schedule": {"kind": "constant", "milestones": [], "factor": 0.1},
            "optimizer": None,
            "options": {},
        },
        "topology": {
            "name": topology,
            "nodes": nodes,
            "inner": 0.5,
            "inter": 0.25,
            "period": 8,
            "seed": None,
        },
        "evaluation": {"every": 1, "batch": 500, "batchnorm": "averaged", "nodes": True},
        "link": {"gigabits": 1.0, "latency": 0.0},
        "published": {"restart": False, "per_receiver": False},
        "gradients": "auto",
        "device": "auto",
        "checkpoint": 1,
    }
    if faults is not None:
        settings["faults"] = {"loss": 0.0} | faults
    for key, value in (config or {}).items():
        *path, leaf = key.split(".")
        section = settings
        for part in path:
            section = section[part]
        section[leaf] = value
    settings = content or settings
    period, diameter, horizon = CERTIFICATES.get(topology, (8, 1, 8))
    half = nodes // 2
    meta = {
        "pushsum": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.4",
        "git": "95a9707",
        "started": "2026-01-01T00:00:00+00:00",
        "d": 11_173_962,
        "nodes": nodes,
        "classes": classes,
        "certificate": {"period": period, "diameter": diameter, "horizon": horizon},
        "steps_per_epoch": 250,
        "steps": 250 * (records - 1),
        "split": [
            [5000 * ((i < half) == (k < classes // 2)) for k in range(classes)]
            for i in range(nodes)
        ],
        "strategy": "loop",
        "algorithm": algorithm,
        "weighting": weighting,
        "bytes_per_step": 1e9,
        "finished": finished,
    }
    made = list(_records(algorithm, topology, seed, nodes, records, weights, weighting))
    if faults:
        words = ", ".join(f"{key}={value!r}" for key, value in faults.items())
        meta["faults"] = f"faults(seed={seed}, {words})"
        for record in made:
            middle = record["step"] == 250 * (len(made) // 2)
            record["faults"] = _failed(record["step"], nodes, middle, faults)
    lines = [json.dumps(record) for record in made]
    if last is not None:
        lines[-1] = json.dumps(json.loads(lines[-1]) | last)
    (directory / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    (directory / "meta.json").write_text(json.dumps(meta, indent=1))
    (directory / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return directory


def grid(
    directory: Path,
    algorithms: Iterable[str] = ALGORITHMS,
    topologies: Iterable[str] = TOPOLOGIES,
    seeds: Iterable[int] = (0, 1, 2),
    **options: Any,
) -> Path:
    """All combinations, a directory each."""
    for algorithm in algorithms:
        for topology in topologies:
            for seed in seeds:
                name = f"{algorithm.lower()}-{topology}-{seed}"
                run(directory / name, algorithm=algorithm, topology=topology, seed=seed, **options)
    return directory


def _records(
    algorithm: str, topology: str, seed: int, n: int, count: int, weights: bool, weighting: str
) -> Iterator[dict[str, Any]]:
    draw = Random(f"{algorithm} {topology} {seed} {weighting}")
    goal = 0.58 + 0.06 * draw.random() + 0.02 * len(algorithm.replace("-", ""))
    channels = {"full": n * (n - 1), "divide": n * n // 2, "random": n * n // 3}.get(topology, n)
    vectors = 2 if algorithm == "S-ADDOPT" else 1
    for k in range(count):
        accuracy = 0.1 + (goal - 0.1) * (1 - exp(-3 * k / max(1, count - 1)))
        accuracy += 0.006 * draw.gauss(0, 1) * (k > 0)
        spread = 0.03 + 0.1 * exp(-k / 3)
        loss = -log(accuracy) * 2.2
        distance = (0 if k == 0 else 40 * exp(-k / 4)) * (1 + 0.2 * draw.random())
        step = 250 * k
        lazy = 0.932 - 0.6 * exp(-k / 2) if "GAP" in algorithm else 1 / n
        yield {
            "step": step,
            "epoch": float(k),
            "samples": step * 100 * n,
            "bytes": step * channels * vectors * 44_695_864,
            "train_loss": None if k == 0 else 0.6 * loss,
            "test": {"accuracy": accuracy, "loss": loss},
            "nodes": {
                "accuracy": {
                    "mean": accuracy - 0.02,
                    "min": max(0, accuracy - spread),
                    "max": accuracy,
                },
                "loss": {"mean": loss, "min": loss, "max": loss},
            },
            "consensus": {"theorem": distance, "mean_square": distance**2 / 1000},
            "a": {"min": 0.9, "max": 1.1},
            "smallest_weight": None if k == 0 else 0.01,
            "seconds": dict.fromkeys(
                ("gradients", "weighting", "mixing", "evaluation", "total"), 2.0 * k
            ),
            "modelled": {
                "compute": 30.0 * k,
                "transfer": 89.0 * k * vectors,
                "weighting_hidden": 1.0 * k,
                "weighting_exposed": 0.0,
                "total": (30 + 89.0 * vectors) * k * (1 + 0.02 * draw.random()),
            },
            "weights": _weights(n, lazy) if weights and k > 0 else None,
        }


def _failed(step: int, n: int, middle: bool, faults: dict[str, Any]) -> dict[str, Any]:
    return {
        "sent": 10 * step,
        "lost": round(10 * faults.get("loss", 0) * step),
        "late": 2 * step,
        "alive": n - (middle and "crash" in faults),
        "held": int(middle),
        "smallest_a": 0.04 if middle else 0.5,
        "under_way": 0.1,
        "mass_error": 0.0,
        "lost_on": [[step * faults.get("loss", 0) * (i != j) for j in range(n)] for i in range(n)],
    }


def _weights(n: int, kept: float) -> list[list[float]]:
    """Columns sum to 1; a little more goes to the other half."""
    if n == 1:
        return [[1.0]]
    shares = [[1 + ((i < n // 2) != (j < n // 2)) for i in range(n)] for j in range(n)]
    totals = [sum(shares[j][i] for j in range(n) if j != i) for i in range(n)]
    return [
        [kept if i == j else (1 - kept) * shares[j][i] / totals[i] for i in range(n)]
        for j in range(n)
    ]
