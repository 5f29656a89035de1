"""One typed configuration: YAML file + `key=value` overrides -> everything a run depends on.

Unknown keys are refused with the nearest valid one.
"""

from pushsum.config.model import LENGTH, Config, Evaluation, Faults, Link, warnings
from pushsum.config.reading import (
    bare_key,
    changed,
    described,
    mapping,
    parse,
    read,
    same_leaf,
    set_value,
    valid_keys,
)

__all__ = [
    "LENGTH",
    "Config",
    "Evaluation",
    "Faults",
    "Link",
    "bare_key",
    "changed",
    "described",
    "mapping",
    "parse",
    "read",
    "same_leaf",
    "set_value",
    "valid_keys",
    "warnings",
]
