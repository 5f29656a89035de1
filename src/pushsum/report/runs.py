"""Run directories as objects: everything that a report reads, checked at the door."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import isnan, nan
from pathlib import Path, PureWindowsPath
from sys import intern
from typing import Any, NamedTuple

from pushsum import files
from pushsum.measures import Measure, told
from pushsum.methods import ADAPTIVE, MOMENTUM
from pushsum.names import flat, one_line, plain
from pushsum.networks import NETWORKS
from pushsum.reading import MOST_BYTES, MOST_CHARACTERS, MOST_META, json_value, yaml_value

CONFIG, META, RECORDS = "config.yaml", "meta.json", "records.jsonl"
LARGEST = 1e300  #: beyond it, a number counts as none: means and squares of it would overflow
LAST_STEP = 10**15  #: of any run
MOST_NODES = 10**9
MOST_KEYS = 500  #: of a configuration
MOST_RECORDS = 1024  #: of a run that are kept: more than a curve has points
MOST_LINE = 1 << 20  #: bytes of a record
MOST_LINES = 1 << 30  #: bytes of all records of a run
EMPTY = "nothing has been recorded yet"
#: Not what is run.
HOW = ("gradients", "device", "checkpoint", "data.root", "evaluation.nodes", "evaluation.every")

Table = tuple[tuple[float, ...], ...]


class Spread(NamedTuple):
    """A value and the range it stands for; NaN where nothing was measured."""

    mean: float
    low: float
    high: float


NOTHING = Spread(nan, nan, nan)  #: one for all, of very many records


class Faults(NamedTuple):
    """What had failed until then: of all messages, and of the nodes; NaN if it was not recorded."""

    sent: float
    lost: float
    late: float
    alive: float
    held: float
    smallest_a: float


class Record(NamedTuple):
    """One evaluation; NaN where nothing was measured.

    Attributes:
        step, epoch, bytes: how far the run was.
        modelled: seconds on the configured network.
        main: what the run is measured by (`Run.measure`), of the average model on the test data.
        loss, validation, train_loss, theorem, mean_square: see `curves.measures`.
        nodes, nodes_loss: the same, and the loss, of the nodes' own models.
        local, personal: of the nodes' own and of their personal models, on the nodes' own test
            data.
        faults: what had failed, or None without a fault plan.
        place: where its line begins.
        weights: whether it holds a weight matrix.
    """

    step: int
    epoch: float
    bytes: float
    modelled: float
    main: float
    loss: float
    validation: float
    train_loss: float
    theorem: float
    mean_square: float
    nodes: Spread
    nodes_loss: Spread
    local: Spread
    personal: Spread
    faults: Faults | None
    place: int
    weights: bool

    def spread(self, key: str) -> Spread:
        """What was measured, by its name."""
        found = getattr(self, key)
        return found if isinstance(found, Spread) else Spread(found, found, found)


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory.

    Attributes:
        path: the directory.
        config: the resolved configuration, flat: `{"algorithm.lr": 0.1, ...}`.
        meta: what else stands beside the run: versions, sizes, the split.
        records: at least one, in the order of their steps; of very many, some.
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

    @cached_property
    def measure(self) -> Measure:
        """What it is measured by."""
        return told(self.meta.get("measure"))

    @property
    def finished(self) -> bool:
        return self.meta.get("finished") is True

    @property
    def diverged(self) -> str:
        """Where and why it ended, or nothing."""
        found = self.meta.get("diverged")
        return found if isinstance(found, str) else "diverged" * bool(found)

    @property
    def last(self) -> Record:
        return self.records[-1]

    @property
    def algorithm(self) -> str:
        return shown(self.config["algorithm.name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def lr(self) -> str:
        return shown(self.config.get("algorithm.lr"))

    @property
    def momentum(self) -> float:
        """0 where the method has none, or its optimizer sees to it."""
        found = self.config.get("algorithm.momentum")
        used = self.algorithm in MOMENTUM and self.config.get("algorithm.optimizer") is None
        return float(found) if used and isinstance(found, int | float) and 0 <= found < 1 else 0.0

    @cached_property
    def tried(self) -> Table:
        """(step size, what it reached) of all that were tried to choose this run's; or ()."""
        found = self.meta.get("tune")
        table = _table(found.get("tried")) if isinstance(found, dict) else None
        return table if table and len(table[0]) == 2 else ()

    @property
    def nodes(self) -> int:
        return int(self.config["topology.nodes"])

    @cached_property
    def weighting(self) -> str:
        """As in `moreau(k=0.1, v=0.1)`; what is configured is ignored where it has no effect."""
        if self.algorithm not in ADAPTIVE:
            return "uniform"
        text = shown(self.config.get("algorithm.weighting"))
        if ".py:" in text:
            return text
        kind, _, arguments = text.partition(":")
        return f"{kind}({', '.join(arguments.split(','))})" if arguments else kind

    @cached_property
    def split(self) -> Table:
        """(nodes, classes): who holds how many samples; empty if that is not known."""
        return _table(self.meta.get("split")) or ()

    def weights(self, records: Iterable[Record]) -> list[tuple[Record, Table]]:
        """The square weight matrices of records, read again: few of very many are drawn."""
        return [
            (record, table)
            for record, content in self._again(records)
            if (table := _square(content.get("weights"))) is not None
        ]

    def lost_on(self) -> Table | None:
        """Messages lost until the last record; [i][j] of those from i to j."""
        for _, content in self._again([self.last]):
            faults = content.get("faults")
            return _square(faults.get("lost_on")) if isinstance(faults, dict) else None
        return None

    def _again(self, records: Iterable[Record]) -> Iterator[tuple[Record, Mapping[str, Any]]]:
        with files.opened(self.path / RECORDS, follow=False) as file:
            for record in records:
                file.seek(record.place)
                content = json_value(file.readline(MOST_LINE))
                if isinstance(content, dict):
                    yield record, content


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
    for path in candidates(directory):
        try:
            found.runs.append(_read(path))
        except FileNotFoundError as error:
            found.skipped.append(Skipped(path, f"there is no {Path(error.filename).name}"))
        except OSError as error:  # without the path, for a page may be sent to anybody
            found.skipped.append(Skipped(path, error.strerror or type(error).__name__))
        except ValueError as error:
            found.skipped.append(Skipped(path, one_line(error)))
        except RecursionError:
            found.skipped.append(Skipped(path, f"the brackets in {META} are too deep"))
    if not found.runs:
        why = "; ".join(f"{path.name}: {reason}" for path, reason in found.skipped[:3])
        more = f" and {len(found.skipped) - 3} more" if len(found.skipped) > 3 else ""
        raise ValueError(
            f"{directory}: no run is there{f' ({why}{more})' if why else ''}: "
            f"give a directory that `pushsum run` or `pushsum sweep` has written"
        )
    return found


def candidates(directory: Path) -> Iterator[Path]:
    """Without links, hidden directories (trials of a sweep that tunes), and however deep.

    `os.walk` of Python 3.11 goes only so deep.
    """
    waiting = [directory]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name, reverse=True)
        except OSError:
            continue
        if any(entry.name in (META, RECORDS) for entry in entries):
            yield folder
        waiting += [
            folder / entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]


def _read(path: Path) -> Run:
    text = files.content(path / CONFIG, MOST_BYTES, follow=False)
    try:
        config = yaml_value(text)
    except ValueError as error:
        raise ValueError(f"{CONFIG} is not YAML: {error}") from None
    text = files.content(path / META, MOST_META, follow=False)
    try:
        meta = json_value(text)
    except ValueError:
        raise ValueError(f"{META} is not JSON") from None
    if not isinstance(config, dict) or not isinstance(meta, dict):
        raise ValueError(f"{CONFIG} and {META} should each be a mapping")
    settings = _settings({intern(key): value for key, value in flat(_tidy(config)).items()})
    meta = _tidy(meta)
    records = _records(path / RECORDS, told(meta.get("measure")).name)
    if not records:
        raise ValueError(EMPTY)
    return Run(path, settings, meta, records)


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """A flat configuration that names what every report names."""
    if len(config) > MOST_KEYS:
        raise ValueError(f"{CONFIG} has {len(config):,} keys, more than {MOST_KEYS}")
    for key, value in config.items():
        if len(str(value)) > MOST_CHARACTERS:
            raise ValueError(f"{CONFIG}: {key} has more than {MOST_CHARACTERS} characters")
    for key in ("algorithm.name", "topology.name", "model.name", "data.name"):
        if not isinstance(config.get(key), str):
            raise ValueError(f"{CONFIG} has no {key}")
    for key, least, most in (("topology.nodes", 1, MOST_NODES), ("seed", 0, LARGEST)):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{CONFIG}: {key} = {_quoted(value)} is not an integer >= {least}")
    return config


def _tidy(value: Any) -> Any:
    """What stands in a file, without control characters and numbers beyond all measure."""
    if isinstance(value, str):
        return intern(plain(value))
    if isinstance(value, list):
        return [_tidy(part) for part in value]
    if isinstance(value, dict):
        return {shown(plain(str(key))): _tidy(part) for key, part in value.items()}
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("a number has more than 300 digits")
    return value


def _records(path: Path, measure: str) -> tuple[Record, ...]:
    """The records of a file; of more than MOST_RECORDS every second, fourth, ... and the last."""
    kept: list[tuple[int, Record]] = []  # numbered from 0
    every, place = 1, 0
    with files.opened(path, MOST_LINES, follow=False) as file:
        for number in count(1):
            line = file.readline(MOST_LINE + 1)
            if not line:
                break
            start, place = place, place + len(line)
            if not line.strip():
                continue
            try:
                if len(line) > MOST_LINE:
                    raise ValueError(f"it has more than {MOST_LINE:,} bytes")
                record = _record(json_value(line), start, measure)
            except (ValueError, KeyError) as error:
                if not line.endswith(b"\n") and len(line) <= MOST_LINE:
                    break  # a crash cut it short, or it is being written right now
                what = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(f"{RECORDS} line {number}: {what}") from None
            while kept and kept[-1][1].step >= record.step:  # the run went back and on again
                kept.pop()
            position = kept[-1][0] + 1 if kept else 0
            if kept and kept[-1][0] % every:
                kept.pop()  # it was there as the last
            kept.append((position, record))
            if len(kept) > MOST_RECORDS:
                every *= 2
                kept = [one for one in kept if one[0] % every == 0 or one[0] == position]
    return tuple(record for _, record in kept)


def _record(content: Any, place: int, measure: str) -> Record:
    if not isinstance(content, dict):
        raise ValueError("a record is an object")
    test = _mapping("test", content["test"])
    consensus = _mapping("consensus", content["consensus"])
    nodes, local = (_mapping(key, content.get(key)) for key in ("nodes", "local"))
    validation = _mapping("validation", content.get("validation"))
    faults = _mapping("faults", content.get("faults"))
    step, epoch = content["step"], _number(content["epoch"])
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= LAST_STEP:
        raise ValueError(f"step = {_quoted(step)} is not a number of steps")
    if isnan(epoch):
        raise ValueError("epoch is not a number")
    return Record(
        step,
        epoch,
        bytes=_number(content["bytes"]),
        modelled=_number(_mapping("modelled", content.get("modelled")).get("total")),
        main=_number(test.get(measure)),
        loss=_number(test["loss"]),
        validation=_number(validation.get(measure)),
        train_loss=_number(content.get("train_loss")),
        theorem=_number(consensus.get("theorem")),
        mean_square=_number(consensus.get("mean_square")),
        nodes=_spread("nodes", nodes, measure),
        nodes_loss=_spread("nodes", nodes, "loss"),
        local=_spread("local.nodes", _mapping("local.nodes", local.get("nodes")), measure),
        personal=_spread(
            "local.personal", _mapping("local.personal", local.get("personal")), measure
        ),
        faults=Faults(*(_number(faults.get(key)) for key in Faults._fields)) if faults else None,
        place=place,
        weights=isinstance(content.get("weights"), list),
    )


def _spread(name: str, values: Mapping[str, Any], measure: str) -> Spread:
    found = _mapping(f"{name}.{measure}", values.get(measure))
    if not found:
        return NOTHING
    return Spread(*(_number(found.get(key)) for key in ("mean", "min", "max")))


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a mapping")
    return value


def _number(value: Any) -> float:
    if type(value) is float and -LARGEST <= value <= LARGEST:  # nearly always
        return value
    if value is None:
        return nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_quoted(value)} is not a number")
    return float(value) if abs(value) <= LARGEST else nan


def _quoted(value: Any) -> str:
    text = shown(value)
    return f"{text!r:.50}" if isinstance(value, str) else f"{text:.50}"


def _table(rows: Any) -> Table | None:
    """A table of numbers, or None if it is none: pictures are left out rather than a run."""
    if not isinstance(rows, list) or not rows:
        return None
    try:
        table = tuple(tuple(_number(value) for value in row) for row in rows)
    except (TypeError, ValueError):
        return None
    return table if table[0] and len({len(row) for row in table}) == 1 else None


def _square(rows: Any) -> Table | None:
    table = _table(rows)
    return table if table is not None and len(table) == len(table[0]) else None


def shown(value: Any) -> str:
    """A value as configurations write it; of a file its name, for a page may be sent to anybody."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return _without_folders(value)
        case list() | tuple():
            return f"[{', '.join(map(shown, value))}]"
        case dict():
            return f"{{{', '.join(f'{key}: {shown(part)}' for key, part in value.items())}}}"
    return str(value)


def _without_folders(text: str) -> str:
    if "/" not in text and "\\" not in text:
        return text
    path = PureWindowsPath(text)  # knows both kinds of slashes
    away = path.root or text.startswith("~") or text.endswith((".npz", ".safetensors"))
    return path.name if away else text
