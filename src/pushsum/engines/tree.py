"""States as trees of tensors: some columns of one, one put together of columns, one on disk.

A tree is a tensor, a number, or a tuple (named or not), list or dict of trees.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def mapped(change: Callable[..., Tensor], tree: Any, *others: Any) -> Any:
    """The tree of what `change` makes of the tensors in the same place of all trees."""
    if isinstance(tree, Tensor):
        return change(tree, *others)
    if isinstance(tree, tuple | list):
        parts = [mapped(change, *same) for same in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, dict):
        return {key: mapped(change, *(t[key] for t in (tree, *others))) for key in tree}
    return (tree, *others)[-1]


def columns(tree: Any, d: int, some: slice) -> Any:
    """These columns of every (n, d) tensor; views, not copies."""
    return mapped(lambda v: v[:, some] if v.ndim == 2 and v.shape[1] == d else v, tree)


def leaves(tree: Any) -> list[Tensor]:
    """Every tensor of a tree, in order."""
    found: list[Tensor] = []
    mapped(lambda v: found.append(v) or v, tree)  # type: ignore[func-returns-value]
    return found


class Assembly:
    """A tree of (n, d) tensors, put together of columns.

    Args:
        d: how many columns there are.
        copies: whether a tree of all columns is copied, too, instead of taken as it is.
        room: an (n, d) tensor in which one of its tensors is written in place.
    """

    def __init__(self, d: int, copies: bool = False, room: Tensor | None = None) -> None:
        self.d, self.copies, self.room = d, copies, room
        self.whole: Any = None

    def add(self, some: slice, tree: Any) -> None:
        """Write these columns; what has none is replaced."""
        width = some.stop - some.start
        if width == self.d and not self.copies:
            self.whole = tree
            return

        def room(part: Tensor) -> Tensor:
            if part.ndim != 2 or part.shape[1] != width:
                return part
            if self.room is not None and part.is_set_to(self.room[:, some]):
                return self.room
            return part.new_empty(len(part), self.d)

        def put(place: Tensor, part: Tensor) -> Tensor:
            if place.ndim != 2 or place.shape[1] != self.d:
                return part
            if not part.is_set_to(place[:, some]):
                place[:, some] = part
            return place

        def apart(place: Tensor, part: Tensor) -> Tensor:
            """Not in memory that is about to be written over, unless it is where it belongs."""
            if place.ndim == 2 and part.is_set_to(place[:, some]):
                return part
            return part.clone() if part.untyped_storage().data_ptr() in own else part

        if self.whole is None:
            self.whole = mapped(room, tree)
        elif self.copies:  # the next state may hold parts of the last one in other places
            own = {place.untyped_storage().data_ptr() for place in leaves(self.whole)}
            tree = mapped(apart, self.whole, tree)
        self.whole = mapped(put, self.whole, tree)


# --------------------------------------------------------------------------- on disk


def saved(tree: Any, name: str = "") -> tuple[dict[str, Tensor], Any]:
    """A tree as named tensors and JSON."""
    if isinstance(tree, Tensor):
        return {name: tree}, {"tensor": name}
    if not isinstance(tree, tuple | list | dict):
        return {}, {"plain": tree}
    tensors: dict[str, Tensor] = {}
    notes = []
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        found, note = saved(part, f"{name}.{key}" if name else str(key))
        tensors |= found
        notes.append([key, note] if isinstance(tree, dict) else note)
    return tensors, {"dict" if isinstance(tree, dict) else "list": notes}


def restored(pattern: Any, tensors: Mapping[str, Tensor], notes: Any) -> Any:
    """The tree that was saved; its tuples are of the kinds that the pattern has in their place."""
    if "tensor" in notes:
        return tensors[notes["tensor"]]
    if "dict" in notes:
        return {key: restored(None, tensors, note) for key, note in notes["dict"]}
    if "list" in notes:
        inner = list(pattern) if isinstance(pattern, tuple | list) else []
        inner += [None] * (len(notes["list"]) - len(inner))
        parts = [restored(p, tensors, n) for p, n in zip(inner, notes["list"], strict=True)]
        if hasattr(pattern, "_fields"):
            return type(pattern)(*parts)
        return parts if isinstance(pattern, list) or pattern is None else tuple(parts)
    return notes["plain"]
