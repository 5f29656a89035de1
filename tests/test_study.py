"""What the pages say is what was measured."""

import re
from dataclasses import replace

import pytest

from study import figures, publish
from study.numbers import Ended, chosen, difference, runs, spread

FOUND = runs()


@pytest.mark.parametrize("page", publish.pages(), ids=lambda p: p.name)
def test_every_number_of_a_page_comes_from_the_results(page):
    before = page.read_text()
    assert publish.filled(before, FOUND) == before, "run: python -m study.publish"


@pytest.mark.parametrize("page", publish.pages(), ids=lambda p: p.name)
def test_a_comment_that_begins_a_line_is_a_block(page):
    """Markdown would end the paragraph, or the list, in front of it."""
    lines = page.read_text().splitlines()
    begun = [line for line in lines if line.lstrip().startswith("<!-- study")]
    assert all(re.fullmatch(r"<!-- study [^<>]+ -->", line) for line in begun)


def test_the_pictures_show_the_results():
    for name, picture in figures.all_of(FOUND).items():
        assert (publish.IMAGES / f"{name}.svg").read_text() == picture, name


def test_the_site_has_the_report_of_the_results():
    kept = publish.RESULTS / "report" / "report.html"
    assert publish.REPORT.read_bytes() == kept.read_bytes()


def run(seed: int, accuracy: float, **more: str) -> Ended:
    values = {"accuracy": str(accuracy)}
    return replace(Ended("table1", "SGP", "uniform", "full", seed, 0.8, "", values), **more)


def test_differences_are_paired_over_topology_and_seed():
    one = [run(0, 0.5), run(1, 0.7), run(2, 0.6), run(3, 0.1)]
    other = [run(0, 0.4), run(1, 0.5), run(2, 0.6), run(3, 0.9, topology="random")]
    found = difference(one, other, "accuracy")
    assert found is not None
    assert found.pairs == 3
    assert found.mean == pytest.approx(0.1)
    assert found.half == pytest.approx(4.303 * 0.1 / 3**0.5)  # Student's t, two degrees of freedom
    assert not found.clear
    assert difference(one[:1], other, "accuracy") is None


def test_changed_runs_are_found_only_when_asked_for():
    some = [run(0, 0.5), run(0, 0.6, changed="model.norm=group")]
    assert [r["accuracy"] for r in chosen(some, algorithm="SGP")] == [0.5]
    assert [r["accuracy"] for r in chosen(some, changed="model.norm=group")] == [0.6]
    assert spread(some[:1], "accuracy") == (0.5, 0.0, 1)
    assert spread([], "accuracy") is None


def test_what_a_page_asks_for_must_exist():
    with pytest.raises(ValueError, match="study nonsense: choose from"):
        publish.filled("<!-- study nonsense -->?<!-- end -->", FOUND)


def test_a_text_may_have_arguments():
    found = [run(s, a) for s, a in ((0, 0.5), (1, 0.6))]
    found += [
        run(s, a, algorithm="SGAP", weighting=publish.MOREAU) for s, a in ((0, 0.52), (1, 0.63))
    ]
    text = publish.filled("by <!-- study gap:SGAP:SGP:full -->?<!-- end -->.", found)
    assert text == "by <!-- study gap:SGAP:SGP:full -->+2.50 ± 6.35<!-- end -->."
    assert publish.filled("<!-- study gap:SGAP:SGP:random -->?<!-- end -->", found).count("–") == 1


def test_text_is_put_within_a_line_or_around_a_block():
    found = [run(0, 0.5)]
    assert publish.filled("<!-- study order -->?<!-- end -->", found).split() == [
        "<!--", "study", "order", "-->0", "of", "0<!--", "end", "-->",
    ]  # fmt: skip
    block = publish.filled("<!-- study table1 -->\n<!-- end -->", found)
    assert "\n\n| accuracy, % | Full |" in block
    assert publish.filled(block, found) == block
