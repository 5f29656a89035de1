"""The table as Markdown, CSV and LaTeX, and how its numbers are written everywhere."""

import csv
import io
import re
from itertools import groupby
from math import isnan

from pushsum.report.results import AVERAGE, Entry, Line, Results, columns, notes, table, tables

DECIMALS = {"accuracy": 2, "loss": 3}
MEASURES = {"accuracy": "Acc (%)", "loss": "Loss"}
_CSV = (
    *("setting", "algorithm", "weighting", "topology", "seeds"),
    *("accuracy_mean", "accuracy_std", "loss_mean", "loss_std", "paper_accuracy", "paper_loss"),
    *("bytes", "modelled_seconds", "unfinished"),
)


_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


def number(value: float, measure: str) -> str:
    """A value of the table; NaN is said."""
    if isnan(value):
        return "NaN"
    return f"{value:.{DECIMALS[measure]}f}" if abs(value) < 1e5 else f"{value:.2e}"


def markdown(results: Results) -> str:
    """GitHub-flavoured: one table per setting."""
    parts = []
    for setting, heads, methods in tables(results):
        rows = [["Algorithm", "", *map(_md, heads)], [":--", ":--", *["--:"] * len(heads)]]
        for _, lines in methods:
            rows += [_md_row(line, k == 0) for k, line in enumerate(lines)]
        body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"### {_md(setting.name)}\n\n{body}\n")
    return "\n".join([*parts, *(f"- {_md(note)}" for note in notes(results))]) + "\n"


def _md_row(line: Line, first: bool) -> list[str]:
    def text(entry: Entry | None) -> str:
        if entry is None:
            return "–"
        ours = number(entry.estimate.mean, line.measure)
        if not isnan(entry.estimate.std):
            ours += f" ± {number(entry.estimate.std, line.measure)}"
        ours = f"**{ours}**" if entry.best else ours
        theirs = "" if isnan(entry.paper) else f" ({number(entry.paper, line.measure)})"
        return f"{ours}{'†' if entry.unfinished else ''}{theirs}"

    cells = map(text, line.entries)
    return [_md(line.method) if first else "", MEASURES[line.measure], *cells]


def _md(text: str) -> str:
    text = " ".join(text.split())
    text = "".join(f"\\{c}" if c in "\\`*_[]|~#" else c for c in text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def comma_separated(results: Results) -> str:
    """Long form, one cell a row; accuracy in percent, bytes and seconds as means over runs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)

    def plain(value: float, missing: str = "") -> str:
        return missing if isnan(value) else f"{value:.8g}"

    for setting in results.settings:
        for (method, topology), cell in setting.cells.items():
            weightings = sorted({run.weighting for run in cell.runs})
            count = len(cell.runs)
            writer.writerow(
                [
                    *map(_csv, (setting.name, method, "; ".join(weightings), topology)),
                    " ".join(str(run.seed) for run in cell.runs),
                    plain(cell.accuracy.mean, "nan"),
                    plain(cell.accuracy.std),
                    plain(cell.loss.mean, "nan"),
                    plain(cell.loss.std),
                    *(map(plain, cell.paper) if cell.paper else ("", "")),
                    plain(sum(run.last.bytes for run in cell.runs) / count),
                    plain(sum(run.last.modelled for run in cell.runs) / count),
                    cell.unfinished,
                ]
            )
    return out.getvalue()


def _csv(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    text = " ".join(text.split())
    formula = text.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text


def latex(results: Results) -> str:
    """A table* in the paper's layout: with booktabs it looks better, without it compiles too."""
    lines, places = table(results), columns(results)
    groups = [(setting.name, len(setting.topologies)) for setting in results.settings]
    if len(groups) > 1:  # short names, for there is little room above the averages
        short = {name: f"({k})" for k, (name, _) in enumerate(groups, start=1)}
        groups = [(f"{short[name]} {name}", width) for name, width in groups]
    else:
        short = {name: "" for name, _ in groups}
    averages = sum(setting.averaged for setting in results.settings)
    spans = [*groups, *([(AVERAGE, averages)] if averages else [])]
    start, rules = 3, []
    for _, width in spans:
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    heads = [_tex(topology or short[name]) for name, topology in places]
    size = "scriptsize" if len(places) > 6 else "footnotesize"
    body = []
    for method, pair in groupby(lines, lambda line: line.method):
        body += [r"\midrule", *_tex_rows(_tex(method), list(pair))]
    spread = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{_tex(name)}}}" for name, width in spans)
    return "\n".join(
        [
            "% Add \\usepackage{booktabs} to your preamble for finer rules; without it, this works",
            "% too. Written by: pushsum report",
            r"\begin{table*}",
            r"\providecommand{\toprule}{\hline}\providecommand{\midrule}{\hline}",
            r"\providecommand{\bottomrule}{\hline}",
            r"\ifdefined\cmidrule\else\def\cmidrule(lr)#1{\cline{#1}}\fi",
            rf"\centering\{size}\setlength{{\tabcolsep}}{{2.5pt}}",
            rf"\caption{{{' '.join(map(_tex, notes(results)))}}}",
            rf"\begin{{tabular}}{{ll{'r' * len(places)}}}",
            r"\toprule",
            rf"Model + data & & {spread} \\",
            "".join(rules),
            rf"Topology & & {' & '.join(heads)} \\",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )


def _tex_rows(method: str, lines: list[Line]) -> list[str]:
    rows = []
    for line in lines:
        ours, theirs = [], []
        for entry in line.entries:
            ours.append("--" if entry is None else _tex_entry(entry, line.measure))
            given = entry is not None and not isnan(entry.paper)
            theirs.append(number(entry.paper, line.measure) if entry and given else "")
        rows.append(rf"{method} & {_tex(MEASURES[line.measure])} & {' & '.join(ours)} \\")
        method = ""
        if any(theirs):
            rows.append(rf" & \quad paper & {' & '.join(theirs)} \\")
    return rows


def _tex_entry(entry: Entry, measure: str) -> str:
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
    "†": r"$^\dagger$",
    "–": "--",
} | {c: f"\\{c}" for c in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))
