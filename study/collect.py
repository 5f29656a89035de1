"""Runs -> study/results: one row per run, and one per record.

    python -m study.collect [runs/study]

Finished runs only, and those that diverged, with the step. A run that is no longer on disk keeps
its rows.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from pushsum import training
from pushsum.batchnorm import BatchNormPolicy
from pushsum.config import Faults
from pushsum.names import flat
from pushsum.report.runs import Run, load, shown
from study import RESULTS

Row = dict[str, Any]

ALWAYS = ("algorithm.name", "algorithm.lr", "algorithm.momentum", "topology.name", "seed")
#: Switches of the recipe table1-small; those set otherwise stand in the column `changed`.
#: Length and step size are told by the sweep.
USUAL = {
    "data.name": "cifar10",
    "split.kind": "clusters",
    "data.augment": False,
    "model.norm": "batch",
    "model.stem": None,
    "model.fresh_last_layer": False,
    "algorithm.schedule.kind": "cosine",
    "algorithm.every": 1,
    "published.restart": False,
    "published.same_batches": False,
    "published.per_receiver": False,
    "published.average_of_y": False,
    **{f"faults.{key}": usual for key, usual in flat(Faults().model_dump(mode="json")).items()},
}


def main(directory: Path) -> None:
    """Add the finished runs of a directory, if there is one, to the results."""
    found = load(directory) if directory.is_dir() else []
    found = [run for run in found if run.finished or run.diverged]
    runs = {run.path.relative_to(directory).as_posix(): run for run in found}
    rows = {row["run"]: row for row in read("runs")}
    curves = [row for row in read("curves") if row["run"] not in runs]
    for name, run in runs.items():
        kept, accuracy = rows.get(name, {}), run.last.main
        if (kept.get("accuracy"), kept.get("commit")) != (str(accuracy), run.meta["git"]):
            print(name, flush=True)
            rows[name] = {"run": name} | _about(run) | _reached(run)
        curves += [{"run": name} | row for row in _curve(run)]
    write("runs", sorted(rows.values(), key=lambda row: row["run"]))
    write("curves", sorted(curves, key=lambda row: (row["run"], int(row["step"]))))


def _about(run: Run) -> Row:
    """What was run."""
    return {
        **{key.removesuffix(".name"): run.config[key] for key in ALWAYS},
        "weighting": run.weighting,
        "changed": changed(run.config),
        **({"tried": " ".join(f"{lr:g}:{v:g}" for lr, v in run.tried)} if run.tried else {}),
        "parameters": run.meta["d"],
        "steps": run.last.step,
        "commit": run.meta["git"],
    }


def changed(config: Mapping[str, Any]) -> str:
    """What a flat configuration has otherwise than table1-small, as text."""
    keys = [*USUAL, *(key for key in config if key.startswith("faults.") and key not in USUAL)]
    found = {key: config.get(key) for key in keys}
    return " ".join(
        f"{key}={shown(value)}" if key.startswith("faults.") else f"{key}={value}"
        for key, value in found.items()
        if value is not None and value != USUAL.get(key)
    )


def _reached(run: Run) -> Row:
    """Where it ended, tested in every way; as it was recorded, if messages or nodes failed."""
    last = training.last_record(run.path)
    if run.diverged:
        step = re.search(r"at step (\d+)", run.diverged)
        return {"diverged": step[1] if step else last["step"], "seconds": last["seconds"]["total"]}
    every = {} if "faults" in last else _in_every_way(run, last)
    return {
        "accuracy": last["test"]["accuracy"],
        "loss": round(last["test"]["loss"], 6),
        **every,
        "train loss": round(last["train_loss"], 6),
        "distance": _short(last["consensus"]["theorem"]),
        "mean square": _short(last["consensus"]["mean_square"]),
        "smallest weight": last["smallest_weight"],
        "gigabytes": last["bytes"] / 1e9,
        "seconds": round(last["seconds"]["total"] + last["seconds"]["evaluation"], 1),
        **{f"modelled {what}": _short(last["modelled"][what]) for what in ("compute", "transfer")},
        **({"lost": last["faults"]["lost"] / last["faults"]["sent"]} if "faults" in last else {}),
    }


def _in_every_way(run: Run, last: Mapping[str, Any]) -> Row:
    """With every BatchNorm policy; the average of y only with the recorded one.

    ResNet-18, of which a test takes minutes, as its plan says: on Full with recomputed statistics.
    """
    policies: Sequence[BatchNormPolicy] = get_args(BatchNormPolicy)
    if run.config["model.pretrained"]:
        policies = ["recomputed"] if run.config["topology.name"] == "full" else []
    tested = training.tested(run.path, policies=policies)
    results = {f"{policy} accuracy": r["accuracy"] for policy, r in tested.results.items()}
    return results | _of_nodes(last, tested.own)


def _of_nodes(
    last: Mapping[str, Any], own: Mapping[BatchNormPolicy, list[dict[str, float]]]
) -> Row:
    """Mean accuracies of the nodes' own models: as recorded, and with every policy."""
    if last["nodes"] is None:
        return {}
    means = {policy: fmean(node["accuracy"] for node in nodes) for policy, nodes in own.items()}
    return {
        "nodes' accuracy": last["nodes"]["accuracy"]["mean"],
        "worst node's accuracy": last["nodes"]["accuracy"]["min"],
        **{f"{policy} nodes' accuracy": round(mean, 6) for policy, mean in means.items()},
    }


def _curve(run: Run) -> Iterator[Row]:
    for line in (run.path / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        yield {
            "step": record["step"],
            "epoch": round(record["epoch"], 4),
            "gigabytes": record["bytes"] / 1e9,
            "transfer": _short(record["modelled"]["transfer"]),
            "accuracy": record["test"]["accuracy"],
            "loss": _short(record["test"]["loss"]),
            **({"nodes' accuracy": record["nodes"]["accuracy"]["mean"]} if record["nodes"] else {}),
            "theorem": _short(record["consensus"]["theorem"]),
            "mean square": _short(record["consensus"]["mean_square"]),
            "smallest a": _short(record["a"]["min"]),
            "largest a": _short(record["a"]["max"]),
            **(_given(record["weights"]) if record["weights"] else {}),
        }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _given(W: Sequence[Sequence[float]]) -> Row:
    """K times the mean weight of an edge: within a half of the nodes, and between the halves."""
    n = len(W)
    shares: dict[str, list[float]] = {"given within": [], "given across": []}
    for i in range(n):
        receivers = [j for j in range(n) if W[j][i] > 0]
        for j in receivers:
            if j != i:
                place = "within" if (i < n // 2) == (j < n // 2) else "across"
                shares[f"given {place}"].append(len(receivers) * W[j][i])
    return {name: round(fmean(values), 4) for name, values in shares.items() if values}


def read(name: str) -> list[dict[str, str]]:
    """The rows of a result file; none if there is none yet."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a result file; a column that a row lacks is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/study"))
