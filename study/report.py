"""The report of Table 1's runs, if all of them are on disk.

python -m study.report
"""

from pathlib import Path

from pushsum import report
from pushsum.names import counted
from study import HERE, RESULTS
from study.run import cells

RUNS = Path("runs/study/table1")


def main() -> None:
    """Write the tables into the results, and the page into the documentation."""
    found = {run.path.name for run in report.load(RUNS) if run.finished} if RUNS.is_dir() else set()
    lacking = {cell.name for cell in cells("table1")} - found
    if lacking:
        print(f"{RUNS} lacks {counted(len(lacking), 'run')}: the report stays as it is")
        return
    report.write(RUNS, RESULTS / "report")["html"].replace(
        HERE.parent / "docs" / "evidence" / "report.html"
    )


if __name__ == "__main__":
    main()
