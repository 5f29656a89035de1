"""Tests that need a browser are collected where there is one; the header says which it is."""

import os
import shutil

import pytest

WANTED = os.environ.get("PUSHSUM_BROWSER") == "1"  # then a missing browser is a failure
CHROMIUM = shutil.which("chromium")
MISSING = "browser tests: not collected, there is no chromium (apt-get install chromium)"

collect_ignore = [] if CHROMIUM or WANTED else ["browser"]


def pytest_report_header() -> str:
    return (
        f"browser tests: collected ({CHROMIUM or 'no chromium'})" if not collect_ignore else MISSING
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The header is not shown with -q; what was left out is."""
    if collect_ignore:
        terminalreporter.write_line(MISSING)
