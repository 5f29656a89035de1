"""States as trees of tensors: some columns of one, one put together of columns, one on disk.

A tree is a tensor, a number, or a tuple (named or not), list or dict of trees.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Leaf = Callable[[Tensor], Tensor]


def mapped(tree: Any, change: Leaf) -> Any:
    """The tree with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple | list):
        parts = [mapped(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, dict):
        return {key: mapped(part, change) for key, part in tree.items()}
    return tree


def columns(tree: Any, d: int, some: slice) -> Any:
    """These columns of every (n, d) tensor; views, not copies."""
    return mapped(tree, lambda v: v[:, some] if v.ndim == 2 and v.shape[1] == d else v)


class Assembly:
    """A tree of (n, d) tensors, put together of columns; some may lie where they belong."""

    def __init__(self, d: int, room: Tensor | None = None) -> None:
        self.d, self.room = d, room
        self.whole: Any = None

    def add(self, some: slice, tree: Any) -> None:
        """These columns; a tree of all columns is taken as it is."""
        width = some.stop - some.start
        if width == self.d:
            self.whole = tree
            return
        if self.whole is None:
            self.whole = mapped(tree, lambda v: self._room(v, width))
        places = columns(self.whole, self.d, some)
        for place, part in zip(leaves(places), leaves(tree), strict=True):
            if place.shape[-1:] == (width,) and place.ndim == 2 and not place.is_set_to(part):
                place.copy_(part)

    def _room(self, part: Tensor, width: int) -> Tensor:
        if part.ndim != 2 or part.shape[1] != width:
            return part
        if self.room is not None and part.is_set_to(self.room[:, :width]):
            return self.room
        return part.new_empty(len(part), self.d)


def leaves(tree: Any) -> list[Tensor]:
    """Every tensor of a tree, in order."""
    found: list[Tensor] = []
    mapped(tree, lambda v: found.append(v) or v)  # type: ignore[func-returns-value]
    return found


# --------------------------------------------------------------------------- on disk


def saved(tree: Any, name: str = "") -> tuple[dict[str, Tensor], Any]:
    """A tree as named tensors and JSON."""
    if isinstance(tree, Tensor):
        return {name: tree}, {"tensor": name}
    if isinstance(tree, tuple | list | dict):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        tensors: dict[str, Tensor] = {}
        notes: Any = {}
        for key, part in pairs:
            found, note = saved(part, f"{name}.{key}" if name else str(key))
            tensors |= found
            notes[str(key)] = note
        return tensors, {"dict": notes} if isinstance(tree, dict) else {"list": [*notes.values()]}
    return {}, {"plain": tree}


def restored(pattern: Any, tensors: Mapping[str, Tensor], notes: Any) -> Any:
    """The tree that was saved; its tuples are of the kinds that the pattern has in their place."""
    if "tensor" in notes:
        return tensors[notes["tensor"]]
    if "dict" in notes:
        return {key: restored(None, tensors, note) for key, note in notes["dict"].items()}
    if "list" in notes:
        inner = list(pattern) if isinstance(pattern, tuple | list) else []
        inner += [None] * (len(notes["list"]) - len(inner))
        parts = [restored(p, tensors, n) for p, n in zip(inner, notes["list"], strict=True)]
        if hasattr(pattern, "_fields"):
            return type(pattern)(*parts)
        return parts if isinstance(pattern, list) or pattern is None else tuple(parts)
    return notes["plain"]


def detached_copy(tree: Any) -> Any:
    """The tree with memory of its own."""
    return mapped(tree, torch.clone)
