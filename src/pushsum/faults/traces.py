"""Plans of events that were measured."""

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from pushsum import files
from pushsum.faults.plans import MOST_LATE, Plan
from pushsum.faults.rules import CRASHED, LEFT, LOST, PAUSED, Away, Listed, Naps
from pushsum.faults.values import Window
from pushsum.names import unknown

MOST_TRACE = 1 << 28  #: bytes of a trace

#: What a line of a trace may say of a message or a node.
EVENTS = ("lose", "delay", "sleep", "wake", "crash", "pause", "leave", "join")


def trace(file: str | Path) -> Plan:
    """A plan of events that were measured: a .csv file with a heading.

    step,event,node,to,value
    3,lose,0,1,          the message 0 -> 1 of step 3 was lost
    5,delay,2,0,2        that of 2 -> 0 arrived two steps late
    9,sleep,4,,          node 4 slept from step 9 on, until
    14,wake,4,,
    20,crash,3,,         node 3 crashed (or: pause, leave), until
    40,join,3,,
    50,join,5,,          node 5 was not there before
    """
    path = Path(file)
    try:
        text = files.content(path, MOST_TRACE).decode("utf-8-sig")  # as spreadsheets write it
        reader = csv.DictReader(StringIO(text, newline=""))
        rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"faults {path}: cannot be read: {error}") from None
    if not {"step", "event", "node"} <= set(reader.fieldnames or ()):
        raise ValueError(f"faults {path}: begin with a line step,event,node,to,value")
    messages: list[tuple[int, int, int, int]] = []
    began: dict[tuple[str, int], int] = {}
    windows: dict[str, list[Window]] = {}
    ends = {"wake": ("sleep",), "join": ("leave", "crash", "pause")}
    for t, event, node, to, value in sorted(
        (_event(path, number, row) for number, row in enumerate(rows, 2)), key=lambda e: e[0]
    ):
        if event in ("lose", "delay"):
            messages.append((t, node, to, LOST if event == "lose" else value))
        elif event in ends:
            over = {what: began.pop((what, node), None) for what in ends[event]}
            known = any(w.nodes == (node,) for what in over for w in windows.get(what, ()))
            if not known and set(over.values()) == {None}:
                over[ends[event][0]] = 0  # away, or asleep, from the start
            for what, first in over.items():
                if first is not None:
                    windows.setdefault(what, []).append(Window((node,), first, t))
        else:
            began.setdefault((event, node), t)
    for (event, node), first in began.items():
        windows.setdefault(event, []).append(Window((node,), first))
    kinds = {"pause": PAUSED, "crash": CRASHED, "leave": LEFT}
    return Plan(
        links=(Listed(tuple(messages)),) if messages else (),
        naps=(Naps(tuple(windows["sleep"])),) if "sleep" in windows else (),
        roster=tuple(
            Away(tuple(windows[what]), how) for what, how in kinds.items() if what in windows
        ),
        name=f"faults.trace({path.name})",
    )


def _event(path: Path, number: int, row: Mapping[str, Any]) -> tuple[int, str, int, int, int]:
    event = (row.get("event") or "").strip()
    if event not in EVENTS:
        raise ValueError(f"faults {path}, line {number}: {unknown('event', event, EVENTS)}")
    of_message = {"lose": ["to"], "delay": ["to", "value"]}
    wanted = ["step", "node", *of_message.get(event, [])]
    found = {name: (row.get(name) or "").strip() for name in wanted}
    for name, text in found.items():
        if not text.isdecimal() or (name == "value" and int(text) > MOST_LATE):
            most = f" up to {MOST_LATE}" if name == "value" else ""
            raise ValueError(
                f"faults {path}, line {number}: {name} = {text!r}: a whole number{most}"
            )
    numbers = {name: int(text) for name, text in found.items()}
    return numbers["step"], event, numbers["node"], numbers.get("to", 0), numbers.get("value", 0)
