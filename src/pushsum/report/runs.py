"""Run directories as objects: everything that a report reads, checked at the door."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pushsum.algorithms import ADAPTIVE
from pushsum.names import NETWORKS, flat, one_line

CONFIG, META, RECORDS = "config.yaml", "meta.json", "records.jsonl"
LARGEST = 1e300  #: beyond it, a number counts as none: means and squares of it would overflow
#: Not what is run.
HOW = ("gradients", "device", "checkpoint", "data.root", "evaluation.nodes", "evaluation.every")


class Spread(NamedTuple):
    """A value and the range it stands for; NaN where nothing was measured."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Record:
    """One evaluation.

    Attributes:
        step, epoch, bytes: how far the run was.
        modelled: seconds on the configured network.
        measures: what was measured, by the names in `curves.MEASURES`.
        weights: (n, n), W[j, i] of this step, or None.
    """

    step: int
    epoch: float
    bytes: float
    modelled: float
    measures: Mapping[str, Spread]
    weights: tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory.

    Attributes:
        path: the directory.
        config: the resolved configuration, flat: `{"algorithm.lr": 0.1, ...}`.
        meta: what else stands beside the run: versions, sizes, the split.
        records: at least one, in the order of their steps.
    """

    path: Path
    config: Mapping[str, Any]
    meta: Mapping[str, Any]
    records: tuple[Record, ...]

    def value(self, key: str) -> Any:
        """Of a key of the configuration; what a model's null stands for, if that is known."""
        found = self.config.get(key)
        section, _, option = key.partition(".")
        if found is None and section == "model":
            return NETWORKS.get(self.config["model.name"], {}).get(option)
        return found

    @property
    def finished(self) -> bool:
        return self.meta.get("finished") is True

    @property
    def diverged(self) -> str:
        """Where and why it ended, or nothing."""
        return str(self.meta.get("diverged") or "")

    @property
    def last(self) -> Record:
        return self.records[-1]

    @property
    def algorithm(self) -> str:
        return str(self.config["algorithm.name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def nodes(self) -> int:
        return int(self.config["topology.nodes"])

    @cached_property
    def weighting(self) -> str:
        """As in `moreau(k=0.1, v=0.1)`; what is configured is ignored where it has no effect."""
        if self.algorithm not in ADAPTIVE:
            return "uniform"
        kind, _, arguments = str(self.config.get("algorithm.weighting")).partition(":")
        return f"{kind}({', '.join(arguments.split(','))})" if arguments else kind

    @cached_property
    def split(self) -> tuple[tuple[float, ...], ...]:
        """(nodes, classes): who holds how many samples; empty if that is not known."""
        return _table(self.meta.get("split")) or ()


class Skipped(NamedTuple):
    """A run directory that the report leaves out, and why."""

    path: Path
    reason: str


class Found(NamedTuple):
    """What lies below a directory."""

    runs: list[Run]
    skipped: list[Skipped]


def load(directory: Path) -> list[Run]:
    """Every readable run in `directory` or below it; ValueError if there is none."""
    return find(directory).runs


def find(directory: Path) -> Found:
    """As `load`, with the runs that could not be read and the reasons."""
    if directory.is_file():
        raise ValueError(f"{directory}: this is a file; give a run's directory, or one with runs")
    if not directory.is_dir():
        raise ValueError(f"{directory}: there is no such directory")
    found = Found([], [])
    for path in _candidates(directory):
        try:
            found.runs.append(_read(path))
        except (ValueError, OSError, RecursionError) as error:
            found.skipped.append(Skipped(path, one_line(error)))
    if not found.runs:
        why = "; ".join(f"{path.name}: {reason}" for path, reason in found.skipped[:3])
        more = f" and {len(found.skipped) - 3} more" if len(found.skipped) > 3 else ""
        raise ValueError(
            f"{directory}: no run is there{f' ({why}{more})' if why else ''}: "
            f"give a directory that `pushsum run` or `pushsum sweep` has written"
        )
    return found


def _candidates(directory: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(directory):
        below.sort()
        if META in files or RECORDS in files:
            yield Path(folder)


def _read(path: Path) -> Run:
    for name in (CONFIG, META, RECORDS):
        if not (path / name).is_file():
            raise ValueError(f"there is no {name}")
    try:
        config = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{CONFIG} is not YAML: {error}") from None
    try:
        meta = json.loads((path / META).read_bytes())
    except ValueError:
        raise ValueError(f"{META} is not JSON") from None
    if not isinstance(config, dict) or not isinstance(meta, dict):
        raise ValueError(f"{CONFIG} and {META} should each be a mapping")
    settings = flat(config)
    for key in ("algorithm.name", "topology.name", "model.name", "data.name"):
        if not isinstance(settings.get(key), str):
            raise ValueError(f"{CONFIG} has no {key}")
    for key, least in (("topology.nodes", 1), ("seed", 0)):
        value = settings.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{CONFIG}: {key} = {value!r} is not an integer >= {least}")
    records = _records((path / RECORDS).read_bytes())
    if not records:
        raise ValueError("nothing has been recorded yet")
    return Run(path, settings, meta, records)


def _records(content: bytes) -> tuple[Record, ...]:
    *lines, unended = content.split(b"\n")
    records: list[Record] = []
    for number, line in enumerate([*lines, unended], start=1):
        if not line.strip():
            continue
        try:
            record = _record(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            if line is unended:  # a crash cut it short, or it is being written right now
                break
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{RECORDS} line {number}: {what}") from None
        while records and records[-1].step >= record.step:  # the run went back and on again
            records.pop()
        records.append(record)
    return tuple(records)


def _record(content: Any) -> Record:
    if not isinstance(content, dict):
        raise ValueError("a record is an object")
    test, consensus = content["test"], content["consensus"]
    nodes = (content.get("nodes") or {}).get("accuracy") or {}
    single = {
        "accuracy": test["accuracy"],
        "loss": test["loss"],
        "train_loss": content.get("train_loss"),
        "theorem": consensus.get("theorem"),
        "mean_square": consensus.get("mean_square"),
    }
    measures = {key: Spread(*[_number(value)] * 3) for key, value in single.items()}
    measures["nodes"] = Spread(*(_number(nodes.get(key)) for key in ("mean", "min", "max")))
    return Record(
        step=int(content["step"]),
        epoch=_number(content["epoch"]),
        bytes=_number(content["bytes"]),
        modelled=_number((content.get("modelled") or {}).get("total")),
        measures=measures,
        weights=_table(content.get("weights")),
    )


def _number(value: Any) -> float:
    if value is None:
        return nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value) if abs(value) <= LARGEST else nan


def _table(rows: Any) -> tuple[tuple[float, ...], ...] | None:
    """A table of numbers, or None if it is none: pictures are left out rather than a run."""
    if not isinstance(rows, list) or not rows:
        return None
    try:
        table = tuple(tuple(_number(value) for value in row) for row in rows)
    except (TypeError, ValueError, OverflowError):
        return None
    return table if table[0] and len({len(row) for row in table}) == 1 else None
