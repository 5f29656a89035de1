"""The sums that every engine must do alike, so that they agree to the last bit.

Distances are by subtraction: the Gram identity loses every digit in float32 when nodes nearly
agree. Long rows are taken in blocks of columns, in order, so that a message may be looked at
block by block while the rest of it is still under way.

Sums of received values are accumulated in float64 and rounded once, with the very weights that a is
mixed with. In float64 they are in the order of the senders, one rounded product after the other, so
that the result does not depend on how many threads or processes did it.
"""

from collections.abc import Iterable
from math import frexp

import torch
from torch import Tensor

LONG = 2**15  #: rows from here on are taken in blocks
BLOCK = 2**18  #: elements of a row that are taken at a time: several threads share them


def column_blocks(d: int, width: int) -> list[slice]:
    """0 .. d in pieces of at most so many columns."""
    return [slice(first, min(d, first + width)) for first in range(0, d, width)]


def ring_bytes(n: int, node: int, size: int) -> int:
    """What a node sends when n of them average `size` bytes in a ring: all but one part, twice.

    In whole bytes, of which all nodes together send exactly 2 (n - 1) size.
    """
    total = 2 * (n - 1) * size
    return total * (node + 1) // n - total * node // n


def float32_rounds_once(terms: int, weights: Iterable[float]) -> bool:
    """Whether it rounds sums of so many products once, as float64 does: these products are exact.

    >>> float32_rounds_once(2, [0.5, 0.25]), float32_rounds_once(2, [0.3, 0.7])
    (True, False)
    """
    return terms <= 2 and all(frexp(w)[0] == 0.5 for w in weights)


def distances(
    own: Tensor,
    other: Tensor,
    i: Tensor,
    j: Tensor,
    scalars: tuple[Tensor, Tensor] | None = None,
    long: bool | None = None,
) -> Tensor:
    """||own[i] - other[j]||^2 for lists of rows; float64. With scalars, of rows divided by them.

    `long`: whether these are some columns of long rows; None: as many as they have.
    """
    long = own.shape[1] >= LONG if long is None else long
    by_pair = _long_rows if long else _short_rows
    return by_pair(own, other, i, j, scalars)


def block_distances(
    own: Tensor, other: Tensor, scalars: tuple[float, float] | None = None
) -> list[float]:
    """The squared distance of two pieces of long rows, block by block; their sum is the whole."""
    work = _work(own)
    return [
        _block_distance(own[first : first + BLOCK], other[first : first + BLOCK], work, scalars)
        for first in range(0, len(own), BLOCK)
    ]


def _block_distance(
    own: Tensor, other: Tensor, work: Tensor, scalars: tuple[float, float] | None
) -> float:
    room = work if len(own) == len(work) else work[: len(own)]
    difference = _difference(own, other, scalars, work.dtype, room)
    d2 = torch.dot(difference, difference).item()
    if 1e-30 < d2 < 1e30:
        return d2
    difference = _difference(own, other, scalars, torch.float64)  # perhaps beyond float32's reach
    return torch.dot(difference, difference).item()


def _difference(
    own: Tensor,
    other: Tensor,
    scalars: tuple[Tensor, Tensor] | tuple[float, float] | None,
    kind: torch.dtype,
    out: Tensor | None = None,
) -> Tensor:
    one, two = (own, other) if own.dtype == other.dtype == kind else (own.to(kind), other.to(kind))
    if scalars is not None:
        one, two = one / scalars[0], two / scalars[1]
    return torch.sub(one, two, out=out)


def _long_rows(
    own: Tensor, other: Tensor, i: Tensor, j: Tensor, scalars: tuple[Tensor, Tensor] | None
) -> Tensor:
    """All pairs within a block of columns that stays in the cache."""
    pairs = list(zip(i.tolist(), j.tolist(), strict=True))
    if own is other:  # ||x_i - x_j|| = ||x_j - x_i||
        pairs = [(min(pair), max(pair)) for pair in pairs]
    d2 = dict.fromkeys(pairs, 0.0)
    by = None if scalars is None else tuple(some.tolist() for some in scalars)
    work = _work(own[0])
    for first in range(0, own.shape[1], BLOCK):
        ours, theirs = (rows[:, first : first + BLOCK].unbind() for rows in (own, other))
        for p, q in d2:
            of_pair = None if by is None else (by[0][p], by[1][q])
            d2[p, q] += _block_distance(ours[p], theirs[q], work, of_pair)
    return torch.tensor([d2[pair] for pair in pairs], dtype=torch.float64)


def _work(row: Tensor) -> Tensor:
    kind = torch.promote_types(row.dtype, torch.float32)
    return torch.empty(min(BLOCK, len(row)), dtype=kind, device=row.device)


def _short_rows(
    own: Tensor, other: Tensor, i: Tensor, j: Tensor, scalars: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Some pairs at a time, so that their differences stay in the cache."""
    kind = torch.promote_types(own.dtype, torch.float32)
    d2 = _some_at_a_time(own, other, i, j, scalars, kind)
    extreme = ~((d2 > 1e-30) & (d2 < 1e30))  # perhaps beyond float32's reach
    if extreme.any():
        i, j = i[extreme], j[extreme]
        d2[extreme] = _some_at_a_time(own, other, i, j, scalars, torch.float64)
    return d2


def _some_at_a_time(
    own: Tensor,
    other: Tensor,
    i: Tensor,
    j: Tensor,
    scalars: tuple[Tensor, Tensor] | None,
    kind: torch.dtype,
) -> Tensor:
    d2 = torch.empty(len(i), dtype=torch.float64)
    size = max(1, 2 * BLOCK // own.shape[1])
    for first in range(0, len(i), size):
        some = slice(first, first + size)
        p, q = i[some], j[some]
        of_pairs = scalars and (scalars[0][p, None].to(kind), scalars[1][q, None].to(kind))
        d2[some] = _difference(own[p], other[q], of_pairs, kind).square_().sum(1)
    return d2
