"""The report in a real browser: it draws, it answers to mouse and keyboard, it fits a phone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_runs
from browser.devtools import Browser
from pushsum import report
from pushsum.report.page import html
from pushsum.report.results import collect

pytestmark = pytest.mark.slow

PANELS = "[...document.querySelectorAll('.chart')]"
ROWS = ("SGP", "MSGP", "SGAP, moreau", "MSGAP, moreau", "S-ADDOPT")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(fake_runs.grid(tmp_path_factory.mktemp("grid")))["html"]


@pytest.fixture(scope="module")
def wide_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings, seven methods, long and hostile names, 30 nodes, 100 classes."""
    directory = tmp_path_factory.mktemp("wide")
    fake_runs.grid(directory / "a", seeds=(0, 1))
    for weighting in ("lazy:c=0.5", "scale-free-moreau:c=1,v=0.1"):
        fake_runs.grid(directory / weighting, ["SGAP"], weighting=weighting, finished=False)
    fake_runs.grid(
        directory / "b",
        topologies=["full", "ring", "<i>unheard-of</i>" + "x" * 60],
        seeds=[0],
        nodes=30,
        classes=100,
        config={"data.name": HOSTILE},
    )
    return report.write(directory)["html"]


def series(browser: Browser) -> list[list[int]]:
    """The methods that each panel draws as lines."""
    lines = "[...p.querySelectorAll('.curve')].map(e => Number(e.dataset.method))"
    found: list[list[int]] = browser.evaluate(f"{PANELS}.map(p => {lines})")
    return found


def paths(browser: Browser) -> list[str]:
    found: list[str] = browser.evaluate(
        "[...document.querySelectorAll('.chart .curve')].map(e => e.getAttribute('d'))"
    )
    return found


def choose(browser: Browser, name: str, value: str) -> None:
    field = f"document.querySelector('.controls').elements[{json.dumps(name)}]"
    browser.evaluate(
        f"({field}.value = {json.dumps(value)}, "
        f"{field}.dispatchEvent(new Event('change', {{bubbles: true}})))"
    )


def captions(browser: Browser, kind: str) -> list[str]:
    found: list[str] = browser.evaluate(
        f"[...document.querySelectorAll('.chart:first-child text{kind}')].map(e => e.textContent)"
    )
    return found


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("which", ["page", "wide_page"])
def test_it_loads_in_peace_alone_and_without_scrolling_sideways(
    browser: Browser, which: str, width: int, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(which)
    browser.open(path, width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert len(series(browser)) >= 3
    assert browser.evaluate(f"{PANELS}.every(p => p.getBoundingClientRect().right <= {width})")
    assert browser.problems == []
    assert browser.requests == [path.resolve().as_uri()]


@pytest.mark.parametrize("width", [1400, 390])
def test_names_in_tables_stay_whole_and_heads_low(
    browser: Browser, wide_page: Path, width: int
) -> None:
    browser.open(wide_page, width)
    lines = "(r => (r.selectNodeContents(e), r.getClientRects().length))(document.createRange())"
    names = "[...document.querySelectorAll('.stick span')].filter(e => e.textContent == 'S-ADDOPT')"
    assert browser.evaluate(f"{names}.map(e => {lines})") == [1] * 4
    cut = "e.scrollWidth > e.clientWidth"
    assert not browser.evaluate(f"{names}.some(e => {cut})")
    heads = "[...document.querySelectorAll('.results thead')].map(e => e.offsetHeight)"
    assert min(browser.evaluate(heads)) < 40  # the other has a topology of 77 letters


def test_every_method_is_drawn_in_every_panel(browser: Browser, page: Path) -> None:
    browser.open(page)
    titles = browser.evaluate(f"{PANELS}.map(p => p.querySelector('figcaption').textContent)")
    assert titles == ["Full", "Divide", "Exp", "Random"]
    assert series(browser) == [[0, 1, 2, 3, 4]] * 4
    assert browser.evaluate("document.querySelectorAll('.chart .band').length") == 20
    buttons = "[...document.querySelectorAll('#legend button')].map(b => b.textContent)"
    assert browser.evaluate(buttons) == list(ROWS)


def test_a_click_on_the_legend_hides_a_method_in_all_panels(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click("#legend button[data-method='2']")
    assert series(browser) == [[0, 1, 3, 4]] * 4
    pressed = "document.querySelector('#legend button[data-method=\"2\"]').ariaPressed"
    assert browser.evaluate(pressed) == "false"
    browser.click("#legend button[data-method='2']")
    assert series(browser) == [[0, 1, 2, 3, 4]] * 4
    assert browser.problems == []


@pytest.mark.parametrize("key", ["Enter", " "])
def test_the_legend_works_by_keyboard(browser: Browser, page: Path, key: str) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('#legend button').focus()")
    browser.press(key)
    assert series(browser) == [[1, 2, 3, 4]] * 4
    browser.press(key)
    assert series(browser) == [[0, 1, 2, 3, 4]] * 4


def test_hiding_all_leaves_a_word(browser: Browser, page: Path) -> None:
    browser.open(page)
    for method in range(5):
        browser.click(f"#legend button[data-method='{method}']")
    assert series(browser) == [[]] * 4
    assert "nothing to draw" in captions(browser, "")
    assert browser.problems == []


def test_the_x_axis_can_be_switched(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert captions(browser, ":not(.x):not(.y)") == ["epochs"]
    seen = {tuple(paths(browser))}
    for axis, label in [
        ("steps", "steps"),
        ("bytes", "bytes pushed (TB)"),
        ("time", "modelled time (min)"),
    ]:
        before = browser.evaluate("document.querySelector('.chart svg').innerHTML")
        browser.click(f".tabs input[value='{axis}'] + span")
        assert captions(browser, ":not(.x):not(.y)") == [label]
        assert browser.evaluate("document.querySelector('.chart svg').innerHTML") != before
        seen.add(tuple(paths(browser)))
    assert len(seen) == 3  # steps and epochs differ in their labels alone
    browser.evaluate("document.querySelector('.tabs input:checked').focus()")
    browser.press("ArrowLeft")
    assert captions(browser, ":not(.x):not(.y)") == ["bytes pushed (TB)"]
    assert browser.problems == []


def test_the_measure_can_be_switched_and_consensus_is_logarithmic(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    accuracy = paths(browser)
    labels = captions(browser, ".y")
    assert labels == ["20", "40", "60"]
    choose(browser, "measure", "4")
    assert browser.evaluate("document.querySelector('[name=log]').checked") is True
    assert all(label.startswith("10") for label in captions(browser, ".y"))
    assert paths(browser) != accuracy
    choose(browser, "measure", "0")
    assert browser.evaluate("document.querySelector('[name=log]').checked") is False
    assert paths(browser) == accuracy


def test_pointing_at_a_panel_shows_the_values(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('#panels').scrollIntoView()")
    x, y = browser.evaluate(
        "(b => [b.x + b.width - 20, b.y + 40])"
        "(document.querySelector('.chart svg').getBoundingClientRect())"
    )
    browser.point(x, y)
    rows = "[...document.querySelectorAll('#tip tr')].map(r => [...r.cells].map(c => c.innerText))"
    shown = browser.evaluate(rows)
    assert [row[1] for row in shown] == list(ROWS)
    runs = report.load(page.parent)
    last = [
        100 * run.last.main
        for run in runs
        if (run.algorithm, run.config["topology.name"]) == ("SGAP", "full")
    ]
    assert float(shown[2][2]) == pytest.approx(sum(last) / 3, abs=0.01)
    low, high = map(float, shown[2][3].split(" to "))
    assert (low, high) == pytest.approx((min(last), max(last)), abs=0.01)
    browser.point(2, 2)
    assert browser.evaluate("document.querySelector('#tip').hidden") is True


def test_values_can_be_read_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('.chart svg').focus()")
    for _ in range(3):
        browser.press("ArrowRight")
    assert browser.evaluate("document.querySelector('#tip div').textContent") == "epochs: 2"
    browser.press("ArrowLeft")
    assert browser.evaluate("document.querySelector('#tip div').textContent") == "epochs: 1"
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('#tip').hidden") is True


def test_a_setting_can_be_chosen_and_names_stay_text(browser: Browser, wide_page: Path) -> None:
    browser.open(wide_page)
    names = browser.evaluate("[...document.querySelector('[name=setting]')].map(o => o.text)")
    assert any(HOSTILE in name for name in names)
    for number in range(len(names)):
        choose(browser, "setting", str(number))
        assert len(series(browser)) in (3, 4)
    assert browser.evaluate("document.querySelectorAll('img, i').length") == 0
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.problems == []


def test_curves_are_redrawn_when_the_window_changes(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    wide = browser.evaluate("document.querySelector('.chart svg').viewBox.baseVal.width")
    browser.resize(700)
    narrow = browser.evaluate("document.querySelector('.chart').clientWidth")
    assert browser.evaluate("document.querySelector('.chart svg').viewBox.baseVal.width") == narrow
    assert wide != narrow


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=features)

    def brightness(selector: str, style: str) -> float:
        colour: str = browser.evaluate(
            f"getComputedStyle(document.querySelector({json.dumps(selector)}))[{style!r}]"
        )
        r, g, b = (int(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3])
        return (299 * r + 587 * g + 114 * b) / 255_000

    ground = brightness("main > section", "backgroundColor")
    assert ground > 0.9 if scheme == "light" else ground < 0.2
    for selector, style in [
        ("h1", "color"),
        (".results td a", "color"),
        (".results .below", "color"),
        (".behind td", "color"),
        (".plain code", "color"),
        (".chart text", "fill"),
        (".gallery .node", "fill"),
        (".chart .curve", "stroke"),
    ]:
        assert abs(brightness(selector, style) - ground) > 0.3, selector
    assert brightness(".gallery svg rect", "fill") == ground
    browser.call("Emulation.setEmulatedMedia", features=[])


def drag(browser: Browser, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Over a part of the first panel, given as shares of its picture."""
    x, y, width, height = browser.evaluate(
        "(e => (e.scrollIntoView({block: 'center'}), "
        "(b => [b.x, b.y, b.width, b.height])(e.getBoundingClientRect())))"
        "(document.querySelector('.chart svg'))"
    )
    for kind, (across, down) in (
        ("mouseMoved", start),
        ("mousePressed", start),
        ("mouseMoved", end),
        ("mouseReleased", end),
    ):
        place = {"x": x + across * width, "y": y + down * height}
        browser.call(
            "Input.dispatchMouseEvent", type=kind, **place, button="left", buttons=1, clickCount=1
        )


def ticks(browser: Browser, axis: str) -> list[float]:
    return [float(text) for text in captions(browser, f".{axis}")]


def test_a_part_can_be_enlarged_and_all_be_shown_again(browser: Browser, page: Path) -> None:
    browser.open(page)
    whole = paths(browser)
    drag(browser, (0.5, 0.05), (0.9, 0.4))
    xs, ys = ticks(browser, "x"), ticks(browser, "y")
    assert 3 < min(xs) < max(xs) < 9
    assert min(ys) > 35
    low, high = (
        float(browser.evaluate(f"document.querySelector('[name={name}]').value"))
        for name in ("low", "high")
    )
    assert 35 < low < min(ys) <= max(ys) < high < 80
    browser.click("#whole")
    assert paths(browser) == whole
    drag(browser, (0.5, 0.3), (0.9, 0.31))  # hardly any height: the heights fit what is there
    assert browser.evaluate("document.querySelector('[name=low]').value") == ""
    assert min(ticks(browser, "x")) > 3
    browser.evaluate("document.querySelector('.chart svg').focus()")
    browser.press("0")
    assert paths(browser) == whole
    browser.press("+")
    assert (min(ticks(browser, "x")), max(ticks(browser, "x"))) == (3, 6)
    browser.press("-")
    assert paths(browser) == whole
    assert browser.problems == []


def test_the_range_upwards_can_be_typed(browser: Browser, page: Path) -> None:
    browser.open(page)
    choose(browser, "low", "50")
    choose(browser, "high", "70")
    assert ticks(browser, "y")[::2] == [50, 60, 70]
    choose(browser, "low", "")
    choose(browser, "high", "")
    assert ticks(browser, "y") == [20, 40, 60]


def test_the_nodes_own_models_can_stand_beside_the_average(browser: Browser, page: Path) -> None:
    browser.open(page)
    average = paths(browser)
    choose(browser, "models", "both")
    assert series(browser) == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 4
    assert browser.evaluate("document.querySelectorAll('.chart .band').length") == 20
    assert browser.evaluate("document.querySelectorAll('.chart .own').length") == 20
    choose(browser, "models", "own")
    assert series(browser) == [[0, 1, 2, 3, 4]] * 4
    choose(browser, "measure", "2")  # of which there is one kind
    assert browser.evaluate("document.querySelectorAll('.chart .own').length") == 0
    assert series(browser) == [[0, 1, 2, 3, 4]] * 4
    choose(browser, "measure", "0")
    choose(browser, "models", "average")
    assert paths(browser) == average


def test_columns_can_be_sorted(browser: Browser, page: Path) -> None:
    browser.open(page)
    names = "[...document.querySelectorAll('.results .stick span')].map(e => e.textContent)"
    values = "[...document.querySelectorAll('.results tbody tr:first-child')].map(r => r.cells[3])"
    values += ".map(e => parseFloat(e.textContent))"
    assert browser.evaluate(names) == list(ROWS)
    for best_first in (True, False):
        browser.click(".results th.sort:nth-child(3) button")
        found = browser.evaluate(values)
        assert found == sorted(found, reverse=best_first)
    assert sorted(browser.evaluate(names)) == sorted(ROWS)
    rows = "[...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[3].textContent)"
    browser.click("#runs th:nth-child(4) button")
    accuracies = [float(text) for text in browser.evaluate(rows)]
    assert len(accuracies) == 60
    assert accuracies == sorted(accuracies, reverse=True)
    assert browser.problems == []


def test_a_cell_leads_to_its_runs(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click(".results tbody:nth-of-type(3) td a")
    row = browser.evaluate("[...document.querySelector('tr:target').cells].map(e => e.innerText)")
    assert row[:3] == ["SGAP, moreau", "Full", "0"]


def test_a_page_that_follows_runs_keeps_what_was_chosen(browser: Browser, tmp_path: Path) -> None:
    results = collect(*report.find(fake_runs.grid(tmp_path, topologies=["full"], seeds=[0])))
    path = tmp_path / "followed.html"
    path.write_text(html(results, tmp_path, refresh=100))
    browser.open(path)
    browser.click("#legend button[data-method='2']")
    choose(browser, "measure", "1")
    drag(browser, (0.5, 0.05), (0.9, 0.4))
    before = paths(browser)
    browser.open(path)
    assert paths(browser) == before
    assert series(browser) == [[0, 1, 3, 4]]
    assert browser.problems == []


def test_without_script_there_are_tables(browser: Browser, page: Path) -> None:
    browser.open(page, script=False)
    assert browser.evaluate("document.querySelector('#drawn').hidden") is True
    assert browser.evaluate("document.querySelectorAll('#runs tbody tr').length") == 60
    assert browser.evaluate("document.querySelector('#curves noscript').innerText") != ""


def test_a_setting_offers_what_it_is_measured_by(browser: Browser, tmp_path: Path) -> None:
    fake_runs.run(tmp_path / "labels", algorithm="SGP")
    path = fake_runs.run(
        tmp_path / "numbers",
        algorithm="SGP",
        config={"data.name": "other"},
        last={"test": {"r2": 0.5, "loss": 1.0}},
    )
    about = json.loads((path / "meta.json").read_text()) | {"measure": {"name": "r2"}}
    (path / "meta.json").write_text(json.dumps(about))
    browser.open(report.write(tmp_path)["html"])
    offered = "[...document.querySelector('[name=measure]').options].filter(o => !o.disabled)"
    chosen = "document.querySelector('[name=measure]').selectedOptions[0].label"
    labels = browser.evaluate(f"{offered}.map(o => o.label)")
    assert (labels[0], "test R²" in labels) == ("test accuracy (%)", False)
    choose(browser, "setting", "1")
    labels = browser.evaluate(f"{offered}.map(o => o.label)")
    assert ("test R²" in labels, "test accuracy (%)" in labels) == (True, False)
    assert browser.evaluate(chosen) in labels
    choose(browser, "setting", "0")
    assert browser.evaluate(chosen) in browser.evaluate(f"{offered}.map(o => o.label)")
    assert browser.problems == []
