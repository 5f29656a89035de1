"""What the tables say: entries, differences over seeds, and the sentences below them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isnan, nan, sqrt
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from pushsum.measures import ACCURACY, LOSS, Measure
from pushsum.report import paper
from pushsum.report.results import Estimate, Results, Setting, Values
from pushsum.report.runs import MOST_RECORDS, Run

AVERAGE = "Average"
#: The 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


class Difference(NamedTuple):
    """Mean of paired differences with its 95 % interval.

    The interval is NaN for one pair, and for pairs that all differ by the same: a test of a few
    hundred samples has few values, and seeds that agree by chance say nothing about others.
    """

    mean: float
    low: float
    high: float
    pairs: int


class Entry(NamedTuple):
    """What stands at one place of a table.

    Attributes:
        estimate: NaN where a run diverged.
        values: of the runs, for pairs.
        paper: NaN where the paper has no figure.
        unfinished: how many of the runs are.
        run: whose configuration it shows; None of an average.
        first: whether it is the best mean of the column.
        best: whether the interval of its difference from the second says so, too.
        behind: its difference from the best mean of the column.
    """

    estimate: Estimate
    values: Values
    paper: float
    unfinished: int
    run: Run | None
    first: bool = False
    best: bool = False
    behind: Difference | None = None


class Row(NamedTuple):
    """A method: what it ran with, and by the measure's name one entry (or None) per column."""

    method: str
    setup: str
    entries: dict[str, list[Entry | None]]


class Table(NamedTuple):
    """One setting: the heads of its columns, what was measured, its rows."""

    setting: Setting
    heads: list[str]
    measures: list[Measure]
    rows: list[Row]


def paired(ours: Values, theirs: Values) -> Difference | None:
    """Ours minus theirs over the seeds that both have; None without such seeds, or with NaN."""
    found = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not found or any(map(isnan, found)):
        return None
    mean, count = fmean(found), len(found)
    if max(found) - min(found) <= 1e-9 * abs(mean):
        return Difference(mean, nan, nan, count)
    half = _t(count - 1) * stdev(found) / sqrt(count)
    return Difference(mean, mean - half, mean + half, count)


def _t(free: int) -> float:
    """Beyond the table Fisher's expansion, which is right to three decimals there."""
    z = NormalDist().inv_cdf(0.975)
    expanded = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return T[free - 1] if free <= len(T) else expanded


def tables(results: Results) -> list[Table]:
    """One table per setting, without methods and measures that it does not have."""
    return [_table(setting) for setting in results.settings]


def _table(setting: Setting) -> Table:
    averaged = len(setting.topologies) > 1  # of a single one, it would say the same again
    ends = [record for run in setting.runs for record in (run.records[0], run.last)]
    fields = {setting.measure: "main", LOSS: "loss"}  # one, if the loss is what counts
    known = {m: f for m, f in fields.items() if not all(isnan(e.spread(f).mean) for e in ends)}
    fields = known or fields
    rows = [Row(method, setting.setup(method), {}) for method in setting.methods]
    for measure, field in fields.items():
        grid = [_entries(setting, row.method, measure, field, averaged) for row in rows]
        columns = [_marked(column, measure.better) for column in zip(*grid, strict=True)]
        for row, entries in zip(rows, zip(*columns, strict=True), strict=True):
            row.entries[measure.name] = list(entries)
    return Table(setting, [*setting.topologies, *[AVERAGE] * averaged], list(fields), rows)


def _entries(
    setting: Setting, method: str, measure: Measure, field: str, averaged: bool
) -> list[Entry | None]:
    found: list[Entry | None] = []
    for topology in setting.topologies:
        cell = setting.cells.get((method, topology))
        if cell is None:
            found.append(None)
            continue
        theirs = cell.paper._asdict().get(measure.name, nan) if cell.paper else nan
        numbers = cell.estimate(field), cell.values(field), theirs, cell.unfinished
        found.append(Entry(*numbers, cell.runs[0]))
    whole = [entry for entry in found if entry is not None]
    if averaged and len(whole) < len(found):  # it would not compare
        found.append(None)
    elif averaged:
        shared = [seed for seed in whole[0].values if all(seed in e.values for e in whole)]
        values = {seed: fmean(e.values[seed] for e in whole) for seed in shared}
        mean = Estimate(fmean(e.estimate.mean for e in whole))
        theirs = fmean(e.paper for e in whole)
        found.append(Entry(mean, values, theirs, sum(e.unfinished for e in whole), None))
    return found


def _marked(column: Sequence[Entry | None], better: int) -> list[Entry | None]:
    """The column with what is first, what is best and how far the others are behind."""
    known = [e for e in column if e is not None and not isnan(e.estimate.mean)]
    if len(known) < 2:
        return list(column)
    first, second = sorted(known, key=lambda e: -better * e.estimate.mean)[:2]
    gap = paired(first.values, second.values)
    clear = gap is not None and min(better * gap.low, better * gap.high) > 0
    return [
        e and e._replace(first=True, best=clear)
        if e is first
        else e and e._replace(behind=paired(e.values, first.values))
        for e in column
    ]


# --------------------------------------------------------------------------- sentences


def warnings(results: Results) -> list[str]:
    """What makes a comparison unfair, a sentence or two each."""
    found: dict[str, None] = {}
    for setting in results.settings:
        sharing: dict[str, dict[float, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
        for cell in setting.cells.values():
            for run in cell.runs:
                if not run.tried and run.config.get("algorithm.optimizer") is None:
                    sharing[run.lr][run.momentum][cell.method] = None
        for lr, groups in sharing.items():
            slow, *others = sorted(groups)
            for fast in others:
                ratio = f"{(1 - slow) / (1 - fast):.3g}"
                found[
                    f"Methods with momentum {fast:g} ({'; '.join(groups[fast])}) and with "
                    f"{f'momentum {slow:g}' if slow else 'none'} ({'; '.join(groups[slow])}) share "
                    f"the step size {lr}. Momentum {fast:g} moves {ratio} times as far: compare "
                    f"with lr / {ratio}, or tune each method (sweep.tune)."
                ] = None
    return list(found)


def notes(results: Results) -> list[str]:
    """What a reader of the tables has to know, a sentence or two each."""
    told = dict.fromkeys(m.words for table in tables(results) for m in table.measures)
    what = " and ".join(filter(None, (", ".join([*told][:-1]), [*told][-1])))
    return [
        f"{what[0].upper()}{what[1:]} of the average model on the test data, at the last record of "
        "each run.",
        *_on_measures(results),
        *_on_seeds(results),
        *_on_cells(results),
        *_on_cycles(results),
        *_on_paper(results),
    ]


def _on_measures(results: Results) -> Iterator[str]:
    for measure in results.measures:
        if measure not in (ACCURACY, LOSS):
            better = "larger" if measure.higher_is_better else "smaller"
            yield f"{measure.words[0].upper()}{measure.words[1:]}: {better} is better."


def _on_seeds(results: Results) -> Iterator[str]:
    counts = sorted({len(cell.runs) for cell in results.cells})
    compared = any(len(setting.methods) > 1 for setting in results.settings)
    if counts[-1] > 1:
        averaged = any(len(setting.topologies) > 1 for setting in results.settings)
        averages = "; an average is that of the means" if averaged else ""
        yield f"± is the sample standard deviation over seeds{averages}."
    if compared and counts[-1] > 1:
        yield (
            "vs best: the difference from the best mean of the column, paired over the seeds that "
            "both have, with its 95 % interval (t; none if all seeds differ by the same amount), "
            "not corrected for the number of rows. Bold: the interval of the difference between "
            "the best and the second excludes 0."
        )
        if counts[-1] == 2:
            yield "Two seeds tell little: their intervals are wide, or narrow by chance."
    elif compared:
        yield "One seed each: there are no intervals, so nothing is bold."
    if len(counts) > 1:
        yield f"Cells have {counts[0]} to {counts[-1]} runs."


def _on_cells(results: Results) -> Iterator[str]:
    if unfinished := sum(cell.unfinished for cell in results.cells):
        yield f"† unfinished, the value so far: {unfinished} of {len(results.runs)} runs."
    if any(run.diverged or isnan(run.last.loss) for run in results.runs):
        yield "NaN: a run of the cell diverged."


def _on_cycles(results: Results) -> Iterator[str]:
    found: dict[tuple[str, int], None] = {}
    for cell in results.cells:
        if period := _same_graph(cell.runs[0]):
            found[cell.topology, period] = None
    for topology, period in found:
        yield (
            f"{topology}: all records fall on the same graph of its cycle of {period}, so its "
            "weights and distances are those of that graph alone."
        )


def _same_graph(run: Run) -> int:
    """The period of its graphs, if it is above 1 and all records are at one place in it."""
    about = run.meta.get("certificate")
    period = about.get("period") if isinstance(about, dict) else None
    steps = [record.step for record in run.records[1:-1]]
    if type(period) is not int or period < 2 or not 1 < len(steps) < MOST_RECORDS // 2:
        return 0  # of very many records some were left out
    return period if len({step % period for step in steps}) == 1 else 0


def _on_paper(results: Results) -> Iterator[str]:
    if not any(cell.paper for cell in results.cells):
        return
    yield (
        "In parentheses: the figure from the paper's Table 1, one seed "
        "each; its loss, which is in E-3 of the mean cross-entropy / 100, is converted to the mean "
        "cross-entropy."
    )
    settings: dict[str, list[str]] = defaultdict(list)
    for setting in results.settings:
        compared = [run for cell in setting.cells.values() if cell.paper for run in cell.runs]
        other = dict.fromkeys(text for run in compared for text in paper.differences(run))
        settings["; ".join(other)].append(setting.name)
    for text, names in settings.items():
        whose = "ours" if len(settings) == 1 else " and ".join(names)
        if text:
            yield f"Not as in the published runs, {whose}: {text}."
