"""What the README shows is what happens."""

import re
from pathlib import Path
from typing import Any

import pytest

from study import hero

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_is_short():
    assert len(README.split()) < 1000


def test_the_loop_trains(monkeypatch, tmp_path):
    """One node alone, as plain Python runs it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)
    digits, model = names["digits"], names["model"]
    guesses = model(digits.scaled(digits.test_x)).argmax(1)
    assert (guesses == digits.test_y).double().mean() > 0.9


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for line in blocks("sh")[0].splitlines():
        assert re.search(rf"^{line.split()[1]}:", makefile, flags=re.MULTILINE)


def test_the_commands_for_training_run(pushsum, tmp_path, monkeypatch):
    """As the README has them, but with one epoch, so that they end soon."""
    monkeypatch.chdir(tmp_path)
    for line in blocks("sh")[1].splitlines():
        program, *words = line.partition("#")[0].split()
        shorter = ["epochs=1"] if words[0] in ("run", "sweep") else []
        code, _, errors = pushsum(*words, *shorter)
        assert (program, code) == ("pushsum", 0), (line, errors)
    assert (tmp_path / "runs" / "pair" / "report.html").exists()
    assert len(list((tmp_path / "runs" / "pair").glob("*/records.jsonl"))) == 12


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
def test_the_pictures_are_what_the_commands_draw(pushsum, picture, command, tmp_path):
    """To a pixel: another machine may round otherwise."""
    drawn, shown = tmp_path / "drawn.svg", ROOT / "docs" / "images" / f"{picture}.svg"
    assert pushsum(*command.split(), "--plot", str(drawn))[0] == 0
    number = re.compile(r"-?\d+(?:\.\d+)?")
    here, there = (re.split(number, p.read_text()) for p in (drawn, shown))
    assert here == there
    here, there = ([float(x) for x in number.findall(p.read_text())] for p in (drawn, shown))
    assert here == pytest.approx(there, abs=1)


def test_the_picture_at_the_head_shows_what_happens():
    """To two points: another machine may round otherwise."""
    drawn = (ROOT / "docs" / "images" / "hero.svg").read_text()
    shown = {name: float(p) for p, name in re.findall(r">(\d+)%</text><text[^>]*>([a-z]+)<", drawn)}
    alone, together = (100 * end for end in hero.curves().ends())
    assert shown == pytest.approx({"alone": alone, "together": together}, abs=2)
    (said,) = re.findall(r"!\[([^\]]*)\]\(docs/images/hero\.svg\)", README)
    assert sorted(map(float, re.findall(r"(\d+) %", said))) == sorted(shown.values())
