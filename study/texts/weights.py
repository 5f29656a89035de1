"""Adaptive or merely lazy: accuracies, what was given, what it followed, and the dials."""

from collections.abc import Iterable, Iterator
from itertools import product
from statistics import fmean

from study.collect import read
from study.numbers import (
    FAR_FIRST,
    LAZY,
    MOREAU,
    SCALE_FREE,
    TOPOLOGIES,
    Difference,
    Ended,
    among,
    chosen,
    difference,
    of,
    over_seeds,
    paired,
)
from study.texts.table1 import gap
from study.words import TITLES, Text, percent, points, short, table

RULES = ("uniform", "lazy(c=0.8)", LAZY, "lazy(c=0.25)", MOREAU, SCALE_FREE, FAR_FIRST)
COMPARED = (
    (LAZY, "uniform"),
    (MOREAU, "uniform"),
    (MOREAU, "lazy(c=0.8)"),
    (MOREAU, LAZY),
    (MOREAU, "lazy(c=0.25)"),
    (SCALE_FREE, "uniform"),
    (SCALE_FREE, LAZY),
)
KS = ("0.1", "1", "10", "100")  #: that were tried on every topology
SGAP_AND_SGP = ("SGP", "SGAP, Moreau", "SGAP − SGP", "change of that")  #: columns
FAMILIES = {"SGAP": "SGP", "MSGAP": "MSGP"}  #: with weights of its own -> with uniform ones


def weights(found: list[Ended]) -> str:
    """Every weighting at the same communication."""
    rows = []
    for family in FAMILIES:
        for rule in RULES:
            method = _named(family, rule)
            if of(found, method):
                rows.append([method, *(percent(of(found, method, topology=t)) for t in TOPOLOGIES)])
    return table(["accuracy, %", *TITLES], rows)


def _named(family: str, rule: str) -> str:
    return f"{FAMILIES[family] if rule == 'uniform' else family}, {rule}"


def adaptive(found: list[Ended]) -> str:
    """Weightings against uniform ones, and against lazy ones that give more, as much and less."""
    rows = []
    for family in FAMILIES:
        for one, other in COMPARED:
            methods = _named(family, one), _named(family, other)
            if of(found, methods[1]):
                gaps = (gap(found, *methods, t) for t in (*TOPOLOGIES, ""))
                rows.append([f"{family}: {short(one)} − {short(other)}", *gaps])
    return table(["points", *TITLES, "all four"], rows)


def far_first(found: list[Ended]) -> str:
    """far-first weights against uniform ones, Moreau's, scale-free and lazy ones."""
    rows = []
    for family, uniform in FAMILIES.items():
        one = f"{family}, far-first"
        for other in (uniform, family, f"{family}, scale-free", f"{family}, lazy"):
            gaps = (gap(found, one, other, t) for t in (*TOPOLOGIES, ""))
            rows.append([f"{one} − {other}", *gaps])
    return table(["points", *TITLES, "all four"], rows)


def _middle(some: list[Ended], column: str) -> float | None:
    """The mean of a column over the records from a fifth to four fifths of the runs."""
    runs = {run.values["run"]: int(run["steps"]) for run in some}
    values = [
        float(row[column])
        for row in read("curves")
        if row["run"] in runs
        and row[column]
        and runs[row["run"]] // 5 < int(row["step"]) < runs[row["run"]] * 4 // 5
    ]
    return fmean(values) if values else None


def given(found: list[Ended]) -> str:
    """K times a weight within a half of the nodes and between the halves, and the scalars' range.

    From the runs whose records see every graph of a cycle alike.
    """
    columns = ("given within", "given across", "smallest a", "largest a")
    rows = []
    for rule in (MOREAU, SCALE_FREE, FAR_FIRST):
        for t in TOPOLOGIES:
            here = chosen(found, sweep="again", algorithm="SGAP", weighting=rule, topology=t)
            means = [_middle(here, column) for column in columns]
            shown = ["–" if mean is None else f"{mean:.2f}" for mean in means]
            rows.append([f"{short(rule)}, {t.capitalize()}", *shown])
    headings = ["within a half", "between the halves", "smallest a", "largest a"]
    return table(["K × weight", *headings], rows)


def distance(found: list[Ended], method: str, topology: str) -> str:
    """Of a method's nodes, in the middle of Table 1's runs: `distance:S-ADDOPT:full`."""
    mean = _middle(of(found, method, topology=topology), "theorem")
    return "–" if mean is None else f"{mean:.2g}"


def apart(found: list[Ended]) -> str:
    """The theorem's distance, from the same runs."""
    rows = []
    for rule in ("uniform", LAZY, MOREAU, SCALE_FREE, FAR_FIRST):
        here = of(found, _named("SGAP", rule), "again")
        means = [_middle(chosen(here, topology=t), "theorem") for t in TOPOLOGIES]
        rows.append([short(rule), *("–" if mean is None else f"{mean:.3g}" for mean in means)])
    return table(["distance", *TITLES], rows)


def dials(found: list[Ended]) -> str:
    """On Full: k over four orders of magnitude, and c; what is gained on 1, and given."""
    some = among(found, "table1", "dials", algorithm="SGAP", topology="full")
    kinds = ("moreau(k={}, v=0.1)", "scale-free-moreau(c={}, v=0.1)")
    rows = []
    for value in ("0.01", "0.1", "1", "10", "100"):
        cells = []
        for kind in kinds:
            here = chosen(some, weighting=kind.format(value))
            one = chosen(some, weighting=kind.format(1))
            gained = "" if value == "1" else points(difference(here, one, "accuracy"))
            shares = [_middle(here, f"given {place}") for place in ("within", "across")]
            gives = " / ".join("–" if share is None else f"{share:.2f}" for share in shares)
            cells += [percent(here), gained, gives]
        rows.append([value, *cells])
    columns = "− that of 1", "gives"
    return table(["k or c", "Moreau", *columns, "scale-free", *columns], rows)


def k_elsewhere(found: list[Ended]) -> str:
    """Moreau's k on every topology, against uniform weights."""
    rows = []
    for t in TOPOLOGIES:
        uniform = percent(of(found, "SGP", topology=t))
        rows.append([t.capitalize(), uniform, *(points(_over_uniform(found, k, t)) for k in KS)])
    return table(["points", "SGP, %", *(f"SGAP, k = {k} − SGP" for k in KS)], rows)


def k_ahead(found: list[Ended]) -> str:
    """In how many of these cells Moreau weights are ahead of uniform ones beyond the noise."""
    gaps = [gap for t in TOPOLOGIES for k in KS if (gap := _over_uniform(found, k, t)) is not None]
    return f"{sum(gap.clear and gap.mean > 0 for gap in gaps)} of {len(gaps)}"


def _over_uniform(found: list[Ended], k: str, topology: str) -> Difference | None:
    moreau = of(found, f"SGAP, moreau(k={k}, v=0.1)", topology=topology)
    return difference(moreau, of(found, "SGP", topology=topology), "accuracy")


def rates(found: list[Ended]) -> str:
    """With the step size of table1-small, and with a quarter of it."""
    where = ("full", "divide", "exponential")
    rows = _sgap_and_sgp(found, {"table1": "0.2", "rates": "0.05"}, where)
    return table(["step size", *SGAP_AND_SGP], rows)


def longer(found: list[Ended]) -> str:
    """The same with more epochs."""
    sweeps = {"table1": "2 epochs", "longer": "6 epochs"}
    rows = _sgap_and_sgp(found, sweeps, ("full", "exponential"))
    return table(["accuracy, %", *SGAP_AND_SGP], rows)


def _sgap_and_sgp(
    found: list[Ended], sweeps: dict[str, str], where: Iterable[str]
) -> Iterator[list[str]]:
    """What uniform and Moreau weights reached in Table 1 and in another sweep, with its names."""
    for (sweep, name), t in product(sweeps.items(), where):
        uniform, moreau = (of(found, m, sweep, topology=t) for m in ("SGP", "SGAP"))
        gap = points(difference(moreau, uniform, "accuracy"))
        change = "" if sweep == "table1" else changed_gap(found, sweep, t)
        yield [f"{name}, {t.capitalize()}", percent(uniform), percent(moreau), gap, change]


def changed_gap(found: list[Ended], sweep: str, topology: str) -> str:
    """SGAP − SGP in a sweep, less that of Table 1: `changed-gap:longer:full`."""
    here, before = (
        paired(
            of(found, "SGAP", s, topology=topology),
            of(found, "SGP", s, topology=topology),
            "accuracy",
        )
        for s in (sweep, "table1")
    )
    return points(over_seeds({at: here[at] - before[at] for at in here.keys() & before.keys()}))


def momentum(found: list[Ended]) -> str:
    """A node's own momentum and the quasi-global one, at equal communication."""
    where = ("divide", "exponential", "random")
    rows = [
        [name, *(percent(of(found, name, topology=t)) for t in where)]
        for name in ("MSGP", "QGM", "MSGAP", "QGM, Moreau")
    ]
    for one, other in (("QGM", "MSGP"), ("QGM, Moreau", "MSGAP")):
        rows.append([f"{one} − {other}", *(gap(found, one, other, t) for t in where)])
    return table(["accuracy, %", *(t.capitalize() for t in where)], rows)


TEXTS: dict[str, Text] = {
    "weights": weights,
    "adaptive": adaptive,
    "far-first": far_first,
    "given": given,
    "distance": distance,
    "apart": apart,
    "dials": dials,
    "k": k_elsewhere,
    "k-ahead": k_ahead,
    "rates": rates,
    "longer": longer,
    "changed-gap": changed_gap,
    "momentum": momentum,
}
