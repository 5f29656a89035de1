"""Many runs from one file: a recipe, a grid, or both; finished cells are never run again.

A recipe is a configuration with a section `sweep`:

    sweep:
      cells: [{algorithm.name: SGP}, {algorithm.name: SGAP, algorithm.weighting: "lazy:c=0.5"}]
      grid: {topology.name: [full, divide], seed: [0, 1, 2]}

Every cell is tried with every combination of the grid, whose last key changes fastest. An override
of a key in which the cells differ chooses among them; any other changes the grid, or all cells.
`sweep: NAME` takes the section of a recipe that comes with the package.

    sweep:
      tune: {algorithm.lr: [0.01, 0.03, 0.1]}

tries every value with the first seed of every cell, and runs all of its seeds with the one that is
best on samples that nobody trains on (`data.validation`). Methods compare by what each of them can
do, not by which of them likes a step size that all share.
"""

import itertools
import json
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.resources import files as packaged
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from pushsum import files, measures, training
from pushsum.checks import is_number
from pushsum.config import Config, mapping, parse, set_value
from pushsum.engines.gradients import Strategy
from pushsum.engines.parent import (
    ask_to_end,
    end_with_parent,
    interrupts_held_back,
    one_import_for_all,
)
from pushsum.engines.runtime import OneProcess
from pushsum.experiment import Experiment
from pushsum.methods import MOMENTUM
from pushsum.names import counted, one_line
from pushsum.reading import MOST_META, json_value, yaml_value

MOST_CELLS = 10_000  #: of a sweep
TRIALS = ".tune"  #: below a sweep's directory; reports pass it over
HELD_OUT = 0.1  #: the part of the training data to choose by, unless `data.validation` says another

Progress = Callable[["Cell", str], None]  #: (cell, 'started' | 'skipped' | 'finished' | reason)
Within = Callable[["Cell", int, int], None]  #: (cell, step, steps)


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str  #: also the name of its directory
    config: Config
    tune: "Tune | None" = None  #: what is chosen before it runs
    trials: "tuple[Cell, ...]" = ()  #: what it is chosen by, a run for each value
    notes: Mapping[str, Any] = field(default_factory=dict)  #: what its meta.json says besides


@dataclass(frozen=True)
class Tune:
    """A key of the configuration, and the values to choose among."""

    key: str
    values: tuple[Any, ...]


def recipes() -> list[str]:
    """The recipes that come with the package."""
    folder = packaged("pushsum") / "recipes"
    return sorted(
        p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")
    )


def read(
    source: str | None,
    overrides: Sequence[str] = (),
    trust: bool = False,
    tune: str | None = None,
) -> list[Cell]:
    """The cells of a recipe (by name or path) with overrides; `key=a,b,c` adds to the grid.

    What the overrides name as `FILE.py:name` may be run; what the recipe names only with `trust`.
    `tune`, also `key=a,b,c`, is what each cell chooses for itself; see `Tune`.
    """
    content, typed = _content(source), list[Any]()
    plan = content.pop("sweep", None) or {}
    if isinstance(plan, str):  # a recipe's; a file of somebody else names no other files
        if plan not in recipes():
            raise ValueError(f"sweep: {one_line(plan)} is not a recipe ({', '.join(recipes())})")
        plan = _content(plan).get("sweep") or {}
    cells, grid, tuned = _plan(source, plan)
    if tune is not None:
        tuned = Tune(*_values("--tune", tune))
        typed += tuned.values
    if tuned is not None:  # what a recipe's cells have is replaced
        grid.pop(tuned.key, None)
        cells = [{key: cell[key] for key in cell if key != tuned.key} for cell in cells]
    for override in overrides:
        key, values = _values("override", override)
        if tuned is not None and key == tuned.key:
            raise ValueError(f"override {override!r}: {key} is tuned: leave one of the two out")
        typed += values
        if any(key in cell for cell in cells):  # what the cells differ in is chosen, not changed
            wanted = {str(value).lower() for value in values}
            cells = [c for c in cells if key in c and str(c[key]).lower() in wanted]
            if not cells:
                raise ValueError(f"override {override!r}: no cell of the recipe has that value")
        else:
            grid[key] = list(values)
    found = list(_with_trials(_cells(content, cells, grid, trust or typed, tuned)))
    if tuned is not None and any(cell.config.data.validation == 0 for cell in found):
        raise ValueError("data.validation = 0: tuning needs samples to choose by: leave it out")
    return found


def _values(what: str, text: str) -> tuple[str, tuple[Any, ...]]:
    """`key=a,b,c` -> the key and its values."""
    key, equals, values = text.partition("=")
    if not equals:
        raise ValueError(f"{what} {text!r}: write key=value, or key=a,b,c for a grid")
    try:
        return key, tuple(yaml_value(value) for value in alternatives(values))
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None


def _plan(
    source: str | None, plan: Any
) -> tuple[list[dict[str, Any]], dict[str, list[Any]], Tune | None]:
    """The cells, the grid and what is tuned of a section `sweep`."""
    if not isinstance(plan, dict) or plan.keys() - {"cells", "grid", "tune"}:
        raise ValueError(f"{source}: the section sweep holds `cells`, `grid` and `tune` only")
    cells, grid = plan.get("cells") or [{}], plan.get("grid") or {}
    if not (isinstance(cells, list) and all(_keyed(cell) for cell in cells)):
        raise ValueError(f"{source}: sweep.cells is a list such as [{{algorithm.name: SGP}}]")
    if not (_keyed(grid) and all(isinstance(values, list) for values in grid.values())):
        raise ValueError(f"{source}: sweep.grid holds a list for every key, such as seed: [0, 1]")
    tune = plan.get("tune") or {}
    lists = _keyed(tune) and all(isinstance(values, list) and values for values in tune.values())
    if not lists or len(tune) > 1:
        raise ValueError(
            f"{source}: sweep.tune holds a list for one key, such as algorithm.lr: [0.01, 0.1]"
        )
    chosen = [Tune(key, tuple(values)) for key, values in tune.items()]
    return list(cells), dict(grid), chosen[0] if chosen else None


def _keyed(section: Any) -> bool:
    return isinstance(section, dict) and all(isinstance(key, str) for key in section)


def _content(source: str | None) -> dict[str, Any]:
    """The mapping that a recipe's name or a file stands for."""
    if source is None:
        return {}
    if source in recipes():
        return mapping(packaged("pushsum") / "recipes" / f"{source}.yaml")
    if Path(source).is_file():
        return mapping(Path(source))
    raise ValueError(f"{source}: neither a file nor a recipe ({', '.join(recipes())})")


def _cells(
    content: dict[str, Any],
    cells: Sequence[Mapping[str, Any]],
    grid: Mapping[str, Sequence[Any]],
    trust: bool | Sequence[Any],
    tune: Tune | None,
) -> Iterator[Cell]:
    count = len(cells) * math.prod(map(len, grid.values()))
    if count > MOST_CELLS:
        raise ValueError(f"the sweep has {count:,} cells, more than {MOST_CELLS:,}: split it")
    names = set()
    for values in itertools.product(*grid.values()):
        for cell in cells:
            chosen = {**cell, **dict(zip(grid, values, strict=True))}
            whole = deepcopy(content)
            for key, value in chosen.items():
                set_value(whole, key, value)
            if tune is not None:
                set_value(whole, tune.key, tune.values[0])
                held_out = whole.setdefault("data", {})
                if isinstance(held_out, dict):  # what else it may be is refused below
                    held_out.setdefault("validation", HELD_OUT)
            told = [key for key in chosen if key in cell or len(grid[key]) > 1]
            name = "_".join(_word(key, chosen[key]) for key in told) or "run"
            if name in names:
                raise ValueError(f"two cells of the sweep are called {name}")
            names.add(name)
            yield Cell(name, parse(whole, trust), tune)


# --------------------------------------------------------------------------- tuning


def trials(cells: Sequence[Cell]) -> list[Cell]:
    """What is tried before the cells run, each once."""
    return list({trial.name: trial for cell in cells for trial in cell.trials}.values())


def tuned(cells: Sequence[Cell], into: Path) -> Iterator[Cell | str]:
    """The cells with what the finished trials have chosen; the reason instead, if they have not."""
    for cell in cells:
        if cell.tune is None:
            yield cell
            continue
        chosen = _choice(cell, cell.tune, into)
        yield chosen if isinstance(chosen, str) else _as_chosen(cell, *chosen)


def _with_trials(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Each value, with the first seed of cells that differ in their seeds only.

    A cell has its trials from the whole sweep, so that they are the same if some of it is run.
    """
    known: dict[str, tuple[Cell, ...]] = {}
    for cell in cells:
        if cell.tune is None:
            yield cell
            continue
        alike = cell.config.model_copy(update={"seed": 0}).model_dump_json()
        if alike not in known:
            known[alike] = tuple(_trials(cell, cell.tune))
        yield replace(cell, trials=known[alike])


def _trials(cell: Cell, tune: Tune) -> Iterator[Cell]:
    for value in tune.values:
        name = f"{cell.name}_{_word(tune.key, value)}"
        yield Cell(name, cell.config.changed(tune.key, value))


def _choice(cell: Cell, tune: Tune, into: Path) -> tuple[dict[str, Any], Config] | str:
    """What a cell's trials say: what to note, and the configuration of the best; or why nothing."""
    tried: list[tuple[Any, dict[str, float] | None]] = []
    for value, trial in zip(tune.values, cell.trials, strict=True):
        directory = into / TRIALS / trial.name
        if not _finished(directory) and not _diverged(directory):
            return f"{tune.key}={value} was not tried to the end"
        tried.append((value, _validation(directory) if _finished(directory) else None))
    found = [validation for _, validation in tried if validation is not None]
    if not found:
        return f"no value of {tune.key} that was tried ends in finite numbers: try smaller ones"
    measure = measures.told(_meta(into / TRIALS / cell.trials[0].name, "measure"))

    def worth(position: int) -> tuple[float, float]:
        v = tried[position][1] or {}
        value, loss = v.get(measure.name), v.get("loss")
        if value is None or loss is None:
            return -math.inf, -math.inf
        return measure.better * value, -loss

    best = max(range(len(tried)), key=worth)  # the first of equals
    note = {
        "key": tune.key,
        "tried": [[value, None if v is None else v.get(measure.name)] for value, v in tried],
        "measure": measure.name,
        "chosen": tried[best][0],
        "seed": cell.trials[0].config.seed,
    }
    directory = into / TRIALS / cell.trials[best].name
    stored = _stored(directory)
    if stored is None:
        return f"{directory}: its config.yaml is damaged: remove the trial"
    return note, stored


def _validation(directory: Path) -> dict[str, float]:
    """What a finished trial has reached on the samples to choose by, where that is a number."""
    match training.last_record(directory):
        case {"validation": dict(found)}:
            return {key: value for key, value in found.items() if is_number(value)}
    raise ValueError(f"{directory}: its last record has no validation: remove the trial")


def _as_chosen(cell: Cell, note: dict[str, Any], best: Config) -> Cell:
    """A cell with what was chosen; gradients computed as in the trial, for they may round."""
    config = cell.config.changed(note["key"], note["chosen"])
    if config.gradients == "auto":
        config = config.model_copy(update={"gradients": best.gradients})
    return Cell(cell.name, config, notes={"tune": note})


def warnings(cells: Sequence[Cell]) -> list[str]:
    """What is allowed in a comparison, but probably not meant."""
    farthest: dict[float, dict[float, str]] = {}  # step size -> momentum -> a method
    for cell in cells:
        c = cell.config.algorithm
        if cell.tune is None and c.optimizer is None:
            momentum = c.momentum if c.name in MOMENTUM else 0.0
            farthest.setdefault(c.lr, {}).setdefault(momentum, c.name)
    found = []
    for lr, methods in farthest.items():
        low, high = min(methods), max(methods)
        if low != high:
            times = (1 - low) / (1 - high)
            found.append(
                f"{methods[low]} and {methods[high]} share algorithm.lr={lr:g}, and momentum "
                f"{high:g} moves {times:.3g} times as far: give {methods[high]} {lr / times:.3g}, "
                "or each its own by --tune algorithm.lr=A,B,C"
            )
    return found


# --------------------------------------------------------------------------- running


def run(
    cells: Sequence[Cell],
    into: Path,
    jobs: int,
    progress: Progress,
    slurm: Mapping[str, Any] | None = None,
    within: Within = lambda cell, step, steps: None,
) -> list[str]:
    """Run what is not finished; the names of the cells that failed.

    Nothing is run, but a ValueError raised, if a cell has begun with another configuration.

    `within` is told of every step of the cells that run in this process, one after the other.

    With `slurm` (parameters of submitit, e.g. slurm_partition) each cell is a job of the cluster,
    at most `jobs` at a time; where there is no Slurm, submitit runs them here.

    `gradients: auto` is measured once for all cells that compute alike, except by Slurm's, whose
    machines are others: name a strategy there.

    What is tuned is tried first; the trials stay in `TRIALS` below the directory.
    """
    if tries := trials(cells):
        _run(tries, into / TRIALS, jobs, progress, slurm, within, trial=True)
    ready, failed = [], []
    for cell, chosen in zip(cells, tuned(cells, into), strict=True):
        if isinstance(chosen, str):
            progress(cell, chosen)
            failed.append(cell.name)
        else:
            ready.append(chosen)
    return failed + _run(ready, into, jobs, progress, slurm, within)


def _run(
    cells: Sequence[Cell],
    into: Path,
    jobs: int,
    progress: Progress,
    slurm: Mapping[str, Any] | None,
    within: Within,
    trial: bool = False,
) -> list[str]:
    _refuse_others(cells, into)
    waiting, failed = [], []
    for cell in cells if slurm is not None else _settled(cells, into, jobs):
        if _finished(into / cell.name) or (trial and _diverged(into / cell.name)):
            progress(cell, "skipped")
        else:
            waiting.append(cell)

    def ended(cell: Cell, outcome: str) -> None:
        progress(cell, outcome)
        if outcome != "finished":
            failed.append(cell.name)

    if slurm is not None:
        for cell, outcome in _on_slurm(waiting, into, jobs, slurm):
            ended(cell, outcome)
    elif jobs == 1:
        for cell in waiting:
            progress(cell, "started")
            ended(cell, run_cell(cell, into / cell.name, within))
    else:
        _side_by_side(waiting, into, jobs, ended)
    return failed


def _side_by_side(
    cells: Sequence[Cell], into: Path, jobs: int, ended: Callable[[Cell, str], None]
) -> None:
    """Each cell in a process of its own: none takes another down, none begins after a signal."""
    waiting = list(reversed(cells))
    running: dict[Connection, tuple[Cell, BaseProcess]] = {}
    with _noted_signals() as signals:
        context = one_import_for_all("pushsum.sweep")
        try:
            while waiting or running:
                while waiting and len(running) < jobs and not signals:
                    cell = waiting.pop()
                    answer, theirs = context.Pipe(duplex=False)
                    given = cell, into / cell.name, theirs
                    process: BaseProcess = context.Process(target=_alone, args=given)
                    with interrupts_held_back():
                        process.start()
                    running[answer] = cell, process
                    theirs.close()  # the process has its own; now its end is the pipe's end
                wait(running, timeout=0.5)
                if signals:
                    raise KeyboardInterrupt
                for answer in [answer for answer in running if answer.poll()]:
                    cell, process = running.pop(answer)
                    ended(cell, _outcome(answer, process))
        finally:
            _stop([process for _, process in running.values()], signals)
            for answer in running:
                answer.close()


def _stop(processes: Sequence[BaseProcess], signals: Sequence[int]) -> None:
    """Let processes save what they have; a second SIGINT does not wait for that."""
    for process in processes:
        ask_to_end(process)
    while any(process.is_alive() for process in processes) and signals.count(signal.SIGINT) < 2:
        wait([process.sentinel for process in processes if process.is_alive()], timeout=0.5)
    for process in processes:
        process.kill()
        process.join()


def _alone(cell: Cell, directory: Path, answer: Connection) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    answer.send(run_cell(cell, directory))


def _outcome(answer: Connection, process: BaseProcess) -> str:
    try:
        outcome = str(answer.recv())
    except EOFError:
        outcome = ""
    answer.close()
    process.join()
    return outcome or f"its process ended with exit code {process.exitcode}"


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """The signals to stop that have arrived: an exception might come while a process starts."""
    arrived: list[int] = []
    note = lambda number, frame: arrived.append(number)
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_cell(cell: Cell, directory: Path, within: Within = lambda cell, step, steps: None) -> str:
    """Run or go on with one cell: 'finished', or why it is not."""
    try:
        built = Experiment(cell.config)

        def progress(step: int, record: object) -> None:
            within(cell, step, built.steps)

        training.run(built, directory, progress, resume=None, notes=cell.notes)
    except training.Stopped as stopped:
        if multiprocessing.parent_process() is None:
            raise
        return str(stopped)
    except (ValueError, OSError, RuntimeError) as error:
        return one_line(error)
    except Exception as error:  # a fault of ours, or of what the user plugged in: one cell's
        return " ".join(f"{type(error).__name__}: {error}".split())
    return "finished"


def _on_slurm(
    cells: Sequence[Cell], into: Path, jobs: int, parameters: Mapping[str, Any]
) -> Iterator[tuple[Cell, str]]:
    try:
        import submitit
    except ImportError:
        raise ValueError(
            "--slurm needs the extra: pip install -c constraints.txt '.[slurm]'"
        ) from None
    executor = submitit.AutoExecutor(folder=into / "slurm")
    try:
        executor.update_parameters(slurm_array_parallelism=jobs, **parameters)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"--slurm: {' '.join(str(error).split())}") from None
    if not cells:  # submitit warns of nothing to do
        return
    submitted = executor.map_array(run_cell, cells, [into / cell.name for cell in cells])
    for cell, job in zip(cells, submitted, strict=True):
        try:
            yield cell, job.result()
        except submitit.core.utils.UncompletedJobError as error:
            yield cell, one_line(error)[:200]


def _settled(cells: Sequence[Cell], into: Path, jobs: int) -> Iterator[Cell]:
    """The cells with their strategies chosen: strategies differ in rounding, cells should not."""
    known: dict[str, Strategy | Literal["auto"]] = {}
    stored = [_stored(into / cell.name) for cell in cells]
    for cell, before in zip(cells, stored, strict=True):
        if before is not None:
            known.setdefault(_alike(cell.config), before.gradients)
    for cell, before in zip(cells, stored, strict=True):
        if cell.config.gradients != "auto":
            yield cell
            continue
        alike = _alike(cell.config)
        if before is None and alike not in known:
            known[alike] = _measured(cell.config, jobs)
        strategy = known[alike] if before is None else before.gradients
        yield replace(cell, config=cell.config.model_copy(update={"gradients": strategy}))


def _alike(config: Config) -> str:
    """What the time of a gradient depends on."""
    c = config.model_dump(mode="json")
    uneven = config.split.kind in ("dirichlet", "quantity")  # batches may differ in size
    parts = [
        c["model"],
        c["loss"],
        c["batch"],
        c["data"],
        c["split"],
        c["device"],
        config.topology.nodes,
    ]
    return json.dumps([*parts, config.seed if uneven else None])


def _measured(config: Config, jobs: int) -> Strategy | Literal["auto"]:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if jobs == 1 else 1)
    try:
        return training.measured(Experiment(config), OneProcess(config.topology.nodes))
    except (ValueError, OSError, RuntimeError):
        return "auto"  # the cell itself will say what is wrong
    finally:
        torch.set_num_threads(threads)


def _stored(directory: Path) -> Config | None:
    """The configuration with which a cell has begun."""
    try:
        return parse(mapping(directory / "config.yaml"))
    except (OSError, ValueError):
        return None


def _refuse_others(cells: Sequence[Cell], into: Path) -> None:
    """A directory with cells of two configurations would make a report of both."""
    others = [
        f"{cell.name} has {found}"
        for cell in cells
        if (found := _difference(_stored(into / cell.name), cell.config))
        or (found := _tuned_otherwise(into / cell.name, cell.notes))
    ]
    if others:
        raise ValueError(
            f"{into} holds {counted(len(others), 'cell')} of another configuration "
            f"({others[0]}): name another --into"
        )


def _difference(stored: Config | None, config: Config) -> str | None:
    """The first key that a cell has begun with otherwise, if there is one."""
    if stored is None:
        return None
    if config.gradients == "auto":  # as it was measured when the cell began
        config = config.model_copy(update={"gradients": stored.gradients})
    was, here = stored.values, config.values
    return next(
        (
            f"{key} = {was.get(key)}, here {here.get(key)}"
            for key in was | here
            if was.get(key) != here.get(key)
        ),
        None,
    )


def _tuned_otherwise(directory: Path, notes: Mapping[str, Any]) -> str | None:
    """Whether a cell has begun with a choice among other values."""
    if not (directory / "meta.json").exists():
        return None
    alike = _meta(directory, "tune") == notes.get("tune")
    return None if alike else "been tuned among other values, or not at all"


def _finished(directory: Path) -> bool:
    return bool(_meta(directory, "finished"))


def _diverged(directory: Path) -> bool:
    return bool(_meta(directory, "diverged"))


def _meta(directory: Path, key: str) -> Any:
    """What a run's meta.json says, None if nothing."""
    try:
        return json_value(files.content(directory / "meta.json", MOST_META)).get(key)
    except (OSError, ValueError, AttributeError):
        return None


def alternatives(text: str) -> list[str]:
    """`a,b,c` -> the three; a list in brackets and `moreau:k=0.1,v=0.1` are one value.

    >>> alternatives("[8,4],[16]"), alternatives("lazy:c=1,moreau:k=1,v=0.1")
    (['[8,4]', '[16]'], ['lazy:c=1', 'moreau:k=1,v=0.1'])
    >>> alternatives("moreau(k=1, v=0.1),lazy(c=1)")
    ['moreau(k=1, v=0.1)', 'lazy(c=1)']
    """
    parts, depth = [""], 0
    for piece in text.split(","):
        goes_on = ":" in parts[-1] and "=" in piece and ":" not in piece
        if depth > 0 or goes_on:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
        depth += sum((c in "[{(") - (c in "]})") for c in piece)
    return parts[1:]


def _word(key: str, value: Any) -> str:
    """A value as a part of a name; true and false say of what."""
    text = str(value).lstrip("/")  # a name should not begin with a dash
    if isinstance(value, list | dict):
        text = "".join(c for c in json.dumps(value, default=str) if c not in '[]{}" ') or "empty"
    if isinstance(value, bool):
        text = f"{key.rpartition('.')[2]}={text.lower()}"
    return "".join(c if c.isalnum() or c in ".=-+," else "-" for c in text)
