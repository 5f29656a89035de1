"""Runs sorted into the paper's table: settings, topologies across, methods down."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from statistics import fmean, stdev
from typing import Any, NamedTuple

from pushsum.measures import Measure
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
_MOST_DIFFERENCES = 3  # that a setting's name spells out

Values = Mapping[tuple[int, str], float]  #: of runs, by what pairs them: the seeds


class Estimate(NamedTuple):
    """Mean and sample standard deviation over runs; NaN where there is none."""

    mean: float
    std: float = nan


def estimated(values: Iterable[float]) -> Estimate:
    """Of the values of some runs."""
    known = list(values)
    mean = fmean(known)
    return Estimate(mean, stdev(known) if len(known) > 1 and not isnan(mean) else nan)


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one topology that differ in their seeds alone.

    Attributes:
        setting, method, topology: what its row and its column are called.
        runs: at least one.
        paper: the paper's figure, if it has one.
    """

    setting: str
    method: str
    topology: str
    runs: tuple[Run, ...]
    paper: paper.Figure | None

    @property
    def measure(self) -> Measure:
        """What its runs are measured by."""
        return self.runs[0].measure

    def values(self, field: str = "main") -> Values:
        """Of a field of the last records, as it is shown; NaN where a run diverged after it."""
        scale = 1 if field == "loss" else self.measure.scale
        return {
            (run.seed, word(run, "topology.seed")): nan
            if run.diverged
            else scale * run.last.spread(field).mean
            for run in self.runs
        }

    def estimate(self, field: str = "main") -> Estimate:
        """Over runs; NaN if one of them diverged."""
        return estimated(self.values(field).values())

    @property
    def unfinished(self) -> int:
        return sum(not run.finished and not run.diverged for run in self.runs)


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
    def measure(self) -> Measure:
        """What its runs are measured by."""
        return self.runs[0].measure

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for method, _ in self.cells))

    def setup(self, method: str) -> str:
        """Step size, momentum, weights and the like of a method's runs; by topology if they differ.

        As in "lr 0.1, momentum 0.8, moreau(k=1, v=0.1) on Full, moreau(k=0.1, v=0.1) on Exp".
        """
        cells = {t: cell.runs for t in self.topologies if (cell := self.cells.get((method, t)))}
        return ", ".join(
            part
            for trait in (_step_size, _momentum, _optimizer, _own, lambda run: run.weighting)
            if (
                part := _by_topology(
                    {t: " or ".join(dict.fromkeys(map(trait, runs))) for t, runs in cells.items()}
                )
            )
        )


@dataclass(frozen=True)
class Results:
    """Everything the tables show.

    Attributes:
        settings: a table each.
        methods: rows.
        skipped: run directories left out, with the reasons.
    """

    settings: tuple[Setting, ...]
    methods: tuple[str, ...]
    skipped: tuple[Skipped, ...] = field(default=())

    @property
    def cells(self) -> list[Cell]:
        return [cell for setting in self.settings for cell in setting.cells.values()]

    @property
    def runs(self) -> list[Run]:
        return [run for cell in self.cells for run in cell.runs]

    @property
    def measures(self) -> list[Measure]:
        """What the runs are measured by."""
        return list(dict.fromkeys(setting.measure for setting in self.settings))


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
        built = {key: _cell(name, *key, cells[key]) for key in order if key in cells}
        settings.append(Setting(name, tuple(topologies), built, differences))
    return Results(tuple(settings), methods, (*skipped, *copies))


def over(results: Results, key: str) -> dict[tuple[str, str, str], list[tuple[Any, Cell]]]:
    """(method, topology, all else) -> cells that differ in one key alone, with its values."""
    found: dict[tuple[str, str, str], list[tuple[Any, Cell]]] = defaultdict(list)
    for cell in results.cells:
        run = cell.runs[0]
        rest = _identity(run, [k for k in _shared_by_setting(run) if k != key])
        found[cell.method, cell.topology, rest].append((run.value(key), cell))
    return found


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


def _cell(setting: str, method: str, topology: str, runs: list[Run]) -> Cell:
    runs = sorted(runs, key=lambda run: (run.seed, run.path))
    return Cell(setting, method, topology, tuple(runs), paper.figure(runs[0]))


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

    The kind of weighting belongs to the name of an algorithm that takes one; so does every
    parameter that takes several values on one topology of one setting. Those that only change from
    topology to topology, as the paper's k does, do not.
    """
    families: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        families[run.algorithm, _kind(run)].append(run)
    rows: dict[Run, str] = {}
    files: dict[str, dict[str, int]] = defaultdict(dict)  # row -> its weighting's files, numbered
    for (algorithm, kind), family in sorted(families.items(), key=lambda item: _order(item[0])):
        cells: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in family:
            cells[where[run]].append(run)
        traits = {run: _traits(run) for run in family}
        varying = [
            key
            for key in sorted({key for run in family for key in traits[run]})
            if any(len({traits[run].get(key) for run in cell}) > 1 for cell in cells.values())
        ]
        for run in sorted(family, key=lambda run: [traits[run].get(key, "") for key in varying]):
            words = [algorithm] + [run.weighting if "weighting" in varying else kind] * bool(kind)
            words += [f"{k}={v}" for k in varying if k != "weighting" and (v := traits[run].get(k))]
            name = ", ".join(words)
            file = str(run.config.get("algorithm.weighting")) if ".py:" in run.weighting else ""
            number = files[name].setdefault(file, len(files[name]) + 1)
            rows[run] = name if number == 1 else f"{name} ({number})"
    return rows


def _traits(run: Run) -> dict[str, str]:
    """What an algorithm's runs may differ in, as far as it has an effect and was not tuned."""
    ignored = {"algorithm.name", "algorithm.weighting"}
    if run.algorithm not in MOMENTUM:
        ignored.add("algorithm.momentum")
    plain = {
        key.removeprefix("algorithm."): word(run, key)
        for key in run.config
        if key.startswith("algorithm.") and key not in ignored
    }
    return plain | {"weighting": run.weighting} | ({"lr": "tuned"} if run.tried else {})


def _step_size(run: Run) -> str:
    return f"lr {run.lr}" + (f" (best of {len(run.tried)} tried)" if run.tried else "")


def _momentum(run: Run) -> str:
    return f"momentum {run.momentum:g}" if run.momentum else ""


def _optimizer(run: Run) -> str:
    return "" if run.config.get("algorithm.optimizer") is None else word(run, "algorithm.optimizer")


def _own(run: Run) -> str:
    """The parameters of the method's own, and how often it exchanges."""
    own = [key for key in run.config if key.startswith("algorithm.parameters.")]
    own += ["algorithm.every"] * (run.config.get("algorithm.every", 1) != 1)
    return ", ".join(f"{key.rpartition('.')[2]} {word(run, key)}" for key in own)


def _by_topology(texts: Mapping[str, str]) -> str:
    where: dict[str, list[str]] = defaultdict(list)
    for topology, text in texts.items():
        where[text].append(topology)
    if len(where) == 1:
        return next(iter(where))
    return ", ".join(f"{text} on {' and '.join(names)}" for text, names in where.items())


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
