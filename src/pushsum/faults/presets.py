"""Plans by name."""

from typing import Any

from pushsum.faults.plans import Plan, plan
from pushsum.faults.traces import trace
from pushsum.names import unknown

#: Plans that people recognise, with the numbers that they stand for; round numbers of the right
#: size, not measurements.
PRESETS: dict[str, tuple[dict[str, Any], str]] = {
    "lan": ({"loss": 0.001}, "a wired network: one message in a thousand is lost"),
    "wifi": (
        {"loss": 0.05, "burst": 3, "delay": 1},
        "5 % of the messages are lost, three at a time; the others take up to one step more",
    ),
    "wan": (
        {"loss": 0.01, "delay": 3},
        "sites far apart: 1 % lost, up to three steps more",
    ),
    "mobile": (
        {"loss": 0.1, "burst": 5, "delay": 3, "sleep": 0.2},
        "phones: 10 % lost, five at a time, up to three steps more, asleep in a fifth of the steps",
    ),
    "spot-instances": (
        {"churn": (1000, 50)},
        "every node is taken away once in 1000 steps, and joins anew 50 steps later",
    ),
    "volunteers": (
        {"loss": 0.02, "delay": 2, "sleep": 0.1, "churn": (400, 100)},
        "machines at home: 2 % lost, up to two steps more, asleep in a tenth of the steps, "
        "away for 100 of every 400",
    ),
}


def preset(name: str, seed: int = 0, **changes: Any) -> Plan:
    """A plan of `PRESETS`, perhaps with some arguments of `plan` changed.

    >>> preset("wan", loss=0.02)
    faults(seed=0, loss=0.02, delay=3)
    """
    return plan(seed, **preset_of(name) | changes)


def preset_of(name: str) -> dict[str, Any]:
    """The arguments of `plan` that a preset stands for."""
    if name not in PRESETS:
        raise ValueError(unknown("preset of faults", name, PRESETS))
    return PRESETS[name][0]


def as_plan(faults: Plan | str | None) -> Plan | None:
    """Accept the name of a preset or a trace where a plan is expected; None if nothing fails."""
    if isinstance(faults, str):
        faults = trace(faults) if faults.endswith(".csv") else preset(faults)
    if faults is not None and not isinstance(faults, Plan):
        raise ValueError(
            f"faults = {faults!r}: give faults.plan(seed, loss=...), a preset's name, or a .csv"
        )
    return None if faults is None or faults.empty else faults
