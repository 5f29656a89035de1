"""Plans: what fails in a run, and how it is dealt with."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pushsum import checks
from pushsum.faults.rules import (
    CRASHED,
    HERE,
    LEFT,
    LOST,
    PAUSED,
    Away,
    Churn,
    Delay,
    LinkRule,
    Listed,
    Loss,
    Naps,
    NodeRule,
    Own,
    Partition,
    RosterRule,
    Sleep,
    Stragglers,
)
from pushsum.faults.values import Value, Values, Window, is_chance, refuse_unknown, windows
from pushsum.names import unknown
from pushsum.randomness import key

MOST_LATE = 1000  #: steps

#: Who keeps account of what was lost: "keep": a sender knows at once, and keeps the share;
#: "outbox": parcels are sent again until they are acknowledged, as over a real network;
#: "none": nobody, as in plain Push-SUM, whose average is then wrong.
Accounting = Literal["keep", "outbox", "none"]


@dataclass(frozen=True)
class Plan:
    """What fails in a run, and how it is dealt with; made by `plan`, `own`, `trace` or `preset`.

    Attributes:
        links: what happens to messages.
        naps: who sleeps.
        roster: who is away.
        slower: how many times slower nodes are that the others wait for, for the modelled time.
        accounting: who keeps account of what was lost; see `Accounting`.
        hold: a node whose a is below this part of what a living node has on average gives nothing,
            and its moves are scaled by that part.
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

    @property
    def keeps_definition_1(self) -> bool:
        """Whether columns of W sum to 1 in every step: nothing waits, and no mass comes or goes."""
        here = not (self.naps or self.longest or self.loses_nodes)
        return here and self.accounting == "keep"

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
        """Refuse a plan that names nodes that there are not, or is for more or fewer of them."""
        for values in self._values():
            if values.n not in (None, n):
                raise ValueError(f"faults: numbers for {values.n} nodes, and there are {n}")
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

    def __or__(self, other: "Plan") -> "Plan":
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
        hold: a node whose a is below this part of the mean gives nothing, and its moves are scaled
            by a in parts of the mean; 0: everybody gives.
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
    if cut := windows("partition", partition, ends=True):
        links.append(Partition(cut))
    naps: list[NodeRule] = []
    if is_chance(sleep):
        chance = Values.of("faults: sleep", sleep, 0, 1, links=False)
        if chance.largest > 0:
            naps.append(Sleep(key(seed, "faults", "sleep"), chance))
    elif asleep := windows("sleep", sleep):
        naps.append(Naps(asleep))
    slower = Values.of("faults: straggler", straggler, 1, 1e6, default=1.0, links=False)
    if slower.largest > 1 and not wait:
        naps.append(Stragglers(slower))
    roster: list[RosterRule] = []
    if crashes := windows("crash", crash):
        roster.append(Away(crashes, how))
    if leaves := windows("leave", leave):
        roster.append(Away(leaves, LEFT))
    if joins := windows("join", join):
        if any(w.until is not None for w in joins):
            raise ValueError(f"faults: join = {join!r}: a step, without an end: add leave or crash")
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
    within = f"the largest delay is in 0 .. {MOST_LATE} steps"
    if checks.count("faults.own: longest", longest, within, least=0) > MOST_LATE:
        raise ValueError(f"faults.own: longest = {longest}: {within}")
    name = getattr(function, "__name__", type(function).__name__)
    return Plan(links=(Own(function, longest),), name=f"faults.own({name})")


def _checked_churn(churn: Any) -> tuple[int, int]:
    match churn:
        case (int(every), int(down)) if 1 <= down < every:
            return every, down
    raise ValueError(f"faults: churn = {churn!r}: (every, down), with 1 <= down < every steps")


def _check_settings(
    seed: Any, burst: Any, mode: Any, accounting: Any, hold: Any, reset: Any, catch_up: Any
) -> None:
    key(seed, "faults")  # refuses a bad seed
    checks.count("faults: burst", burst, "how many messages are lost together")
    checks.count("faults: catch_up", catch_up, "the most steps that a move stands for")
    checks.count("faults: reset", 1 if reset is None else reset, "after how many steps")
    checks.number("faults: hold", hold, lambda part: 0 <= part < 1, "a part of the mean, in [0, 1)")
    for what, given, known in (
        ("mode", mode, ("lose", "pause")),
        ("accounting", accounting, get_args(Accounting)),
    ):
        if given not in known:
            raise ValueError(f"faults: {unknown(what, given, known)}")


def _same(value: Any, usual: Any) -> bool:
    return (checks.is_number(value) or type(value) is type(usual)) and bool(value == usual)
