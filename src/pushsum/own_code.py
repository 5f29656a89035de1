"""Objects of a user's own files, by `FILE.py:name`.

To load one is to run its file.
"""

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


def load(kind: str, text: str) -> Any:
    """What the file defines under the name; `kind` is what messages call it."""
    path, _, name = spelled(text).rpartition(".py:")
    file = Path(f"{path}.py")
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
