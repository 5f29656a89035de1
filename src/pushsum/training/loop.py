"""The loop of a run: step, test, record, save, stop, go on; the same for every engine."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from pushsum import checkpoint, files, own_code
from pushsum.config import Config
from pushsum.engines.gradients import (
    Strategy,
    fastest,
    gradients,
)
from pushsum.engines.memory import keep_freed_memory
from pushsum.engines.runtime import Abandoned, OneProcess, Runtime, Stopped
from pushsum.experiment import Experiment, environment
from pushsum.experiment.costs import TIMES
from pushsum.loggers import Logger
from pushsum.names import one_line
from pushsum.reading import MOST_META, json_value
from pushsum.training import saving
from pushsum.training.records import Diverged, last_record, record
from pushsum.training.state import RunState, phases
from pushsum.training.step import one_step, refuse_bad_state

Progress = Callable[[int, dict[str, Any] | None], None]  #: (step, record or None)


def run(
    experiment: Experiment,
    directory: Path,
    progress: Progress = lambda step, line: None,
    resume: bool | None = False,
    from_step: int | None = None,
    runtime: Runtime | None = None,
    notes: Mapping[str, Any] | None = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, Any]:
    """Run, or go on; returns the last record. Raises `Stopped` when told to stop.

    Args:
        experiment: what to run.
        directory: where its files are; no other process may be at work there.
        progress: called after every step.
        resume: go on with the run in the directory; None: if it holds one.
        from_step: from this checkpoint, not from the newest.
        runtime: where the nodes live; None: all in this process.
        notes: what meta.json says besides, of a run that begins.
        loggers: who else is told of the records; where the first node is.
    """
    with ExitStack() as held:
        here = held.enter_context(runtime or OneProcess(experiment.n))
        keep_freed_memory(4 * len(here.nodes) * experiment.layout.d)
        if here.on_leader(lambda: _claimed(directory, experiment.config, resume, held)):
            meta = here.on_leader(lambda: _stored_meta(directory, experiment, here))
            now = saving.reopen(directory, here, experiment, from_step)
            meta |= {"finished": False, "diverged": None, "steps": experiment.steps}
            meta["resumed"].append({"step": now.step} | environment())
        else:
            now = _begun(experiment, here)
            how = "all-reduce" if here.engine(experiment.setup(0)).collective else "messages"
            about = {"engine": here.name, "exchange": how, **(notes or {})}
            meta = here.on_leader(lambda: experiment.meta() | about)
        try:
            here.on_leader(lambda: _write_about(directory, now.config, meta))
            told = held.enter_context(_told(loggers, now.config, meta, progress))
            return _go_on(experiment, here, directory, meta, now, told)
        except Diverged as problem:
            _write_meta(directory, meta | {"diverged": str(problem)})
            raise
        except BrokenPipeError:  # whoever reads what progress prints has seen enough
            raise
        except OSError as error:
            saved = saving.newest(directory, here.name, experiment.n)
            kept, then = "nothing is saved yet", "start again"
            if saved is not None:
                kept = f"step {saved} is saved and intact"
                then = f"go on with: {saving.resuming(directory, experiment.config)}"
            raise OSError(
                f"cannot write to {directory} ({error.strerror or error}): {kept}; make room, "
                f"then {then}"
            ) from None


def in_memory(experiment: Experiment, progress: Progress = lambda step, line: None) -> RunState:
    """Run, all nodes in this process, without a file; what there is at the end."""
    here = OneProcess(experiment.n)
    now = _begun(experiment, here)
    _go_on(experiment, here, None, {}, now, progress)
    return now


@contextmanager
def _told(
    loggers: Sequence[Logger], config: Config, meta: dict[str, Any], progress: Progress
) -> Iterator[Progress]:
    """Progress, of which the loggers hear the records."""

    def told(step: int, line: dict[str, Any] | None) -> None:
        progress(step, line)
        if line is not None:
            for logger in loggers:
                logger.on_record(step, line)

    try:
        for logger in loggers:
            try:
                logger.on_start(config.model_dump(mode="json"), meta)
            except Exception as error:  # of somebody else's service
                name = type(logger).__name__
                raise ValueError(f"{name} cannot be told of the run: {one_line(error)}") from error
        yield told
    finally:
        for logger in loggers:
            logger.on_end(meta["finished"])


def _claimed(directory: Path, c: Config, resume: bool | None, held: ExitStack) -> bool:
    """Whether to go on with the run in the directory, which is this process's until it ends.

    One that died before it had saved anything has nothing to go on from, and starts again.
    """
    about = [directory / name for name in ("meta.json", "records.jsonl")]
    there = any(os.path.lexists(path) for path in about)  # also as a link that leads nowhere
    there = there or saving.is_saved(directory, c.topology.nodes)  # or it would go on from these
    if resume and not there and not (directory / "config.yaml").exists():
        raise ValueError(f"{directory} holds no run to resume")
    directory.mkdir(parents=True, exist_ok=True)
    held.enter_context(files.alone(directory / ".lock"))
    if not there:  # the directory may be anybody's
        return False
    files.remove_drafts(directory)
    checkpoint.remove_incomplete(directory / "checkpoints")
    if saving.never_saved(directory, c.topology.nodes):
        for place in directory.glob("checkpoints/node-*"):
            checkpoint.drop_after(place, -1)
        for path in about:
            path.unlink(missing_ok=True)
        return False
    if resume is False:
        raise ValueError(
            f"{directory} holds a run already: name another directory, or go on with: "
            f"{saving.resuming(directory, c)}"
        )
    return True


def _begun(experiment: Experiment, runtime: Runtime) -> RunState:
    """Before step 1."""
    config = experiment.config
    if config.gradients == "auto":
        try:
            strategy = runtime.on_leader(lambda: measured(experiment, runtime))
        except Abandoned:
            raise Stopped("stopped before step 1; nothing is saved, so start again") from None
        config = config.model_copy(update={"gradients": strategy})
    engine = runtime.engine(experiment.setup(0))
    return RunState(
        config,
        engine.begin(experiment.start()[list(runtime.nodes)]),
        experiment.start_buffers(len(runtime.nodes)),
        0,
        dict.fromkeys(phases(engine), 0.0),
        dict.fromkeys(TIMES, 0.0),
        [],
    )


def measured(experiment: Experiment, runtime: Runtime) -> Strategy:
    """The fastest way to compute the gradients of the nodes that live here."""
    y, batch = experiment.start()[list(runtime.nodes)], experiment.batch(1, runtime.nodes)
    stopping = lambda: runtime.stopping
    return fastest(experiment.model, experiment.task.loss, y, batch, stopping=stopping)[0]


def _stored_meta(directory: Path, experiment: Experiment, runtime: Runtime) -> dict[str, Any]:
    path = directory / "meta.json"
    try:
        meta = json_value(files.content(path, MOST_META))
        data, code = meta["data_sha256"], dict(meta.get("code_sha256", {}))
        engine, meta["resumed"] = meta.get("engine", "simulator"), list(meta.get("resumed", ()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}): put the right one back, or "
            "start another run"
        ) from None
    if engine != runtime.name:
        raise ValueError(
            f"the run was made by the {engine} engine: go on with: "
            f"{saving.resuming(directory, experiment.config, engine)}"
        )
    changed = [experiment.config.data.name] if data != experiment.data_sha256() else []
    for file, digest in own_code.hashes(experiment.config.values).items():
        changed += [file] if code.get(file, digest) != digest else []
    if changed:
        raise ValueError(
            f"{changed[0]} has changed since the run began: put the file back, or start another run"
        )
    found: dict[str, Any] = meta
    return found


def _write_about(directory: Path, config: Config, meta: dict[str, Any]) -> None:
    """The files that say what a run is."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    files.write(directory / "config.yaml", text.encode())
    _write_meta(directory, meta)
    (directory / "records.jsonl").touch()


def _write_meta(directory: Path, meta: dict[str, Any]) -> None:
    files.write(directory / "meta.json", json.dumps(meta, indent=1).encode())


def _go_on(
    experiment: Experiment,
    runtime: Runtime,
    directory: Path | None,
    meta: dict[str, Any],
    now: RunState,
    progress: Progress,
) -> dict[str, Any]:
    c = now.config
    assert c.gradients != "auto"
    compute = gradients(
        c.gradients, experiment.model, experiment.task.loss, now.buffers, lambda: runtime.stopping
    )
    engine = runtime.engine(experiment.setup(now.step))
    saving_interval = c.checkpoint * experiment.steps_per_epoch
    last_saved = -1 if now.step == 0 else now.step
    line: dict[str, Any] = {}

    due = when_to_record(experiment)
    while True:
        t = now.step
        if due(t) or t % saving_interval == 0:
            refuse_bad_state(runtime, now)
        unfinished = due(t) and now.recorded != t
        if unfinished:
            try:
                line = record(experiment, runtime, directory, now)
            except Abandoned:
                pass  # the loop ends below; the record is made after resuming
            else:
                progress(t, line)
                unfinished = False
        ends = t == experiment.steps
        stops = unfinished or (not ends and runtime.stopping and not runtime.agree_to_start(t + 1))
        due_to_save = last_saved != t and (t % saving_interval == 0 or ends or stops)
        if directory is not None and due_to_save:
            saving.save(directory, runtime, experiment, now)
            last_saved = t
        if stops:
            assert directory is not None
            raise Stopped(f"saved step {t}; go on with: {saving.resuming(directory, c)}")
        if ends:
            break
        try:
            with saving.understood(now.source) if now.source else nullcontext():
                one_step(experiment, runtime, now, t + 1, compute, engine)
        except Abandoned:
            continue  # nothing has changed: save, and stop
        now.source = ""
        if experiment.began(now.step) == now.step:
            engine = runtime.engine(experiment.setup(now.step))
            now.moment = engine.begin(now.moment.y)
        progress(now.step, None)
    if directory is None:
        return line
    meta["finished"] = True
    runtime.on_leader(lambda: _write_meta(directory, meta))
    return line or last_record(directory)


def when_to_record(experiment: Experiment) -> Callable[[int], bool]:
    """(t) -> whether there is a record after step t: every so many epochs, and at the end.

    If all of them fell on the same few graphs of a cycle, they would tell of these alone. So
    the records of every further round through the graphs that they fall on come an exchange later.
    """
    c = experiment.config
    interval = max(1, round(c.evaluation.every * experiment.steps_per_epoch))
    if c.published.test_before:
        return lambda t: t % interval == 0 and t != experiment.steps
    every = c.algorithm.every
    cycle = (experiment.graphs.cycle or experiment.graphs.period) * every
    common = math.gcd(interval, cycle)

    def due(t: int) -> bool:
        number, later = divmod(t, interval)
        rounds = number // (cycle // common)
        return later == every * (rounds % -(-common // every)) or t == experiment.steps

    return due
