"""What a plan is told: numbers of links and nodes, and times."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pushsum.checks import is_number

Value = float | Mapping[Any, float] | Sequence[Any] | np.ndarray | Tensor


class Window(NamedTuple):
    """Some nodes, from a step on, until another one."""

    nodes: tuple[int, ...]
    first: int
    until: int | None = None  #: the step at which it is over; None: never

    def holds(self, t: int) -> bool:
        """Whether step t lies in it."""
        return self.first <= t and (self.until is None or t < self.until)


@dataclass(frozen=True)
class Values:
    """A number for every edge or node: a default, and some of their own."""

    default: float
    edges: tuple[tuple[int, int, float], ...] = ()
    nodes: tuple[tuple[int, float], ...] = ()
    n: int | None = None  #: how many nodes it is for, where all were given

    @classmethod
    def of(
        cls,
        name: str,
        given: Any,
        least: float,
        most: float,
        whole: bool = False,
        default: float = 0.0,
        links: bool = True,
    ) -> "Values":
        """From what a user may give."""
        edges: dict[tuple[int, int], float] = {}
        nodes: dict[int, float] = {}
        n = None
        if isinstance(given, Mapping):
            for place, value in given.items():
                match _place(name, place):
                    case (i, j):
                        edges[i, j] = value
                    case i:
                        nodes[i] = value
        elif is_number(given):
            default = given
        else:
            array = _numbers(name, given, links)
            n = len(array) or None
            if array.ndim == 2:
                edges = {place: float(v) for place, v in np.ndenumerate(array)}
            else:
                nodes = {i: float(v) for i, v in enumerate(array)}
        if edges and not links:
            raise ValueError(f"{name} = {given!r}: nodes have one, links do not: name nodes")
        for value in (default, *edges.values(), *nodes.values()):
            if not is_number(value) or not least <= value <= most or (whole and value % 1):
                kind = "an integer" if whole else "a number"
                raise ValueError(f"{name} = {value!r}: {kind} in [{least:g}, {most:g}]")
        return cls(
            float(default),
            tuple((i, j, float(v)) for (i, j), v in sorted(edges.items())),
            tuple((i, float(v)) for i, v in sorted(nodes.items())),
            n,
        )

    @property
    def largest(self) -> float:
        return max((self.default, *(e[2] for e in self.edges), *(v for _, v in self.nodes)))

    @property
    def named(self) -> list[int]:
        """The nodes that it speaks of."""
        return [*(node for i, j, _ in self.edges for node in (i, j)), *(i for i, _ in self.nodes)]

    def of_edges(
        self,
        senders: Tensor,
        receivers: Tensor,
        worse: Callable[[Tensor, Tensor], Tensor] = lambda sender, receiver: sender,
    ) -> Tensor:
        """(E,) float64; a node stands for what it sends, or the `worse` of both ends counts."""
        found = worse(self.of_nodes(senders), self.of_nodes(receivers))
        return _looked_up(self._edge_table, senders << 32 | receivers, found)

    def of_nodes(self, nodes: Tensor) -> Tensor:
        """(n,) float64."""
        found = torch.full((len(nodes),), self.default, dtype=torch.float64)
        return _looked_up(self._node_table, nodes, found)

    @cached_property
    def _edge_table(self) -> tuple[Tensor, Tensor]:
        keys = torch.tensor([i << 32 | j for i, j, _ in self.edges], dtype=torch.int64)
        return keys, torch.tensor([v for *_, v in self.edges], dtype=torch.float64)

    @cached_property
    def _node_table(self) -> tuple[Tensor, Tensor]:
        keys = torch.tensor([i for i, _ in self.nodes], dtype=torch.int64)
        return keys, torch.tensor([v for _, v in self.nodes], dtype=torch.float64)


def refuse_unknown(what: str, nodes: Sequence[int], n: int) -> None:
    """ValueError if one of them is not among n nodes."""
    if nodes and max(nodes) >= n:
        raise ValueError(f"{what}: there is no node {max(nodes)}: nodes are 0 .. {n - 1}")


def _looked_up(table: tuple[Tensor, Tensor], wanted: Tensor, otherwise: Tensor) -> Tensor:
    keys, values = table
    if len(keys) == 0:
        return otherwise
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, values[place], otherwise)


def _numbers(name: str, given: Any, links: bool) -> np.ndarray:
    """(n, n) or (n,) of them."""
    try:
        array = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        array = np.empty(())
    if array.ndim == 1 or (array.ndim == 2 and array.shape[0] == array.shape[1]):
        return array
    several = "n or (n, n) numbers, {2: value} or {(0, 1): value}" if links else "n, or {2: value}"
    raise ValueError(f"{name} = {given!r}: give a number, {several}")


def _place(name: str, place: Any) -> int | tuple[int, int]:
    """`2`, `"2"`, `(0, 1)` or `"0->1"`."""
    if isinstance(place, str):
        words = place.split("->")
        if len(words) <= 2 and all(word.strip().isdecimal() for word in words):
            place = tuple(map(int, words)) if len(words) == 2 else int(place)
    if is_node(place) or (
        isinstance(place, tuple) and len(place) == 2 and all(map(is_node, place))
    ):
        found: int | tuple[int, int] = place
        return found
    raise ValueError(f"{name} of {place!r}: name a node, 2, or a link, (0, 1) or '0->1'")


_TEXT = re.compile(r"\s*(\d+(?:\+\d+)*)\s*@\s*(\d+)(?:\s*-\s*(\d+))?\s*")


def windows(name: str, given: Any, ends: bool = False) -> tuple[Window, ...]:
    """Times from what a user may give."""
    if isinstance(given, Mapping):
        given = [(node, *(t if isinstance(t, list | tuple) else (t,))) for node, t in given.items()]
    several = isinstance(given, list | tuple) and not (len(given) in (2, 3) and is_node(given[1]))
    found = tuple(_window(name, part) for part in (given if several else [given]))
    for window in found:
        if ends and window.until is None:
            raise ValueError(f"faults: {name} of nodes {window.nodes} has no end: name a step")
    return found


def _window(name: str, given: Any) -> Window:
    parts = given
    if isinstance(given, str) and (match := _TEXT.fullmatch(given)):
        nodes, first, until = match.groups()
        parts = tuple(map(int, nodes.split("+"))), int(first), until and int(until)
    if isinstance(parts, tuple | list) and len(parts) in (2, 3):
        nodes, first, until = (*parts, None)[:3]
        several = tuple(nodes) if isinstance(nodes, Iterable) else (nodes,)
        if (
            several
            and all(map(is_node, several))
            and is_node(first)
            and (until is None or (is_node(until) and until > first))
        ):
            return Window(several, first, until)
    raise ValueError(
        f"faults: {name} = {given!r}: write NODE@FIRST-UNTIL, e.g. '2@100-200' or '0+1@50'"
    )


def is_node(value: Any) -> bool:
    """Whether it is a whole number from 0 on."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and bool(value >= 0)


def is_chance(given: Any) -> bool:
    """Whether it is a probability, or several, and not times."""
    if isinstance(given, Mapping):
        return all(is_number(v) and v <= 1 for v in given.values())
    if isinstance(given, np.ndarray | Tensor) or is_number(given):
        return True
    several = isinstance(given, list | tuple) and bool(given) and all(map(is_number, given))
    return several and not (isinstance(given, tuple) and all(map(is_node, given)))
