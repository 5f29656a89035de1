"""One run of a sweep, and what its directory says of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pushsum import files
from pushsum.config import Config, mapping, parse
from pushsum.reading import MOST_META, json_value

TRIALS = ".tune"  #: below a sweep's directory; reports pass it over


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str  #: also the name of its directory
    config: Config
    tune: "Tune | None" = None  #: what is chosen before it runs
    trials: "tuple[Cell, ...]" = ()  #: what it is chosen by, a run for each value
    notes: Mapping[str, Any] = field(default_factory=dict)  #: what its meta.json says besides


@dataclass(frozen=True)
class Tune:
    """A key of the configuration, and the values to choose among."""

    key: str
    values: tuple[Any, ...]


def word(key: str, value: Any) -> str:
    """A value as a part of a name; true and false say of what."""
    text = str(value).lstrip("/")  # a name should not begin with a dash
    if isinstance(value, list | dict):
        text = "".join(c for c in json.dumps(value, default=str) if c not in '[]{}" ') or "empty"
    if isinstance(value, bool):
        text = f"{key.rpartition('.')[2]}={text.lower()}"
    return "".join(c if c.isalnum() or c in ".=-+," else "-" for c in text)


def stored(directory: Path) -> Config | None:
    """The configuration with which a cell has begun."""
    try:
        return parse(mapping(directory / "config.yaml"))
    except (OSError, ValueError):
        return None


def meta(directory: Path, key: str) -> Any:
    """What a run's meta.json says, None if nothing."""
    try:
        return json_value(files.content(directory / "meta.json", MOST_META)).get(key)
    except (OSError, ValueError, AttributeError):
        return None
