"""Objects of a user's own files, by `FILE.py:name`.

To load one is to run its file: what a configuration names is loaded only if the user trusts it.
"""

from collections.abc import Collection, Mapping
from hashlib import file_digest
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


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


def refuse_untrusted(values: Mapping[str, Any], trusted: Collection[str]) -> None:
    """ValueError if values of dotted keys name what the user has not said to be trusted."""
    for key, text in named(values).items():
        if text not in trusted:
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
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ValueError(f"{kind} {text}: there is no such file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{kind} {text}: the file fails: {error!r}") from error
    if not hasattr(module, name):
        raise ValueError(f"{kind} {text}: the file defines nothing of this name")
    return getattr(module, name)
