"""Who survives what: accuracies under faults, and modelled time with a slow node."""

from collections.abc import Iterator
from statistics import fmean

from study.collect import read
from study.numbers import FAR_FIRST, Ended, difference
from study.words import Text, percent, points, table

WHERE = ("exponential", "random")
SLOWER = 5  #: times, of the slow node
ASYNCHRONOUS, UNCORRECTED, PLAIN = "asynchronous push", "the same, not corrected", "plain Push-SUM"
METHODS = ("SGP", "MSGAP, far-first", "Push-DIGing", ASYNCHRONOUS, UNCORRECTED, PLAIN, "AllReduce")
FAULTS = {"": "no loss", "loss=0.3": "30 % lost", "loss=0.6": "60 % lost", "crash": "a crash"}


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


def differences(found: list[Ended]) -> str:
    """Against the same method while nothing is lost, on each topology and on both."""
    cases, rows = told_apart(found), []
    for method in METHODS[:4]:
        for topology in (*WHERE, ""):
            base, *others = (ended(cases.get((method, f), []), topology) for f in FAULTS)
            gaps = [points(difference(some, base, "accuracy")) for some in others]
            rows.append([f"{method}, {topology.capitalize() or 'both'}", *gaps])
    return table(["points", *list(FAULTS.values())[1:]], rows)


def straggler(found: list[Ended]) -> str:
    """With a slow node: who waits for it, and who does not."""
    cases, rows = told_apart(found), []
    sgp, here = (ended(cases.get((name, ""), [])) for name in ("SGP", ASYNCHRONOUS))
    for method in (
        "SGP",
        "MSGAP, far-first",
        "Push-DIGing",
        "AllReduce",
        UNCORRECTED,
        ASYNCHRONOUS,
    ):
        some = ended(cases.get((method, ""), []))
        waits = method not in (UNCORRECTED, ASYNCHRONOUS)
        gap = "" if method in ("SGP", "AllReduce") else points(difference(some, sgp, "accuracy"))
        time = f"{_seconds(found, some, waits):.0f}" if some else "–"
        reached = [percent(ended(some, topology)) for topology in WHERE]
        rows.append([method + ", waits" * waits, time, *reached, gap])
    shown = ["–" for _ in WHERE]
    if here and sgp:
        at = _seconds(found, here, False) / _seconds(found, sgp, True)
        shown = [_accuracy_after(ended(sgp, topology), at) for topology in WHERE]
    rows.append(["SGP, waits, when asynchronous push ends", "", *shown, ""])
    titles = [topology.capitalize() for topology in WHERE]
    return table(["accuracy, %", "modelled s", *titles, "− SGP, points, both"], rows)


def _seconds(found: list[Ended], some: list[Ended], waits: bool) -> float:
    """The mean modelled time of runs, with the same time for a gradient in all of the sweep."""
    every = ended([run for run in found if run.sweep == "faults"])
    gradient = fmean(run["modelled compute"] / run["steps"] for run in every)
    transfer = fmean(run["modelled transfer"] for run in some)
    return (SLOWER if waits else 1) * gradient * fmean(run["steps"] for run in some) + transfer


def _accuracy_after(some: list[Ended], part: float) -> str:
    """The mean at the first record that is not before a part of the steps."""
    first = {run.values["run"]: part * run["steps"] for run in some}
    after: dict[str, float] = {}
    for row in read("curves"):
        if row["run"] in first and float(row["step"]) >= first[row["run"]]:
            after.setdefault(row["run"], float(row["accuracy"]))
    return f"{100 * fmean(after.values()):.2f}" if after else "–"


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
    return "![Accuracy of the average model under loss](images/faults.svg)"


TEXTS: dict[str, Text] = {
    "faults": accuracies,
    "faults-gaps": differences,
    "faults-straggler": straggler,
    "faults-picture": picture,
}
