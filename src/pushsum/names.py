"""What to say of a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


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


def unknown(kind: str, name: object, choices: Iterable[str]) -> str:
    """The message about a name that is not among the choices.

    >>> unknown("topology", "exp", ["full", "exponential"])
    "unknown topology 'exp' (did you mean exponential?): choose from full, exponential"
    """
    choices = list(choices)
    close = nearest(name, choices) if isinstance(name, str) else None
    hint = f" (did you mean {close}?)" if close else ""
    return f"unknown {kind} {name!r}{hint}: choose from {', '.join(choices)}"
