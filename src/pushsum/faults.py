"""Networks that fail, by plan: which messages are lost or late, and which nodes are away, when.

A plan is a value. What happens to a message is a function of (seed, t, sender, receiver) alone, and
what happens to a node of (seed, t, node), so that a run can be repeated, resumed and compared with
another one under the same faults. Steps t are exchanges, from 1 on.

    ps.iterate(algorithm, graphs, gradient, x0, steps, faults=ps.faults.plan(seed=0, loss=0.3))

Plans compose: `wifi | plan(crash="2@100-200")` has the faults of both.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from pushsum import files
from pushsum.names import unknown
from pushsum.randomness import key
from pushsum.topology import Certificate, Topology

LOST = -1  #: the fate of a message that never arrives; others are how many steps it is late
MOST_LATE = 1000  #: steps

#: Who keeps account of what was lost: "keep": a sender knows at once, and keeps the share;
#: "outbox": parcels are sent again until they are acknowledged, as over a real network;
#: "none": nobody, as in plain Push-SUM, whose average is then wrong.
Accounting = Literal["keep", "outbox", "none"]

#: What a node is at a step; the largest of several plans counts.
HERE, PAUSED, CRASHED, LEFT = 0, 1, 2, 3

Value = float | Mapping[Any, float] | Sequence[Any] | np.ndarray | Tensor


class Window(NamedTuple):
    """Some nodes, from a step on, until another one."""

    nodes: tuple[int, ...]
    first: int
    until: int | None = None  #: the step at which it is over; None: never

    def holds(self, t: int) -> bool:
        """Whether step t lies in it."""
        return self.first <= t and (self.until is None or t < self.until)


# --------------------------------------------------------------------------- rules


class LinkRule(Protocol):
    """What happens to messages."""

    @property
    def longest(self) -> int:
        """The largest delay that can occur."""
        ...

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        """(E,) int64: `LOST`, or by how many steps each is late; `acks`: acknowledgements."""
        ...


@dataclass(frozen=True)
class Loss:
    """Every message is lost with a probability; in bursts, with the others of so many steps."""

    key: int
    probability: Values
    burst: int = 1
    longest: int = 0

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        drawn = chances(self.key, 2 * ((t - 1) // self.burst) + acks, senders, receivers)
        return torch.where(drawn < self.probability.of_edges(senders, receivers), LOST, 0)


@dataclass(frozen=True)
class Delay:
    """Every message takes 0 .. D steps more, by chance."""

    key: int
    most: Values

    @property
    def longest(self) -> int:
        return int(self.most.largest)

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        drawn = chances(self.key, 2 * t + acks, senders, receivers)
        return (drawn * (self.most.of_edges(senders, receivers) + 1)).long()


@dataclass(frozen=True)
class Partition:
    """Some nodes are cut off from the others for a while: nothing crosses."""

    windows: tuple[Window, ...]
    longest: int = 0

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        cut = torch.zeros(len(senders), dtype=torch.bool)
        for window in self.windows:
            if window.holds(t):
                nodes = torch.tensor(window.nodes)
                cut |= torch.isin(senders, nodes) ^ torch.isin(receivers, nodes)
        return torch.where(cut, LOST, 0)


@dataclass(frozen=True)
class Own:
    """A user's function."""

    function: Callable[[int, Tensor, Tensor], Any]
    longest: int

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        found = torch.as_tensor(self.function(t, senders, receivers))
        if found.shape != senders.shape:
            raise ValueError(
                f"faults at step {t}: the function returned {tuple(found.shape)} for "
                f"{len(senders)} messages: one number for each, -1 (lost) or its delay"
            )
        if len(found) and not LOST <= int(found.min()) <= int(found.max()) <= self.longest:
            raise ValueError(
                f"faults at step {t}: the function returned {int(found.min())} .. "
                f"{int(found.max())}: -1 is lost, 0 .. {self.longest} a delay (raise longest)"
            )
        return found.long()


@dataclass(frozen=True)
class Listed:
    """Messages by the step at which they were sent, with their fates; the others arrive."""

    messages: tuple[tuple[int, int, int, int], ...]  #: step, sender, receiver, fate

    @property
    def longest(self) -> int:
        return max((fate for *_, fate in self.messages), default=0)

    @cached_property
    def _by_step(self) -> dict[int, dict[tuple[int, int], int]]:
        found: dict[int, dict[tuple[int, int], int]] = {}
        for t, i, j, fate in self.messages:
            found.setdefault(t, {})[i, j] = fate
        return found

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool) -> Tensor:
        here = {} if acks else self._by_step.get(t, {})
        if not here:
            return torch.zeros_like(senders)
        pairs = zip(senders.tolist(), receivers.tolist(), strict=True)
        return torch.tensor([here.get(pair, 0) for pair in pairs])


class NodeRule(Protocol):
    """Which nodes sleep: they neither compute nor send, and what is sent to them waits."""

    def asleep(self, t: int, n: int) -> Tensor:
        """(n,) bool."""
        ...


@dataclass(frozen=True)
class Sleep:
    """Every node sleeps through a step with a probability."""

    key: int
    probability: Values

    def asleep(self, t: int, n: int) -> Tensor:
        nodes = torch.arange(n)
        return chances(self.key, t, nodes, nodes) < self.probability.of_nodes(nodes)


@dataclass(frozen=True)
class Naps:
    """Some nodes sleep for a while."""

    windows: tuple[Window, ...]

    def asleep(self, t: int, n: int) -> Tensor:
        found = torch.zeros(n, dtype=torch.bool)
        for window in self.windows:
            if window.holds(t):
                found[list(window.nodes)] = True
        return found


@dataclass(frozen=True)
class Stragglers:
    """Nodes that are k times slower: their clock fires in every k-th step."""

    slower: Values

    def asleep(self, t: int, n: int) -> Tensor:
        k = self.slower.of_nodes(torch.arange(n))
        return (t / k).floor() == ((t - 1) / k).floor()


class RosterRule(Protocol):
    """Which nodes are away."""

    def status(self, t: int, n: int) -> Tensor:
        """(n,) int64: `HERE`, `PAUSED`, `CRASHED` or `LEFT`."""
        ...


@dataclass(frozen=True)
class Away:
    """Some nodes are away for a while."""

    windows: tuple[Window, ...]
    how: int

    def status(self, t: int, n: int) -> Tensor:
        found = torch.full((n,), HERE)
        for window in self.windows:
            if window.holds(t):
                found[list(window.nodes)] = self.how
        return found


@dataclass(frozen=True)
class Churn:
    """Every node is away once in `every` steps, for `down` of them, at a time of its own."""

    key: int
    every: int
    down: int
    how: int

    def status(self, t: int, n: int) -> Tensor:
        nodes = torch.arange(n)
        shifted = t + (chances(self.key, 0, nodes, nodes) * self.every).long()
        number, place = shifted // self.every, shifted % self.every
        begins = (chances(self.key, 1, nodes, number) * (self.every - self.down + 1)).long()
        away = (begins <= place) & (place < begins + self.down)
        away &= number > (shifted - t + 1) // self.every  # nobody is away at the start
        return torch.where(away, self.how, HERE)


# --------------------------------------------------------------------------- plans


@dataclass(frozen=True)
class Plan:
    """What fails in a run, and how it is dealt with; made by `plan`, `own`, `trace` or `preset`.

    Attributes:
        links: what happens to messages.
        naps: who sleeps.
        roster: who is away.
        slower: how many times slower nodes are that the others wait for, for the modelled time.
        accounting: who keeps account of what was lost; see `Accounting`.
        hold: a node whose a is below this part of what a living node has on average gives nothing.
        reset: so many steps after a node was lost or has left, trackers start anew; None: never.
        catch_up: a node's move is scaled by the steps that its clock has advanced, up to so many.
        name: as messages show it.
    """

    links: tuple[LinkRule, ...] = ()
    naps: tuple[NodeRule, ...] = ()
    roster: tuple[RosterRule, ...] = ()
    slower: tuple[Values, ...] = ()
    accounting: Accounting = "keep"
    hold: float = 0.1
    reset: int | None = 1
    catch_up: int = 1
    name: str = "no faults"

    @property
    def empty(self) -> bool:
        """Whether nothing fails: a run is then that without a plan, bit for bit."""
        return not (self.links or self.naps or self.roster)

    @cached_property
    def longest(self) -> int:
        """The largest delay of a message, in steps."""
        return sum(rule.longest for rule in self.links)

    @property
    def waits(self) -> bool:
        """Whether messages may wait: they are late, or their receivers sleep or have just come."""
        return self.longest > 0 or bool(self.naps or self.roster)

    def fates(self, t: int, senders: Tensor, receivers: Tensor, acks: bool = False) -> Tensor:
        """(E,) int64 of messages i -> j sent in step t: `LOST`, or by how many steps each is late.

        >>> plan(loss=1).fates(1, torch.tensor([0, 1]), torch.tensor([1, 2])).tolist()
        [-1, -1]
        """
        late = torch.zeros(len(senders), dtype=torch.int64)
        lost = torch.zeros(len(senders), dtype=torch.bool)
        for rule in self.links:
            fate = rule.fates(t, senders, receivers, acks)
            lost |= fate == LOST
            late += fate.clamp(min=0)
        return torch.where(lost, LOST, late)

    def asleep(self, t: int, n: int) -> Tensor:
        """(n,) bool, who sleeps in step t."""
        found = torch.zeros(n, dtype=torch.bool)
        for rule in self.naps:
            found |= rule.asleep(t, n)
        return found

    def status(self, t: int, n: int) -> Tensor:
        """(n,) int64, who is away in step t, and how."""
        found = torch.full((n,), HERE)
        for rule in self.roster:
            found = torch.maximum(found, rule.status(t, n))
        return found

    def slowness(self, n: int) -> Tensor:
        """(n,) float64, how many times slower each node computes, where the others wait for it."""
        found = torch.ones(n, dtype=torch.float64)
        for values in self.slower:
            found *= values.of_nodes(torch.arange(n))
        return found

    def at_own_pace(self, n: int) -> Tensor:
        """(n,) bool, the slower ones that nobody waits for."""
        found = torch.zeros(n, dtype=torch.bool)
        for rule in self.naps:
            if isinstance(rule, Stragglers):
                found |= rule.slower.of_nodes(torch.arange(n)) > 1
        return found

    def check(self, n: int) -> None:
        """Refuse a plan that names nodes that there are not."""
        named = [node for values in self._values() for node in values.named]
        named += [node for window in self._windows() for node in window.nodes]
        for rule in self.links:
            if isinstance(rule, Listed):
                named += [node for _, i, j, _ in rule.messages for node in (i, j)]
        refuse_unknown("faults", named, n)

    @property
    def loses_nodes(self) -> bool:
        """Whether a node may crash for good, or leave."""
        return any(getattr(rule, "how", PAUSED) != PAUSED for rule in self.roster)

    def _values(self) -> list[Values]:
        rules = (*self.links, *self.naps)
        parts = [getattr(rule, field.name) for rule in rules for field in fields(rule)]  # type: ignore[arg-type]
        return [*self.slower, *(part for part in parts if isinstance(part, Values))]

    def _windows(self) -> list[Window]:
        rules = (*self.links, *self.naps, *self.roster)
        return [window for rule in rules for window in getattr(rule, "windows", ())]

    def __or__(self, other: Plan) -> Plan:
        """The faults of both; of settings that differ, the one that is not the default."""
        if not isinstance(other, Plan):
            return NotImplemented
        settings: dict[str, Any] = {}
        for setting in ("accounting", "hold", "reset", "catch_up"):
            mine, theirs = getattr(self, setting), getattr(other, setting)
            usual = getattr(Plan, setting)
            if usual not in (mine, theirs) and mine != theirs:
                raise ValueError(f"faults: {setting} = {mine} in one plan, {theirs} in the other")
            settings[setting] = theirs if mine == usual else mine
        return Plan(
            self.links + other.links,
            self.naps + other.naps,
            self.roster + other.roster,
            self.slower + other.slower,
            **settings,
            name=f"{self.name} | {other.name}",
        )

    def __repr__(self) -> str:
        return self.name


def plan(
    seed: int = 0,
    *,
    loss: Value = 0.0,
    burst: int = 1,
    delay: Value = 0,
    partition: Any = (),
    crash: Any = (),
    leave: Any = (),
    join: Any = (),
    churn: tuple[int, int] | None = None,
    mode: Literal["lose", "pause"] = "lose",
    sleep: Any = 0.0,
    straggler: Value = (),
    wait: bool = False,
    accounting: Accounting = "keep",
    hold: float = 0.1,
    reset: int | None = 1,
    catch_up: int = 1,
) -> Plan:
    """A plan of faults.

    Values of messages are one number, an (n, n) array with [i, j] for i -> j, or a mapping
    {(i, j): value, "i->j": value, i: value for all that i sends}; of nodes a number, n numbers, or
    {i: value}. Times are "NODES@FIRST-UNTIL", such as "2@100", "0+1@100-160", (node or nodes,
    first, until), {node: first} or {node: (first, until)}, or a list of these; until is the step at
    which it is over, without it it lasts.

    Args:
        seed: of what happens by chance.
        loss: the probability that a message is lost.
        burst: so many consecutive messages of a link are lost together.
        delay: D: every message takes 0 .. D steps more.
        partition: when nodes are cut off from the others.
        crash: when nodes crash. What they had is lost, unless `mode` is "pause"; once it is over
            they join again.
        leave: when nodes leave after giving away all they have; once it is over they join again.
        join: when nodes join that are not there from the start, "5@50". An in-neighbour hands half
            of what it has to one that joins.
        churn: (every, down): every node crashes once in `every` steps, for `down` of them.
        mode: what a crash is: "lose", or "pause": a node comes back with all it had.
        sleep: the probability that a node sleeps through a step, or when nodes sleep.
        straggler: k: a node is k times slower than the others, and steps when its clock fires.
        wait: the others wait for stragglers: they cost time, and no steps.
        accounting: see `Accounting`.
        hold: a node whose a is below this part of the mean gives nothing; 0: everybody gives.
        reset: so many steps after a node was lost or has left, trackers start anew; None: never.
        catch_up: moves are scaled by the steps that a node's clock has advanced, up to so many.

    >>> plan(seed=1, loss=0.3, crash="2@100-200")
    faults(seed=1, loss=0.3, crash='2@100-200')
    """
    given = {name: value for name, value in locals().items() if name != "seed"}
    usual: dict[str, Any] = plan.__kwdefaults__ or {}
    shown = {name: value for name, value in given.items() if not _same(value, usual[name])}
    _check_settings(seed, burst, mode, accounting, hold, reset, catch_up)
    how = PAUSED if mode == "pause" else CRASHED
    links: list[LinkRule] = []
    lost = Values.of("faults: loss", loss, 0, 1)
    late = Values.of("faults: delay", delay, 0, MOST_LATE, whole=True)
    if lost.largest > 0:
        links.append(Loss(key(seed, "faults", "loss"), lost, burst))
    if late.largest > 0:
        links.append(Delay(key(seed, "faults", "delay"), late))
    if cut := _windows("partition", partition, ends=True):
        links.append(Partition(cut))
    naps: list[NodeRule] = []
    if _is_value(sleep):
        chance = Values.of("faults: sleep", sleep, 0, 1)
        if chance.largest > 0:
            naps.append(Sleep(key(seed, "faults", "sleep"), chance))
    elif asleep := _windows("sleep", sleep):
        naps.append(Naps(asleep))
    slower = Values.of("faults: straggler", straggler, 1, 1e6, default=1.0)
    if slower.largest > 1 and not wait:
        naps.append(Stragglers(slower))
    roster: list[RosterRule] = []
    if crashes := _windows("crash", crash):
        roster.append(Away(crashes, how))
    if leaves := _windows("leave", leave):
        roster.append(Away(leaves, LEFT))
    if joins := _windows("join", join):
        roster.append(Away(tuple(Window(w.nodes, 0, w.first) for w in joins), LEFT))
    if churn is not None:
        every, down = _checked_churn(churn)
        roster.append(Churn(key(seed, "faults", "churn"), every, down, how))
    words = ", ".join([f"seed={seed}", *(f"{name}={value!r}" for name, value in shown.items())])
    return Plan(
        tuple(links),
        tuple(naps),
        tuple(roster),
        (slower,) if wait and slower.largest > 1 else (),
        accounting,
        float(hold),
        reset,
        int(catch_up),
        f"faults({words})",
    )


def own(function: Callable[[int, Tensor, Tensor], Any], longest: int = 0) -> Plan:
    """A plan of your own: (t, senders, receivers) -> -1 for every message that is lost, or delays.

    Args:
        function: pure; of the step and the (E,) senders and receivers of its messages.
        longest: the largest delay that it returns.

    >>> first_is_deaf = own(lambda t, senders, receivers: -1 * (receivers == 0))
    >>> first_is_deaf.fates(1, torch.tensor([1, 0]), torch.tensor([0, 1])).tolist()
    [-1, 0]
    """
    if not callable(function):
        raise ValueError(f"faults.own({function!r}): give a function of (t, senders, receivers)")
    name = getattr(function, "__name__", type(function).__name__)
    return Plan(links=(Own(function, longest),), name=f"faults.own({name})")


#: What a line of a trace may say of a message or a node.
MOST_TRACE = 1 << 28  #: bytes of a trace
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
    """
    path = Path(file)
    try:
        text = files.content(path, MOST_TRACE).decode()
        rows = list(csv.DictReader(StringIO(text, newline="")))
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"faults {path}: cannot be read: {error}") from None
    messages: list[tuple[int, int, int, int]] = []
    began: dict[tuple[str, int], int] = {}
    windows: dict[str, list[Window]] = {}
    ends = {"wake": ("sleep",), "join": ("crash", "pause", "leave")}
    for number, row in enumerate(rows, 2):
        t, event, node, to, value = _event(path, number, row)
        if event in ("lose", "delay"):
            messages.append((t, node, to, LOST if event == "lose" else value))
        elif event in ends:
            for what in ends[event]:
                if (first := began.pop((what, node), None)) is not None:
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


# --------------------------------------------------------------------------- what a plan leaves


def certificate(faults: Plan, graphs: Topology, steps: int = 1000) -> Certificate:
    """Period, diameter and horizon of the messages that get through, measured over so many steps.

    Late messages count as edges of the step in which they arrive. Nodes that are away for good are
    left out. It is what was measured, and no guarantee: by chance, anything may be lost for
    any time. The hold rule is not looked at: it takes edges away while a node is held.

    >>> from pushsum.topology import full
    >>> certificate(plan(loss=0.3), full(6), steps=200)
    Certificate(period=2, diameter=2, horizon=3)
    """
    faults.check(graphs.n)
    n, arrived = graphs.n, _arrived(faults, graphs, steps)
    stay = faults.status(steps, n) < CRASHED
    if not bool(stay.any()):
        raise ValueError(f"{faults}: after {steps} steps no node is there")
    horizon = _longest_wait(arrived, stay, lambda start: _reach(n, arrived, stay, start))
    period = _longest_wait(arrived, stay, lambda start: _connect(n, arrived, stay, start))
    if horizon is None or period is None:
        raise ValueError(
            f"{faults} on {graphs}: within {steps} steps the nodes are not connected: raise steps"
        )
    whole = range(max(1, steps - period + 1))
    diameter = max(_diameter(n, arrived[first : first + period], stay) for first in whole)
    return Certificate(period, diameter, horizon)


def _arrived(faults: Plan, graphs: Topology, steps: int) -> list[np.ndarray]:
    """(2, E) per step: whose messages get through in it to whom."""
    n = graphs.n
    found: list[list[Tensor]] = [[] for _ in range(steps)]
    for t in range(1, steps + 1):
        senders, receivers = graphs.edges(t)
        there = faults.status(t, n) == HERE
        sends = there & ~faults.asleep(t, n)
        fate = faults.fates(t, senders, receivers)
        ok = (fate >= 0) & sends[senders] & there[receivers] & (senders != receivers)
        for late in fate[ok].unique().tolist():
            if t + late <= steps:
                some = ok & (fate == late)
                found[t + late - 1].append(torch.stack([senders[some], receivers[some]]))
    nothing = torch.empty(2, 0, dtype=torch.int64)
    return [torch.cat(parts, dim=1).numpy() if parts else nothing.numpy() for parts in found]


def _longest_wait(
    arrived: list[np.ndarray], stay: Tensor, wait: Callable[[int], int | None]
) -> int | None:
    """The largest number of steps from any start; starts too near the end do not count."""
    if int(stay.sum()) == 1:
        return 1
    waits = [wait(start) for start in range(len(arrived))]
    known = [found for found in waits if found is not None]
    return max(known) if known and waits[0] is not None else None


def _reach(n: int, arrived: list[np.ndarray], stay: Tensor, start: int) -> int | None:
    """Steps until everybody who stays has heard of everybody who stays."""
    reached, kept = np.eye(n, dtype=bool), stay.numpy()
    for step, (senders, receivers) in enumerate(arrived[start:], 1):
        before = reached.copy()
        np.logical_or.at(reached, receivers, before[senders])
        if reached[np.ix_(kept, kept)].all():
            return step
    return None


def _connect(n: int, arrived: list[np.ndarray], stay: Tensor, start: int) -> int | None:
    """Steps until their edges together connect everybody who stays."""
    union, kept = np.eye(n, dtype=bool), stay.numpy()
    for step, (senders, receivers) in enumerate(arrived[start:], 1):
        union[senders, receivers] = True
        if _closure(union)[0][np.ix_(kept, kept)].all():
            return step
    return None


def _closure(adjacency: np.ndarray) -> tuple[np.ndarray, int]:
    """Who reaches whom, and within how many hops."""
    reached, hops = np.eye(len(adjacency), dtype=bool), 0
    while True:
        grown = (reached.astype(np.float32) @ adjacency.astype(np.float32)) > 0
        if (grown == reached).all():
            return reached, hops
        reached, hops = grown, hops + 1


def _diameter(n: int, window: list[np.ndarray], stay: Tensor) -> int:
    union = np.eye(n, dtype=bool)
    for senders, receivers in window:
        union[senders, receivers] = True
    kept = stay.numpy()
    reached, hops = _closure(union[np.ix_(kept, kept)])
    return hops if reached.all() else 0


# --------------------------------------------------------------------------- chance

_MIX1, _MIX2, _STEP = (
    np.uint64(c) for c in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15)
)


def chances(named: int, t: int, i: Tensor, j: Tensor) -> Tensor:
    """(E,) float64 uniform in [0, 1), a function of (key, t, i, j): splitmix64 of a counter.

    >>> one, again = (chances(7, 1, torch.arange(3), torch.arange(3)) for _ in range(2))
    >>> torch.equal(one, again)
    True
    """
    with np.errstate(over="ignore"):
        at = _mixed(np.array([named], dtype=np.uint64) + np.uint64(t) * _STEP)
        counter = i.numpy().astype(np.uint64) << np.uint64(32)
        counter |= j.numpy().astype(np.uint64)
        counter *= _STEP
        counter += at
        drawn = _mixed(counter)
    drawn >>= np.uint64(11)
    return torch.from_numpy(drawn.astype(np.float64)).mul_(2.0**-53)


def _mixed(z: np.ndarray) -> np.ndarray:
    z ^= z >> np.uint64(30)
    z *= _MIX1
    z ^= z >> np.uint64(27)
    z *= _MIX2
    z ^= z >> np.uint64(31)
    return z


# --------------------------------------------------------------------------- values and times


@dataclass(frozen=True)
class Values:
    """A number for every edge or node: a default, and some of their own."""

    default: float
    edges: tuple[tuple[int, int, float], ...] = ()
    nodes: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        given: Any,
        least: float,
        most: float,
        whole: bool = False,
        default: float = 0.0,
    ) -> Values:
        """From what a user may give."""
        edges: dict[tuple[int, int], float] = {}
        nodes: dict[int, float] = {}
        if isinstance(given, Mapping):
            for place, value in given.items():
                match _place(name, place):
                    case (i, j):
                        edges[i, j] = value
                    case i:
                        nodes[i] = value
        elif _is_number(given):
            default = given
        else:
            array = np.asarray(given)
            if array.ndim == 2 and array.shape[0] == array.shape[1]:
                edges = {place: float(v) for place, v in np.ndenumerate(array)}
            elif array.ndim == 1:
                nodes = {i: float(v) for i, v in enumerate(array)}
            else:
                raise ValueError(f"{name} = {given!r}: a number, (n, n) or (n,) numbers")
        for value in (default, *edges.values(), *nodes.values()):
            if not _is_number(value) or not least <= value <= most or (whole and value % 1):
                kind = "an integer" if whole else "a number"
                raise ValueError(f"{name} = {value!r}: {kind} in [{least:g}, {most:g}]")
        return cls(
            float(default),
            tuple((i, j, float(v)) for (i, j), v in sorted(edges.items())),
            tuple((i, float(v)) for i, v in sorted(nodes.items())),
        )

    @property
    def largest(self) -> float:
        return max((self.default, *(e[2] for e in self.edges), *(v for _, v in self.nodes)))

    @property
    def named(self) -> list[int]:
        """The nodes that it speaks of."""
        return [*(node for i, j, _ in self.edges for node in (i, j)), *(i for i, _ in self.nodes)]

    def of_edges(self, senders: Tensor, receivers: Tensor) -> Tensor | float:
        """(E,) float64, or one number for all."""
        if not self.edges:
            return self.of_nodes(senders) if self.nodes else self.default
        found = self.of_nodes(senders)
        return _looked_up(self._edge_table, senders << 32 | receivers, found)

    def of_links(
        self, senders: Tensor, receivers: Tensor, worse: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """(E,) float64, where nodes stand for all links from and to them: the worse end counts."""
        found = worse(self.of_nodes(senders), self.of_nodes(receivers))
        if not self.edges:
            return found
        return _looked_up(self._edge_table, senders << 32 | receivers, found)

    def of_nodes(self, nodes: Tensor) -> Tensor:
        """(n,) float64."""
        found = torch.full((len(nodes),), self.default, dtype=torch.float64)
        return _looked_up(self._node_table, nodes, found) if self.nodes else found

    @cached_property
    def _edge_table(self) -> tuple[Tensor, Tensor]:
        keys = torch.tensor([i << 32 | j for i, j, _ in self.edges])
        return keys, torch.tensor([v for *_, v in self.edges], dtype=torch.float64)

    @cached_property
    def _node_table(self) -> tuple[Tensor, Tensor]:
        keys = torch.tensor([i for i, _ in self.nodes])
        return keys, torch.tensor([v for _, v in self.nodes], dtype=torch.float64)


def refuse_unknown(what: str, nodes: Sequence[int], n: int) -> None:
    """ValueError if one of them is not among n nodes."""
    if nodes and max(nodes) >= n:
        raise ValueError(f"{what}: there is no node {max(nodes)}: nodes are 0 .. {n - 1}")


def _looked_up(table: tuple[Tensor, Tensor], wanted: Tensor, otherwise: Tensor) -> Tensor:
    keys, values = table
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, values[place], otherwise)


def _place(name: str, place: Any) -> int | tuple[int, int]:
    """`2`, `"2"`, `(0, 1)` or `"0->1"`."""
    if isinstance(place, str):
        words = place.split("->")
        if len(words) <= 2 and all(word.strip().isdigit() for word in words):
            place = tuple(map(int, words)) if len(words) == 2 else int(place)
    if _is_node(place) or (
        isinstance(place, tuple) and len(place) == 2 and all(map(_is_node, place))
    ):
        found: int | tuple[int, int] = place
        return found
    raise ValueError(f"{name} of {place!r}: name a node, 2, or a link, (0, 1) or '0->1'")


_TEXT = re.compile(r"\s*(\d+(?:\+\d+)*)\s*@\s*(\d+)(?:\s*-\s*(\d+))?\s*")


def _windows(name: str, given: Any, ends: bool = False) -> tuple[Window, ...]:
    """Times from what a user may give."""
    if isinstance(given, Mapping):
        given = [(node, *(t if isinstance(t, list | tuple) else (t,))) for node, t in given.items()]
    single = isinstance(given, str | Window) or (
        isinstance(given, tuple) and len(given) in (2, 3) and _is_node(given[1])
    )
    found = tuple(_window(name, part) for part in ([given] if single else given))
    for window in found:
        if ends and window.until is None:
            raise ValueError(f"faults: {name} of nodes {window.nodes} has no end: name a step")
    return found


def _window(name: str, given: Any) -> Window:
    if isinstance(given, str) and (match := _TEXT.fullmatch(given)):
        nodes, first, until = match.groups()
        given = tuple(map(int, nodes.split("+"))), int(first), until and int(until)
    if isinstance(given, tuple | list) and len(given) in (2, 3):
        nodes, first, until = (*given, None)[:3]
        several = tuple(nodes) if isinstance(nodes, Iterable) else (nodes,)
        if (
            several
            and all(map(_is_node, several))
            and _is_node(first)
            and (until is None or (_is_node(until) and until > first))
        ):
            return Window(several, first, until)
    raise ValueError(
        f"faults: {name} = {given!r}: write NODE@FIRST-UNTIL, e.g. '2@100-200', '0+1@50', or "
        "(node, first, until)"
    )


def _event(path: Path, number: int, row: Mapping[str, Any]) -> tuple[int, str, int, int, int]:
    event = (row.get("event") or "").strip()
    if event not in EVENTS:
        raise ValueError(f"faults {path}, line {number}: {unknown('event', event, EVENTS)}")
    of_message = {"lose": ["to"], "delay": ["to", "value"]}
    wanted = ["step", "node", *of_message.get(event, [])]
    found = {name: (row.get(name) or "").strip() for name in wanted}
    for name, text in found.items():
        if not text.isdigit() or (name == "value" and int(text) > MOST_LATE):
            raise ValueError(f"faults {path}, line {number}: {name} = {text!r}: a whole number")
    numbers = {name: int(text) for name, text in found.items()}
    return numbers["step"], event, numbers["node"], numbers.get("to", 0), numbers.get("value", 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_node(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and bool(value >= 0)


def _is_value(given: Any) -> bool:
    """Whether it is a probability, or several, and not times."""
    if isinstance(given, Mapping):
        return all(_is_number(v) and v <= 1 for v in given.values())
    if isinstance(given, np.ndarray | Tensor) or _is_number(given):
        return True
    return bool(given) and isinstance(given, list) and all(isinstance(v, float) for v in given)


def _checked_churn(churn: Any) -> tuple[int, int]:
    match churn:
        case (int(every), int(down)) if 1 <= down < every:
            return every, down
    raise ValueError(f"faults: churn = {churn!r}: (every, down), with 1 <= down < every steps")


def _check_settings(
    seed: Any, burst: Any, mode: Any, accounting: Any, hold: Any, reset: Any, catch_up: Any
) -> None:
    key(seed, "faults")  # refuses a bad seed
    counts = {"burst": burst, "catch_up": catch_up} | ({} if reset is None else {"reset": reset})
    for name, value in counts.items():
        if not _is_node(value) or value < 1:
            raise ValueError(f"faults: {name} = {value!r}: an integer >= 1")
    if mode not in ("lose", "pause"):
        raise ValueError(f"faults: {unknown('mode', mode, ('lose', 'pause'))}")
    if accounting not in get_args(Accounting):
        raise ValueError(f"faults: {unknown('accounting', accounting, get_args(Accounting))}")
    if not _is_number(hold) or not 0 <= hold < 1:
        raise ValueError(f"faults: hold = {hold!r}: a part of the mean, in [0, 1)")


def _same(value: Any, usual: Any) -> bool:
    return (type(value) is type(usual) and value == usual) or (_is_number(value) and value == usual)
