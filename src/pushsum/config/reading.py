"""YAML files and `key=value` overrides -> a configuration; what is wrong with them, in one line."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pushsum import files, own_code
from pushsum.config.model import Config
from pushsum.names import nearest, one_line
from pushsum.reading import MOST_BYTES, MOST_DEPTH, yaml_value

MOST_SHOWN = 200  #: characters of a value or a key in a message
#: What to write where a value is of another kind.
HINTS = {
    **dict.fromkeys(
        ("faults.partition", "faults.crash", "faults.leave", "faults.join"),
        "write NODE@FIRST-UNTIL, e.g. 2@100-200, or 0+1@50",
    ),
    **dict.fromkeys(
        ("faults.straggler", "link.uneven", "link.far"), "name nodes and values, e.g. {3: 5}"
    ),
    "faults.churn": "should be [every, down], e.g. [1000, 50]",
}
_TYPES = ("int", "float", "str", "bool", "constrained-int", "is-instance[Path]", "path")


def read(path: Path | None, overrides: Iterable[str] = (), trust: bool = False) -> Config:
    """The configuration of a YAML file with `key=value` overrides; ValueError in one line.

    What the overrides name as `FILE.py:name` may be run; what the file names only with `trust`.
    """
    content = {} if path is None else mapping(path)
    typed = [_override(content, override) for override in overrides]
    return parse(content, trust or typed)


def mapping(path: Path | Traversable) -> dict[str, Any]:
    """What a YAML file holds, unchecked."""
    text = files.content(path, MOST_BYTES) if isinstance(path, Path) else path.read_bytes()
    try:
        content = yaml_value(text) or {}
    except ValueError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a configuration is a mapping of keys to values")
    return content


def parse(content: Mapping[str, Any], trust: bool | Collection[Any] = False) -> Config:
    """The configuration of a mapping; what is wrong with it is one line.

    Args:
        content: of sections and keys.
        trust: whether files that it names as `FILE.py:name` may be run; or the values that may.
    """
    try:
        found = Config.model_validate(content)
    except ValidationError as error:
        raise ValueError(one_line(_problem(error.errors()[0]))) from None
    typed = () if isinstance(trust, bool) else filter(own_code.is_named, map(str, trust))
    found._trusted = True if trust is True else frozenset(map(own_code.spelled, typed))
    return found


def changed(config: Config, key: str, value: Any) -> Config:
    """With another value of one dotted key."""
    content = config.model_dump(mode="json")
    set_value(content, key, value)
    return parse(content, config._trusted)


def _override(content: dict[Any, Any], override: str) -> Any:
    """Set what `key=value` says; the value."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(f"override {override!r}: write key=value, e.g. algorithm.lr=0.1")
    try:
        value = yaml_value(text)
    except ValueError as error:
        raise ValueError(f"override {_cut(repr(override))}: {error}") from None
    set_value(content, key, value)
    return value


def set_value(content: dict[Any, Any], key: str, value: Any) -> None:
    """Set a dotted key of a nested mapping."""
    *path, leaf = key.split(".")
    if len(path) > MOST_DEPTH:
        raise ValueError(f"{_cut(key)}: no key has so many parts")
    for part in path:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            raise ValueError(f"{key}: {part} is a value, not a section")
    content[leaf] = value


def _problem(error: Any) -> str:
    """What pydantic found, as one line that says what to write instead."""
    key = _cut(".".join(str(part) for part in error["loc"] if not _is_choice(part)))
    given, said = error["input"], str(error["msg"]).removeprefix("Value error, ")
    shown = _cut(repr(given))
    match error["type"]:
        case "extra_forbidden" if key == "sweep":
            return "this is the file of a sweep: pushsum sweep FILE --into runs/NAME"
        case "extra_forbidden":
            close = same_leaf(key) or nearest(key, valid_keys())
            return f"unknown key {key}: " + (
                f"did you mean {close}?" if close else f"keys are {_listed(key)}"
            )
        case "value_error" if not _several(given):
            return said
        case "model_type":
            first, *more = (k for k in valid_keys() if k.startswith(f"{key}."))
            named = first.endswith((".name", ".kind"))
            hint = f"did you mean {first}={_cut(given)}?" if named else ", ".join((first, *more))
            return f"{key} = {shown}: {key} has keys of its own: {hint}"
        case _ if key.startswith(tuple(HINTS)):
            said = next(hint for begin, hint in HINTS.items() if key.startswith(begin))
        case "tuple_type":
            return f"{key} = {shown}: should be a list, e.g. {key}=[{_cut(given)}]"
        case "literal_error":
            close = nearest(str(given), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
            said += f" (did you mean {close}?)" * (close is not None)
    if _several(given):
        said = "a run has one value; lists are for pushsum sweep"
    return f"{key} = {shown}: {said.replace('Input should', 'should')}"


def _cut(value: Any) -> str:
    """A value as text, cut where nobody reads on."""
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _several(given: Any) -> bool:
    """Whether it looks like `a,b,c` of a sweep, and not like `moreau:k=1,v=0.1`."""
    return isinstance(given, str) and "," in given and not set(":(=") & set(given)


def _listed(key: str) -> str:
    prefix = key.rpartition(".")[0]
    start = f"{prefix}." if prefix else ""
    here = [k for k in valid_keys() if k.startswith(start) and "." not in k[len(start) :]]
    return ", ".join(here or valid_keys())


def _is_choice(part: object) -> bool:
    """pydantic names the branch of a union in the path of an error."""
    return isinstance(part, str) and (part.startswith(("literal[", "function-")) or part in _TYPES)


def valid_keys() -> list[str]:
    """Every key, dotted; sections too."""
    return [key for key, _ in _fields(Config)]


def described() -> Iterator[tuple[str, str, str]]:
    """(key, default as YAML, meaning) of every key that takes a value."""
    for key, field in _fields(Config):
        if _section(field) is None:
            default = field.get_default(call_default_factory=True)
            text = yaml.safe_dump(TypeAdapter(Any).dump_python(default, mode="json"))
            choices = " | ".join(_choices(field.annotation))
            meaning = "; ".join(words for words in (choices, field.description) if words)
            yield key, text.splitlines()[0], " ".join(meaning.split())


def _fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield prefix + name, field
        if inner := _section(field):
            yield from _fields(inner, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _choices(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def same_leaf(key: str) -> str | None:
    """The key of another section that ends in the same word; one alone, if a section is given."""
    section, _, leaf = key.rpartition(".")
    found = [k for k in valid_keys() if k.rpartition(".")[2] == leaf]
    return found[0] if found and (len(found) == 1 or not section) else None


def bare_key(words: Sequence[str]) -> str | None:
    """What was probably meant by `epochs 3` among words that should be KEY=VALUE.

    >>> bare_key(["seed=1", "lr", "0.1"]), bare_key(["epochs"]), bare_key(["mine.yaml"])
    ('lr: did you mean algorithm.lr=0.1?', 'epochs: did you mean epochs=VALUE?', None)
    """
    keys = [key for key, _, _ in described()]
    for word, value in zip(words, [*words[1:], "="], strict=True):
        key = same_leaf(word)
        if key in keys:
            return f"{word}: did you mean {key}={'VALUE' if '=' in value else value}?"
    return None
