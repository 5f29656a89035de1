"""The paper's time figure: step times of its algorithms, one process per node, on 1 Gbit/s links.

Six ranks train ResNet-18 on images of CIFAR's size, batch 1. They all run on this machine: their
passes, their sums and the emulated network share its cores, and the bounds know nothing of that.

    python -m benchmarks.wallclock [--gbit 1] [--rounds 3] [--picture wallclock.svg] [--loopback]
    python -m benchmarks.wallclock --decent-dp PYTHON [--rounds 3]

With --csv FILE the rounds are kept: one row each, with the seconds of a step by phase.
"""

import argparse
import csv
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from benchmarks import namespaces
from pushsum.drawing import save, svg

RANKS = 6
PAPER_HOURS = {"SGP": 5.9, "MSGP": 5.9, "SGAP": 5.9, "MSGAP": 5.9, "S-ADDOPT": 11.8}
PHASES = {  # what a process does one after the other: their sum is the step
    "passes": "forward and backward",
    "mixing": "adding up",
    "weighting": "weighting",
    "waiting": "waiting for messages",
    "other": "optimizer, y and the rest",
}
ENTRIES = ("step", *PHASES, "weighting_exposed", "transfer", "bytes", "busy", "own")
HOW_TO_GET_DECENT_DP = (
    "an environment with both: python -m venv E && E/bin/pip install -c constraints.txt . && "
    "E/bin/pip install decent-dp, then --decent-dp E/bin/python"
)


class Measured:
    """Methods, and of each the rounds' medians: name -> entry -> one number per round."""

    def __init__(
        self, rounds: Mapping[str, Mapping[str, list[float]]], link: float, links: float
    ) -> None:
        self.names = list(rounds)
        self.link, self.links = link, links
        self._rounds = rounds

    @classmethod
    def of(cls, printed: Sequence[str]) -> "Measured":
        """From the ranks' answers."""
        answers = [json.loads(line.splitlines()[-1]) for line in printed]
        costs = [answer["costs"] for answer in answers]
        rounds = {
            name: {entry: _by_round([cost[name] for cost in costs], entry) for entry in ENTRIES}
            for name in costs[0]
        }
        link = answers[1]["link"]  # where the message arrives
        return cls(rounds, link, fmean(answer["links"] for answer in answers))

    @classmethod
    def kept(cls, path: Path) -> "Measured":
        """From the file of an earlier measurement."""
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        entries = [entry for entry in ENTRIES if entry in rows[0]]
        rounds = {
            name: {e: [float(r[e]) for r in rows if r["method"] == name] for e in entries}
            for name in dict.fromkeys(row["method"] for row in rows)
        }
        return cls(rounds, float(rows[0]["link"]), float(rows[0]["links"]))

    def keep(self, path: Path) -> None:
        """A row for every method and round."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["method", "round", *ENTRIES, "link", "links"])
            for name, entries in self._rounds.items():
                for number, values in enumerate(zip(*entries.values(), strict=True)):
                    shown = (f"{v:.6g}" for v in (*values, self.link, self.links))
                    writer.writerow([name, number, *shown])

    def by_round(self, name: str, entry: str) -> list[float]:
        """The median step of each round, of the ranks' mean."""
        return self._rounds[name][entry]

    def typical(self, name: str, entry: str) -> float:
        """The median over the rounds."""
        return median(self.by_round(name, entry))

    def ratio(self, name: str, other: str) -> list[float]:
        """Lowest, median and highest ratio of the step times; a round is compared with itself."""
        pairs = zip(self.by_round(name, "step"), self.by_round(other, "step"), strict=True)
        ratios = [a / b for a, b in pairs]
        return [min(ratios), median(ratios), max(ratios)]

    @property
    def overlapped(self) -> list[str]:
        """The methods that send during the backward pass."""
        return [name for name in self.names if name.endswith("+")]

    def over_bound(self, name: str) -> list[float]:
        """Lowest, median and highest step over max(compute, bytes / bandwidth)."""
        compute, pushed = self.typical("alone", "step"), self.typical(name, "bytes")
        ratios = [step / max(compute, pushed / self.link) for step in self.by_round(name, "step")]
        return [min(ratios), median(ratios), max(ratios)]


def _by_round(costs: Sequence[Sequence[Sequence[dict[str, float]]]], entry: str) -> list[float]:
    """rank -> round -> step -> costs: of each round the median step, of the ranks' mean."""
    return [
        median(fmean(_entry(c, entry) for c in step) for step in zip(*ranks, strict=True))
        for ranks in zip(*costs, strict=True)
    ]


def _entry(cost: dict[str, float], entry: str) -> float:
    if entry == "other":
        known = ("passes", "mixing", "weighting", "waiting")
        return cost["step"] - sum(cost.get(name, 0.0) for name in known)
    return cost.get(entry, 0.0)


def main(arguments: Sequence[str] = ()) -> None:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that namespaces are removed
    if options.decent_dp is not None:
        _against_decent_dp(options.decent_dp, options.rounds, options.csv)
        return
    obstacle = "asked for" if options.loopback else namespaces.obstacle()
    command = [sys.executable, "-m", "benchmarks.trainers", "links", str(options.rounds)]
    if obstacle is None:
        with namespaces.linked(RANKS, options.gbit) as seats:
            found = Measured.of(namespaces.run_ranks(seats, command))
        where = f"links of {options.gbit:g} Gbit/s ({namespaces.CONGESTION_CONTROL})"
    else:
        print(f"wallclock: on loopback, without links of a given speed ({obstacle})")
        found = Measured.of(namespaces.run_ranks(namespaces.on_loopback(RANKS), command))
        where = "loopback"
    _print_table(found, f"ResNet-18, batch 1, {RANKS} ranks on {os.cpu_count()} cores, {where}")
    _print_ratios(found)
    save(picture(found, where), options.picture)
    print(f"picture: {options.picture}")
    if options.csv is not None:
        found.keep(options.csv)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wallclock", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--gbit", type=float, default=1.0, help="speed of a link, each way")
    parser.add_argument("--rounds", type=int, default=3, help="each takes two to three minutes")
    parser.add_argument("--picture", type=Path, default=Path("wallclock.svg"))
    parser.add_argument("--csv", type=Path, help="also keep the rounds")
    parser.add_argument("--loopback", action="store_true", help="no links of a given speed")
    parser.add_argument("--decent-dp", metavar="PYTHON", help=HOW_TO_GET_DECENT_DP)
    return parser.parse_args(arguments)


# ----------------------------------------------------------------- tables


def _print_table(found: Measured, title: str) -> None:
    headings = ("step", *PHASES, "exposed", "transfer", "MB", "CPU", "ours")
    table = Table(title=title, title_justify="left", padding=0)
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for name in found.names:
        times = ("step", *PHASES, "weighting_exposed", "transfer")
        cores = RANKS * found.typical(name, "own") / found.typical(name, "step")
        table.add_row(
            name,
            *(_seconds(found.typical(name, entry)) for entry in times),
            f"{found.typical(name, 'bytes') / 1e6:.0f}",
            f"{100 * found.typical(name, 'busy'):.0f}%",
            f"{100 * cores / (os.cpu_count() or 1):.0f}%",
        )
    Console().print(table)
    print(
        "Seconds per step, medians of the rounds; + is overlap with the backward pass. passes:\n"
        "forward and backward, with all that happens within; DDP and decent-dp also send there.\n"
        "exposed: weighting while no message was under way. transfer: messages were under way.\n"
        "MB: sent per step. CPU: how busy the cores were; ours: with these ranks."
    )


def _seconds(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 5e-4 else "–"


def _print_ratios(found: Measured) -> None:
    table = Table(title="Ratios of step times", title_justify="left")
    for heading in ("", "median", "from", "to", "goal", "paper"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for end in ("", " +"):
        for name, other in (("SGAP", "SGP"), ("MSGAP", "MSGP")):
            _add_ratio(table, found, name + end, other + end, "at most 1.02")
    _add_ratio(table, found, "S-ADDOPT", "SGP", "1.9 to 2.1")
    for end in ("", " +"):
        _add_ratio(table, found, f"SGP exponential{end}", "DDP", "at most 0.75")
    table.add_section()
    compute = found.typical("alone", "step")
    for name in found.overlapped:
        lowest, middle, highest = found.over_bound(name)
        shown = [f"{value:.2f}" for value in (middle, lowest, highest)]
        table.add_row(f"{name} / bound", *shown, "at most 1.10", "")
    Console().print(table)
    print(
        "bound: max(compute, bytes / bandwidth).\n"
        f"compute: {compute:.3f} s, all ranks at once and no exchange. bandwidth: "
        f"{8e-6 * found.link:.0f} Mbit/s over one link;\n"
        f"{8e-6 * found.links:.0f} over each when all are busy."
    )


def _add_ratio(table: Table, found: Measured, name: str, other: str, goal: str) -> None:
    lowest, middle, highest = found.ratio(name, other)
    hours = PAPER_HOURS.get(name.removesuffix(" +")), PAPER_HOURS.get(other.removesuffix(" +"))
    paper = f"{hours[0]:g} h / {hours[1]:g} h" if hours[0] and hours[1] else ""
    numbers = (f"{value:.3f}" for value in (middle, lowest, highest))
    table.add_row(f"{name} / {other}", *numbers, goal, paper)


def _against_decent_dp(python: str, rounds: int, kept: Path | None) -> None:
    """Both in the same processes and on loopback, in turns."""
    command = [python, "-m", "benchmarks.trainers", "decent-dp", str(rounds)]
    check = [python, "-c", "import decent_dp.ddp, pushsum"]
    if namespaces.fails(check):
        print(
            f"wallclock: {python} cannot import both decent-dp and pushsum. How to get "
            f"{HOW_TO_GET_DECENT_DP}"
        )
        return
    found = Measured.of(namespaces.run_ranks(namespaces.on_loopback(RANKS), command))
    _print_table(found, f"ResNet-18, batch 1, {RANKS} ranks on {os.cpu_count()} cores, loopback")
    table = Table(title="Ratios of step times", title_justify="left")
    for heading in ("", "median", "from", "to", "goal", "paper"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for graph in ("ring", "complete"):
        for end in ("", " +"):
            _add_ratio(
                table, found, f"{graph}: pushsum{end}", f"{graph}: decent-dp", "at most 1.15"
            )
    Console().print(table)
    if kept is not None:
        found.keep(kept)


# ----------------------------------------------------------------- the picture


def picture(found: Measured, where: str) -> str:
    """Bars: the time of 1,000 steps by what the process did, beside the paper's hours."""
    names = [name for name in found.names if name != "alone"]
    width, left, top, height = 900, 150, 92, 26
    right = width - 206
    scale = (right - left) / max(found.typical(name, "step") for name in names)
    title = f"Time of 1,000 steps: ResNet-18, {RANKS} nodes, {where}"
    body = [svg.text(24, 31, svg.fit(title, width - 48, 17), 17, weight=600)]
    x = 24.0
    for colour, label in zip(svg.PALETTE, PHASES.values(), strict=False):
        body.append(_bar(x, 46, 14, 12, colour, label))
        body.append(svg.text(x + 20, 57, label, 13))
        x += 44 + svg.text_width(label, 13)
    body.append(svg.text(right + 12, 80, "minutes", 12, svg.SOFT))
    body.append(svg.text(right + 70, 80, "/ SGP", 12, svg.SOFT))
    body.append(svg.text(right + 118, 80, "paper", 12, svg.SOFT))
    for row, name in enumerate(names):
        y = top + row * height
        middle = y + 14
        body.append(svg.text(left - 10, middle, name, 13, anchor="end"))
        x = left
        for colour, (phase, seconds) in zip(svg.PALETTE, _split(found, name).items(), strict=False):
            body.append(
                _bar(x, y, scale * seconds, 18, colour, f"{PHASES[phase]}: {seconds:.3f} s")
            )
            x += scale * seconds
        step = found.typical(name, "step")
        body.append(svg.text(right + 12, middle, f"{1000 * step / 60:.0f}", 13))
        body.append(svg.text(right + 70, middle, f"{found.ratio(name, 'SGP')[1]:.2f}", 13))
        if name in PAPER_HOURS:
            hours = PAPER_HOURS[name]
            text = f"{hours / PAPER_HOURS['SGP']:.2f}  ({hours:g} h)"
            body.append(svg.text(right + 118, middle, text, 13))
    note = "+ sends while the backward pass goes on. DDP: waiting is what the passes took longer."
    bottom = top + len(names) * height + 20
    body.append(svg.text(24, bottom, note, 12, svg.SOFT))
    return svg.document(width, bottom + 16, title, body)


def _split(found: Measured, name: str) -> dict[str, float]:
    """A step by phase, so that the phases add up to it."""
    split = {phase: found.typical(name, phase) for phase in PHASES}
    if name == "DDP":
        passes = min(split["passes"], found.typical("alone", "passes"))
        split |= {"passes": passes, "waiting": split["passes"] - passes}
    shrink = found.typical(name, "step") / sum(split.values())  # medians do not quite add up
    return {phase: shrink * seconds for phase, seconds in split.items()}


def _bar(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    place = f'x="{svg.number(x)}" y="{svg.number(y)}"'
    size = f'width="{svg.number(width)}" height="{svg.number(height)}"'
    return f'<rect {place} {size} fill="{colour}"><title>{escape(title)}</title></rect>'


if __name__ == "__main__":
    main(sys.argv[1:])
