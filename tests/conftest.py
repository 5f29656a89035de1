"""The command line in this process, and tests that need a browser, where there is one."""

import os
import shutil
import sys

import pytest

from pushsum import cli

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


@pytest.fixture
def pushsum(monkeypatch, capsys):
    """Run `pushsum ...` in this process; (exit code, standard output, standard error)."""

    def run(*arguments: str, columns: int = 100):
        monkeypatch.setattr(sys, "argv", ["pushsum", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run
