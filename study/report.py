"""The example of a report: the recipe `digits` with three seeds.

python -m study.report    # 60 short runs, about three minutes of one core
"""

import sys
from pathlib import Path

from pushsum import report, sweep
from study import HERE

RUNS = Path("runs/example")
PAGE = HERE.parent / "docs" / "how-to" / "example.html"


def main(words: list[str], page: Path = PAGE) -> None:
    """Run what is missing, and write the page into the documentation."""
    cells = sweep.read("digits", ["seed=0,1,2", *words])
    if failed := sweep.run(cells, RUNS, 1, lambda cell, what: print(f"{cell.name}: {what}")):
        raise SystemExit(f"not finished: {', '.join(failed)}")
    report.write(RUNS)["html"].replace(page)


if __name__ == "__main__":
    main(sys.argv[1:])
