"""Checkpoints of a run: what is in them, and how a run goes on from one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from pushsum import checkpoint, files, own_code
from pushsum.config import LENGTH, Config
from pushsum.engines import tree
from pushsum.engines.engine import Moment
from pushsum.engines.runtime import Runtime
from pushsum.experiment import Experiment
from pushsum.experiment.costs import TIMES
from pushsum.names import flat, one_line
from pushsum.protocol import State
from pushsum.reading import json_value
from pushsum.training.records import MOST_RECORD
from pushsum.training.state import RunState, phases


def place(directory: Path, engine: str, node: int) -> Path:
    """Where a process keeps its checkpoints: one that is a single node has its own."""
    checkpoints = directory / "checkpoints"
    return checkpoints if engine == "simulator" else checkpoints / f"node-{node}"


def places(directory: Path, engine: str, n: int) -> list[Path]:
    """Where n nodes keep their checkpoints; up to the first that has none."""
    found = [place(directory, engine, 0)]
    while engine != "simulator" and len(found) < n and found[-1].is_dir():
        found.append(place(directory, engine, len(found)))
    return found


def resuming(directory: Path, config: Config, engine: str | None = None) -> str:
    """The command that goes on with a run; without an engine it is that of the run."""
    start = "torchrun ... -m " * ("TORCHELASTIC_RUN_ID" in os.environ)
    choice = f"--engine {engine} " if engine else ""
    trust = "--trust " * bool(own_code.named(config.values))
    return f"{start}pushsum run {choice}--resume {trust}--into {quote(str(directory))}"


def newest(directory: Path, engine: str, n: int) -> int | None:
    """The newest step that a run can go on from: all nodes have saved it."""
    first, *others = places(directory, engine, n)
    common = set(checkpoint.generations(first))
    for other in others:
        common.intersection_update(checkpoint.generations(other))
    return max(common, default=None)


def is_saved(directory: Path, n: int) -> bool:
    """Whether there is a step that a run of n nodes can go on from, whatever made it."""
    return any(newest(directory, engine, n) is not None for engine in ("simulator", "distributed"))


def never_saved(directory: Path, n: int) -> bool:
    """Whether a run ended before all of its nodes had saved step 0, which follows one record."""
    if is_saved(directory, n):
        return False
    path = directory / "records.jsonl"
    if not path.exists():
        return True
    with files.opened(path, follow=False) as file:
        return file.read(1 << 20).count(b"\n") < 2


def save(directory: Path, runtime: Runtime, experiment: Experiment, now: RunState) -> None:
    """Write a generation."""
    moment = now.moment
    trees = {
        "memory": runtime.engine(experiment.setup(now.step)).saved(moment.memory),
        "kept": tree.saved(moment.state.kept),
        "optimizer": tree.saved(moment.optimizer),
    }
    tensors = {"x": moment.state.x, "a": moment.state.a, "weights": moment.weights}
    tensors |= _under("buffers", now.buffers)
    for name, (found, _) in trees.items():
        tensors |= _under(name, found)
    about = {
        **{name: notes for name, (_, notes) in trees.items()},
        "bytes": now.bytes,
        "seconds": now.seconds,
        "modelled": now.modelled,
        "losses": now.losses,
        "config": now.config.model_dump(mode="json"),
    }
    mine = place(directory, runtime.name, runtime.nodes[0])
    checkpoint.save(mine, now.step, tensors, about)
    common = newest(directory, runtime.name, experiment.n)  # nodes save some steps apart
    if common is not None:
        checkpoint.thin_out(mine, common)


def reopen(
    directory: Path, runtime: Runtime, experiment: Experiment, from_step: int | None
) -> RunState:
    """The run as its newest checkpoint, or that of a step, has it; later records are dropped.

    What has a record is read from the records: a record may be newer than the checkpoint.
    """
    mine = place(directory, runtime.name, runtime.nodes[0])
    if from_step is None:
        from_step = _newest_of_all(mine, runtime)
    step, tensors, notes = checkpoint.load(mine, from_step)
    where = f"{mine}: the checkpoint of step {step}"
    with understood(where):
        config = _continued(experiment, step, dict(notes["config"]))
        refuse_misfit(tensors, experiment, len(runtime.nodes), where)
        now = restored_run(runtime, experiment, config, step, tensors, notes)
    runtime.all_gather([step])  # all nodes have what they need
    checkpoint.drop_after(mine, step)
    kept = runtime.on_leader(lambda: drop_records_after(directory / "records.jsonl", step))
    now.recorded, now.source = -1 if kept is None else kept, where
    return now


@contextmanager
def understood(where: str) -> Iterator[None]:
    """ValueError if what is made of a checkpoint cannot be: it may hold anything."""
    try:
        yield
    except KeyError as error:
        raise ValueError(
            f"{where} lacks {error}: it is of another version of pushsum, 0.1 perhaps (meta.json "
            "names it); go on with that one"
        ) from None
    except (TypeError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{where} is not that of such a run: {one_line(error)}") from None


def refuse_misfit(tensors: dict[str, Tensor], experiment: Experiment, n: int, where: str) -> None:
    """ValueError if what n nodes have saved is not of the experiment's network."""

    def expected() -> Iterator[tuple[str, torch.dtype, tuple[int, ...]]]:
        yield "x", experiment.dtype, (n, experiment.layout.d)
        yield "a", torch.float64, (n,)
        for name, buffer in experiment.model.named_buffers():  # which fits, so it can be made
            yield f"buffers.{name}", buffer.dtype, (n, *buffer.shape)

    for name, dtype, shape in expected():
        t = tensors[name]
        if (t.dtype, t.shape) != (dtype, shape):
            raise ValueError(
                f"{where} has {name} as {t.dtype} of shape {tuple(t.shape)}, and the configuration "
                f"makes it {dtype} of shape {shape}: put the right one back"
            )


def restored_run(
    runtime: Runtime,
    experiment: Experiment,
    config: Config,
    step: int,
    tensors: dict[str, Tensor],
    notes: dict[str, Any],
) -> RunState:
    """The run of a checkpoint."""
    tensors = {name: value.to(experiment.device) for name, value in tensors.items()}
    x, a, engine = tensors["x"], tensors["a"], runtime.engine(experiment.setup(step))
    pattern = engine.begin(x)

    def restored(name: str, like: Any) -> Any:
        return tree.restored(like, _section(tensors, f"{name}."), notes[name])

    state = State(x, a, restored("kept", pattern.state.kept))
    memory = engine.restored(_section(tensors, "memory."), notes["memory"])
    y = experiment.algorithm.model(state)
    if experiment.faults is not None:
        y[~memory.alive] = memory.ghosts  # what nodes that are away would hand out
    moment = Moment(
        step,
        state,
        y,
        restored("optimizer", pattern.optimizer),
        memory,
        x,
        tensors["weights"].cpu(),
    )
    return RunState(
        config,
        moment,
        _section(tensors, "buffers."),
        round(notes["bytes"] + 0.0),
        {phase: notes["seconds"][phase] + 0.0 for phase in phases(engine)},
        {part: notes["modelled"][part] + 0.0 for part in TIMES},
        [loss + 0.0 for loss in notes["losses"]],
    )


def _continued(experiment: Experiment, step: int, before: dict[str, Any]) -> Config:
    """The configuration to go on with: that of the checkpoint, perhaps for longer."""
    config = experiment.config
    if config.gradients == "auto":  # as it was measured when the run began
        config = config.model_copy(update={"gradients": before["gradients"]})
    was, wanted = flat(before), config.values
    for key in was | wanted:
        if key not in LENGTH and was.get(key) != wanted.get(key):
            raise ValueError(
                f"{key} = {wanted.get(key)}, but the run began with {was.get(key)}: set it back "
                f"(only {' and '.join(LENGTH)} may change), or start another run"
            )
    if experiment.steps < step:
        raise ValueError(
            f"the run has taken {step} steps already, and is to have {experiment.steps}: raise "
            f"{' or '.join(LENGTH)}, or resume from an older checkpoint with --from-step"
        )
    return config


def _newest_of_all(mine: Path, runtime: Runtime) -> int | None:
    """The newest step of which every process has a checkpoint; None: this process says why not."""
    everyone = runtime.all_gather(checkpoint.generations(mine))
    common = set.intersection(*(set(steps) for steps in everyone))
    if common:
        return max(common)
    if len(everyone) > 1:
        had = "; ".join(f"node {k}: {steps or 'none'}" for k, steps in enumerate(everyone))
        raise ValueError(f"there is no step of which every node has a checkpoint ({had})")
    return None


def drop_records_after(path: Path, step: int) -> int | None:
    """Drop the records of steps that will be taken again; the step of the last that is kept."""
    last = None
    with files.opened(path, follow=False) as file, files.appearing(path) as kept:
        for number, line in enumerate(iter(lambda: file.readline(MOST_RECORD), b""), 1):
            try:
                own = json_value(line)["step"]
                if own <= step:
                    kept.write(line.rstrip() + b"\n")
                    last = own
            except (ValueError, TypeError, KeyError):
                if not file.read(1):
                    break  # a crash cut it short
                raise ValueError(
                    f"{path}: line {number} is not a record: mend or remove it"
                ) from None
    return last


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
