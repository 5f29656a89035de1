"""The tables as Markdown, CSV, LaTeX and JSON, and how their numbers are written everywhere."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any
from unicodedata import normalize

from pushsum.measures import LOSS, Measure
from pushsum.names import finite, flat, plain
from pushsum.report.results import Results
from pushsum.report.runs import Run
from pushsum.report.tables import Difference, Entry, Table, notes, tables, warnings

TO_BEST = "vs best"
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


def number(value: float, measure: Measure = LOSS) -> str:
    """A value of the table; NaN is said."""
    if isnan(value):
        return "NaN"
    return f"{value:.{2 if measure.percent else 3}f}" if abs(value) < 1e5 else f"{value:.2e}"


def difference(entry: Entry | None, measure: Measure) -> tuple[str, str]:
    """How far an entry is behind the best mean of its column, and the interval of that."""
    if entry is None or entry.behind is None:
        return ("best" if entry and entry.first else "–"), ""
    return gap(entry.behind, measure)


def gap(found: Difference, measure: Measure) -> tuple[str, str]:
    """A difference, and its interval if it has one."""

    def signed(value: float) -> str:
        return ("+" if value > 0 else "−" if value < 0 else "±") + number(abs(value), measure)

    mean, low, high, _ = found
    return signed(mean), "" if isnan(low) else f"[{signed(low)}, {signed(high)}]"


def relative(path: Path, directory: Path) -> str:
    """Below the directory; of itself its name."""
    return plain(str(path.relative_to(directory)) if path != directory else path.resolve().name)


# --------------------------------------------------------------------------- text


def markdown(results: Results) -> str:
    """GitHub-flavoured: one table per setting."""
    parts = []
    for table in tables(results):
        rows = [["Algorithm", "", *map(_md, table.heads)]]
        rows.append([":--", ":--", *["--:"] * len(table.heads)])
        rows += [line for row in _grid(table, _md, "**{}**", "{}") for line in row]
        body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"### {_md(table.setting.name)}\n\n{body}\n")
    said = [f"**{_md(text)}**" for text in warnings(results)] + [_md(n) for n in notes(results)]
    return "\n".join([*parts, *(f"- {text}" for text in said)]) + "\n"


def latex(results: Results) -> str:
    """A table* per setting: with booktabs they look better, without it they compile too."""
    said = " ".join(["", *warnings(results), *notes(results)])  # below the first of them
    found = [
        "% Add \\usepackage{booktabs} to your preamble for finer rules; without it, this works",
        "% too. Written by: pushsum report",
        r"\providecommand{\toprule}{\hline}\providecommand{\midrule}{\hline}",
        r"\providecommand{\bottomrule}{\hline}",
    ]
    for table in tables(results):
        found += [
            r"\begin{table*}",
            r"\centering\scriptsize\setlength{\tabcolsep}{2.5pt}",
            rf"\caption{{{_tex(f'{table.setting.name}.{said}')}}}",
            rf"\begin{{tabular}}{{ll{'r' * len(table.heads)}}}",
            r"\toprule",
            rf"Topology & & {' & '.join(map(_tex, table.heads))} \\",
        ]
        for row in _grid(table, _tex, r"\textbf{{{}}}", r"{{\tiny {}}}"):
            found += [r"\midrule", *(rf"{' & '.join(line)} \\" for line in row)]
        found += [r"\bottomrule", r"\end{tabular}", r"\end{table*}"]
        said = ""
    return "\n".join([*found, ""])


def _grid(
    table: Table, escape: Callable[[str], str], bold: str, small: str
) -> Iterator[list[list[str]]]:
    """The lines of every row."""

    def text(entry: Entry | None, measure: Measure) -> str:
        if entry is None:
            return escape("–")
        ours = number(entry.estimate.mean, measure)
        if not isnan(entry.estimate.std):
            ours += f" ± {number(entry.estimate.std, measure)}"
        mark = escape("†") if entry.unfinished else ""
        theirs = "" if isnan(entry.paper) else f" ({number(entry.paper, measure)})"
        return (bold if entry.best else "{}").format(escape(ours)) + mark + theirs

    main = table.measures[0]
    for row in table.rows:
        lines = [
            [escape(m.head), *(text(e, m) for e in row.entries[m.name])] for m in table.measures
        ]
        if len(table.rows) > 1:
            behind = (escape(" ".join(difference(e, main)).strip()) for e in row.entries[main.name])
            lines.append([TO_BEST, *map(small.format, behind)])
        elif len(lines) == 1:
            lines.append([""] * len(lines[0]))  # for the set-up
        names = [escape(row.method), small.format(escape(row.setup)), ""]
        yield [[name, *line] for name, line in zip(names, lines, strict=False)]


def _md(text: str) -> str:
    text = " ".join(text.split())
    text = "".join(f"\\{c}" if c in "\\`*_[]|~#" else c for c in text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "−": "$-$",
    "†": r"$^\dagger$",
    "–": "--",
    "²": "$^2$",
} | {c: f"\\{c}" for c in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))


# --------------------------------------------------------------------------- data


def data(results: Results, directory: Path) -> dict[str, Any]:
    """Everything the tables hold, ready for JSON: None where there is no value.

    What `measure` says is in percent is in percent, bytes and seconds are means over runs; paths
    are relative to `directory`.
    """
    cells = _cells(results, directory)
    left_out = [{"path": relative(path, directory), "reason": why} for path, why in results.skipped]
    said = {"warnings": warnings(results), "notes": notes(results), "left_out": left_out}
    found: dict[str, Any] = finite({"cells": cells, **said})
    return found


def comma_separated(results: Results) -> str:
    """Long form, one cell a row; NaN where a run diverged."""
    rows = []
    for cell in _cells(results):
        cell["seeds"] = " ".join(map(str, cell["seeds"]))
        rows.append({key.replace(".", "_"): value for key, value in flat(cell).items()})
    out = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv(key, value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _cells(results: Results, directory: Path | None = None) -> list[dict[str, Any]]:
    """One per method and topology; with its runs if their paths can be told."""
    found = []
    for table in tables(results):
        entries = {row.method: row.entries for row in table.rows}
        for cell in table.setting.cells.values():
            runs, column = cell.runs, table.heads.index(cell.topology)
            lr = " ".join(dict.fromkeys(run.lr for run in runs))
            about = {
                "setting": cell.setting,
                "method": cell.method,
                "algorithm": runs[0].algorithm,
                "weighting": "; ".join(sorted({run.weighting for run in runs})),
                "lr": float(lr) if _NUMBER.fullmatch(lr) else lr,
                "momentum": runs[0].momentum,
                "topology": cell.topology,
                "seeds": [run.seed for run in runs],
                "measure": cell.measure._asdict(),
                **{
                    m.name: _entry(e)
                    for m in table.measures
                    if (e := entries[cell.method][m.name][column])
                },
                "bytes": fmean(run.last.bytes for run in runs),
                "modelled_seconds": fmean(run.last.modelled for run in runs),
                "unfinished": cell.unfinished,
            }
            for field in ("local", "personal"):
                if not isnan((found_there := cell.estimate(field)).mean):
                    about[field] = found_there._asdict()
            each = {"runs": [_run(run, directory) for run in runs]} if directory else {}
            found.append(about | each)
    return found


def _entry(entry: Entry) -> dict[str, Any]:
    behind = entry.behind or Difference(nan, nan, nan, 0)
    return {
        **entry.estimate._asdict(),
        "paper": entry.paper,
        "best_mean": entry.first,
        "bold": entry.best,
        "to_best": behind._asdict(),
    }


def _run(run: Run, directory: Path) -> dict[str, Any]:
    name, scale, last = run.measure.name, run.measure.scale, run.last
    spreads = {f"nodes_{name}": last.nodes, "local": last.local, "personal": last.personal}
    return {
        "path": relative(run.path, directory),
        "seed": run.seed,
        "step": last.step,
        name: scale * last.main,
        "loss": last.loss,
        **{
            key: {part: scale * value for part, value in spread._asdict().items()}
            for key, spread in spreads.items()
        },
        "finished": run.finished,
        "diverged": run.diverged or None,
        "tried": run.tried,
    }


def _csv(key: str, value: Any) -> Any:
    """A number as it is; NaN only where a run diverged; a name that is no formula."""
    if isinstance(value, float):
        diverged = key.endswith("_mean") and not key.endswith("_to_best_mean")
        return f"{value:.8g}" if not isnan(value) else "nan" if diverged else ""
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    first = normalize("NFKC", text[:1])  # some spreadsheets take wide letters, too
    formula = first in ("=", "+", "-", "@") and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text
