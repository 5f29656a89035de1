"""How far apart nodes stay: the distance beside Theorem 1, over N; and ten thousand sequences."""

from math import log
from statistics import fmean

from study.collect import read
from study.numbers import MOREAU, Ended
from study.words import Text, short, table

SHOWN = (("exponential", "uniform"), ("exponential", MOREAU), ("full", MOREAU))


def distances(found: list[Ended]) -> str:
    """The distance and the bound by N (uniform weights on Full leave no distance)."""
    rows = []
    for nodes in _nodes():
        cells = [str(nodes)]
        for graph, rule in SHOWN:
            here = _of(graph, rule, nodes)
            bound = max(float(row["log10 bound"]) for row in here)
            cells += [
                f"{fmean(float(row['distance']) for row in here):.2f}",
                f"10<sup>{bound:.1f}</sup>",
            ]
        rows.append(cells)
    names = [f"{graph.capitalize()}, {short(rule)}" for graph, rule in SHOWN]
    return table(["N", *(h for name in names for h in (name, "allowed"))], rows)


def slopes(found: list[Ended], column: str = "distance") -> str:
    """distance ~ N^slope, by least squares over the logarithms, for N >= 4."""
    fits = []
    for graph, rule in SHOWN:
        points = [
            (log(n), log(float(row[column]))) for n in _nodes(4) for row in _of(graph, rule, n)
        ]
        mx, my = fmean(x for x, _ in points), fmean(y for _, y in points)
        slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
        fits.append(f"{slope:+.2f} ({graph.capitalize()}, {short(rule)})")
    return ", ".join(fits)


def orders_of_magnitude(found: list[Ended]) -> str:
    """How many orders of magnitude the bound is above a distance: fewest and most."""
    gaps = [
        float(row["log10 bound"]) - log(float(row["distance"])) / log(10)
        for row in read("consensus")
        if float(row["distance"]) > 1e-9
    ]
    return f"{min(gaps):.1f} to {max(gaps):.1f}"


def broken(found: list[Ended]) -> str:
    """Steps in which the bound does not hold."""
    return str(sum(int(row["broken"]) for row in read("consensus")))


def moreau_over_uniform(found: list[Ended]) -> str:
    """Ratios of mean distances on Exponential, the lowest and the highest over N >= 8."""
    ratios = []
    for nodes in _nodes(8):
        far, near = (
            fmean(float(row["distance"]) for row in _of("exponential", rule, nodes))
            for rule in (MOREAU, "uniform")
        )
        ratios.append(far / near)
    return f"{min(ratios):.0f} to {max(ratios):.0f}"


def horizon(found: list[Ended]) -> str:
    """In how many sequences a statement breaks (`tests/theory_sweep.py`)."""
    kept = read("horizon")
    rows = [[row["statement"], row["broken with H"], row["broken with Delta B"]] for row in kept]
    first = f"{kept[0]['sequences']} sequences, {kept[0]['H > Delta B']} with H > Δ·B"
    return table([first, "broken with H", "broken with the paper's Δ·B"], rows)


def _nodes(least: int = 0) -> list[int]:
    """The numbers of nodes that were tried, from `least` on."""
    return sorted({n for row in read("consensus") if (n := int(row["nodes"])) >= least})


def _of(graph: str, rule: str, nodes: int) -> list[dict[str, str]]:
    wanted = (graph, rule, str(nodes))
    return [
        row
        for row in read("consensus")
        if (row["topology"], row["weighting"], row["nodes"]) == wanted
    ]


def sequences(found: list[Ended]) -> str:
    """How many random sequences were tried."""
    return f"{int(read('horizon')[0]['sequences']):,}"


TEXTS: dict[str, Text] = {
    "consensus": distances,
    "consensus-slopes": slopes,
    "consensus-gap": orders_of_magnitude,
    "consensus-broken": broken,
    "moreau-over-uniform": moreau_over_uniform,
    "horizon": horizon,
    "sequences": sequences,
}
