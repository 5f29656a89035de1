"""Bytes and time: accuracy for what was sent, and what a step took on real links."""

from benchmarks.wallclock import PAPER_HOURS, Measured
from study import RESULTS
from study.numbers import METHODS, TOPOLOGIES, Ended, among, chosen, of, spread
from study.texts.batchnorm import centralized
from study.words import TITLES, Text, percent, table

ALL_REDUCE = "centralized SGD, by all-reduce"
RESNET18 = 11_173_962  #: parameters


def accuracy_for_bytes(found: list[Ended]) -> str:
    """What a run pushed, and its accuracy for that."""
    rows = [[m, *(_pushed(of(found, m, topology=t)) for t in TOPOLOGIES)] for m in METHODS]
    rows.append([ALL_REDUCE, _pushed(centralized(found, 0.0)), *[""] * 3])
    return table(["", *TITLES], rows)


def _pushed(some: list[Ended]) -> str:
    pushed, reached = spread(some, "gigabytes"), spread(some, "accuracy")
    if pushed is None or reached is None:
        return "–"
    return f"{100 * reached[0]:.1f} % for {pushed[0]:.2f} GB"


def budget(found: list[Ended]) -> str:
    """Methods with as many bytes as SGP pushes on Exponential, and on Divide."""
    fewer_steps = among(found, "budget")
    rows = []
    for name, some in (
        ("SGP, Exponential", of(found, "SGP", topology="exponential")),
        (ALL_REDUCE, chosen(fewer_steps, algorithm="AllReduce")),
        ("S-ADDOPT, Exponential", chosen(fewer_steps, topology="exponential")),
        ("SGP, Full", chosen(fewer_steps, algorithm="SGP")),
        ("SGP, Divide", of(found, "SGP", topology="divide")),
        ("S-ADDOPT, Divide", chosen(fewer_steps, topology="divide")),
    ):
        if some:
            pushed = f"{some[0]['gigabytes']:.2f}", f"{some[0]['steps']:.0f}"
            rows.append([name, *pushed, percent(some)])
    return table(["", "GB", "steps", "accuracy, %"], rows)


def transfer(found: list[Ended]) -> str:
    """Accuracy and what sending takes, and would if the vectors were as long as ResNet-18's."""
    rows = []
    for method in METHODS:
        some = of(found, method)
        vectors = 2 if method == "S-ADDOPT" else 1
        sent = vectors * some[0]["steps"]  # vectors along one channel
        here, there = (32 * d * sent / 1e9 for d in (some[0]["parameters"], RESNET18))
        reached = [percent(chosen(some, topology=t)) for t in TOPOLOGIES]
        rows.append([method, *reached, f"{here:.1f} s", f"{there / 60:.1f} min"])
    return table(["accuracy, %", *TITLES, "these runs", "if ResNet-18"], rows)


def wallclock(found: list[Ended]) -> str:
    """Seconds per step, and what a node sent."""
    measured, rows = _kept("wallclock"), []
    for method in measured.names:
        hours = PAPER_HOURS.get(method)
        rows.append(
            [
                "no exchange" if method == "alone" else method,
                f"{measured.typical(method, 'step'):.2f}",
                f"{1e-6 * measured.typical(method, 'bytes'):.0f}",
                _ratio(measured, method, "SGP"),
                f"{hours / PAPER_HOURS['SGP']:.1f}" if hours else "",
            ]
        )
    return table(["method", "seconds per step", "MB sent", "/ SGP", "paper's hours / SGP's"], rows)


def wallclock_pairs(found: list[Ended]) -> str:
    """Step times on links of two speeds; the slower were measured once."""
    pairs = (
        ("SGAP", "SGP"),
        ("MSGAP", "MSGP"),
        ("SGAP +", "SGP +"),
        ("MSGAP +", "MSGP +"),
        ("S-ADDOPT", "SGP"),
        ("SGP exponential", "DDP"),
        ("SGP exponential +", "DDP"),
    )
    fast, slow = _kept("wallclock"), _kept("wallclock-slow")
    rows = [
        [f"{one} / {other}", _ratio(fast, one, other), f"{slow.ratio(one, other)[1]:.2f}"]
        for one, other in pairs
    ]
    rows += [
        [f"{m} / bound", *(f"{kept.over_bound(m)[1]:.2f}" for kept in (fast, slow))]
        for m in fast.overlapped
    ]
    return table(["step times", "1 Gbit/s", "0.25 Gbit/s, one round"], rows)


def decent_dp(found: list[Ended]) -> str:
    """Step times beside another library's."""
    measured, rows = _kept("decent-dp"), []
    for graph in ("ring", "complete"):
        theirs = f"{graph}: decent-dp"
        rows.append(
            [
                graph,
                f"{measured.typical(theirs, 'step'):.2f}",
                *(_ratio(measured, f"{graph}: pushsum{end}", theirs) for end in ("", " +")),
            ]
        )
    return table(["graph", "decent-dp, s", "pushsum / decent-dp", "with overlap"], rows)


def _kept(file: str) -> Measured:
    return Measured.kept(RESULTS / f"{file}.csv")


def _ratio(found: Measured, one: str, other: str) -> str:
    """The median of the rounds' ratios, and their range."""
    lowest, middle, highest = found.ratio(one, other)
    return f"{middle:.2f} ({lowest:.2f} to {highest:.2f})"


TEXTS: dict[str, Text] = {
    "bytes": accuracy_for_bytes,
    "budget": budget,
    "transfer": transfer,
    "wallclock": wallclock,
    "wallclock-pairs": wallclock_pairs,
    "decent-dp": decent_dp,
}
