"""Running an experiment: one stream of records; stops and goes on bit for bit.

A run directory holds `config.yaml` (resolved), `meta.json`, `records.jsonl` and `checkpoints/`.
"""

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import torch.nn.functional as F
import yaml
from torch import Tensor

from pushsum import algorithms, checkpoint, files, protocol
from pushsum.engines.gradients import Gradients, Strategy, fastest, gradients, stacked_buffers
from pushsum.engines.simulator import Iterate, Network, Snapshot
from pushsum.experiment import Abandoned, Experiment

Progress = Callable[[int, dict[str, Any] | None], None]  #: (step, record or None)

SMALL = 16  #: up to so many nodes, records carry the whole weight matrix


class Stopped(Exception):
    """SIGINT or SIGTERM arrived; everything is saved."""


class Diverged(ValueError):
    """A loss or gradient is not finite."""


@dataclass
class Progressing:
    """What changes while a run goes on; all that a checkpoint holds."""

    step: int
    state: algorithms.State
    buffers: dict[str, Tensor]
    bytes: int
    seconds: dict[str, float]
    modelled: dict[str, float]
    losses: list[float]  #: of the steps since the last record
    recorded: int = -1  #: the last step that has a record


def run(
    experiment: Experiment,
    directory: Path,
    progress: Progress = lambda step, record: None,
    resume: bool = False,
    from_step: int | None = None,
) -> dict[str, Any]:
    """Run, or go on; returns the last record. Raises `Stopped` when told to stop."""
    records = directory / "records.jsonl"
    if resume:
        meta, now = _reopen(experiment, directory, from_step)
    else:
        if records.exists() or (directory / "meta.json").exists():
            raise ValueError(
                f"{directory} holds a run already: go on with --resume, or name another directory"
            )
        directory.mkdir(parents=True, exist_ok=True)
        x0 = experiment.start()
        now = Progressing(
            0,
            experiment.algorithm.init(x0),
            stacked_buffers(experiment.model, experiment.n),
            0,
            dict.fromkeys(("gradients", "weighting", "mixing", "evaluation", "total"), 0.0),
            dict.fromkeys(
                ("compute", "transfer", "weighting_hidden", "weighting_exposed", "total"), 0.0
            ),
            [],
        )
        meta = experiment.meta()
        strategy = experiment.config.gradients
        if strategy == "auto":
            strategy, _ = fastest(experiment.model, F.cross_entropy, x0, experiment.batch(1))
        meta["strategy"] = strategy
        text = yaml.safe_dump(experiment.config.model_dump(mode="json"), sort_keys=False)
        files.write(directory / "config.yaml", text.encode())
        _write_meta(directory, meta)
        records.touch()
    with _Signals() as signals:
        return _go_on(experiment, directory, meta, now, progress, signals)


def _go_on(
    experiment: Experiment,
    directory: Path,
    meta: dict[str, Any],
    now: Progressing,
    progress: Progress,
    signals: "_Signals",
) -> dict[str, Any]:
    c, algorithm = experiment.config, experiment.algorithm
    strategy: Strategy = meta["strategy"]
    compute = gradients(strategy, experiment.model, F.cross_entropy, now.buffers)
    network = Network(experiment.graphs, experiment.began(now.step))
    interval = c.evaluation.every * experiment.steps_per_epoch
    saving = c.checkpoint * experiment.steps_per_epoch
    last_saved = -1 if now.step == 0 else now.step
    record: dict[str, Any] = {}

    def due(t: int) -> bool:
        short = c.published.test_before and t == experiment.steps
        return (t % interval == 0 or t == experiment.steps) and not short

    while True:
        t = now.step
        if due(t) or t % saving == 0:
            _refuse_bad_state(now)
        if due(t) and now.recorded != t:
            try:
                record = _record(experiment, directory, now, lambda: signals.stop)
            except Abandoned:
                pass  # the loop ends below; the record is made after resuming
            else:
                progress(t, record)
        if last_saved != t and (t % saving == 0 or t == experiment.steps or signals.stop):
            _save(directory, now)
            last_saved = t
        if signals.stop and (t < experiment.steps or (due(t) and now.recorded != t)):
            raise Stopped(f"saved step {t}; go on with --resume")
        if t == experiment.steps:
            break
        _one_step(experiment, now, t + 1, compute, network)
        if experiment.began(now.step) == now.step:
            now.state = algorithm.init(now.state.network.y)
            network = Network(experiment.graphs, now.step)
        progress(now.step, None)
    meta["finished"] = True
    _write_meta(directory, meta)
    return record or last_record(directory)


def _one_step(
    experiment: Experiment, now: Progressing, t: int, compute: Gradients, network: Network
) -> None:
    start = perf_counter()
    batch = experiment.batch(t)
    g, losses = compute(now.state.network.y, batch)
    _refuse_infinite(experiment, g, losses, t)
    computed = perf_counter()
    spent = dict(network.seconds)
    now.state = experiment.algorithm.step(now.state, g, t, network)
    weighting_cost = network.seconds["weighting"] - spent["weighting"]
    now.step = t
    now.losses.append(float(losses.mean()))
    pushed = experiment.bytes_over(len(now.state.network.weights))
    now.bytes += pushed
    now.seconds["gradients"] += computed - start
    now.seconds["weighting"] += weighting_cost
    now.seconds["mixing"] += network.seconds["mixing"] - spent["mixing"]
    now.seconds["total"] += perf_counter() - start
    _model_time(experiment, now, computed - start, weighting_cost, pushed)


def _model_time(
    experiment: Experiment, now: Progressing, compute: float, weighting_cost: float, pushed: int
) -> None:
    """What the step would take with one machine like this per node and the configured links.

    Weights are computed while parameters are on the wire (the paper's Fig. 1): only what exceeds
    the transfer is exposed.
    """
    link, n = experiment.config.link, experiment.n
    wire = 8 * experiment.vector_bytes / (1e9 * link.gigabits) + link.latency
    transfer = wire if pushed else 0.0
    own_weighting = weighting_cost / n
    hidden = min(own_weighting, transfer)
    parts = {
        "compute": compute / n,
        "transfer": transfer,
        "weighting_hidden": hidden,
        "weighting_exposed": own_weighting - hidden,
        "total": compute / n + transfer + own_weighting - hidden,
    }
    for name, seconds in parts.items():
        now.modelled[name] += seconds


def _refuse_bad_state(now: Progressing) -> None:
    """A step may leave the finite numbers although its gradient was finite."""
    x = now.state.network.x
    if bool(x.sum(1).isfinite().all()) or bool(x.isfinite().all()):
        return
    node = int((~x.isfinite().all(1)).nonzero()[0])
    raise Diverged(
        f"node {node} diverged at step {now.step}: its parameters are not finite; try a smaller "
        "algorithm.lr (the last checkpoint is kept)"
    )


def _refuse_infinite(experiment: Experiment, g: Tensor, losses: Tensor, t: int) -> None:
    if bool(losses.isfinite().all()) and bool(g.sum(1).isfinite().all()):
        return
    for node in range(experiment.n):
        if not bool(losses[node].isfinite()):
            where = "its loss"
        elif not bool(g[node].isfinite().all()):
            views = experiment.layout.views(g[node])
            where = "the gradient of " + next(k for k, v in views.items() if not v.isfinite().all())
        else:
            continue
        raise Diverged(
            f"node {node} diverged at step {t}: {where} is not finite; try a smaller algorithm.lr "
            "(the last checkpoint is kept)"
        )


# --------------------------------------------------------------------------- records


def _record(
    experiment: Experiment, directory: Path, now: Progressing, stopping: Callable[[], bool]
) -> dict[str, Any]:
    start = perf_counter()
    x, a, y, _, _, weights = now.state.network
    result = experiment.evaluate(x, y, now.buffers, now.step, stopping)
    if not math.isfinite(result["test"]["loss"]):
        raise Diverged(
            f"the average model diverged at step {now.step}: its test loss is not finite; try a "
            "smaller algorithm.lr (the last checkpoint is kept)"
        )
    average, centre = x.double().mean(0), y.double().mean(0)
    local = now.step - experiment.began(now.step)
    small = experiment.n <= SMALL and local > 0
    now.seconds["evaluation"] += perf_counter() - start
    record = {
        "step": now.step,
        "epoch": now.step / experiment.steps_per_epoch,
        "samples": now.step * sum(min(experiment.config.batch, len(p)) for p in experiment.parts),
        "bytes": now.bytes,
        "train_loss": float(np.mean(now.losses)) if now.losses else None,
        **result,
        "consensus": {
            "theorem": float((y.double() - average).abs().sum(1).max()),
            "mean_square": float((y.double() - centre).square().sum(1).mean()),
        },
        "a": {"min": float(a.min()), "max": float(a.max())},
        "smallest_weight": float(weights.min()) if len(weights) else None,
        "seconds": dict(now.seconds),
        "modelled": dict(now.modelled),
        "weights": Iterate(local, now.state, experiment.graphs).W.tolist() if small else None,
    }
    now.losses.clear()
    now.recorded = now.step
    with (directory / "records.jsonl").open("a") as file:
        file.write(json.dumps(_finite(record), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return record


def _finite(value: Any) -> Any:
    """JSON knows no infinity: what is not finite (a node's own loss, say) becomes null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def last_record(directory: Path) -> dict[str, Any]:
    """The last whole line of a run's records."""
    lines = (directory / "records.jsonl").read_text().splitlines()
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _write_meta(directory: Path, meta: dict[str, Any]) -> None:
    files.write(directory / "meta.json", json.dumps(meta, indent=1).encode())


# --------------------------------------------------------------------------- saving, resuming


def _save(directory: Path, now: Progressing) -> None:
    network, local = now.state
    tensors = {"x": network.x, "a": network.a, "weights": network.weights}
    for position, snapshot in enumerate(network.memory or ()):
        tensors[f"memory.{position}"] = snapshot.x
    tensors |= {f"buffers.{name}": value for name, value in now.buffers.items()}
    flat, notes = _flatten(local)
    tensors |= {f"local.{name}": value for name, value in flat.items()}
    about = {
        "memory": [snapshot.step for snapshot in network.memory or ()],
        "local": notes,
        "bytes": now.bytes,
        "seconds": now.seconds,
        "modelled": now.modelled,
        "losses": now.losses,
        "recorded": now.recorded,
    }
    checkpoint.save(directory / "checkpoints", now.step, tensors, about)


def _reopen(
    experiment: Experiment, directory: Path, from_step: int | None
) -> tuple[dict[str, Any], Progressing]:
    if not (directory / "meta.json").exists():
        raise ValueError(f"{directory} holds no run to resume")
    meta: dict[str, Any] = json.loads((directory / "meta.json").read_text())
    step, tensors, notes = checkpoint.load(directory / "checkpoints", from_step)
    checkpoint.drop_after(directory / "checkpoints", step)
    meta["finished"] = False
    _write_meta(directory, meta)
    tensors = {name: value.to(experiment.device) for name, value in tensors.items()}
    x, a = tensors["x"], tensors["a"]
    memory = tuple(
        Snapshot(s, tensors[f"memory.{position}"]) for position, s in enumerate(notes["memory"])
    )
    pushed = memory[0].x if memory else x
    y = protocol.corrected(x, a)
    network = protocol.State(x, a, y, memory or None, pushed, tensors["weights"].cpu())
    pattern = experiment.algorithm.init(x).local
    local = _restored(pattern, _section(tensors, "local."), notes["local"])
    now = Progressing(
        step,
        algorithms.State(network, local),
        _section(tensors, "buffers."),
        notes["bytes"],
        notes["seconds"],
        notes["modelled"],
        notes["losses"],
        notes["recorded"],
    )
    _drop_records_after(directory / "records.jsonl", step)
    return meta, now


def _drop_records_after(path: Path, step: int) -> None:
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            break  # a line that a crash cut short
    files.write(path, "".join(kept).encode())


def _section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _flatten(local: Any, name: str = "kept") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An algorithm's own state as named tensors and JSON."""
    if hasattr(local, "saved"):
        tensors, notes = local.saved()
        return {f"{name}.{key}": value for key, value in tensors.items()}, {name: notes}
    if isinstance(local, Tensor):
        return {name: local}, {}
    found: dict[str, Tensor] = {}
    for position, part in enumerate(local or ()):
        found |= _flatten(part, f"{name}.{position}")[0]
    return found, {}


def _restored(
    pattern: Any, tensors: dict[str, Tensor], notes: dict[str, Any], name: str = "kept"
) -> Any:
    """The inverse of `_flatten`, in the shape of `pattern`."""
    if hasattr(pattern, "saved"):
        return pattern.restored(_section(tensors, f"{name}."), notes[name])
    if isinstance(pattern, Tensor):
        return tensors[name]
    if pattern is None:
        return None
    parts = [_restored(p, tensors, notes, f"{name}.{k}") for k, p in enumerate(pattern)]
    return type(pattern)(*parts)


class _Signals:
    """SIGINT and SIGTERM ask the run to stop at the next step; a second SIGINT stops at once.

    A second SIGTERM does not: a sweep passes on what its processes may have got themselves.
    """

    def __init__(self) -> None:
        self.stop = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        except ValueError:  # not the main thread: the caller handles signals
            pass
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stop = True
