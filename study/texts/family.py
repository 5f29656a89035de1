"""Which method: the measured rates of all of them on one problem."""

from math import exp, log

from study.collect import read
from study.numbers import Ended
from study.words import Text, table

GOAL = 1e-6


def rates(found: list[Ended]) -> str:
    """Step size, factor per step, and what it takes to come as close as the goal."""
    rows = []
    for method in dict.fromkeys(row["method"] for row in read("family")):
        here = [row for row in read("family") if row["method"] == method]
        at = [(int(row["step"]), float(row["distance"])) for row in here]
        there = next((row for row in here if float(row["distance"]) < GOAL), None)
        if there is None:
            left = f"{at[-1][1]:.2g} left after {at[-1][0]} steps"
            rows.append([method, here[0]["lr"], "—", left, "—", "—"])
            continue
        linear = [(t, d) for t, d in at if 10 * GOAL < d < 1e-1]
        (t0, d0), (t1, d1) = linear[0], linear[-1]
        rate = exp(log(d1 / d0) / (t1 - t0))
        rows.append(
            [
                method,
                here[0]["lr"],
                f"{rate:.3f}",
                "exact",
                there["step"],
                f"{float(there['kilobytes']):.0f}",
            ]
        )
    head = ["method", "step size", "factor per step", "in the end", "steps to 1e-6", "kB to 1e-6"]
    return table(head, rows)


TEXTS: dict[str, Text] = {"family-rates": rates}
