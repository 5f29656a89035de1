"""The HTML page: one file, no network, readable without the script too.

A section of the page is a line in `SECTIONS` and a macro of its name in `sections.html`.

The charts are drawn by a script of our own (about 350 lines, 17 kB). Drawn beside it from the same
twelve runs was Plotly 7.1: its script has 4.8 MB, so the page had 4.8 MB instead of 0.07, with
little room left below 6. It brings zoom, pan and export, and would leave about 120 lines that
describe the charts. But it stays white on a dark page, squeezes the panels side by side on a phone
unless told otherwise, and offers no keyboard to read values with. Bokeh 3.9 (1.3 MB, eight more
packages) was only weighed; both contain code made at run time, which the page's content security
policy forbids. Zoom, the one thing that was missing here, took about 60 lines.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import isnan
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pushsum import __version__
from pushsum.drawing import svg
from pushsum.names import plain
from pushsum.report import failures, formats, pictures
from pushsum.report.curves import curves
from pushsum.report.results import DATA, MODELS, Cell, Results, Setting, word
from pushsum.report.runs import HOW, Run, Table, shown
from pushsum.report.tables import notes, paired, tables, warnings

MOST_LISTED = 10  # values that are listed one by one
MOST_DESCRIBED = 200  # settings
MOST_RUNS = 1000  # that have a row of their own

_SPLIT = {  # kind -> the options that matter to it
    "clusters": ("clusters", "shared"),
    "dirichlet": ("alpha", "minimum"),
    "shards": ("per_node",),
    "quantity": ("alpha", "minimum"),
}


def html(results: Results, directory: Path, refresh: int = 0) -> str:
    """The page; paths on it are relative to `directory`.

    Args:
        results: what it shows.
        directory: where the runs are.
        refresh: seconds after which it loads itself again; 0 for a page that stays.
    """
    environment = _environment()
    macros = vars(environment.get_template("sections.html").module)
    sections = [
        (name, heading, macros[name](**content))
        for name, heading, section in SECTIONS
        if (content := section(results, directory)) is not None
    ]
    script = _asset(environment, "page.js")
    return environment.get_template("page.html").render(
        results=results,
        title=_title(results, directory),
        version=__version__,
        refresh=refresh,
        style=_asset(environment, "page.css"),
        colours=svg,
        script=script,
        script_hash=_hash(script),
        facts=[(s, list(_facts(s))) for s in results.settings[:MOST_DESCRIBED]],
        versions=_versions(results.runs),
        unfinished=[
            (formats.relative(run.path, directory), _progress(run))
            for run in results.runs
            if not run.finished
        ],
        skipped=[(formats.relative(path, directory), reason) for path, reason in results.skipped],
        sections=sections,
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pushsum.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = formats.number
    environment.tests["missing"] = isnan
    environment.globals["picture"] = Markup  # drawn by us: their text is escaped where it is drawn
    return environment


def _asset(environment: Environment, name: str) -> Markup:
    """A file of ours, to be inlined as it is."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _hash(script: str) -> str:
    """What the page's content security policy allows to run: this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: Any) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


# --------------------------------------------------------------------------- headline


def _title(results: Results, directory: Path) -> str:
    """The setting; of several, which would fill many lines, the name of what holds them all."""
    if len(results.settings) == 1:
        return results.settings[0].name
    return plain(directory.resolve().name) or f"{len(results.settings)} settings"


def _facts(setting: Setting) -> Iterator[tuple[str, str]]:
    """What was run, as (term, value)."""
    runs = setting.runs
    config = runs[0].config
    model, data = config["model.name"], config["data.name"]
    options = [
        f"{key.removeprefix('model.')}={word(runs[0], key)}"
        for key, value in config.items()
        if key.startswith("model.") and key != "model.name" and value not in (None, False)
    ]
    yield "data", DATA.get(data) or word(runs[0], "data.name")
    yield "model", ", ".join([MODELS.get(model) or word(runs[0], "model.name"), *options])
    yield "parameters", _listed(f"{d:,}" for r in runs if isinstance(d := r.meta.get("d"), int))
    yield "nodes", str(runs[0].nodes)
    yield "split", _split(runs[0])
    at_most = f", at most {word(runs[0], 'steps')} steps" if config.get("steps") else ""
    epochs, batch = word(runs[0], "epochs"), word(runs[0], "batch")
    yield "epochs", f"{epochs}{at_most}, batch {batch} per node"
    yield "seeds", _listed(run.seed for run in runs)
    if "evaluation.batchnorm" in config and model.startswith("resnet"):
        yield "BatchNorm in tests", word(runs[0], "evaluation.batchnorm")
    if "link.gigabits" in config:
        rate, late = word(runs[0], "link.gigabits"), shown(config.get("link.latency") or 0)
        alone = ", weighting not hidden" if config.get("link.overlap") is False else ""
        yield "modelled links", f"{rate} Gbit/s, {late} s latency{alone}"
    yield "runs", f"{len(runs)}, methods: {len(setting.methods)}"
    if setting.differences:
        yield "told apart by", setting.differences


def _split(run: Run) -> str:
    kind = word(run, "split.kind")
    options = [
        f"{key}={word(run, f'split.{key}')}"
        for key in _SPLIT.get(kind, ())
        if run.config.get(f"split.{key}") is not None
    ]
    return f"{kind} ({', '.join(options)})" if options else kind


def _listed(values: Iterable[Any]) -> str:
    distinct = {shown(value): value for value in values}
    words = list(distinct)
    if all(isinstance(value, int | float) for value in distinct.values()):
        words.sort(key=lambda word: distinct[word])
    if len(words) > MOST_LISTED:
        return f"{words[0]} … {words[-1]} ({len(words)} of them)"
    return ", ".join(words) or "unknown"


def _versions(runs: list[Run]) -> list[str]:
    def text(run: Run) -> str:
        meta = run.meta
        git = f" ({shown(meta['git'])})" if meta.get("git") else ""
        known = [f", {name} {shown(meta[key])}" for name, key in _PROGRAMS if meta.get(key)]
        return f"pushsum {shown(meta.get('pushsum', 'unknown'))}{git}{''.join(known)}"

    return sorted({text(run) for run in runs})


_PROGRAMS = (("torch", "torch"), ("Python", "python"))


def _progress(run: Run) -> str:
    if run.diverged:
        return run.diverged
    planned = run.meta.get("steps")
    return f"step {run.last.step}" + (f" of {planned}" if isinstance(planned, int) else "")


# --------------------------------------------------------------------------- sections


Content = Mapping[str, Any] | None  #: what a section's macro is given; None if it has nothing


def _results(results: Results, _: Path) -> Content:
    """Rows, columns and what to know of them."""
    return {
        "tables": tables(results),
        "formats": formats,
        "numbers": {run: k for k, run in enumerate(results.runs[:MOST_RUNS])},
        "warnings": warnings(results),
        "notes": notes(results),
    }


def _curves(results: Results, _: Path) -> Content:
    """The numbers that the script draws, and which of its controls are of use."""
    drawn = curves(results)
    every = [s for setting in drawn["settings"] for p in setting["panels"] for s in p["series"]]
    return {
        "data": _json(drawn),
        "drawn": drawn,
        "own": any(m["own"] in series["y"] for m in drawn["measures"] for series in every),
        "authors": any("authors" in series for series in every),
    }


def _failures(results: Results, _: Path) -> Content:
    """Of runs under a fault plan."""
    if not (found := failures.rows(results)):
        return None
    return {
        "rows": found[: failures.MOST_ROWS],
        "head": " or ".join(dict.fromkeys(row.cell.measure.head for row in found)),
        "total": len(found),
        "several": len({(r.cell.method, r.cell.topology, r.plan) for r in found}) < len(found),
        "drawings": failures.charts(results),
    }


def _tuned(results: Results, _: Path) -> Content:
    """Every step size that was tried, for runs whose step size was chosen so."""
    found: dict[tuple[Cell, str, Table], list[str]] = {}
    for cell in results.cells:
        for run in cell.runs:
            if run.tried:
                key = (cell, run.lr, tuple(sorted(run.tried)))
                found.setdefault(key, []).append(str(run.seed))
    return {"rows": found, "several": len(results.settings) > 1} if found else None


def _local(results: Results, _: Path) -> Content:
    """What the nodes' models reach on test data of their own; personal ones where there are any."""
    rows = [
        (cell, paired(cell.values("personal"), cell.values("local")))
        for cell in results.cells
        if not isnan(cell.estimate("local").mean)
    ]
    if not rows:
        return None
    measures = dict.fromkeys(cell.measure for cell, _ in rows)
    return {
        "rows": rows[:MOST_RUNS],
        "several": len(results.settings) > 1,
        "head": measures.popitem()[0].head if len(measures) == 1 else "",
        "personal": any(gain is not None for _, gain in rows),
        "formats": formats,
    }


def _runs(results: Results, directory: Path) -> Content:
    """What every run reached, and the configuration that is its own."""
    where = {run: cell for cell in results.cells for run in cell.runs}
    keys = dict.fromkeys(key for run in where for key in run.config if key not in HOW)
    words = {key: {word(run, key) for run in where} for key in keys}
    own = [key for key in keys if len(words[key]) > 1]
    return {
        "rows": [
            (
                run,
                cell,
                " ".join(f"{key}={word(run, key)}" for key in own if key in run.config),
                formats.relative(run.path, directory),
                _progress(run),
            )
            for run, cell in list(where.items())[:MOST_RUNS]
        ],
        "several": len(results.settings) > 1,
        "heads": [m.head for m in results.measures],
        "common": [f"{key}={words[key].pop()}" for key in keys if len(words[key]) == 1],
        "total": len(where),
    }


def _topologies(results: Results, _: Path) -> Content:
    """Graphs with their certificates."""
    return {"drawings": pictures.topologies(results), "most": pictures.MOST_DRAWN}


def _weights(results: Results, _: Path) -> Content:
    """A few of every cell that recorded them."""
    left, found = pictures.MOST_MATRICES, []
    for setting in results.settings:
        if left > 0 and (drawn := pictures.weights(setting, left)):
            left -= len(drawn)
            found.append((setting, drawn, pictures.block(setting.runs[0].nodes)))
    return {"found": found, "most": pictures.MOST_MATRICES} if found else None


def _splits(results: Results, _: Path) -> Content:
    """Samples per node and label, or tenth of the target."""
    found = pictures.splits(results)
    return {"splits": found, "most": pictures.MOST_SPLITS} if found else None


#: (name of its macro and anchor, heading, what the macro is given), from top to bottom.
SECTIONS: tuple[tuple[str, str, Callable[[Results, Path], Content]], ...] = (
    ("results", "Results", _results),
    ("curves", "Curves", _curves),
    ("failures", "What failed", _failures),
    ("local", "On the nodes' own test data", _local),
    ("tuned", "Step sizes tried", _tuned),
    ("runs", "Single runs", _runs),
    ("topologies", "Topologies", _topologies),
    ("weights", "Weight matrices over time", _weights),
    ("split", "Who holds which samples", _splits),
)
