"""The HTML page: one file, no network, readable without the script too."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from math import isnan
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pushsum import __version__
from pushsum.drawing import svg
from pushsum.names import plain
from pushsum.report import formats, pictures
from pushsum.report.curves import curves
from pushsum.report.results import DATA, MODELS, Results, Setting, notes, tables, weights, word
from pushsum.report.runs import Run, shown

MOST_LISTED = 10  # values that are listed one by one
MOST_DESCRIBED = 200  # settings

_SPLIT = {  # kind -> the options that matter to it
    "clusters": ("clusters", "shared"),
    "dirichlet": ("alpha", "minimum"),
    "shards": ("per_node",),
    "quantity": ("alpha", "minimum"),
}


def html(results: Results, directory: Path) -> str:
    """The page; paths on it are relative to `directory`."""
    environment = Environment(
        loader=PackageLoader("pushsum.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = formats.number
    environment.tests["missing"] = isnan
    script = _asset(environment, "page.js")
    return environment.get_template("page.html").render(
        results=results,
        title=_title(results, directory),
        version=__version__,
        style=_asset(environment, "page.css"),
        colours=svg,
        script=script,
        script_hash=_hash(script),
        facts=[(s, list(_facts(s))) for s in results.settings[:MOST_DESCRIBED]],
        versions=_versions(results.runs),
        unfinished=[(_relative(run.path, directory), _progress(run)) for run in _open(results)],
        skipped=[(_relative(path, directory), reason) for path, reason in results.skipped],
        tables=tables(results),
        measures=formats.MEASURES,
        notes=notes(results),
        curves=_json(drawn := curves(results)),
        drawn=drawn,
        milestones=_milestones(results),
        topologies=pictures.topologies(results),
        weights=list(_weights(results)),
        pictures=pictures,
        splits=pictures.splits(results),
        picture=Markup,  # drawn by us: their text is escaped where it is drawn
    )


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
    yield "weights", weights(setting)
    yield "step size", _listed(run.config.get("algorithm.lr") for run in runs)
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


def _open(results: Results) -> list[Run]:
    return [run for run in results.runs if not run.finished]


def _progress(run: Run) -> str:
    if run.diverged:
        return run.diverged
    planned = run.meta.get("steps")
    return f"step {run.last.step}" + (f" of {planned}" if isinstance(planned, int) else "")


def _relative(path: Path, directory: Path) -> str:
    """Below the directory; of itself its name."""
    return plain(str(path.relative_to(directory)) if path != directory else path.resolve().name)


# --------------------------------------------------------------------------- tables and pictures


def _weights(
    results: Results,
) -> Iterator[tuple[Setting, dict[tuple[str, str], pictures.WeightCell]]]:
    left = pictures.MOST_MATRICES
    for setting in results.settings:
        if left > 0:
            found = pictures.weights(setting, left)
            left -= len(found)
            yield setting, found


def _milestones(results: Results) -> list[tuple[str, str, str, list[str]]]:
    """(setting, topology, method, accuracy at five moments) for readers without the script."""
    rows = []
    for setting in results.settings:
        for (method, topology), cell in setting.cells.items():
            records = max((run.records for run in cell.runs), key=len)
            chosen = [records[round(k * (len(records) - 1) / 4)] for k in range(5)]
            values = [formats.number(100 * record.accuracy, "accuracy") for record in chosen]
            rows.append((setting.name, topology, method, values))
    return rows
