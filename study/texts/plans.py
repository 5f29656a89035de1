"""How far the planned runs of a page are, and what they cost."""

from study.numbers import Ended
from study.run import cells
from study.words import Text


def planned(found: list[Ended], *sweeps: str) -> str:
    """What was planned and what has run: `planned:faults`."""
    every = sum(len(cells(name)) for name in sweeps)
    here = [run for run in found if run.sweep in sweeps]
    diverged = sum(bool(run.values.get("diverged")) for run in here)
    said = f"planned {every}, run {len(here)}"
    return f"{said}, {diverged} of which diverged" if diverged else said


def hours(found: list[Ended], *sweeps: str) -> str:
    """How long the finished runs of some sweeps took, one core each: `hours:faults`."""
    seconds = sum(run["seconds"] for run in found if run.sweep in sweeps)
    return f"{seconds / 3600:.1f} hours"


TEXTS: dict[str, Text] = {"planned": planned, "hours": hours}
