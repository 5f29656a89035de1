"""Numbers at the door: what is not one, or out of range, is refused with a line."""

from collections.abc import Callable
from math import isfinite
from numbers import Integral, Real
from typing import Any


def count(name: str, value: Any, what: str, least: int = 1) -> int:
    """A whole number; numpy's are as good.

    >>> count("n", 0, "the number of nodes")
    Traceback (most recent call last):
    ValueError: n = 0: the number of nodes is an integer >= 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} = {value!r}: {what} is an integer >= {least}")
    return int(value)


def number(name: str, value: Any, within: Callable[[Any], bool], expected: str) -> None:
    """Refuse what is no finite number in a range; numpy's and fractions are as good.

    >>> number("v", 2, lambda v: 0 < v < 1, "a share lies in (0, 1)")
    Traceback (most recent call last):
    ValueError: v = 2: a share lies in (0, 1)
    """
    if not (is_number(value) and isfinite(value) and within(value)):
        raise ValueError(f"{name} = {value!r}: {expected}")


def is_number(value: object) -> bool:
    """Whether something can be compared with numbers."""
    return isinstance(value, Real) and not isinstance(value, bool)
