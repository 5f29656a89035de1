"""Results -> the numbers, tables and pictures of README and docs.

    python -m study.publish

A page says where something belongs, and its name: `<!-- study NAME -->...<!-- end -->`, within a
line or around a block. What stands between is replaced. `NAME:ONE:TWO` has arguments.
"""

import re
from pathlib import Path

from pushsum.drawing import save
from study import figures
from study.numbers import Ended, runs
from study.texts import TEXTS

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
MARK = re.compile(r"<!-- study ([^<>]+) -->(.*?)<!-- end -->", flags=re.DOTALL)


def main() -> None:
    """Write pictures, and what the pages ask for."""
    found = runs()
    for name, picture in figures.all_of(found).items():
        save(picture, IMAGES / f"{name}.svg")
    for page in pages():
        before = page.read_text()
        after = filled(before, found)
        if after != before:
            page.write_text(after)
            print(page.relative_to(ROOT))


def pages() -> list[Path]:
    """The pages that may hold results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(page: str, found: list[Ended]) -> str:
    """A page with the present results in it."""

    def put(match: re.Match[str]) -> str:
        asked, before = match.groups()
        name, *arguments = asked.split(":")
        if name not in TEXTS:
            raise ValueError(f"study {name}: choose from {', '.join(sorted(TEXTS))}")
        text = TEXTS[name](found, *arguments)
        inner = f"\n\n{text}\n\n" if before.startswith("\n") or "\n" in text else text
        return f"<!-- study {asked} -->{inner}<!-- end -->"

    return MARK.sub(put, page)


if __name__ == "__main__":
    main()
