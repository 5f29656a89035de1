"""How far apart nodes stay: the distance beside Theorem 1, over N; and ten thousand sequences."""

from math import log
from statistics import fmean

from study.collect import read
from study.numbers import MOREAU, Ended
from study.words import Text, short, table

DISTANCES = (("exponential", "uniform"), ("exponential", MOREAU), ("full", MOREAU))


def distances(found: list[Ended]) -> str:
    """Exponential: the distance and the bound; Full: Moreau's distance (uniform has none)."""
    rows = []
    for nodes in dict.fromkeys(row["nodes"] for row in read("consensus")):
        cells = [nodes]
        for graph, rule in DISTANCES:
            here = _of(graph, rule, nodes)
            bound = max(float(row["log10 bound"]) for row in here)
            cells += [
                f"{fmean(float(row['distance']) for row in here):.2f}",
                f"10<sup>{bound:.1f}</sup>",
            ]
        rows.append(cells)
    names = [f"{graph.capitalize()}, {short(rule)}" for graph, rule in DISTANCES]
    return table(["N", *(h for name in names for h in (name, "allowed"))], rows)


def slopes(found: list[Ended], column: str = "distance") -> str:
    """distance ~ N^slope, by least squares over the logarithms, for N >= 4."""
    many = [n for n in dict.fromkeys(row["nodes"] for row in read("consensus")) if int(n) >= 4]
    slopes = []
    for graph, rule in DISTANCES:
        points = [
            (log(int(n)), log(float(row[column]))) for n in many for row in _of(graph, rule, n)
        ]
        mx, my = fmean(x for x, _ in points), fmean(y for _, y in points)
        slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
        slopes.append(f"{slope:+.2f} ({graph.capitalize()}, {short(rule)})")
    return ", ".join(slopes)


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
    """Ratios of mean distances on Exponential, the lowest and the highest over N."""
    ratios = []
    for nodes in dict.fromkeys(row["nodes"] for row in read("consensus")):
        far, near = (
            fmean(float(row["distance"]) for row in _of("exponential", rule, nodes))
            for rule in (MOREAU, "uniform")
        )
        ratios += [far / near] if near > 0 else []
    return f"{min(ratios):.0f} to {max(ratios):.0f}"


def horizon(found: list[Ended]) -> str:
    """In how many sequences a statement breaks (`tests/theory_sweep.py`)."""
    kept = read("horizon")
    rows = [[row["statement"], row["broken with H"], row["broken with Delta B"]] for row in kept]
    first = f"{kept[0]['sequences']} sequences, {kept[0]['H > Delta B']} with H > Δ·B"
    return table([first, "broken with H", "broken with the paper's Δ·B"], rows)


def _of(graph: str, rule: str, nodes: str) -> list[dict[str, str]]:
    wanted = (graph, rule, nodes)
    return [
        row
        for row in read("consensus")
        if (row["topology"], row["weighting"], row["nodes"]) == wanted
    ]


TEXTS: dict[str, Text] = {
    "consensus": distances,
    "consensus-slopes": slopes,
    "consensus-gap": orders_of_magnitude,
    "consensus-broken": broken,
    "moreau-over-uniform": moreau_over_uniform,
    "horizon": horizon,
}
