"""What the README shows is what happens."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_blocks_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 200
    step, error, smallest = lines[-1].split()
    assert step == "200"
    assert float(error) < 0.5
    assert 0 < float(smallest) <= 1.1


def test_your_own_data_trains_by_the_commands_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks("python") if "np.savez" in block)
    exec(code)
    (command,) = (block for block in blocks("sh") if "own.npz" in block)
    subprocess.run([sys.executable, "-m", *command.split()], check=True)
    last = (tmp_path / "runs" / "own" / "records.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["test"]["accuracy"] > 0.6


def test_the_command_prints_what_the_readme_shows():
    (block,) = blocks("console")
    command, *expected = block.strip().splitlines()
    arguments = command.removeprefix("$ pushsum ").split()
    answer = subprocess.run(
        [sys.executable, "-m", "pushsum", *arguments], capture_output=True, text=True, check=True
    )
    printed = [line.rstrip() for line in answer.stdout.splitlines()]
    assert expected[-1] == "..."
    assert printed[: len(expected) - 1] == expected[:-1]


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for line in blocks("sh")[0].splitlines():
        assert re.search(rf"^{line.split()[1]}:", makefile, flags=re.MULTILINE)


def test_the_commands_for_training_run(tmp_path):
    """As the README has them, but with one epoch, so that they end soon."""
    for line in blocks("sh")[1].splitlines():
        words = line.partition("#")[0].split()
        shorter = ["epochs=1"] if words[1] in ("run", "sweep") else []
        command = [sys.executable, "-m", *words, *shorter]
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, (line, answer.stderr)
    assert (tmp_path / "runs" / "digits" / "report.html").exists()
    assert len(list((tmp_path / "runs" / "digits").glob("*/records.jsonl"))) == 60


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/horizon.md",
        "docs/paper-notes.md",
        "docs/published.md",
        "examples/README.md",
    ],
)
def test_local_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", text):
        there = (ROOT / page).parent / target
        assert there.exists(), target
        headings = re.findall(r"^#+ (.+)$", there.read_text(), re.M) if anchor else []
        slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize(
    ("picture", "command"),
    [
        ("demo", "demo --no-training"),
        ("exponential", "topology exponential --nodes 6"),
    ],
)
def test_the_pictures_are_what_the_commands_draw(picture, command, tmp_path):
    """To a pixel: another machine may round otherwise."""
    drawn, shown = tmp_path / "drawn.svg", ROOT / "docs" / "images" / f"{picture}.svg"
    words = [*command.split(), "--plot", str(drawn)]
    subprocess.run([sys.executable, "-m", "pushsum", *words], check=True, cwd=tmp_path)
    number = re.compile(r"-?\d+(?:\.\d+)?")
    here, there = (re.split(number, p.read_text()) for p in (drawn, shown))
    assert here == there
    here, there = ([float(x) for x in number.findall(p.read_text())] for p in (drawn, shown))
    assert here == pytest.approx(there, abs=1)
