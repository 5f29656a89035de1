"""Which method on images: every method with a step size of its own, by steps, bytes and time."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from statistics import fmean

from study.collect import read
from study.numbers import Difference, Ended, Place, difference, over_seeds
from study.run import cells
from study.words import Text, percent, points, table

WHERE = ("divide", "exponential")
SEEDS = (0, 1, 2)
CHOOSING = 3  #: the seed that step sizes were chosen with; it is listed, and not counted
ROWS = {  #: row -> algorithm and steps per exchange
    "SGP": ("SGP", 1),
    "MSGP": ("MSGP", 1),
    "MSGP, every 4": ("MSGP", 4),
    "MSGP, every 16": ("MSGP", 16),
    "S-ADDOPT": ("S-ADDOPT", 1),
    "Push-DIGing": ("Push-DIGing", 1),
    "Push-Pull": ("Push-Pull", 1),
    "QGM": ("QGM", 1),
    "OSGP": ("OSGP", 1),
}
STEPS, BYTES, SECONDS = "steps", "gigabytes", "modelled seconds"
AXES = (STEPS, BYTES, SECONDS)
TRACKERS = ("S-ADDOPT", "Push-DIGing", "Push-Pull")
#: Is one ahead of the other at an equal axis, or less than so many points behind?
Question = tuple[str, str, str, int]
#: What the plan calls a finding: it pays if one of these ways has a yes to all it asks.
FINDINGS: dict[str, tuple[tuple[Question, ...], ...]] = {
    "gradient tracking": tuple(((name, "SGP", STEPS, 0),) for name in TRACKERS),
    "gradient tracking, for its bytes": tuple(((name, "SGP", BYTES, 0),) for name in TRACKERS),
    "momentum": tuple(((name, "SGP", STEPS, 0),) for name in ("MSGP", "QGM")),
    "exchanging less often": tuple(
        ((name, "MSGP", BYTES, 0), (name, "MSGP", STEPS, 1))
        for name in ("MSGP, every 4", "MSGP, every 16")
    ),
    "overlap": ((("OSGP", "SGP", STEPS, 1),),),
}


def of(found: list[Ended], row: str, topology: str = "") -> list[Ended]:
    """The runs of a row, those that diverged and those of the choosing seed too."""
    algorithm, every = ROWS[row]
    changed = "" if every == 1 else f"algorithm.every={every}"
    return [
        run
        for run in found
        if (run.sweep, run.algorithm, run.changed) == ("methods", algorithm, changed)
        and topology in ("", run.topology)
    ]


def counted(found: list[Ended], row: str, topology: str = "") -> list[Ended]:
    """Those that ended, with seeds that had no part in the choice."""
    return [run for run in ended(of(found, row, topology)) if run.seed != CHOOSING]


def ended(some: list[Ended]) -> list[Ended]:
    """Those that did not diverge."""
    return [run for run in some if not run.values.get("diverged")]


def diverged(found: list[Ended], row: str, topology: str = "") -> str:
    """How many of those that would count did not end, in words; nothing if none."""
    some = [run for run in of(found, row, topology) if run.seed != CHOOSING]
    lost = len(some) - len(ended(some))
    return f"{lost} of {row} diverged" if lost else ""


def accuracies(found: list[Ended], topology: str) -> str:
    """After the last step, against SGP, and what it cost: `methods:divide`."""
    rows = []
    for row in ROWS:
        every, here = of(found, row, topology), counted(found, row, topology)
        gap = difference(here, counted(found, "SGP", topology), "accuracy")
        lost = diverged(found, row, topology)  # the others alone would flatter it
        rows.append(
            [
                row,
                every[0].values["algorithm.lr"] if every else "–",
                percent(here),
                "" if row == "SGP" else lost or points(gap),
                f"{fmean(run['gigabytes'] for run in here):.3f}" if here else "–",
                f"{fmean(seconds(found, run) for run in here):.1f}" if here else "–",
                f"{fmean(run['modelled transfer'] for run in here):.2f}" if here else "–",
            ]
        )
    headings = [topology.capitalize(), "step size", "accuracy, %", "− SGP, points"]
    return table([*headings, "GB", "modelled s", "of it waiting"], rows)


def every_run(found: list[Ended]) -> str:
    """What each planned run reached, or the step by which it had diverged."""
    places = [(topology, seed) for topology in WHERE for seed in (*SEEDS, CHOOSING)]
    rows = []
    for row in ROWS:
        here = {(run.topology, run.seed): run.values for run in of(found, row)}
        rows.append([row, *(_ending(here.get(place)) for place in places)])
    return table(["accuracy, %", *(f"{where.capitalize()}, {s}" for where, s in places)], rows)


def _ending(values: dict[str, str] | None) -> str:
    if values is None:
        return "–"
    step = values.get("diverged")
    return f"diverged, by step {step}" if step else f"{100 * float(values['accuracy']):.2f}"


def seconds(found: list[Ended], run: Ended) -> float:
    """Modelled time, with the same time for a gradient in all runs: machines are busy or not."""
    return gradient_seconds(found) * run["steps"] + run["modelled transfer"]


def gradient_seconds(found: list[Ended]) -> float:
    """The mean of the sweep."""
    here = ended([run for run in found if run.sweep == "methods"])
    return fmean(run["modelled compute"] / run["steps"] for run in here)


def rates(found: list[Ended], topology: str) -> str:
    """What each step size reached on the data held out, the chosen one in bold."""
    tune, rows = cells("methods")[0].tune, []
    values = tune.values if tune is not None else ()
    for row in ROWS:
        here = of(found, row, topology)[:1]
        tried = _tried(here[0]) if here else {}
        chosen = here[0]["algorithm.lr"] if here else None
        reached = [_reached(tried.get(lr), lr == chosen) for lr in values]
        at_end = chosen in (min(values), max(values))
        rows.append([row, *reached, "at the end of the grid" if at_end else ""])
    return table([f"validation, %, {topology.capitalize()}", *map(str, values), ""], rows)


def _tried(run: Ended) -> dict[float, float]:
    """Step size -> accuracy on the data held out, NaN where it diverged."""
    pairs = (pair.split(":") for pair in run.values["tried"].split())
    return {float(lr): float(reached) for lr, reached in pairs}


def _reached(accuracy: float | None, chosen: bool) -> str:
    if accuracy is None:
        return "–"
    text = "diverged" if isnan(accuracy) else f"{100 * accuracy:.2f}"
    return f"**{text}**" if chosen else text


@dataclass(frozen=True)
class Record:
    """What a run has used, and reached, at one of its records."""

    used: dict[str, float]  #: by axis
    accuracy: float


PLACES = [*(where.capitalize() for where in WHERE), "both"]


def findings(found: list[Ended]) -> str:
    """What the answers to the plan's questions add up to."""
    asked, rows = _asked(found), []
    for finding, ways in FINDINGS.items():
        said = (
            _any([_all([asked[question][place][1] for question in way]) for way in ways])
            for place in range(len(PLACES))
        )
        rows.append([finding, *said])
    return table(["does it pay?", *PLACES], rows)


def differences(found: list[Ended]) -> str:
    """The plan's questions with their differences and answers."""
    rows = []
    for (one, other, axis, cost), here in _asked(found).items():
        question = "ahead?" if cost == 0 else f"less than {cost} point behind?"
        shown = (f"{gap}, {said}" if gap else said for gap, said in here)
        rows.append([f"{one} − {other}, equal {axis}: {question}", *shown])
    return table(["points", *PLACES], rows)


def _asked(found: list[Ended]) -> dict[Question, list[tuple[str, str]]]:
    """The plan's questions, and their answers by place."""
    recorded = curves(found)
    questions = (question for ways in FINDINGS.values() for way in ways for question in way)
    return {question: _answers(found, recorded, question) for question in questions}


def _answers(
    found: list[Ended], recorded: dict[str, list[Record]], question: Question
) -> list[tuple[str, str]]:
    """Difference and answer on each topology, and on both; who diverges is behind."""
    one, other, axis, cost = question
    answers = []
    for topology in (*WHERE, ""):
        ours, theirs = counted(found, one, topology), counted(found, other, topology)
        gaps = _gaps(recorded, ours, theirs, axis)
        every = {topology} if topology else set(WHERE)
        gap = over_seeds(gaps) if {where for where, _ in gaps} == every else None
        if lost := diverged(found, one, topology):
            answers.append((lost, "no"))
        elif lost := diverged(found, other, topology):
            answers.append((lost, "yes"))
        else:
            answers.append(("", "–") if gap is None else (points(gap), answer(gap, cost / 100)))
    return answers


def answer(gap: Difference, cost: float) -> str:
    """Whether the whole interval, or none of it, is above minus the cost."""
    if gap.mean - gap.half > -cost:
        return "yes"
    return "no" if gap.mean + gap.half < -cost else "undecided"


def _all(answers: list[str]) -> str:
    return next((said for said in ("no", "–", "undecided") if said in answers), "yes")


def _any(answers: list[str]) -> str:
    return next((said for said in ("yes", "–", "undecided") if said in answers), "no")


def curves(found: list[Ended]) -> dict[str, list[Record]]:
    """The records of the sweep's runs."""
    names = {run.values["run"] for run in ended(found) if run.sweep == "methods"}
    step = gradient_seconds(found) if names else 0.0
    recorded: dict[str, list[Record]] = {}
    for row in read("curves"):
        if row["run"] in names:
            time = step * float(row["step"]) + float(row["transfer"])
            used = dict(zip(AXES, (float(row["step"]), float(row["gigabytes"]), time), strict=True))
            recorded.setdefault(row["run"], []).append(Record(used, float(row["accuracy"])))
    return recorded


def _gaps(
    recorded: dict[str, list[Record]], one: list[Ended], other: list[Ended], axis: str
) -> dict[Place, float]:
    """Differences of pairs when both have used what the one that uses less has used in the end."""
    there = {(run.topology, run.seed): recorded[run.values["run"]] for run in other}
    gaps = {}
    for run in one:
        place = run.topology, run.seed
        if place in there:
            pair = recorded[run.values["run"]], there[place]
            budget = min(curve[-1].used[axis] for curve in pair)
            here, base = (_at(curve, axis, budget) for curve in pair)
            gaps[place] = here - base
    return gaps


def _at(curve: list[Record], axis: str, budget: float) -> float:
    """At the first record that has used as much, but for the heads of messages."""
    return next(record.accuracy for record in curve if record.used[axis] >= 0.99 * budget)


def lines(
    found: list[Ended], topology: str, axis: str
) -> Iterator[tuple[str, list[float], list[float]]]:
    """Row, what was used, and the mean accuracy in percent."""
    recorded = curves(found)
    for row in ROWS:
        here = [recorded[run.values["run"]] for run in counted(found, row, topology)]
        if here:
            together = list(zip(*here, strict=True))
            used = [fmean(record.used[axis] for record in at) for at in together]
            yield row, used, [100 * fmean(record.accuracy for record in at) for at in together]


def picture(found: list[Ended]) -> str:
    """A link to the figure, once there is something in it."""
    if not any(counted(found, row) for row in ROWS):
        return "No run has ended yet."
    what = "Accuracy of nine methods over steps, gigabytes and modelled seconds"
    return f"![{what}](../images/methods-images.svg)"


TEXTS: dict[str, Text] = {
    "methods": accuracies,
    "methods-rates": rates,
    "methods-findings": findings,
    "methods-differences": differences,
    "methods-runs": every_run,
    "methods-picture": picture,
}
