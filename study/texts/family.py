"""Which method: the measured rates of all of them on one problem."""

from math import exp, log

from study.collect import read
from study.numbers import Ended
from study.words import Text, table

GOAL = 1e-6


def rates(found: list[Ended]) -> str:
    """Step size, factor per step, and what it takes to come as close as the goal."""
    rows = []
    for method, here in _runs().items():
        there = next((row for row in here if float(row["distance"]) < GOAL), None)
        factor = _factor(here)
        rows.append(
            [
                method,
                here[0]["lr"],
                "—" if factor is None else f"{factor:.3f}",
                _left(here) if there is None else "exact",
                "—" if there is None else there["step"],
                "—" if there is None else f"{float(there['kilobytes']):.0f}",
            ]
        )
    head = ["method", "step size", "factor per step", "in the end", "steps to 1e-6", "kB to 1e-6"]
    return table(head, rows)


def rate(found: list[Ended], method: str) -> str:
    """One method's factor per step, or what is left: `family-rate:AB`."""
    here = next(rows for name, rows in _runs().items() if name.partition(",")[0] == method)
    factor = _factor(here)
    return _left(here) if factor is None else f"× {factor:.3f} per step"


def _runs() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in read("family"):
        found.setdefault(row["method"], []).append(row)
    return found


def _factor(rows: list[dict[str, str]]) -> float | None:
    """Per step, while it comes closer; None if it never comes as close as the goal."""
    at = [(int(row["step"]), float(row["distance"])) for row in rows]
    if min(distance for _, distance in at) >= GOAL:
        return None
    linear = [(t, d) for t, d in at if 10 * GOAL < d < 1e-1]
    (t0, d0), (t1, d1) = linear[0], linear[-1]
    return exp(log(d1 / d0) / (t1 - t0))


def _left(rows: list[dict[str, str]]) -> str:
    return f"{float(rows[-1]['distance']):.2g} left after {rows[-1]['step']} steps"


TEXTS: dict[str, Text] = {"family-rates": rates, "family-rate": rate}
