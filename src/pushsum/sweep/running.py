"""Cells that are not finished, one after the other, side by side or on a cluster."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from pushsum import training
from pushsum.config import Config
from pushsum.engines.gradients import Strategy
from pushsum.engines.parent import (
    ask_to_end,
    end_with_parent,
    interrupts_held_back,
    one_import_for_all,
)
from pushsum.engines.runtime import OneProcess
from pushsum.experiment import Experiment
from pushsum.names import counted, one_line
from pushsum.sweep.cell import TRIALS, Cell, meta, stored
from pushsum.sweep.tuning import trials, tuned

Progress = Callable[[Cell, str], None]  #: (cell, 'started' | 'skipped' | 'finished' | reason)
Within = Callable[[Cell, int, int], None]  #: (cell, step, steps)


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
        directory = into / cell.name
        if meta(directory, "finished") or (trial and meta(directory, "diverged")):
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
    begun = [stored(into / cell.name) for cell in cells]
    for cell, before in zip(cells, begun, strict=True):
        if before is not None:
            known.setdefault(_alike(cell.config), before.gradients)
    for cell, before in zip(cells, begun, strict=True):
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
    keys = {"model", "loss", "batch", "data", "split", "device"}
    if config.split.kind in ("dirichlet", "quantity"):  # batches may differ in size
        keys.add("seed")
    return f"{config.topology.nodes} {config.model_dump_json(include=keys)}"


def _measured(config: Config, jobs: int) -> Strategy | Literal["auto"]:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if jobs == 1 else 1)
    try:
        return training.measured(Experiment(config), OneProcess(config.topology.nodes))
    except (ValueError, OSError, RuntimeError):
        return "auto"  # the cell itself will say what is wrong
    finally:
        torch.set_num_threads(threads)


def _refuse_others(cells: Sequence[Cell], into: Path) -> None:
    """A directory with cells of two configurations would make a report of both."""
    others = [
        f"{cell.name} has {found}"
        for cell in cells
        if (found := _difference(stored(into / cell.name), cell.config))
        or (found := _tuned_otherwise(into / cell.name, cell.notes))
    ]
    if others:
        raise ValueError(
            f"{into} holds {counted(len(others), 'cell')} of another configuration "
            f"({others[0]}): name another --into"
        )


def _difference(begun: Config | None, config: Config) -> str | None:
    """The first key that a cell has begun with otherwise, if there is one."""
    if begun is None:
        return None
    if config.gradients == "auto":  # as it was measured when the cell began
        config = config.model_copy(update={"gradients": begun.gradients})
    was, here = begun.values, config.values
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
    alike = meta(directory, "tune") == notes.get("tune")
    return None if alike else "been tuned among other values, or not at all"
