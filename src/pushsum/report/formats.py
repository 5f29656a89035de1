"""The tables as Markdown, CSV, LaTeX and JSON, and how their numbers are written everywhere."""

import csv
import io
import re
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from pushsum.names import plain
from pushsum.report.results import Cell, Results
from pushsum.report.runs import Run
from pushsum.report.tables import Entry, Row, Table, notes, tables, warnings

DECIMALS = {"accuracy": 2, "loss": 3}
MEASURES = {"accuracy": "Acc (%)", "loss": "Loss"}
TO_BEST = "vs best"
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


def number(value: float, measure: str) -> str:
    """A value of the table; NaN is said."""
    if isnan(value):
        return "NaN"
    return f"{value:.{DECIMALS[measure]}f}" if abs(value) < 1e5 else f"{value:.2e}"


def signed(value: float, measure: str) -> str:
    """A difference."""
    text = number(abs(value), measure)
    return ("+" if value > 0 else "−" if value < 0 else "±") + text


def difference(entry: Entry | None, measure: str) -> tuple[str, str]:
    """How far an entry is behind the best mean of its column, and the interval of that."""
    if entry is None or entry.behind is None:
        return ("best" if entry and entry.first else "–"), ""
    mean, low, high, _ = entry.behind
    interval = "" if isnan(low) else f"[{signed(low, measure)}, {signed(high, measure)}]"
    return signed(mean, measure), interval


# --------------------------------------------------------------------------- Markdown


def markdown(results: Results) -> str:
    """GitHub-flavoured: one table per setting."""
    parts = []
    for table in tables(results):
        heads = ["Algorithm", "", *map(_md, table.heads)]
        rows = [heads, [":--", ":--", *["--:"] * len(table.heads)]]
        for row in table.rows:
            rows += _md_rows(table, row)
        body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"### {_md(table.setting.name)}\n\n{body}\n")
    said = [f"**{_md(text)}**" for text in warnings(results)] + [_md(n) for n in notes(results)]
    return "\n".join([*parts, *(f"- {text}" for text in said)]) + "\n"


def _md_rows(table: Table, row: Row) -> list[list[str]]:
    def text(entry: Entry | None, measure: str) -> str:
        if entry is None:
            return "–"
        ours = number(entry.estimate.mean, measure)
        if not isnan(entry.estimate.std):
            ours += f" ± {number(entry.estimate.std, measure)}"
        ours = f"**{ours}**" if entry.best else ours
        theirs = "" if isnan(entry.paper) else f" ({number(entry.paper, measure)})"
        return f"{ours}{'†' if entry.unfinished else ''}{theirs}"

    lines = [[MEASURES[m], *(text(e, m) for e in row.entries[m])] for m in table.measures]
    main = table.measures[0]
    if len(table.rows) > 1:
        behind = (" ".join(difference(e, main)).strip() for e in row.entries[main])
        lines.append([TO_BEST, *behind])
    return _named(_md(row.method), _md(row.setup), lines)


def _named(method: str, setup: str, lines: list[list[str]]) -> list[list[str]]:
    """The lines of a row, with its name before the first and its set-up before the second."""
    if len(lines) == 1:
        return [[f"{method}; {setup}", *lines[0]]]
    names = [method, setup, *[""] * (len(lines) - 2)]
    return [[name, *line] for name, line in zip(names, lines, strict=True)]


def _md(text: str) -> str:
    text = " ".join(text.split())
    text = "".join(f"\\{c}" if c in "\\`*_[]|~#" else c for c in text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --------------------------------------------------------------------------- data


def data(results: Results, directory: Path) -> dict[str, Any]:
    """Everything the tables hold, ready for JSON: None where there is no value.

    Accuracy is in percent, bytes and seconds are means over runs; paths are relative to
    `directory`.
    """
    return {
        "settings": [
            {
                "name": table.setting.name,
                "cells": [
                    _bare(about | {"runs": [_run(run, directory) for run in cell.runs]})
                    for cell, about in _cells(table)
                ],
            }
            for table in tables(results)
        ],
        "warnings": warnings(results),
        "notes": notes(results),
        "left_out": [
            {"path": relative(path, directory), "reason": reason}
            for path, reason in results.skipped
        ],
    }


def _cells(table: Table) -> Iterator[tuple[Cell, dict[str, Any]]]:
    for row in table.rows:
        for k, topology in enumerate(table.setting.topologies):
            cell = table.setting.cells.get((row.method, topology))
            if cell is None:
                continue
            runs = cell.runs
            about = {
                "method": row.method,
                "algorithm": runs[0].algorithm,
                "weighting": "; ".join(sorted({run.weighting for run in runs})),
                "lr": " ".join(dict.fromkeys(run.lr for run in runs)),
                "momentum": runs[0].momentum,
                "topology": topology,
                "seeds": [run.seed for run in runs],
                **{m: _measured(entry) for m in table.measures if (entry := row.entries[m][k])},
                "bytes": fmean(run.last.bytes for run in runs),
                "modelled_seconds": fmean(run.last.modelled for run in runs),
                "unfinished": cell.unfinished,
            }
            yield cell, about


def _measured(entry: Entry) -> dict[str, Any]:
    return {
        "mean": entry.estimate.mean,
        "std": entry.estimate.std,
        "paper": entry.paper,
        "best_mean": entry.first,
        "bold": entry.best,
        "to_best": entry.behind and entry.behind._asdict(),
    }


def _run(run: Run, directory: Path) -> dict[str, Any]:
    return {
        "path": relative(run.path, directory),
        "seed": run.seed,
        "step": run.last.step,
        "accuracy": 100 * run.last.accuracy,
        "loss": run.last.loss,
        "nodes_accuracy": {k: 100 * v for k, v in run.last.nodes._asdict().items()},
        "finished": run.finished,
        "diverged": run.diverged or None,
        "tried": run.tried,
    }


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_bare(part) for part in value]
    return None if isinstance(value, float) and isnan(value) else value


def comma_separated(results: Results) -> str:
    """Long form, one cell a row."""
    rows = []
    for table in tables(results):
        for _, cell in _cells(table):
            accuracy, loss = (cell.get(measure, {}) for measure in MEASURES)
            behind = accuracy.get("to_best") or {}
            rows.append(
                {
                    "setting": table.setting.name,
                    "algorithm": cell["method"],
                    "weighting": cell["weighting"],
                    "topology": cell["topology"],
                    "seeds": " ".join(map(str, cell["seeds"])),
                    "accuracy_mean": accuracy.get("mean"),
                    "accuracy_std": accuracy.get("std"),
                    "loss_mean": loss.get("mean"),
                    "loss_std": loss.get("std"),
                    "paper_accuracy": accuracy.get("paper"),
                    "paper_loss": loss.get("paper"),
                    "bytes": cell["bytes"],
                    "modelled_seconds": cell["modelled_seconds"],
                    "unfinished": cell["unfinished"],
                    "lr": cell["lr"],
                    "momentum": cell["momentum"],
                    "accuracy_to_best": behind.get("mean"),
                    "accuracy_to_best_low": behind.get("low"),
                    "accuracy_to_best_high": behind.get("high"),
                }
            )
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv(key, value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _csv(key: str, value: Any) -> Any:
    """A number as it is; NaN only where a run diverged; a name that is no formula."""
    if isinstance(value, float):
        return f"{value:.8g}" if not isnan(value) else "nan" * key.endswith("_mean")
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    formula = text.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text


def relative(path: Path, directory: Path) -> str:
    """Below the directory; of itself its name."""
    return plain(str(path.relative_to(directory)) if path != directory else path.resolve().name)


# --------------------------------------------------------------------------- LaTeX


def latex(results: Results) -> str:
    """A table* per setting: with booktabs they look better, without it they compile too."""
    said = " ".join(map(_tex, (*warnings(results), *notes(results))))
    head = [
        "% Add \\usepackage{booktabs} to your preamble for finer rules; without it, this works",
        "% too. Written by: pushsum report",
        r"\providecommand{\toprule}{\hline}\providecommand{\midrule}{\hline}",
        r"\providecommand{\bottomrule}{\hline}",
    ]
    for table in tables(results):
        size = "scriptsize" if len(table.heads) > 6 else "footnotesize"
        body = [line for row in table.rows for line in (r"\midrule", *_tex_rows(table, row))]
        head += [
            r"\begin{table*}",
            rf"\centering\{size}\setlength{{\tabcolsep}}{{2.5pt}}",
            rf"\caption{{{_tex(table.setting.name)}. {said}}}",
            rf"\begin{{tabular}}{{ll{'r' * len(table.heads)}}}",
            r"\toprule",
            rf"Topology & & {' & '.join(map(_tex, table.heads))} \\",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
        ]
    return "\n".join([*head, ""])


def _tex_rows(table: Table, row: Row) -> list[str]:
    lines = []
    for measure in table.measures:
        entries = row.entries[measure]
        lines.append([_tex(MEASURES[measure]), *(_tex_entry(e, measure) for e in entries)])
        papers = ["" if e is None or isnan(e.paper) else number(e.paper, measure) for e in entries]
        if any(papers):
            lines.append([r"\quad paper", *papers])
    main = table.measures[0]
    if len(table.rows) > 1:
        behind = (rf"{{\tiny {_tex(' '.join(difference(e, main)))}}}" for e in row.entries[main])
        lines.append([TO_BEST, *behind])
    named = _named(_tex(row.method), rf"{{\tiny {_tex(row.setup)}}}", lines)
    return [rf"{' & '.join(line)} \\" for line in named]


def _tex_entry(entry: Entry | None, measure: str) -> str:
    if entry is None:
        return "--"
    mean = number(entry.estimate.mean, measure)
    text = rf"\textbf{{{mean}}}" if entry.best else mean
    if not isnan(entry.estimate.std):
        text += rf"{{\tiny$\pm${number(entry.estimate.std, measure)}}}"
    return text + (r"$^\dagger$" if entry.unfinished else "")


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
} | {c: f"\\{c}" for c in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))
