"""`pushsum run`: one experiment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pushsum.cli.common import (
    Pace,
    Trust,
    complain,
    integer,
    is_source,
    number,
    progress_bar,
    refuse_bare_keys,
    say,
    short,
    show,
    tell,
    warn,
)
from pushsum.cli.plan import show_plan
from pushsum.names import unknown

if TYPE_CHECKING:
    from pushsum.config import Config
    from pushsum.engines.distributed.peers import Meeting
    from pushsum.engines.runtime import Runtime
    from pushsum.experiment import Experiment
    from pushsum.loggers import Logger

ENGINES = ("simulator", "distributed")
COMMON = ("pushsum", "torch", "d", "split")  #: of a run's meta data, what nodes must agree on

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG.yaml] [KEY=VALUE ...]", help="A file, then keys to change."),
]


def _print_keys(wanted: bool) -> None:
    if not wanted:
        return
    from rich.table import Table

    from pushsum import config

    table = Table(box=None, pad_edge=False)
    table.add_column("key", style="bold", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    section = ""
    for key, default, meaning in config.described():
        above = key.partition(".")[0] if "." in key else ""
        if above != section:
            section = above
            table.add_row()
        table.add_row(key, default, meaning)
    show(table, wrapped=True)
    raise typer.Exit


def run(
    words: Words = None,
    into: Annotated[Path | None, typer.Option(help="The run's directory.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --into.")] = False,
    from_step: Annotated[
        int | None,
        typer.Option(
            help="With --resume: start from this checkpoint.", parser=integer, metavar="STEP"
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Also send the records to tensorboard, wandb or mlflow (install the extra of that "
            "name), or to a logger of your own, FILE.py:name; can be repeated.",
            metavar="NAME",
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Short for --log tensorboard.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the records as lines of JSON, for programs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and what it needs.")
    ] = False,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys",
            help="List all keys of a configuration and exit.",
            is_eager=True,
            callback=_print_keys,
        ),
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            help="All nodes in this process, or one process per node (started here, or by "
            "torchrun). Default: simulator; under torchrun, distributed; with --resume, as before.",
            metavar="simulator|distributed",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            help="distributed: seconds of silence after which a node counts as lost.",
            parser=number,
            metavar="SECONDS",
        ),
    ] = 120.0,
    trust: Trust = False,
) -> None:
    """Train one model per node, as a configuration says."""
    engine = engine or (_engine_of(into) if resume else _usual_engine())
    if engine not in ENGINES:
        raise ValueError(unknown("engine", engine, ENGINES))
    path, overrides = _split(words)
    if into is None and not dry_run:
        raise ValueError("name the run's directory: --into runs/NAME")
    if from_step is not None and not resume:
        raise ValueError("--from-step goes with --resume")
    if resume and into is None:
        raise ValueError("--resume needs the run's directory: --into runs/NAME")
    # what torch would say of a lost peer is no line, but a page
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from pushsum import config, experiment
    from pushsum.engines.runtime import STOPPED, OneProcess, Stopped

    launched = "WORLD_SIZE" in os.environ  # by torchrun: this process is one of several
    if resume:
        assert into is not None
        path = _to_resume(into, path, overrides)
    settings = config.read(path, overrides, trust)
    if dry_run:
        built = experiment.Experiment(settings)
        _warn(built)
        show_plan(built, as_json)
        return
    assert into is not None
    names = (*(log or ()), *["tensorboard"] * tensorboard)
    task = Task(into, resume, from_step, names, as_json, timeout)
    if launched and engine == "distributed":
        _as_node(settings, task)
        return
    built = _built(settings, engine)
    if engine == "simulator":
        _train(built, task, OneProcess(built.n))
        return
    from pushsum.engines.distributed.launcher import launch
    from pushsum.engines.distributed.peers import check_timeout
    from pushsum.training import newest, resuming

    check_timeout(timeout)
    try:
        code = launch(built.n, _as_node, settings, task, patience=timeout + 10)
    except Stopped as stopped:
        saved = newest(into, "distributed", built.n)
        kept = f"step {saved} is saved, go on with: {resuming(into, settings)}"
        complain(f"{stopped}; {'nothing is saved' if saved is None else kept}")
        code = STOPPED
    if code:
        raise typer.Exit(code)


def _built(settings: Config, engine: str) -> Experiment:
    from pushsum.experiment import Experiment

    built = Experiment(settings)
    if engine == "distributed" and built.faults is not None:
        raise ValueError("faults are simulated: leave them out, or run --engine simulator")
    return built


def _to_resume(into: Path, path: Path | None, overrides: list[str]) -> Path:
    """The configuration of the run in a directory, of which little may change."""
    from pushsum.config import LENGTH

    if path is not None or any(word.partition("=")[0] not in LENGTH for word in overrides):
        raise ValueError(
            "--resume takes the configuration of the run: leave the others out (only "
            f"{' and '.join(LENGTH)} may change)"
        )
    if not (into / "config.yaml").exists():
        raise ValueError(f"{into} holds no run to resume")
    return into / "config.yaml"


class Task(NamedTuple):
    """What a run is to do with its directory."""

    into: Path
    resume: bool
    from_step: int | None
    loggers: tuple[str, ...]
    as_json: bool
    timeout: float


def _as_node(settings: Config, task: Task, meeting: Meeting | None = None) -> None:
    """One of the processes of a run; how it ends is one line of its own."""
    from pushsum import training
    from pushsum.engines.distributed.peers import PeerLost, Peers, take_own_device
    from pushsum.engines.distributed.runtime import Failed, Processes
    from pushsum.experiment import Experiment

    def last_words(why: str) -> None:
        saved = training.newest(task.into, "distributed", settings.topology.nodes)
        command = training.resuming(task.into, settings, "distributed")
        kept = f"last checkpoint: step {saved}; go on with: {command}"
        complain(
            f"node {os.environ['RANK']}: {why}; "
            f"{'nothing is saved, so start again' if saved is None else kept}"
        )

    peers: Peers | None = None
    try:
        take_own_device()
        peers = Peers(task.timeout, meeting)
        built = Experiment(settings)
        if peers.n != built.n:
            raise ValueError(f"topology.nodes = {built.n}, but there are {peers.n} processes")
        facts = {
            **settings.model_dump(mode="json"),
            "resume": task.resume,
            "from_step": task.from_step,
            **{name: value for name, value in built.meta().items() if name in COMMON},
        }
        _train(built, task, Processes(peers, facts, last_words))
        code = 0
    except typer.Exit as end:
        code = end.exit_code
    except PeerLost as problem:
        last_words(str(problem))
        code = 1
    except Failed:
        code = 2  # node 0 has said why
    except (ValueError, OSError) as problem:
        if peers is not None:
            peers.announce_failure(f"node {peers.rank} gave up: {problem}")
            peers.leave(0)
        alone = peers is None or peers.rank == 0
        complain(f"{problem}" if alone else f"node {os.environ['RANK']}: {problem}")
        code = 2
    sys.stdout.flush()
    os._exit(code)  # threads of a broken process group would keep the process


def _usual_engine() -> str:
    """Whoever starts several processes wants them to be the nodes."""
    return "distributed" if os.environ.get("WORLD_SIZE", "1") != "1" else "simulator"


def _engine_of(into: Path | None) -> str:
    """That which made the run in a directory."""
    from pushsum import files
    from pushsum.reading import MOST_META, json_value

    try:
        path = (into or Path()) / "meta.json"
        engine: str = json_value(files.content(path, MOST_META))["engine"]
    except (OSError, ValueError, TypeError, KeyError):
        return _usual_engine()  # what is wrong with the run is said later
    return engine


class _JsonLines:
    """Records on standard output, a line each."""

    def on_start(self, config: object, meta: object) -> None:
        pass

    def on_record(self, step: int, record: Mapping[str, Any]) -> None:
        print(json.dumps(record), flush=True)

    def on_end(self, finished: bool) -> None:
        pass


def _train(built: Experiment, task: Task, runtime: Runtime) -> None:
    """Run, with a progress bar where the first node is."""
    from pushsum import training
    from pushsum.checkpoint import Corrupt
    from pushsum.engines.runtime import STOPPED
    from pushsum.loggers import logger

    chief = runtime.nodes[0] == 0
    loggers: list[Logger] = []
    if chief:
        _warn(built)
        loggers = [logger(name, task.into) for name in dict.fromkeys(task.loggers)]
        loggers += [_JsonLines()] * task.as_json
    with progress_bar(hidden=not chief) as bar:
        shown = bar.add_task("training", total=built.steps)
        pace = Pace(bar, "step")

        def progress(step: int, record: dict[str, Any] | None) -> None:
            if not chief:
                return
            bar.update(shown, completed=step)
            pace(step, built.steps)
            if record is not None:
                say(bar, _summary(built, record))

        try:
            record = training.run(
                built,
                task.into,
                progress,
                task.resume,
                task.from_step,
                runtime,
                loggers=loggers,
            )
        except training.Stopped as stopped:
            bar.stop()
            if chief:
                complain(str(stopped))
            raise typer.Exit(STOPPED) from None
        except Corrupt as problem:
            if problem.older is None:
                raise
            command = f"{training.resuming(task.into, built.config)} --from-step {problem.older}"
            raise ValueError(f"{problem}; go on from there with: {command}") from None
    if chief and not task.as_json:
        test, had = record["test"], " had finished already:" * (pace.start is None)
        tell(f"{task.into}:{had} {', '.join(_results(built, test))}")


def _warn(built: Experiment) -> None:
    for text in built.warnings():
        warn(text)


def _results(built: Experiment, test: dict[str, Any]) -> list[str]:
    """What the task is measured by, and the loss."""
    first = built.task.headline
    loss = [] if first.name == "loss" else [f"loss {test['loss']:.4f}"]
    return [f"{first.name} {first.shown(test[first.name])}", *loss]


def _summary(built: Experiment, record: dict[str, Any]) -> str:
    nodes, first = record["nodes"], built.task.headline
    parts = [
        f"epoch {short(record['epoch'])}/{short(built.steps / built.steps_per_epoch)}",
        *_results(built, record["test"]),
    ]
    if nodes is not None:
        low, high = (nodes[first.name][key] for key in ("min", "max"))
        shown = f"{100 * low:.1f} to {100 * high:.1f} %" if first.percent else None
        parts.append(f"nodes {shown or f'{first.shown(low)} to {first.shown(high)}'}")
    if (local := record["local"]) is not None and "personal" in local:
        parts.append(f"personal {first.shown(local['personal'][first.name]['mean'])}")
    parts.append(f"distance {record['consensus']['theorem']:.3g}")
    return "  ".join(parts)


def _split(words: list[str] | None) -> tuple[Path | None, list[str]]:
    words = words or []
    refuse_bare_keys(words)
    if words and is_source(words[0]):
        path = Path(words[0])
        if not path.is_file():
            raise ValueError(f"{path}: there is no such file{_hint(words[0])}")
        return path, words[1:]
    return None, words


def _hint(word: str) -> str:
    from pushsum.sweep import recipes

    return f"; it is a recipe: pushsum sweep {word} --into runs/{word}" * (word in recipes())
