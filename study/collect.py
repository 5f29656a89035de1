"""Runs -> study/results: one row per run, and one per record.

    python -m study.collect [runs/study]

Finished runs only. A run that is no longer on disk keeps its rows.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pushsum import training
from pushsum.report.runs import Run, load
from study import RESULTS

Row = dict[str, Any]

ALWAYS = ("algorithm.name", "algorithm.lr", "algorithm.momentum", "topology.name", "seed")
USUAL = {  #: of the recipe table1-small; what differs stands in the column `changed`
    "data.name": "cifar10",
    "data.augment": False,
    "model.norm": "batch",
    "model.stem": None,
    "model.fresh_last_layer": False,
    "algorithm.schedule.kind": "cosine",
    "published.restart": False,
    "published.same_batches": False,
    "published.per_receiver": False,
    "published.average_of_y": False,
}


def main(directory: Path) -> None:
    """Add the finished runs of a directory to the results."""
    runs = {
        run.path.relative_to(directory).as_posix(): run for run in load(directory) if run.finished
    }
    rows = {row["run"]: row for row in read("runs")}
    curves = [row for row in read("curves") if row["run"] not in runs]
    for name, run in runs.items():
        if rows.get(name, {}).get("accuracy") != str(run.last.measures["accuracy"].mean):
            print(name, flush=True)
            rows[name] = {"run": name} | _about(run) | _reached(run)
        curves += [{"run": name} | row for row in _curve(run)]
    write("runs", sorted(rows.values(), key=lambda row: row["run"]))
    write("curves", sorted(curves, key=lambda row: (row["run"], int(row["step"]))))


def _about(run: Run) -> Row:
    """What was run."""
    found = {key: run.config[key] for key in USUAL}
    changed = {key: v for key, v in found.items() if v is not None and v != USUAL[key]}
    return {
        **{key.removesuffix(".name"): run.config[key] for key in ALWAYS},
        "weighting": run.weighting,
        "changed": " ".join(f"{key}={value}" for key, value in changed.items()),
        "parameters": run.meta["d"],
        "steps": run.last.step,
        "commit": run.meta["git"],
    }


def _reached(run: Run) -> Row:
    """Where it ended, tested in every way; the average of y only with the recorded policy."""
    last = training.last_record(run.path)
    tested = training.tested(run.path)
    return {
        "accuracy": last["test"]["accuracy"],
        "loss": round(last["test"]["loss"], 6),
        **{f"{policy} accuracy": result["accuracy"] for policy, result in tested.results.items()},
        "train loss": round(last["train_loss"], 6),
        "distance": float(f"{last['consensus']['theorem']:.6g}"),
        "mean square": float(f"{last['consensus']['mean_square']:.6g}"),
        "smallest weight": last["smallest_weight"],
        "gigabytes": last["bytes"] / 1e9,
        "seconds": round(last["seconds"]["total"] + last["seconds"]["evaluation"], 1),
    }


def _curve(run: Run) -> Iterator[Row]:
    for record in run.records:
        measures = {name: record.measures[name].mean for name in ("accuracy", "loss", "theorem")}
        yield {
            "step": record.step,
            "epoch": round(record.epoch, 4),
            "gigabytes": record.bytes / 1e9,
            **{name: float(f"{value:.6g}") for name, value in measures.items()},
        }


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
