"""`pushsum topology`: examine a graph sequence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pushsum.cli.common import big, integer, number, show, tell

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pushsum.theory import Constants
    from pushsum.topology import Certificate, Topology
    from pushsum.weighting import Weighting


def topology(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="full, divide, exponential, random, ring, FILE.py:function, or a .csv of edges.",
        ),
    ],
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", help="How many nodes.", parser=integer, metavar="N")
    ] = 6,
    weighting: Annotated[
        str,
        typer.Option(
            "--weighting",
            "-w",
            help="uniform, lazy:c=0.5, moreau:k=0.1,v=0.1, scale-free-moreau:c=1,v=0.1 or "
            "far-first:c=1,v=0.1.",
        ),
    ] = "uniform",
    inner: Annotated[
        float | None,
        typer.Option(
            help="random: chance of a channel inside a cluster.  [default: 0.5]",
            parser=number,
            metavar="P",
        ),
    ] = None,
    inter: Annotated[
        float | None,
        typer.Option(
            help="random: the same between clusters.  [default: 0.25]", parser=number, metavar="P"
        ),
    ] = None,
    period: Annotated[
        int | None,
        typer.Option(
            help="random: all channels open every B steps.  [default: 8]",
            parser=integer,
            metavar="B",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="random: the seed.  [default: 0]", parser=integer, metavar="SEED"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the graphs to this .svg or .png file.")
    ] = None,
) -> None:
    """Examine a graph sequence: connectivity, degrees and the constants of the theory."""
    from pushsum.drawing import check_target, graphs_svg, graphs_text, save

    if plot is not None:
        check_target(plot)
    from pushsum import theory
    from pushsum import topology as topologies
    from pushsum import weighting as weightings

    options = {"inner": inner, "inter": inter, "period": period, "seed": seed}
    given = {key: value for key, value in options.items() if value is not None}
    name = topologies.spelled(name)
    if given and name != "random":
        raise ValueError(f"--{next(iter(given))} belongs to random, not to {name}")
    graphs = topologies.parse(name, nodes, **given)
    rule = weightings.parse(weighting)
    certificate = graphs.certificate()
    ours, papers = theory.constants(graphs, rule), theory.published(graphs, rule)
    if plot is not None:
        save(graphs_svg(graphs), plot)
    if as_json:
        typer.echo(json.dumps(_as_json(graphs, rule, certificate, ours, papers), indent=2))
        return
    show(_topology_table(graphs, rule, certificate, ours, papers))
    if plot is None:
        from rich.console import Console

        typer.echo()
        show(graphs_text(graphs, Console().width))
    else:
        tell(f"drawn to {plot}")
    for note in filter(None, (ours.note, *weightings.warnings(rule, graphs))):
        tell(f"note: {note}")


def _topology_table(
    graphs: Topology, rule: Weighting, certificate: Certificate, ours: Constants, papers: Constants
) -> RenderableType:
    from rich.table import Table

    table = Table(title=f"{graphs.name}, {rule.name} weights", title_justify="left", box=None)
    table.add_column("", style="bold")
    table.add_column("")
    table.add_column("", style="dim")
    low, high = graphs.degrees
    degrees = f"{low}" if low == high else f"{low} to {high}"
    rows = [
        ("period B", f"{certificate.period}", "any B consecutive graphs connect all nodes"),
        ("diameter Delta", f"{certificate.diameter}", "the longest shortest path in such a union"),
        ("horizon H", f"{certificate.horizon}", "after H steps everybody has heard everybody"),
        ("out-degree K", degrees, "receivers per sender, itself counted"),
        ("delta", f"{ours.delta:.6g}", "smallest weight (Definition 1)"),
        ("lambda", _lambda(ours), "rate of consensus, (1 - delta^H)^(1/H)"),
        ("C", big(ours.log_C), "factor of the bounds, 4 / delta^H"),
    ]
    if papers.horizon != ours.horizon:
        rows += [
            ("", _lambda(papers), f"lambda with the paper's Delta*B = {papers.horizon}"),
            ("", big(papers.log_C), f"C with the paper's Delta*B = {papers.horizon}"),
        ]
    for row in rows:
        table.add_row(*row)
    return table


def _as_json(
    graphs: Topology, rule: Weighting, certificate: Certificate, ours: Constants, papers: Constants
) -> dict[str, Any]:
    def constants(c: Constants) -> dict[str, Any]:
        return {
            "exponent": c.horizon,
            "lambda": c.lam,
            "log10_one_minus_lambda": c.log_gap / math.log(10),
            "C": c.C if math.isfinite(c.C) else None,
            "log10_C": c.log_C / math.log(10),
        }

    low, high = graphs.degrees
    return {
        "topology": graphs.name,
        "nodes": graphs.n,
        "period": certificate.period,
        "diameter": certificate.diameter,
        "horizon": certificate.horizon,
        "out_degree": {"smallest": low, "largest": high},
        "weighting": rule.name,
        "delta": ours.delta,
        **constants(ours),
        "published": constants(papers),
        "note": ours.note or None,
    }


def _lambda(c: Constants) -> str:
    return f"{c.lam:.6g}" if c.lam < 0.999 else f"1 - {big(c.log_gap)}"
