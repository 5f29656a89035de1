"""YAML and JSON that others may have written: data of bounded size, never more.

Whatever is wrong with them comes out as a ValueError of one line.
"""

import json
import re
from typing import Any

import yaml

from pushsum.names import one_line

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # a PyYAML without libyaml
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

MOST_BYTES = 1 << 18  #: of a YAML file, for `files.content`
MOST_META = 1 << 24  #: of a run's meta.json
MOST_DEPTH = 30  #: of brackets in brackets
MOST_CHARACTERS = 1000  #: of a single value
_SCALARS = ("null", "bool", "int", "float")  #: what a word without quotes may stand for


class _Yaml(Loader):
    """Safe YAML in which 1e-4 is a number, as in version 1.2, and no key is given twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [rule for rule in rules if rule[0].rpartition(":")[2] in _SCALARS]
        for first, rules in Loader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        seen = set()
        for name, _ in node.value if len(found) < len(node.value) else ():
            key = self.construct_object(name)
            if key in seen:
                raise yaml.MarkedYAMLError(None, None, f"{key!r} is given twice", name.start_mark)
            seen.add(key)
        return found


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)


def yaml_value(text: str | bytes) -> Any:
    """What a piece of YAML stands for: plain values, lists and mappings, all written out.

    >>> yaml_value("{lr: 1e-4, seeds: [0, 1]}")
    {'lr': 0.0001, 'seeds': [0, 1]}
    >>> yaml_value("a: &x 1")
    Traceback (most recent call last):
    ValueError: anchors, aliases and tags are not read: write the value itself (line 1)
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        _refuse_more_than_values(text)
        return yaml.load(text, _Yaml)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(one_line(f"{said} (line {mark.line + 1})" if mark else said)) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of int("0b_")
        raise ValueError(one_line(error)) from None


def _refuse_more_than_values(text: str) -> None:
    """Before anything is built: a few lines of aliases can stand for more than fits in memory."""
    depth = 0
    for event in yaml.parse(text, _Yaml):
        wrong = ""
        if isinstance(event, yaml.CollectionStartEvent | yaml.CollectionEndEvent):
            depth += 1 if isinstance(event, yaml.CollectionStartEvent) else -1
        if isinstance(event, yaml.NodeEvent) and (event.anchor or getattr(event, "tag", None)):
            wrong = "anchors, aliases and tags are not read: write the value itself"
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MOST_CHARACTERS:
            wrong = f"a value has more than {MOST_CHARACTERS} characters"
        elif depth > MOST_DEPTH:
            wrong = "its brackets are too deep"
        if wrong:
            raise yaml.MarkedYAMLError(None, None, wrong, event.start_mark)


def json_value(text: bytes) -> Any:
    """What a piece of JSON stands for."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are too deep") from None
