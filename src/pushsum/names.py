"""The wording of messages: names and what is meant by them, counts, one line of plain text."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` was probably meant to be, whatever its case; None if there is none.

    >>> nearest("CIFAR-10", ["cifar10", "digits"])
    'cifar10'
    """
    known = {choice.lower(): choice for choice in choices}
    word = name.lower()
    close = get_close_matches(word, known, n=1, cutoff=0.5) or [
        choice for choice in known if word and choice.startswith(word)
    ]
    return known[close[0]] if close else None


def canonical(name: str, choices: Iterable[str]) -> str:
    """A name as the choices have it, whatever its case and dashes; others stay as they are.

    >>> [canonical(name, ["cifar10", "S-ADDOPT"]) for name in ("CIFAR-10", "s_addopt", "mine.npz")]
    ['cifar10', 'S-ADDOPT', 'mine.npz']
    """
    return {_letters(choice): choice for choice in choices}.get(_letters(str(name)), name)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def unknown(kind: str, name: object, choices: Iterable[str]) -> str:
    """The message about a name that is not among the choices.

    >>> unknown("topology", "exp", ["full", "exponential"])
    "unknown topology 'exp' (did you mean exponential?): choose from full, exponential"
    """
    choices = list(choices)
    close = nearest(name, choices) if isinstance(name, str) else None
    hint = f" (did you mean {close}?)" if close else ""
    return f"unknown {kind} {name!r}{hint}: choose from {', '.join(choices)}"


def counted(count: int, thing: str) -> str:
    """How many of a thing.

    >>> counted(1, "cell"), counted(20, "cell")
    ('1 cell', '20 cells')
    """
    return f"{count} {thing}{'s' * (count != 1)}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first of some names, and how many there are besides.

    >>> listed(["a", "b", "c"], most=3), listed(["a", "b", "c"], most=1)
    ('a, b, c', 'a and 2 others')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {counted(len(names) - most, 'other')}"


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys.

    >>> flat({"seed": 1, "model": {"name": "mlp"}})
    {'seed': 1, 'model.name': 'mlp'}
    """
    found: dict[str, Any] = {}
    for key, value in content.items():
        inner = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def finite(value: Any) -> Any:
    """For JSON, which knows neither NaN nor infinity: they become null, however deep they are.

    >>> finite({"loss": float("nan"), "seeds": (0, 1)})
    {'loss': None, 'seeds': [0, 1]}
    """
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def one_line(said: object, most: int = 2000) -> str:
    """What an error or a text says, in one line of bounded length, without control characters."""
    text = plain(" ".join(str(said).split())) or type(said).__name__
    return text if len(text) <= most else f"{text[:most]}…"


def plain(text: str) -> str:
    r"""A text that steers neither a terminal nor the direction in which it is read.

    >>> plain("a\x1b[31mb\u202ec\td")
    'a�[31mb�c d'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
