"""The command line.

torch takes seconds to import, so everything that needs it is imported inside the commands.
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Annotated

import typer

from pushsum.cli.common import fail
from pushsum.cli.data import app as data
from pushsum.cli.demo import demo
from pushsum.cli.evaluate import evaluate
from pushsum.cli.report import report
from pushsum.cli.run import run
from pushsum.cli.sweep import sweep
from pushsum.cli.topology import topology
from pushsum.cli.weights import app as weights

app = typer.Typer(
    name="pushsum",
    help="Decentralized learning over directed, time-varying networks.",
    epilog="Start with: pushsum demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(
    short_help="Compare five algorithms on four topologies.",
    epilog="Example: pushsum demo --no-training --plot distances.svg",
)(demo)
app.command(epilog="Example: pushsum run algorithm.name=MSGAP topology.name=divide --into runs/a")(
    run
)
app.command(epilog="Example: pushsum sweep algorithm.name=SGP,S-ADDOPT seed=0,1,2 --into runs/b")(
    sweep
)
app.command(
    short_help="Test saved runs again, with every BatchNorm policy.",
    epilog="Example: pushsum evaluate runs/b/*",
)(evaluate)
app.command(
    short_help="Write one page and the tables of runs.", epilog="Example: pushsum report runs/b"
)(report)
app.command(
    short_help="Examine a graph sequence.",
    epilog="Example: pushsum topology exponential --nodes 6 --weighting moreau:k=0.1,v=0.1",
)(topology)
app.add_typer(data, name="data")
app.add_typer(weights, name="weights")


def main() -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII only gets ? for ●
    if "_PUSHSUM_COMPLETE" in os.environ:  # the shell asks what may follow
        app(prog_name="pushsum")
    command = typer.main.get_command(app)
    try:
        # not app(): that ends an interrupt with an exit code, and no word
        with command.make_context("pushsum", sys.argv[1:]) as context:
            code = command.invoke(context)
    except typer.Exit as end:
        code = end.exit_code
    except BrokenPipeError:  # `pushsum ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError) as error:
        fail(str(error))
    except MemoryError:
        fail("not enough memory: use fewer nodes")
    except Exception as error:
        if "can't allocate memory" in str(error):  # how torch says MemoryError
            fail("not enough memory: use fewer nodes")
        # typer's own usage errors: an unknown option, a value that is not a number, ...
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # plain `pushsum`
            typer.echo(message)
            sys.exit(2)
        fail(message + _hint(error))
    sys.exit(code or 0)


def _hint(error: Exception) -> str:
    """What to write instead of `pushsum run --epochs 3`, `topology ring 3` or `topology`."""
    kind, context = type(error).__name__, getattr(error, "ctx", None)
    command = None if context is None else context.command.name
    option = getattr(error, "option_name", None)
    if kind == "NoSuchOption" and option is not None and command in ("run", "sweep"):
        from pushsum.config import same_leaf

        key = same_leaf(option.strip("-").replace("-", "_"))
        dashes = ": keys of the configuration are written without dashes,"
        return "" if key is None else f"{dashes} {key}=VALUE"
    if command == "topology" and kind == "MissingParameter":
        from pushsum.topology import MAKERS

        return f" Choose from {', '.join(MAKERS)}"
    number = re.search(r"extra argument.*\((\d+)\)$", str(error))
    if command == "topology" and number is not None:
        return f": did you mean --nodes {number[1]}?"
    return ""


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
