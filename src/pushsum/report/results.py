"""Runs sorted into the paper's table: settings and topologies across, methods down."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import isnan, nan
from statistics import fmean, stdev
from typing import Any, NamedTuple

from pushsum.methods import ADAPTIVE, MOMENTUM, NAMES
from pushsum.names import plain
from pushsum.report import paper
from pushsum.report.runs import HOW, Run, Skipped, shown

MODELS = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "resnet-small": "narrow ResNet",
    "cnn": "CNN",
    "mlp": "MLP",
}
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion-mnist": "Fashion-MNIST",
    "quickdraw": "Quick Draw",
}
TOPOLOGIES = {
    "full": "Full",
    "divide": "Divide",
    "exponential": "Exp",
    "random": "Random",
    "ring": "Ring",
}
_WEIGHTINGS = ("moreau", "scale-free-moreau", "far-first", "lazy", "uniform")

_GRAPH = ("topology.inner", "topology.inter", "topology.period")  # of random alone
AVERAGE = "Average"
_MOST_DIFFERENCES = 3  # that a setting's name spells out


class Estimate(NamedTuple):
    """Mean and sample standard deviation over runs; NaN where there is none."""

    mean: float
    std: float = nan


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one topology that differ in their seeds alone.

    Attributes:
        runs: at least one.
        paper: the paper's figure, if it has one.
    """

    runs: tuple[Run, ...]
    paper: paper.Figure | None

    @cached_property
    def accuracy(self) -> Estimate:
        """In percent, of the last record; NaN if a run diverged after it."""
        return _estimate([100 * _reached(run, "accuracy") for run in self.runs])

    @cached_property
    def loss(self) -> Estimate:
        """Mean cross-entropy, of the last record; NaN if a run diverged after it."""
        return _estimate([_reached(run, "loss") for run in self.runs])

    @property
    def unfinished(self) -> int:
        return sum(_goes_on(run) for run in self.runs)


@dataclass(frozen=True)
class Setting:
    """One model on one data set, and all else that its runs share.

    Attributes:
        name: what stands above its columns.
        topologies: its columns.
        cells: (method, topology) -> cell.
        differences: in what it differs from other settings of the same model and data.
    """

    name: str
    topologies: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    differences: str = ""

    @property
    def runs(self) -> list[Run]:
        return [run for cell in self.cells.values() for run in cell.runs]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for method, _ in self.cells))

    @property
    def averaged(self) -> bool:
        """Of a single topology, the average would say the same again."""
        return len(self.topologies) > 1


@dataclass(frozen=True)
class Results:
    """Everything the table shows.

    Attributes:
        settings: groups of columns.
        methods: rows.
        skipped: run directories left out, with the reasons.
    """

    settings: tuple[Setting, ...]
    methods: tuple[str, ...]
    skipped: tuple[Skipped, ...] = field(default=())

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.runs]


class Entry(NamedTuple):
    """What stands at one place of the table.

    Attributes:
        estimate: NaN where a run diverged.
        paper: NaN where the paper has no figure.
        best: whether no other row of the column is better.
        unfinished: how many of the runs are.
    """

    estimate: Estimate
    paper: float
    best: bool
    unfinished: int


class Line(NamedTuple):
    """One line of the table: a measure of a method, one entry (or None) per column."""

    method: str
    measure: str
    entries: tuple[Entry | None, ...]


class Table(NamedTuple):
    """The columns of one setting: their heads, and (method, its lines)."""

    setting: Setting
    heads: list[str]
    methods: list[tuple[str, list[Line]]]


def collect(runs: Iterable[Run], skipped: Iterable[Skipped] = ()) -> Results:
    """Sort runs into settings, topologies and methods; copies of a run are left out."""
    kept, copies = _without_copies(runs)
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in kept:
        groups[_base(run), _identity(run, _shared_by_setting(run))].append(run)
    by_name: dict[str, list[list[Run]]] = defaultdict(list)
    for (base, _), group in sorted(groups.items(), key=lambda item: item[0]):
        by_name[base].append(group)

    named: list[tuple[str, str, list[Run]]] = []
    for base, members in by_name.items():
        named += [(base + name, text, m) for (name, text), m in _told_apart(members)]

    columns = {run: column for _, _, group in named for run, column in _columns(group)}
    where = {run: (name, columns[run]) for name, _, group in named for run in group}
    rows = _rows(kept, where)
    methods = tuple(dict.fromkeys(rows.values()))
    settings = []
    for name, differences, group in named:
        cells: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in group:
            cells[rows[run], columns[run]].append(run)
        topologies = sorted({topology for _, topology in cells}, key=_topology_order)
        order = [(method, topology) for method in methods for topology in topologies]
        built = {key: _cell(cells[key]) for key in order if key in cells}
        settings.append(Setting(name, tuple(topologies), built, differences))
    return Results(tuple(settings), methods, (*skipped, *copies))


def table(results: Results) -> list[Line]:
    """Two lines per method: accuracy and loss; columns as in `columns`."""
    lines = []
    for measure in ("accuracy", "loss"):
        grid = [_entries(results, method, measure) for method in results.methods]
        best = [_best(column, measure) for column in zip(*grid, strict=True)]
        for method, entries in zip(results.methods, grid, strict=True):
            marked = (
                e and e._replace(best=e.estimate.mean == value)
                for e, value in zip(entries, best, strict=True)
            )
            lines.append(Line(method, measure, tuple(marked)))
    return sorted(lines, key=lambda line: results.methods.index(line.method))


def columns(results: Results) -> list[tuple[str, str]]:
    """(setting, topology) of every column; then the averages, whose topology is ""."""
    plain = [(s.name, topology) for s in results.settings for topology in s.topologies]
    return plain + [(s.name, "") for s in results.settings if s.averaged]


def tables(results: Results) -> list[Table]:
    """The table cut into one per setting, without the methods that it does not have."""
    lines, places = table(results), columns(results)
    found = []
    for setting in results.settings:
        chosen = [i for i, (name, _) in enumerate(places) if name == setting.name]
        heads = [*setting.topologies, *([AVERAGE] if setting.averaged else [])]
        own = [
            line._replace(entries=tuple(line.entries[i] for i in chosen))
            for line in lines
            if line.method in setting.methods
        ]
        pairs = [(method, list(pair)) for method, pair in groupby(own, lambda line: line.method)]
        found.append(Table(setting, heads, pairs))
    return found


def notes(results: Results) -> list[str]:
    """What a reader of the table has to know, a sentence each."""
    runs = results.runs
    found = [
        "Accuracy (%) and loss (mean cross-entropy) of the average model on the test data, at the "
        "last record of each run; bold: the best of a column."
    ]
    cells = [cell for setting in results.settings for cell in setting.cells.values()]
    if any(len(cell.runs) > 1 for cell in cells):
        averaged = any(setting.averaged for setting in results.settings)
        averages = "; an average is that of the means" if averaged else ""
        found.append(f"± is the sample standard deviation over seeds{averages}.")
    counts = sorted({len(cell.runs) for cell in cells})
    if len(counts) > 1:
        found.append(f"Cells have {counts[0]} to {counts[-1]} runs.")
    unfinished = sum(map(_goes_on, runs))
    if unfinished:
        found.append(f"† unfinished, the value so far: {unfinished} of {len(runs)} runs.")
    if any(isnan(v) for cell in cells for v in (cell.accuracy.mean, cell.loss.mean)):
        found.append("NaN: a run of the cell diverged.")
    settings: dict[str, list[str]] = defaultdict(list)
    for setting in results.settings:
        settings[weights(setting)].append(setting.name)
    for text, names in settings.items():
        where = "" if len(settings) == 1 else f" in {' and '.join(names)}"
        found.append(f"Weights{where}: {text}.")
    if any(cell.paper for cell in cells):
        found.append(
            "Beside ours (lighter, in parentheses, or in lines marked so): the figure from the "
            "paper's Table 1, one seed each; its loss, which is in E-3 of the mean cross-entropy "
            "/ 100, is converted to the mean cross-entropy."
        )
        found += _set_up_differently(results)
    return found


def weights(setting: Setting) -> str:
    """Who gave how much, as in "SGAP and MSGAP moreau(k=1, v=0.1); others uniform"."""
    if {run.weighting for run in setting.runs} == {"uniform"}:
        return "uniform"
    users: dict[str, dict[str, None]] = defaultdict(dict)  # text -> algorithms, in their order
    others = False
    for _, group in groupby(setting.cells.items(), lambda item: item[0][0]):
        cells = [(topology, cell.runs[0]) for (_, topology), cell in group]
        algorithm = cells[0][1].algorithm
        if algorithm not in ADAPTIVE:
            others = True
            continue
        where: dict[str, list[str]] = defaultdict(list)
        for topology, run in cells:
            where[run.weighting].append(topology)
        each = [f"{weighting} on {' and '.join(names)}" for weighting, names in where.items()]
        users[", ".join(each if len(where) > 1 else where)][algorithm] = None
    texts = [f"{' and '.join(names)} {text}" for text, names in users.items()]
    return "; ".join([*texts, "others uniform"] if others else texts)


def _set_up_differently(results: Results) -> Iterable[str]:
    settings: dict[str, list[str]] = defaultdict(list)
    for setting in results.settings:
        compared = [run for cell in setting.cells.values() if cell.paper for run in cell.runs]
        other = dict.fromkeys(text for run in compared for text in paper.differences(run))
        settings["; ".join(other)].append(setting.name)
    for text, names in settings.items():
        whose = "ours" if len(settings) == 1 else " and ".join(names)
        if text:
            yield f"Not as in the published runs, {whose}: {text}."


# --------------------------------------------------------------------------- entries


def _entries(results: Results, method: str, measure: str) -> list[Entry | None]:
    plain: list[Entry | None] = []
    averages: list[Entry | None] = []
    for setting in results.settings:
        group: list[Entry | None] = []
        for topology in setting.topologies:
            cell = setting.cells.get((method, topology))
            if cell is None:
                group.append(None)
                continue
            theirs = getattr(cell.paper, measure) if cell.paper else nan
            group.append(Entry(getattr(cell, measure), theirs, False, cell.unfinished))
        whole = [entry for entry in group if entry is not None]
        plain += group
        if setting.averaged:
            averages.append(
                Entry(
                    Estimate(fmean(entry.estimate.mean for entry in whole)),
                    fmean(entry.paper for entry in whole),
                    False,
                    sum(entry.unfinished for entry in whole),
                )
                if len(whole) == len(group)  # else it would not compare
                else None
            )
    return plain + averages


def _best(column: Sequence[Entry | None], measure: str) -> float:
    values = [e.estimate.mean for e in column if e is not None and not isnan(e.estimate.mean)]
    if len(values) < 2:
        return nan
    return max(values) if measure == "accuracy" else min(values)


def _reached(run: Run, measure: str) -> float:
    return nan if run.diverged else run.last.measures[measure].mean


def _goes_on(run: Run) -> bool:
    return not run.finished and not run.diverged


def _estimate(values: list[float]) -> Estimate:
    mean = fmean(values)
    return Estimate(mean, stdev(values) if len(values) > 1 and not isnan(mean) else nan)


def _cell(runs: list[Run]) -> Cell:
    runs = sorted(runs, key=lambda run: (run.seed, run.path))
    return Cell(tuple(runs), paper.figure(runs[0]))


# --------------------------------------------------------------------------- sorting


def _without_copies(runs: Iterable[Run]) -> tuple[list[Run], list[Skipped]]:
    """Of runs with the same configuration, the one that came furthest."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_identity(run, [key for key in run.config if key not in HOW])].append(run)
    kept, copies = [], []
    for group in groups.values():
        first, *rest = sorted(
            group, key=lambda run: (not run.finished, -run.last.step, -len(run.records))
        )
        kept.append(first)
        reason = f"same configuration and seed as {plain(first.path.name)}"
        copies += [Skipped(run.path, reason) for run in rest]
    return kept, copies


def _base(run: Run) -> str:
    model, short = word(run, "model.name"), word(run, "data.name").removesuffix(".npz")
    return f"{MODELS.get(model, model)} + {DATA.get(short, short)}"


def _shared_by_setting(run: Run) -> list[str]:
    return [
        key
        for key in run.config
        if key not in (*HOW, *_GRAPH, "seed", "topology.name", "topology.seed")
        and not key.startswith("algorithm.")
    ]


def _identity(run: Run, keys: Iterable[str]) -> str:
    return json.dumps([(key, run.value(key)) for key in sorted(keys)], default=str)


def _told_apart(
    groups: list[list[Run]],
) -> Iterable[tuple[tuple[str, str], list[Run]]]:
    """Settings of the same model and data: (what to add to the name, the differences), runs."""
    keys = {key for group in groups for key in _shared_by_setting(group[0])}
    varying = [k for k in sorted(keys) if len({_identity(g[0], [k]) for g in groups}) > 1]
    texts = [
        ", ".join(f"{key.removeprefix('topology.')}={word(group[0], key)}" for key in varying)
        for group in groups
    ]
    # Files of one name in two directories read the same.
    spelt = len(varying) <= _MOST_DIFFERENCES and len(set(texts)) == len(texts)
    for number, (text, group) in enumerate(zip(texts, groups, strict=True), start=1):
        short = text if spelt else f"variant {number}"
        yield ((f" ({short})" if varying else "", text), group)


def _columns(group: list[Run]) -> Iterable[tuple[Run, str]]:
    """The topology's name, with its parameters where they vary within the setting."""
    for name in dict.fromkeys(run.config["topology.name"] for run in group):
        members = [run for run in group if run.config["topology.name"] == name]
        varying = [
            key
            for key in (_GRAPH if name == "random" else ())
            if len({_identity(run, [key]) for run in members}) > 1
        ]
        for run in members:
            words = [f"{key.removeprefix('topology.')}={word(run, key)}" for key in varying]
            label = TOPOLOGIES.get(name) or shown(name)
            yield run, f"{label}({', '.join(words)})" if words else label


def _rows(runs: list[Run], where: Mapping[Run, tuple[str, str]]) -> dict[Run, str]:
    """Run -> its method, in the order of the rows.

    The kind of weighting belongs to the name if an algorithm appears with several; so does every
    other parameter that takes several values on one topology of one setting. Those that only
    change from topology to topology, as the paper's k does, do not.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    families: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        kinds[run.algorithm].add(_kind(run))
        families[run.algorithm, _kind(run)].append(run)
    rows: dict[Run, str] = {}
    files: dict[str, dict[str, int]] = defaultdict(dict)  # row -> its weighting's files, numbered
    for (algorithm, kind), family in sorted(families.items(), key=lambda item: _order(item[0])):
        cells: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in family:
            cells[where[run]].append(run)
        keys = sorted({key for run in family for key in _traits(run)})
        varying = [
            key
            for key in keys
            if any(len({_traits(run).get(key) for run in cell}) > 1 for cell in cells.values())
        ]
        weightings = {run.weighting for run in family}
        for run in sorted(family, key=lambda run: [_traits(run).get(key, "") for key in varying]):
            words = [algorithm]
            if len(kinds[algorithm]) > 1 or "weighting" in varying:
                plain = len(weightings) > 1 and "weighting" not in varying
                words.append(kind if plain else run.weighting)
            traits = _traits(run)
            words += [f"{k}={traits[k]}" for k in varying if k in traits and k != "weighting"]
            name = ", ".join(words)
            file = str(run.config.get("algorithm.weighting")) if ".py:" in run.weighting else ""
            number = files[name].setdefault(file, len(files[name]) + 1)
            rows[run] = name if number == 1 else f"{name} ({number})"
    return rows


def _traits(run: Run) -> dict[str, str]:
    """What an algorithm's runs may differ in, as far as it has an effect."""
    ignored = {"algorithm.name", "algorithm.weighting"}
    if run.algorithm not in MOMENTUM:
        ignored.add("algorithm.momentum")
    plain = {
        key.removeprefix("algorithm."): word(run, key)
        for key in run.config
        if key.startswith("algorithm.") and key not in ignored
    }
    return plain | {"weighting": run.weighting}


def _kind(run: Run) -> str:
    return run.weighting.partition("(")[0] if run.algorithm in ADAPTIVE else ""


def _order(family: tuple[str, str]) -> tuple[Any, ...]:
    algorithm, kind = family
    return _place(algorithm, NAMES), algorithm, _place(kind, _WEIGHTINGS), kind


def _topology_order(label: str) -> tuple[int, str]:
    return _place(label.partition("(")[0], tuple(TOPOLOGIES.values())), label


def _place(name: str, known: tuple[str, ...]) -> int:
    return known.index(name) if name in known else len(known)


def word(run: Run, key: str) -> str:
    """What a run has for a key, as text."""
    return shown(run.value(key))
