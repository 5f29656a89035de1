"""Docstrings, written to be read in a terminal, as the Markdown that the API pages are made of."""

import re
from typing import Any

import griffe

ALIGNED = re.compile(r"\S {2,}\S")  # columns, made with spaces


class Docstrings(griffe.Extension):
    """Fences doctests and aligned lines; takes `#:` comments for the docstrings that they are."""

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Called for every object once it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
        elif obj.is_attribute and (comment := _comment(obj)):
            obj.docstring = griffe.Docstring(comment, parent=obj)


def markdown(text: str) -> str:
    """Fence every paragraph that a reader is to see as it stands."""
    return "\n\n".join(map(_fenced, re.split(r"\n[ \t]*\n", text)))


def _fenced(paragraph: str) -> str:
    if paragraph.startswith(">>> "):
        return f"```pycon\n{paragraph}\n```"
    lines = paragraph.splitlines()
    if lines and all(ALIGNED.search(line) and not line.startswith(" ") for line in lines):
        return f"```text\n{paragraph}\n```"
    return paragraph


def _comment(attribute: griffe.Object) -> str:
    lines = attribute.lines if attribute.lineno is not None else []
    return lines[0].partition("#: ")[2].strip() if lines else ""
