"""The command line, and the only place that turns names into objects.

torch takes seconds to import, so everything that needs it is imported inside the commands.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pushsum.demo import Outcome
    from pushsum.theory import Constants
    from pushsum.topology import Certificate, Topology
    from pushsum.weighting import Weighting

TOPOLOGIES = ("full", "divide", "exponential", "random", "ring")

app = typer.Typer(
    name="pushsum",
    help="Decentralized learning over directed, time-varying networks.",
    epilog="Start with: pushsum demo",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except BrokenPipeError:  # `pushsum ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError) as error:
        _fail(str(error))
    except MemoryError:
        _fail("not enough memory: use fewer nodes")
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if "can't allocate memory" in str(error):  # how torch says MemoryError
            _fail("not enough memory: use fewer nodes")
        # typer's own usage errors: an unknown option, a value that is not a number, ...
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message())
    sys.exit(code or 0)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pushsum import __version__

        typer.echo(f"pushsum {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    pass


def _integer(text: str | int) -> int:
    """For options: names what is not an integer, unlike typer's own message."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not an integer") from None


def _number(text: str | float) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a number") from None


# --------------------------------------------------------------------------- pushsum topology


@app.command(
    epilog="Example: pushsum topology exponential --nodes 6 --weighting moreau:k=0.1,v=0.1"
)
def topology(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(TOPOLOGIES)}.")],
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", help="How many nodes.", parser=_integer, metavar="N")
    ] = 6,
    weighting: Annotated[
        str,
        typer.Option(
            "--weighting",
            "-w",
            help="uniform, lazy:c=0.5, moreau:k=0.1,v=0.1 or scale-free-moreau:c=1,v=0.1.",
        ),
    ] = "uniform",
    inner: Annotated[
        float,
        typer.Option(help="random: chance inside a cluster.", parser=_number, metavar="P"),
    ] = 0.5,
    inter: Annotated[
        float,
        typer.Option(help="random: chance between clusters.", parser=_number, metavar="P"),
    ] = 0.25,
    period: Annotated[
        int,
        typer.Option(help="random: all channels open every B steps.", parser=_integer, metavar="B"),
    ] = 8,
    seed: Annotated[
        int, typer.Option(help="random: the seed.", parser=_integer, metavar="SEED")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the graphs to this .svg or .png file.")
    ] = None,
) -> None:
    """Examine a graph sequence: connectivity, degrees and the constants of the theory."""
    if name not in TOPOLOGIES:
        raise ValueError(_unknown("topology", name, TOPOLOGIES))
    from pushsum.drawing import check_target, graphs_svg, graphs_text, save

    if plot is not None:
        check_target(plot)
    from pushsum import theory
    from pushsum import topology as topologies
    from pushsum import weighting as weightings

    arguments = {"inner": inner, "inter": inter, "period": period, "seed": seed}
    make: Callable[..., Topology] = getattr(topologies, name)
    graphs = make(nodes, **(arguments if name == "random" else {}))
    rule = weightings.parse(weighting)
    certificate = graphs.certificate()
    ours, papers = theory.constants(graphs, rule), theory.published(graphs, rule)
    if plot is not None:
        save(graphs_svg(graphs), plot)
    if as_json:
        typer.echo(json.dumps(_as_json(graphs, rule, certificate, ours, papers), indent=2))
        return
    _print(_topology_table(graphs, rule, certificate, ours, papers))
    if plot is None:
        from rich.console import Console

        typer.echo()
        _print(graphs_text(graphs, Console().width))
    else:
        typer.echo(f"drawn to {plot}")
    if ours.note:
        typer.echo(f"note: {ours.note}")


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
        ("diameter Delta", f"{certificate.diameter}", "the longest path in such a union"),
        ("horizon H", f"{certificate.horizon}", "after H steps everybody has heard everybody"),
        ("out-degree K", degrees, "receivers per sender, itself counted"),
        ("delta", f"{ours.delta:.6g}", "smallest weight (Definition 1)"),
        ("lambda", _lambda(ours), "rate of consensus, (1 - delta^H)^(1/H)"),
        ("C", _big(ours.log_C), "factor of the bounds, 4 / delta^H"),
    ]
    if papers.horizon != ours.horizon:
        rows += [
            ("", _lambda(papers), f"lambda with the paper's Delta*B = {papers.horizon}"),
            ("", _big(papers.log_C), f"C with the paper's Delta*B = {papers.horizon}"),
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


# --------------------------------------------------------------------------- pushsum demo


@app.command(epilog="Example: pushsum demo --plot distances.svg")
def demo(
    plot: Annotated[Path, typer.Option(help="Where to draw the distances, .svg or .png.")] = Path(
        "pushsum-demo.svg"
    ),
    steps: Annotated[int, typer.Option(help="Steps per run.", parser=_integer, metavar="T")] = 400,
    seed: Annotated[
        int,
        typer.Option(help="Seed of problem, start and noise.", parser=_integer, metavar="SEED"),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run consensus and the five algorithms on the paper's four topologies, beside Theorem 1."""
    if steps < 1:
        raise ValueError(f"--steps {steps}: at least one step is needed")
    from pushsum.drawing import check_target, save

    check_target(plot)
    outcomes = _run_demo(steps, seed)
    from pushsum.demo import chart

    save(chart(outcomes), plot)
    if as_json:
        typer.echo(json.dumps([_outcome_json(o) for o in outcomes], indent=2))
        return
    _print(_demo_table(outcomes, steps))
    broken = sum(o.violations for o in outcomes)
    checked = sum(len(o.log_bounds) for o in outcomes)
    typer.echo(
        "f(x̄) - f*: the average parameter's objective; worst node: the same at the worst y_i;\n"
        "distance: max_i ‖y_i - x̄‖₁, beside Theorem 1's bound on it, which held in "
        f"{checked - broken} of {checked} steps.\n"
        f"Distances over time: {plot}"
    )


def _run_demo(steps: int, seed: int) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting PyTorch", total=None)
        from pushsum import demo as runs

        total = len(runs.topologies()) * len(runs.methods())
        bar.update(task, total=total)

        def progress(where: str, label: str) -> None:
            bar.update(task, description=f"{label} on {where}")

        outcomes = []
        for outcome in runs.run(progress, steps, seed):
            outcomes.append(outcome)
            bar.advance(task)
        return outcomes


def _demo_table(outcomes: list[Outcome], steps: int) -> RenderableType:
    from rich.table import Table

    table = Table(
        title=f"Six nodes, a quadratic each, κ = 3; after {steps} steps", title_justify="left"
    )
    table.add_column("topology")
    table.add_column("algorithm")
    for heading in ("f(x̄) - f*", "worst node", "distance", "Theorem 1"):
        table.add_column(heading, justify="right")
    previous = outcomes[0].topology
    for o in outcomes:
        if o.topology != previous:
            table.add_section()
        first = o is outcomes[0] or o.topology != previous
        previous = o.topology
        table.add_row(
            o.topology if first else "",
            o.algorithm,
            *("" if math.isnan(v) else f"{v:.1e}" for v in (o.gap, o.worst)),
            f"{o.distances[-1]:.1e}",
            _big(o.log_bounds[-1]) if o.log_bounds else "not covered",
        )
    return table


def _outcome_json(o: Outcome) -> dict[str, Any]:
    bound = o.log_bounds[-1] / math.log(10) if o.log_bounds else None
    return {
        "topology": o.topology,
        "algorithm": o.algorithm,
        "gap": None if math.isnan(o.gap) else o.gap,
        "worst": None if math.isnan(o.worst) else o.worst,
        "distance": o.distances[-1],
        "log10_bound": bound,
        "violations": o.violations,
    }


# --------------------------------------------------------------------------- words and numbers


def _unknown(kind: str, name: str, choices: tuple[str, ...]) -> str:
    close = get_close_matches(name, choices, n=1, cutoff=0.4) or [
        c for c in choices if name and c.startswith(name)
    ]
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown {kind} '{name}'{hint}: choose from {', '.join(choices)}"


def _big(log_value: float) -> str:
    """A number given by its natural logarithm, which may be far beyond a float."""
    exponent = log_value / math.log(10)
    return f"{math.exp(log_value):.1e}" if abs(exponent) < 300 else f"10^{exponent:.0f}"


def _lambda(c: Constants) -> str:
    return f"{c.lam:.6g}" if c.lam < 0.999 else f"1 - {_big(c.log_gap)}"


def _print(renderable: RenderableType) -> None:
    from rich.console import Console

    Console().print(renderable)


def _fail(message: str) -> NoReturn:
    print(f"pushsum: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
