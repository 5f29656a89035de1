"""What the documentation shows is what happens.

Blocks of a page are run in order, in an empty directory. `python` is executed, and a `text` block
after it is what it prints; `console` and `sh` are commands, with and without what they print; a
block with a title is a file. `bash` is only shown: it needs a cluster, or takes long.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from pushsum import cli, config

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?")
FEWER = {"--nproc-per-node 6": "--nproc-per-node 2"}  # real processes, but not on every core


def blocks(page: str) -> list[tuple[str, str, str]]:
    return BLOCK.findall((DOCS / page).read_text())


def same(printed: str, shown: str) -> bool:
    """Word for word; numbers to 5 %, since training is not the same on every processor."""
    ours, theirs = ([line.rstrip() for line in text.splitlines()] for text in (printed, shown))
    if theirs[-1:] == ["..."]:
        theirs.pop()
        ours = ours[: len(theirs)]
    ours_text, theirs_text = "\n".join(ours), "\n".join(theirs)
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (ours_text, theirs_text)]
    if NUMBER.sub("#", ours_text) != NUMBER.sub("#", theirs_text):
        return False
    return numbers[0] == pytest.approx(numbers[1], rel=0.05)


def commands(console: str) -> list[tuple[str, str]]:
    """Each command after a `$`, and what the page shows below it."""
    parts = re.split(r"^\$ ", console.replace("\\\n", " "), flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def run_python(code: str, names: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue()


def run_command(line: str, patch: pytest.MonkeyPatch) -> str:
    """What a command prints; `pushsum` in this process, since torch takes seconds to import."""
    for many, few in FEWER.items():
        line = line.replace(many, few)
    program, *words = shlex.split(line, comments=True)
    if program == "pushsum" and "--engine" not in words:
        out, err = io.StringIO(), io.StringIO()
        patch.setattr(sys, "argv", [program, *words])
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as stopped,
        ):
            cli.main()
        assert stopped.value.code == 0, (line, err.getvalue())
        return out.getvalue()
    module = {"torchrun": "torch.distributed.run"}.get(program, program)
    answer = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, (line, answer.stderr)
    return answer.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_blocks_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    names: dict[str, object] = {}
    printed = ""
    for language, title, content in blocks(page):
        if title:
            Path(title).write_text(content)
        elif language == "python":
            printed = run_python(content, names)
        elif language == "text":
            assert same(printed, content), f"{page} shows\n{content}\nbut this is\n{printed}"
        elif language == "console":
            for command, shown in commands(content):
                printed = run_command(command, monkeypatch)
                assert same(printed, shown), f"{page}: {command}\n{shown}\nis\n{printed}"
        elif language == "sh":
            for command in content.replace("\\\n", " ").splitlines():
                run_command(command, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_local_links_lead_somewhere(page):
    """The site's own build checks anchors as well."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert ((DOCS / page).parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    configuration = (ROOT / "zensical.toml").read_text()
    assert [page for page in PAGES if f'"{page}"' not in configuration] == []


def test_the_page_of_commands_has_every_command_and_every_key():
    page = (DOCS / "api" / "commands.md").read_text()
    for command in typer.main.get_group(cli.app).commands:
        assert f"| `pushsum {command}` |" in page
    bar = r"\|"  # within a cell
    rows = [
        f"| `{key}` | `{default}` | {meaning.replace('|', bar)} |"
        for key, default, meaning in config.described()
    ]
    assert "\n".join(rows) in page, "\n".join(rows)
