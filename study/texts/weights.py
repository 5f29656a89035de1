"""Adaptive or merely lazy: accuracies, what was given, what it followed, and the dials."""

from statistics import fmean

from study.collect import read
from study.numbers import (
    FAR_FIRST,
    LAZY,
    METHODS,
    MOREAU,
    SCALE_FREE,
    TOPOLOGIES,
    Difference,
    Ended,
    among,
    chosen,
    difference,
    of,
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
FAMILIES = {"SGAP": "SGP", "MSGAP": "MSGP"}  #: with weights of its own -> with uniform ones


def weights(found: list[Ended]) -> str:
    """Every weighting at the same communication."""
    rows = []
    for family in FAMILIES:
        for rule in RULES:
            here = _ruled(found, family, rule)
            if here:
                cells = (percent(chosen(here, topology=t)) for t in TOPOLOGIES)
                rows.append([f"{here[0].algorithm}, {rule}", *cells])
    return table(["accuracy, %", *TITLES], rows)


def _ruled(found: list[Ended], family: str, rule: str) -> list[Ended]:
    algorithm = FAMILIES[family] if rule == "uniform" else family
    sweeps = ("table1", "lazy", "dials", "far-first")
    return among(found, *sweeps, algorithm=algorithm, weighting=rule)


def adaptive(found: list[Ended]) -> str:
    """Weightings against uniform ones, and against lazy ones that give more, as much and less."""
    rows = []
    for family in FAMILIES:
        for one, other in COMPARED:
            here, there = _ruled(found, family, one), _ruled(found, family, other)
            if there:
                places = [{"topology": t} for t in TOPOLOGIES] + [{}]
                gaps = (
                    difference(chosen(here, **p), chosen(there, **p), "accuracy") for p in places
                )
                rows.append([f"{family}: {short(one)} − {short(other)}", *map(points, gaps)])
    return table(["points", *TITLES, "all"], rows)


def far_first(found: list[Ended]) -> str:
    """far-first weights against uniform ones, Moreau's, scale-free and lazy ones."""
    rows = []
    for family, uniform in FAMILIES.items():
        one = f"{family}, far-first"
        for other in (uniform, family, f"{family}, scale-free", f"{family}, lazy"):
            gaps = (gap(found, one, other, t) for t in (*TOPOLOGIES, ""))
            rows.append([f"{one} − {other}", *gaps])
    return table(["points", *TITLES, "all"], rows)


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


def apart(found: list[Ended]) -> str:
    """The theorem's distance, from the same runs."""
    rows = []
    for rule in ("uniform", LAZY, MOREAU, SCALE_FREE, FAR_FIRST):
        here = among(found, "again", weighting=rule)
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


def rules(found: list[Ended], one: str, other: str, topology: str) -> str:
    """SGAP with two weightings on one topology: `rules:moreau(k=10, v=0.1):lazy(c=0.8):full`."""
    here, there = (chosen(_ruled(found, "SGAP", r), topology=topology) for r in (one, other))
    return points(difference(here, there, "accuracy"))


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
    moreau, uniform = (
        chosen(_ruled(found, "SGAP", rule), topology=topology)
        for rule in (f"moreau(k={k}, v=0.1)", "uniform")
    )
    return difference(moreau, uniform, "accuracy")


def rates(found: list[Ended]) -> str:
    """With the step size of table1-small, and with a quarter of it."""
    rows = [
        [f"{rate}, {t.capitalize()}", *_sgap_and_sgp(found, sweep, t)]
        for sweep, rate in (("table1", "0.2"), ("rates", "0.05"))
        for t in ("full", "divide", "exponential")
    ]
    return table(["step size", "SGP", "SGAP, Moreau", "SGAP − SGP"], rows)


def longer(found: list[Ended]) -> str:
    """The same with more epochs."""
    rows = [
        [f"{epochs} epochs, {t.capitalize()}", *_sgap_and_sgp(found, sweep, t)]
        for sweep, epochs in (("table1", "2"), ("longer", "6"))
        for t in ("full", "exponential")
    ]
    return table(["accuracy, %", "SGP", "SGAP, Moreau", "SGAP − SGP"], rows)


def _sgap_and_sgp(found: list[Ended], sweep: str, topology: str) -> list[str]:
    """What uniform and what Moreau weights reached in a sweep, and the difference."""
    uniform, moreau = (
        among(found, sweep, algorithm=algorithm, weighting=rule, topology=topology)
        for algorithm, rule in (METHODS["SGP"], METHODS["SGAP"])
    )
    return [percent(uniform), percent(moreau), points(difference(moreau, uniform, "accuracy"))]


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
    "apart": apart,
    "dials": dials,
    "rules": rules,
    "k": k_elsewhere,
    "k-ahead": k_ahead,
    "rates": rates,
    "longer": longer,
    "momentum": momentum,
}
