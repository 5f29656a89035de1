"""Equations as MathML, which browsers draw themselves: no script, no network."""

from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\d$])"


def fence(source: str, language: str, css_class: str, *rest: Any, **options: Any) -> str:
    """A block fenced as `math`, in LaTeX; a line that ends in two backslashes ends an equation."""
    rows = (convert(row.strip(), display="block") for row in source.split("\\\\\n"))
    return f'<div class="{css_class}">{"".join(rows)}</div>'


class _Inline(InlineProcessor):
    def handleMatch(  # type: ignore[override]  # Python-Markdown's own two kinds differ
        self, m: Any, data: str
    ) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(m.group(1))), m.start(0), m.end(0)


class Equations(Extension):
    """`$...$` within a line."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Before emphasis, so that underscores stay what they are; after code."""
        md.inlinePatterns.register(_Inline(INLINE, md), "equation", 185)


def makeExtension(**options: Any) -> Equations:
    """What Python-Markdown asks a module for."""
    return Equations(**options)
