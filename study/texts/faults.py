"""Who survives what: accuracies under faults, and modelled time with a slow node."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from statistics import fmean

from study.collect import read
from study.numbers import FAR_FIRST, Difference, Ended, Place, difference, over_seeds
from study.words import Text, percent, points, table

WHERE = ("exponential", "random")
SLOWER = 5  #: times, of the slow node
ASYNCHRONOUS, UNCORRECTED, PLAIN = "asynchronous push", "the same, not corrected", "plain Push-SUM"
METHODS = ("SGP", "MSGAP, far-first", "Push-DIGing", ASYNCHRONOUS, UNCORRECTED, PLAIN, "AllReduce")
FAULTS = {"": "no loss", "loss=0.3": "30 % lost", "loss=0.6": "60 % lost", "crash": "a crash"}
STILL_WAITING = "SGP that waits, when asynchronous push ends"


@dataclass(frozen=True)
class Claim:
    """What the plan claims: a difference in accuracy lies between two numbers of points."""

    part: str  #: of the plan
    text: str
    one: tuple[str, str]  #: method, and what fails
    other: tuple[str, str]
    low: float
    high: float

    def answer(self, gap: Difference) -> str:
        """Confirmed by an interval that lies within, refuted by one that lies outside."""
        least, most = 100 * (gap.mean - gap.half), 100 * (gap.mean + gap.half)
        if self.low <= least and most <= self.high:
            return "confirmed"
        return "refuted" if most < self.low or least > self.high else "undecided"


CLAIMS = (
    *(
        Claim(
            "Crash" if fault == "crash" else "Loss",
            f"{method}, {FAULTS[fault]}: within {limit} point{'s' * (limit > 1)} of itself",
            (method, fault),
            (method, ""),
            -limit,
            limit,
        )
        for fault, limit in (("loss=0.3", 1), ("loss=0.6", 2), ("crash", 1))
        for method in METHODS[:4]
    ),
    *(
        Claim(
            "Accounting",
            f"plain Push-SUM, {FAULTS[fault]}: diverges, or ends 5 points behind SGP",
            (PLAIN, fault),
            ("SGP", fault),
            -inf,
            -5,
        )
        for fault in ("loss=0.3", "loss=0.6")
    ),
    Claim(
        "Straggler",
        "asynchronous push: within 2 points of SGP that waits",
        (ASYNCHRONOUS, ""),
        ("SGP", ""),
        -2,
        2,
    ),
    Claim(
        "Straggler",
        f"{STILL_WAITING}: 5 points behind it",
        (STILL_WAITING, ""),
        (ASYNCHRONOUS, ""),
        -inf,
        -5,
    ),
    Claim(
        "Straggler",
        "asynchronous push: ahead of the same, not corrected",
        (ASYNCHRONOUS, ""),
        (UNCORRECTED, ""),
        0,
        inf,
    ),
)
SOONER = 4  #: times, that asynchronous push ends before SGP that waits: the plan's claim


def told_apart(found: list[Ended]) -> dict[tuple[str, str], list[Ended]]:
    """(method, what fails besides a slow node) -> the runs of the sweep, diverged ones too."""
    cases: dict[tuple[str, str], list[Ended]] = {}
    for run in found:
        if run.sweep == "faults":
            cases.setdefault((_method(run), _failing(run)), []).append(run)
    return cases


def _method(run: Ended) -> str:
    if "accounting=none" in run.changed:
        return PLAIN
    if "straggler" in run.changed:
        return ASYNCHRONOUS if "catch_up" in run.changed else UNCORRECTED
    return "MSGAP, far-first" if run.weighting == FAR_FIRST else run.algorithm


def _failing(run: Ended) -> str:
    words = (word.removeprefix("faults.") for word in run.changed.split())
    return next(
        (w.partition("@")[0].split("=2")[0] for w in words if w[:4] in ("loss", "cras")), ""
    )


def ended(some: list[Ended], topology: str = "") -> list[Ended]:
    """Those that did not diverge, on one topology or on all."""
    return [r for r in some if not r.values.get("diverged") and topology in ("", r.topology)]


def accuracies(found: list[Ended], topology: str) -> str:
    """After the last step, on a topology: `faults:random`."""
    cases = told_apart(found)

    def shown(method: str, fault: str) -> str:
        here = [run for run in cases.get((method, fault), []) if run.topology == topology]
        steps = sorted(int(run["diverged"]) for run in here if run not in ended(here))
        if steps and len(steps) == len(here):
            return f"diverged, by step {steps[-1]}"
        return percent(ended(here)) + f" ({len(steps)} diverged)" * bool(steps)

    rows = [[method, *(shown(method, fault) for fault in FAULTS)] for method in METHODS]
    return table(["accuracy, %", *FAULTS.values()], rows)


def answers(found: list[Ended]) -> str:
    """Every claim of the plan, with what was measured and what that says of it."""
    rows = [
        [claim.text, *(": ".join(_answer(found, claim, topology)) for topology in (*WHERE, ""))]
        for claim in CLAIMS
    ]
    rows.append([f"asynchronous push: {SOONER} times sooner than SGP that waits", *_sooner(found)])
    titles = [topology.capitalize() for topology in WHERE]
    return table(["difference, points", *titles, "both"], rows)


def verdict(found: list[Ended]) -> str:
    """How many claims of each part of the plan came out how, on both topologies together."""
    parts: dict[str, list[str]] = {}
    for claim in CLAIMS:
        parts.setdefault(claim.part, []).append(_answer(found, claim, "")[-1])
    parts["Straggler"].append(_sooner(found)[-1].rpartition(": ")[2])
    titles = {kind: kind for kind in ("confirmed", "refuted", "undecided")}
    if any("–" in said for said in parts.values()):
        titles["–"] = "too few runs yet"
    rows = [[part, *(str(said.count(kind)) for kind in titles)] for part, said in parts.items()]
    return table(["claims", *titles.values()], rows)


def _answer(found: list[Ended], claim: Claim, topology: str) -> list[str]:
    """The difference and the answer; a dash while there is none."""
    here = told_apart(found).get(claim.one, [])
    here = [run for run in here if topology in ("", run.topology)]
    if here and not ended(here):
        return ["all diverged", "confirmed" if claim.low == -inf else "refuted"]
    one, other = (_reached(found, case, topology) for case in (claim.one, claim.other))
    gaps = {at: one[at] - other[at] for at in one.keys() & other.keys()}
    gap = over_seeds(gaps)
    if gap is None or {where for where, _ in gaps} != set([topology] if topology else WHERE):
        return ["–"]
    return [points(gap), claim.answer(gap)]


def _reached(found: list[Ended], case: tuple[str, str], topology: str) -> dict[Place, float]:
    """Accuracies of the runs that ended."""
    cases = told_apart(found)
    if case[0] == STILL_WAITING:
        sgp, other = (ended(cases.get((name, ""), [])) for name in ("SGP", ASYNCHRONOUS))
        if not sgp or not other:
            return {}
        at = _seconds(found, other, False) / _seconds(found, sgp, True)
        return _accuracy_after(ended(sgp, topology), at)
    return {(r.topology, r.seed): r["accuracy"] for r in ended(cases.get(case, []), topology)}


def _sooner(found: list[Ended]) -> list[str]:
    """How many times sooner asynchronous push ends: modelled, so without an interval."""
    cases, shown = told_apart(found), []
    for topology in (*WHERE, ""):
        sgp, here = (ended(cases.get((m, ""), []), topology) for m in ("SGP", ASYNCHRONOUS))
        if sgp and here:
            times = _seconds(found, sgp, True) / _seconds(found, here, False)
            shown.append(f"{times:.1f} times: {'confirmed' if times >= SOONER else 'refuted'}")
        else:
            shown.append("–")
    return shown


def straggler(found: list[Ended]) -> str:
    """With a slow node: who waits for it, and who does not."""
    cases, rows = told_apart(found), []
    sgp = ended(cases.get(("SGP", ""), []))
    waiting = ("SGP", "MSGAP, far-first", "Push-DIGing", "AllReduce")
    for method in (*waiting, ASYNCHRONOUS, UNCORRECTED):
        some = ended(cases.get((method, ""), []))
        waits = method in waiting
        gap = "" if method in ("SGP", "AllReduce") else points(difference(some, sgp, "accuracy"))
        time = f"{_seconds(found, some, waits):.0f}" if some else "–"
        reached = [percent(ended(some, topology)) for topology in WHERE]
        rows.append([method + ", waits" * waits, time, *reached, gap])
    by_then = [_reached(found, (STILL_WAITING, ""), topology).values() for topology in WHERE]
    shown = [f"{100 * fmean(values):.2f}" if values else "–" for values in by_then]
    rows.append([STILL_WAITING, "", *shown, ""])
    titles = [topology.capitalize() for topology in WHERE]
    return table(["accuracy, %", "modelled s", *titles, "− SGP, points, both"], rows)


def _seconds(found: list[Ended], some: list[Ended], waits: bool) -> float:
    """The mean modelled time of runs, with the same time for a gradient in all of the sweep."""
    every = ended([run for run in found if run.sweep == "faults"])
    gradient = fmean(run["modelled compute"] / run["steps"] for run in every)
    transfer = fmean(run["modelled transfer"] for run in some)
    return (SLOWER if waits else 1) * gradient * fmean(run["steps"] for run in some) + transfer


def _accuracy_after(some: list[Ended], part: float) -> dict[Place, float]:
    """At the first record that is not before a part of the steps."""
    runs = {run.values["run"]: run for run in some}
    after: dict[Place, float] = {}
    for row in read("curves"):
        run = runs.get(row["run"])
        if run is not None and float(row["step"]) >= part * run["steps"]:
            after.setdefault((run.topology, run.seed), float(row["accuracy"]))
    return after


def under_loss(found: list[Ended], topology: str) -> Iterator[tuple[str, list[float], list[float]]]:
    """Method, percent of the messages that are lost, mean accuracies."""
    cases = told_apart(found)
    for method in METHODS[:4]:
        here = [
            (100 * float(f.partition("=")[2] or 0), ended(cases.get((method, f), []), topology))
            for f in list(FAULTS)[:3]
        ]
        known = [
            (loss, 100 * fmean(run["accuracy"] for run in some)) for loss, some in here if some
        ]
        if known:
            yield method, [loss for loss, _ in known], [accuracy for _, accuracy in known]


def picture(found: list[Ended]) -> str:
    """A link to the figure, once there is something in it."""
    if not any(list(under_loss(found, topology)) for topology in WHERE):
        return "No run has ended yet."
    return "![Accuracy of the average model under loss](../images/faults.svg)"


TEXTS: dict[str, Text] = {
    "faults": accuracies,
    "faults-answers": answers,
    "faults-verdict": verdict,
    "faults-straggler": straggler,
    "faults-picture": picture,
}
