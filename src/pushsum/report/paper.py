"""The paper's Table 1, in our units, and what it was measured with."""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from pushsum.report.runs import ADAPTIVE, Run

_CONDITIONS = {  # column of table1.csv -> key of the configuration
    "nodes": "topology.nodes",
    "batch_per_node": "batch",
    "epochs": "epochs",
    "step_size": "algorithm.lr",
}


class Figure(NamedTuple):
    """One cell of Table 1: accuracy in percent, mean cross-entropy."""

    accuracy: float
    loss: float


def figure(run: Run, setting: str, topology: str) -> Figure | None:
    """What the paper reports for such a run, or None if it has no such cell."""
    row = _row(run, setting, topology)
    if row is None:
        return None
    # Its unit is 1e-3 of (mean cross-entropy / 100), as the authors' code computes it.
    return Figure(float(row["accuracy_percent"]), float(row["loss_e-3"]) / 10)


def differences(run: Run, setting: str, topology: str) -> list[str]:
    """How this run was set up otherwise than the paper's, in words."""
    row = _row(run, setting, topology)
    if row is None:
        return []
    found = []
    for column, key in _CONDITIONS.items():
        ours, theirs = run.config.get(key), float(row[column])
        if ours != theirs:
            found.append(f"{key} = {ours} (paper: {theirs:g})")
    momentum = float(row["momentum"])
    if momentum and run.config.get("algorithm.momentum") != momentum:
        ours = run.config.get("algorithm.momentum")
        found.append(f"algorithm.momentum = {ours} (paper: {momentum:g})")
    if run.algorithm in ADAPTIVE:
        theirs_w = f"moreau(k={float(row['k']):g}, v={float(row['v']):g})"
        if run.weighting != theirs_w:
            found.append(f"{run.algorithm} with {run.weighting} (paper: k and v chosen per cell)")
    if (run.config.get("split.kind"), run.config.get("split.clusters")) != ("clusters", 2):
        found.append(f"split = {run.config.get('split.kind')} (paper: two clusters of labels)")
    return found


def _row(run: Run, setting: str, topology: str) -> dict[str, str] | None:
    wide = run.config.get("model.width") in (None, 64) and run.config.get("model.blocks") is None
    moreau = run.algorithm not in ADAPTIVE or run.weighting.startswith("moreau(")
    return _table().get((setting, run.algorithm, topology)) if wide and moreau else None


@cache
def _table() -> dict[tuple[str, str, str], dict[str, str]]:
    text = files("pushsum.report").joinpath("table1.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        (row["setting"].replace(" ", " + "), row["algorithm"], row["topology"]): row for row in rows
    }
