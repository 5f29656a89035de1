"""The study's results as numbers: which runs, how they compare, how sure that is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from study.collect import read

TOPOLOGIES = ("full", "divide", "exponential", "random")
LAZY, FAR_FIRST = "lazy(c=0.5)", "far-first(c=1, v=0.1)"
MOREAU, SCALE_FREE = "moreau(k=1, v=0.1)", "scale-free-moreau(c=1, v=0.1)"
AS_TABLE1 = ("table1", "lazy", "dials", "far-first", "momentum")  #: sweeps with its settings

METHODS = {  #: of the paper: the name in the table -> algorithm and weighting
    "SGP": ("SGP", "uniform"),
    "MSGP": ("MSGP", "uniform"),
    "SGAP": ("SGAP", MOREAU),
    "MSGAP": ("MSGAP", MOREAU),
    "S-ADDOPT": ("S-ADDOPT", "uniform"),
}
OTHERS = {  #: what else was tried in the paper's place
    "SGAP, lazy": ("SGAP", LAZY),
    "MSGAP, lazy": ("MSGAP", LAZY),
    "SGAP, scale-free": ("SGAP", SCALE_FREE),
    "MSGAP, scale-free": ("MSGAP", SCALE_FREE),
    "SGAP, far-first": ("SGAP", FAR_FIRST),
    "MSGAP, far-first": ("MSGAP", FAR_FIRST),
    "QGM": ("QGM", "uniform"),
    "QGM, Moreau": ("QGM", MOREAU),
}

#: The 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


Place = tuple[str, int]  #: topology and seed


@dataclass(frozen=True)
class Ended:
    """Where a run ended."""

    sweep: str
    algorithm: str
    weighting: str
    topology: str
    seed: int
    momentum: float
    changed: str
    values: dict[str, str]

    def __getitem__(self, column: str) -> float:
        return float(self.values[column])


def runs() -> list[Ended]:
    """All finished runs of the study."""
    return [
        Ended(
            row["run"].partition("/")[0],
            row["algorithm"],
            row["weighting"],
            row["topology"],
            int(row["seed"]),
            float(row["algorithm.momentum"]),
            row["changed"],
            row,
        )
        for row in read("runs")
    ]


def chosen(found: Iterable[Ended], **wanted: str | float) -> list[Ended]:
    """The runs with these attributes; `changed` is nothing unless it is asked for."""
    wanted.setdefault("changed", "")
    return [run for run in found if all(getattr(run, k) == v for k, v in wanted.items())]


def among(found: Iterable[Ended], *sweeps: str, **wanted: str | float) -> list[Ended]:
    """The chosen runs of some sweeps."""
    return [run for run in chosen(found, **wanted) if run.sweep in sweeps]


def of(found: Iterable[Ended], method: str, *sweeps: str, **more: str | float) -> list[Ended]:
    """The runs of a method, in the sweeps with the settings of Table 1 or in those named.

    A method is a name of the tables, or an algorithm and its weights: `SGAP, lazy(c=0.25)`.
    """
    algorithm, weighting = (METHODS | OTHERS).get(method) or method.split(", ", 1)
    return among(found, *(sweeps or AS_TABLE1), algorithm=algorithm, weighting=weighting, **more)


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and half the width of its 95 % confidence interval."""

    mean: float
    half: float
    pairs: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half


def difference(one: Iterable[Ended], other: Iterable[Ended], column: str) -> Difference | None:
    """Of runs that share topology and seed, and with them data, start and batches.

    The topologies of a seed are not independent: they make one mean, and the interval is over
    seeds that have all of them.
    """
    return over_seeds(paired(one, other, column))


def paired(one: Iterable[Ended], other: Iterable[Ended], column: str) -> dict[Place, float]:
    """Differences where both have a run."""
    here, there = _by_place(one, column), _by_place(other, column)
    return {at: here[at] - there[at] for at in here.keys() & there.keys()}


def over_seeds(differences: Mapping[Place, float]) -> Difference | None:
    """Their mean and how sure it is; None with fewer than two seeds."""
    gaps: dict[int, dict[str, float]] = {}
    for (topology, seed), gap in differences.items():
        gaps.setdefault(seed, {})[topology] = gap
    topologies = {t for found in gaps.values() for t in found}
    means = [fmean(found.values()) for found in gaps.values() if found.keys() == topologies]
    if len(means) < 2:
        return None
    half = T[len(means) - 2] * stdev(means) / sqrt(len(means))
    return Difference(fmean(means), half, len(means))


def _by_place(some: Iterable[Ended], column: str) -> dict[Place, float]:
    """The one value that there is in each place."""
    found: dict[Place, float] = {}
    for run in some:
        if (run.topology, run.seed) in found:
            raise ValueError(f"two runs on {run.topology} with seed {run.seed}: {run}")
        found[run.topology, run.seed] = run[column]
    return found


def spread(some: Iterable[Ended], column: str) -> tuple[float, float, int] | None:
    """Mean, sample deviation (0 for one) and number of the runs' values."""
    values = [run[column] for run in some]
    if not values:
        return None
    return fmean(values), stdev(values) if len(values) > 1 else 0.0, len(values)
