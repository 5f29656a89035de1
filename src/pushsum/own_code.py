"""Objects of a user's own files, by `FILE.py:name`.

To load one is to run its file: what a configuration names is loaded only if the user trusts it.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from hashlib import file_digest
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal

from pushsum.names import one_line


def is_named(text: str) -> bool:
    """Whether a text names an object of a file.

    >>> is_named("rings.py:double"), is_named("ring")
    (True, False)
    """
    return ".py:" in text


def spelled(text: str) -> str:
    """The one way to write it: the file from the root; other texts stay as they are."""
    file, separator, name = text.strip().rpartition(".py:")
    return f"{Path(file).expanduser().absolute()}.py:{name}" if separator else text


def named(values: Mapping[str, Any]) -> dict[str, str]:
    """Those among the values of dotted keys that are objects of files.

    >>> named({"topology.name": "/rings.py:double", "seed": 1})
    {'topology.name': '/rings.py:double'}
    """
    texts = {key: value for key, value in values.items() if isinstance(value, str)}
    return {key: spelled(text) for key, text in texts.items() if is_named(text)}


def refuse_untrusted(values: Mapping[str, Any], trusted: Literal[True] | Collection[str]) -> None:
    """ValueError if values of dotted keys name what the user has not said to be trusted."""
    for key, text in named(values).items():
        if trusted is not True and text not in trusted:
            raise ValueError(
                f"{key} = {text}: the configuration names a file that would be run: read it, then "
                "add --trust (in Python trust=True)"
            )


def hashes(values: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of every file that values of dotted keys name."""
    found = {}
    for text in named(values).values():
        file, _ = _parts(text)
        if file.is_file():
            with file.open("rb") as content:
                found[str(file)] = file_digest(content, "sha256").hexdigest()
    return found


def _parts(text: str) -> tuple[Path, str]:
    path, _, name = spelled(text).rpartition(":")
    return Path(path), name


def load(kind: str, text: str) -> Any:
    """What the file defines under the name; `kind` is what messages call it."""
    file, name = _parts(text)
    spec = spec_from_file_location(f"{__name__}.{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ValueError(f"{kind} {text}: there is no such file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for the module of their class there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{kind} {text}: the file fails: {error!r}") from error
    if not hasattr(module, name):
        raise ValueError(f"{kind} {text}: the file defines nothing of this name")
    return getattr(module, name)


def load_function(kind: str, text: str) -> Callable[..., Any]:
    """What the file defines under the name, which can be called."""
    found = load(kind, text)
    if not callable(found):
        raise ValueError(f"{kind} {text}: is a {type(found).__name__}, expected a function")
    function: Callable[..., Any] = found
    return function


def called(kind: str, text: str, given: Mapping[str, Any]) -> Any:
    """What the function of that name returns, called with those given values that it asks for."""
    function = load_function(kind, text)
    asked = signature(function).parameters.values()
    missing = [p.name for p in asked if p.name not in given and _is_required(p)]
    if missing:
        raise ValueError(
            f"{kind} {text}: its parameter {missing[0]} has no value: it may ask for "
            f"{', '.join(given)}; give others a default"
        )
    try:
        return function(**{p.name: given[p.name] for p in asked if p.name in given})
    except Exception as error:
        raise ValueError(f"{kind} {text}: fails: {one_line(repr(error))}") from error


def _is_required(parameter: Parameter) -> bool:
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and parameter.kind not in several
