"""The loop of a run: step, test, record, save, stop, go on; the same for every engine."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import yaml
from torch import Tensor

from pushsum import checkpoint, files, own_code
from pushsum.config import Config
from pushsum.engines.engine import Engine
from pushsum.engines.failing.standing import rows_of
from pushsum.engines.gradients import (
    Gradients,
    Strategy,
    fastest,
    gradients,
    unchanged_if_abandoned,
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
            _refuse_bad_state(runtime, now)
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
                _one_step(experiment, runtime, now, t + 1, compute, engine)
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


def _one_step(
    experiment: Experiment,
    runtime: Runtime,
    now: RunState,
    t: int,
    compute: Gradients,
    engine: Engine,
) -> None:
    start = perf_counter()
    asked = _Asked(experiment, runtime, now, t, compute)
    before, sent = dict(engine.seconds), engine.bytes
    with unchanged_if_abandoned(now.buffers) as buffers:
        now.moment = engine.advance(now.moment, asked, last=True)
    spent = {name: value - before[name] for name, value in engine.seconds.items()}
    assert asked.losses is not None, "a method takes a gradient in every step"
    if now.recorded == t - 1:  # not before: a record that is damaged is made again
        now.losses.clear()
    losses = asked.losses
    if experiment.faults is not None:  # who sleeps has computed nothing
        awake = now.moment.memory.awake
        losses = losses[awake.to(losses.device)] if bool(awake.any()) else losses
        for name, value in rows_of(awake, now.buffers, buffers).items():
            now.buffers[name].copy_(value)
    now.losses.append(float(losses.mean()))
    now.bytes += engine.bytes - sent
    for name, seconds in spent.items():
        now.seconds[name] += seconds
    now.seconds["gradients"] += asked.seconds
    now.seconds["total"] += perf_counter() - start
    here = len(runtime.nodes)
    modelled = experiment.costs.seconds(t, asked.seconds / here, spent["weighting"] / here)
    for name, seconds in modelled.items():
        now.modelled[name] += seconds


class _Asked:
    """The gradients of a step, on the nodes' batches; buffers are updated the first time only."""

    def __init__(
        self, experiment: Experiment, runtime: Runtime, now: RunState, t: int, compute: Gradients
    ) -> None:
        self.experiment, self.runtime, self.t, self.compute = experiment, runtime, t, compute
        moment = now.moment
        self.point = experiment.algorithm.gradient_point(moment.state, moment.y)
        if experiment.faults is not None and experiment.algorithm.point is not None:
            self.point = rows_of(moment.memory.alive, self.point, moment.y)
        self.buffers, self.seconds = now.buffers, 0.0
        self.losses: Tensor | None = None

    def __call__(self, point: Tensor | None = None) -> Tensor:
        start = perf_counter()
        batch = self.experiment.batch(self.t, self.runtime.nodes)
        if self.losses is None:
            g, self.losses = self.compute(self.point if point is None else point, batch)
        else:
            kept = {name: value.clone() for name, value in self.buffers.items()}
            g, _ = self.compute(self.point if point is None else point, batch)
            for name, value in kept.items():
                self.buffers[name].copy_(value)
        if not self.runtime.agree_to_start(self.t):  # a pass may take longer than a signal leaves
            raise Abandoned
        _refuse_infinite(self.experiment, self.runtime, g, self.losses, self.t)
        self.seconds += perf_counter() - start
        return g

    def full(self, point: Tensor) -> Tensor:
        """Of all samples of each node, without augmentation; buffers stay as they were."""
        start = perf_counter()
        kept = {name: value.clone() for name, value in self.buffers.items()}
        built, stopping = self.experiment, lambda: self.runtime.stopping
        compute = gradients("loop", built.model, built.task.loss, self.buffers, stopping)
        total, size = torch.zeros_like(point), built.config.evaluation.batch
        for batch, shares in built.sampler.everything(built.feed, self.runtime.nodes, size):
            g, _ = compute(point, batch)
            total += shares[:, None].to(g) * g
        for name, value in kept.items():
            self.buffers[name].copy_(value)
        self.seconds += perf_counter() - start
        return total


def _refuse_bad_state(runtime: Runtime, now: RunState) -> None:
    """A step may leave the finite numbers although its gradient was finite."""
    x = now.moment.state.x
    if bool(x.sum(1).isfinite().all()) or bool(x.isfinite().all()):
        return
    node = runtime.nodes[int((~x.isfinite().all(1)).nonzero()[0])]
    raise Diverged(
        f"node {node} diverged at step {now.step}: its parameters are not finite; try a smaller "
        "algorithm.lr (the last checkpoint is kept)"
    )


def _refuse_infinite(
    experiment: Experiment, runtime: Runtime, g: Tensor, losses: Tensor, t: int
) -> None:
    if bool(losses.isfinite().all()) and bool(g.sum(1).isfinite().all()):
        return
    for row, node in enumerate(runtime.nodes):
        if not bool(losses[row].isfinite()):
            where = "its loss"
        elif not bool(g[row].isfinite().all()):
            views = experiment.layout.views(g[row])
            where = "the gradient of " + next(k for k, v in views.items() if not v.isfinite().all())
        else:
            continue
        raise Diverged(
            f"node {node} diverged at step {t}: {where} is not finite; try a smaller algorithm.lr "
            "(the last checkpoint is kept)"
        )
