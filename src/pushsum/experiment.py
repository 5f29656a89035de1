"""One configuration in, one stream of records out; stops and goes on bit for bit.

A run directory holds `config.yaml` (resolved), `meta.json`, `records.jsonl` and `checkpoints/`.
"""

import json
import math
import os
import platform
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from pushsum import (
    __version__,
    algorithms,
    batchnorm,
    checkpoint,
    data,
    files,
    models,
    protocol,
    topology,
    weighting,
)
from pushsum.config import Config
from pushsum.data import partition
from pushsum.engines.gradients import (
    Batch,
    Gradients,
    Layout,
    Strategy,
    fastest,
    gradients,
    stacked_buffers,
)
from pushsum.engines.simulator import Iterate, Network, Snapshot
from pushsum.optimizers import optimizer_rule
from pushsum.randomness import stream

Progress = Callable[[int, dict[str, Any] | None], None]  #: (step, record or None)

SMALL = 16  #: up to so many nodes, records carry the whole weight matrix


class Stopped(Exception):
    """SIGINT or SIGTERM arrived; everything is saved."""


class _Abandoned(Exception):
    """A signal came while a record was being made."""


class Diverged(ValueError):
    """A loss or gradient is not finite."""


@dataclass(frozen=True)
class Sampler:
    """Which samples a node draws at step t: a pure function, so that nothing needs saving.

    Each node goes through its own samples in a new random order per pass; the incomplete batch
    at the end of a pass is left out. A node with fewer samples than a batch uses all of them.
    """

    parts: list[np.ndarray]
    batch: int
    seed: int
    streams: list[int]  #: nodes of the same stream draw alike
    reshuffle: bool = True

    def indices(self, node: int, t: int) -> np.ndarray:
        held = self.parts[node]
        size = min(self.batch, len(held))
        pass_number, position = divmod(t - 1, len(held) // size)
        order = self._order(node, pass_number if self.reshuffle else 0)
        chosen: np.ndarray = held[order[position * size : (position + 1) * size]]
        return chosen

    def _order(self, node: int, pass_number: int) -> np.ndarray:
        draw = stream(self.seed, "batches", self.streams[node], pass_number)
        return draw.permutation(len(self.parts[node]))


class Experiment:
    """Everything that a configuration describes, built and ready to run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = _device(config.device)
        self.graphs = _topology(config)
        self.dataset = data.load(config.data.name, config.data.root)
        self.parts = _parts(config, self.dataset)
        self.model = _model(config, self.dataset).to(self.device)
        self.stopping: Callable[[], bool] = lambda: False  # asked between test batches
        self.layout = Layout.of(self.model)
        self.restarted = 0  # the step after which the algorithm last started anew
        self.algorithm = _algorithm(config, self.layout, self.rate)

    # ----------------------------------------------------------------- sizes

    @property
    def n(self) -> int:
        return self.graphs.n

    @cached_property
    def steps_per_epoch(self) -> int:
        """A node of average size has gone through its samples once."""
        held = sum(len(part) for part in self.parts)
        return max(1, held // (self.config.topology.nodes * self.config.batch))

    @cached_property
    def steps(self) -> int:
        planned = self.config.epochs * self.steps_per_epoch
        return min(planned, self.config.steps or planned)

    def rate(self, t: int) -> float:
        """The step size at step t of the algorithm, which a restart sets back to 1."""
        c, schedule = self.config.algorithm, self.config.algorithm.schedule
        epoch = (self.restarted + t - 1) / self.steps_per_epoch
        match schedule.kind:
            case "constant":
                return c.lr
            case "cosine":
                return c.lr * (1 + math.cos(math.pi * epoch / self.config.epochs)) / 2
            case "steps":
                return c.lr * schedule.factor ** sum(epoch >= m for m in schedule.milestones)

    def bytes_at(self, t: int) -> int:
        """What all nodes push at step t: d-vectors, a and w, to everybody but themselves."""
        senders, receivers = self.graphs.edges(t)
        channels = int((senders != receivers).sum())
        itemsize = next(self.model.parameters()).element_size()
        return channels * (self.algorithm.vectors * self.layout.d * itemsize + 16)

    def histogram(self) -> np.ndarray:
        """(n, classes): who holds how many samples of each label."""
        labels = self.dataset.train_y.numpy()
        return partition.histogram(self.parts, labels, self.dataset.classes)

    def meta(self) -> dict[str, Any]:
        """What stands beside a run besides its configuration."""
        certificate = self.graphs.certificate()
        steps = range(1, (self.graphs.cycle or 64) + 1)
        return {
            "pushsum": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "git": _git_hash(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "d": self.layout.d,
            "nodes": self.n,
            "classes": self.dataset.classes,
            "certificate": {
                "period": certificate.period,
                "diameter": certificate.diameter,
                "horizon": certificate.horizon,
            },
            "steps_per_epoch": self.steps_per_epoch,
            "steps": self.steps,
            "split": self.histogram().tolist(),
            "algorithm": self.algorithm.name,
            "weighting": self.algorithm.weighting.name,
            "bytes_per_step": sum(map(self.bytes_at, steps)) / len(steps),
            "strategy": None,
            "finished": False,
        }

    # ----------------------------------------------------------------- pieces of a run

    @cached_property
    def sampler(self) -> Sampler:
        c = self.config
        clusters = np.array_split(np.arange(self.n), c.split.clusters)
        of_cluster = [k for k, members in enumerate(clusters) for _ in members]
        alike = c.published.same_batches
        streams = of_cluster if alike else list(range(self.n))
        return Sampler(self.parts, c.batch, c.seed, streams, reshuffle=not alike)

    def batch(self, t: int) -> Batch:
        """What the nodes work on at step t."""
        indices = [self.sampler.indices(node, t) for node in range(self.n)]
        if len({len(chosen) for chosen in indices}) == 1 and not self.config.data.augment:
            chosen = torch.from_numpy(np.concatenate(indices))
            shape = (self.n, len(indices[0]))
            x = self._on_device(self.dataset.scaled(self.dataset.train_x[chosen]))
            targets = self.dataset.train_y[chosen].to(self.device)
            return Batch(x.unflatten(0, shape), targets.unflatten(0, shape))
        return self._batch_by_node(indices, t)

    def _batch_by_node(self, indices: list[np.ndarray], t: int) -> Batch:
        inputs, targets = [], []
        for node in range(self.n):
            chosen = torch.from_numpy(indices[node])
            x = self.dataset.scaled(self.dataset.train_x[chosen])
            if self.config.data.augment:
                draw = stream(self.config.seed, "augment", self.sampler.streams[node], t)
                seed = int(draw.integers(2**62))
                x = data.augment(x, torch.Generator().manual_seed(seed))
            inputs.append(self._on_device(x))
            targets.append(self.dataset.train_y[chosen].to(self.device))
        return Batch(inputs, targets)

    def start(self) -> Tensor:
        """(n, d): where the nodes start; all at the same point unless the configuration says so."""
        parameters = dict(self.model.named_parameters())
        x0 = self.layout.flatten(parameters).repeat(self.n, 1)
        if self.config.model.fresh_last_layer:
            last = list(_last_layer(self.model))
            for node in range(1, self.n):
                other = dict(_built(self.config, self.dataset, node).named_parameters())
                views = self.layout.views(x0[node])
                for name in last:
                    views[name].copy_(other[name].detach())
        return x0.to(self.device)

    def evaluate(self, x: Tensor, y: Tensor, buffers: dict[str, Tensor], t: int) -> dict[str, Any]:
        """Accuracy and loss of the average model, and of every node's own."""
        c = self.config.evaluation
        average = y.mean(0) if self.config.published.average_of_y else x.mean(0)
        result: dict[str, Any] = {"test": self._test(average, buffers, c.batchnorm, t)}
        result["nodes"] = None
        if c.nodes:
            own = [
                self._test(y[i], {k: b[i : i + 1] for k, b in buffers.items()}, "averaged", t)
                for i in range(self.n)
            ]
            result["nodes"] = {key: _spread([o[key] for o in own]) for key in ("accuracy", "loss")}
        return result

    def _test(
        self,
        row: Tensor,
        buffers: dict[str, Tensor],
        policy: batchnorm.BatchNormPolicy,
        t: int,
    ) -> dict[str, float]:
        frozen = {name: p.detach() for name, p in self.model.named_parameters()}
        parameters = frozen | self.layout.views(row)
        chosen = self._recompute_batches(t) if policy == "recomputed" else iter(())
        model = batchnorm.average_model(self.model, parameters, buffers, policy, chosen)
        right, loss, size = 0, 0.0, self.config.evaluation.batch
        test_x, test_y = self.dataset.test_x, self.dataset.test_y
        with torch.no_grad():
            for first in range(0, len(test_y), size):
                if self.stopping():
                    raise _Abandoned
                x = self._on_device(self.dataset.scaled(test_x[first : first + size]))
                target = test_y[first : first + size].to(self.device)
                outputs = model(x)
                loss += float(F.cross_entropy(outputs, target, reduction="sum"))
                right += int((outputs.argmax(1) == target).sum())
        return {"accuracy": right / len(test_y), "loss": loss / len(test_y)}

    def _recompute_batches(self, t: int) -> Iterator[Tensor]:
        draw = stream(self.config.seed, "recompute", t)
        everything = np.unique(np.concatenate(self.parts))
        for _ in range(self.config.evaluation.recompute_batches):
            size = min(len(everything), self.config.evaluation.batch)
            chosen = torch.from_numpy(draw.choice(everything, size, replace=False))
            yield self._on_device(self.dataset.scaled(self.dataset.train_x[chosen]))

    def _on_device(self, x: Tensor) -> Tensor:
        x = x.to(self.device)
        # convolutions on a CPU are about a third faster this way, and equal to rounding
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


@dataclass
class Progressing:
    """What changes while a run goes on; all that a checkpoint holds."""

    step: int
    restarted: int  #: the step after which the algorithm last started anew
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
        experiment.restarted = 0
        x0 = experiment.start()
        now = Progressing(
            0,
            0,
            experiment.algorithm.init(x0),
            {
                k: b.to(x0.device)
                for k, b in stacked_buffers(experiment.model, experiment.n).items()
            },
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
    compute = gradients(
        strategy, experiment.model.to(experiment.device), F.cross_entropy, now.buffers
    )
    network = Network(experiment.graphs)
    interval = c.evaluation.every * experiment.steps_per_epoch
    saving = c.checkpoint * experiment.steps_per_epoch
    restarts = {m * experiment.steps_per_epoch for m in c.algorithm.schedule.milestones}
    last_saved = -1 if now.step == 0 else now.step
    record: dict[str, Any] = {}
    experiment.stopping = lambda: signals.stop

    def due(t: int) -> bool:
        short = c.published.test_before and t == experiment.steps
        return (t % interval == 0 or t == experiment.steps) and not short

    while True:
        t = now.step
        if due(t) or t % saving == 0:
            _refuse_bad_state(experiment, now)
        if due(t) and now.recorded != t:
            try:
                record = _record(experiment, directory, now)
            except _Abandoned:
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
        if c.published.restart and now.step in restarts:
            now.state = algorithm.init(now.state.network.y)
            now.restarted = experiment.restarted = now.step
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
    local = t - now.restarted  # restarting also starts the graph sequence anew
    now.state = experiment.algorithm.step(now.state, g, local, network)
    weighting_cost = network.seconds["weighting"] - spent["weighting"]
    now.step = t
    now.losses.append(float(losses.mean()))
    pushed = experiment.bytes_at(local)
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
    vectors = experiment.algorithm.vectors * experiment.layout.d
    itemsize = next(experiment.model.parameters()).element_size()
    transfer = (8 * vectors * itemsize / (1e9 * link.gigabits) + link.latency) if pushed else 0.0
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


def _refuse_bad_state(experiment: Experiment, now: Progressing) -> None:
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


def _record(experiment: Experiment, directory: Path, now: Progressing) -> dict[str, Any]:
    start = perf_counter()
    x, a, y, _, _, weights = now.state.network
    result = experiment.evaluate(x, y, now.buffers, now.step)
    if not math.isfinite(result["test"]["loss"]):
        raise Diverged(
            f"the average model diverged at step {now.step}: its test loss is not finite; try a "
            "smaller algorithm.lr (the last checkpoint is kept)"
        )
    average, centre = x.double().mean(0), y.double().mean(0)
    small = experiment.n <= SMALL and len(weights) > 0 and now.step > now.restarted
    local = now.step - now.restarted
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
        "restarted": now.restarted,
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
    experiment.restarted = notes["restarted"]
    now = Progressing(
        step,
        notes["restarted"],
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
    """SIGINT and SIGTERM ask the run to stop at the next step; a second one stops at once."""

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
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True


# --------------------------------------------------------------------------- names -> objects


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError):
        raise ValueError(f"device = {name!r}: not available here; auto chooses") from None
    return device


def _topology(config: Config) -> topology.Topology:
    c = config.topology
    if c.name == "random":
        seed = config.seed if c.seed is None else c.seed
        alike = config.published.per_receiver
        return topology.random(c.nodes, c.inner, c.inter, c.period, seed, alike)
    makers = {
        "full": topology.full,
        "divide": topology.divide,
        "exponential": topology.exponential,
        "ring": topology.ring,
    }
    return makers[c.name](c.nodes)


def _parts(config: Config, dataset: data.Dataset) -> list[np.ndarray]:
    c, n, seed = config.split, config.topology.nodes, config.seed
    labels = dataset.train_y.numpy()
    match c.kind:
        case "clusters":
            return partition.clusters(labels, n, min(c.clusters, n), c.shared, seed)
        case "iid":
            return partition.iid(labels, n, seed)
        case "dirichlet":
            return partition.dirichlet(labels, n, c.alpha, c.minimum, seed)
        case "shards":
            return partition.shards(labels, n, c.per_node, seed)
        case "quantity":
            return partition.quantity(labels, n, c.alpha, c.minimum, seed)


def _model(config: Config, dataset: data.Dataset) -> nn.Module:
    return _built(config, dataset, 0)


def _built(config: Config, dataset: data.Dataset, node: int) -> nn.Module:
    c = config.model
    seed = int(stream(config.seed, "initialization", node).integers(2**62))
    model = models.build(
        c.name,
        tuple(dataset.train_x.shape[1:]),
        dataset.classes,
        width=c.width,
        blocks=c.blocks,
        norm=c.norm,
        stem=c.stem,
        hidden=c.hidden,
        generator=torch.Generator().manual_seed(seed),
    )
    if c.pretrained is not None:
        models.load_pretrained(model, c.pretrained)
    return model


def _last_layer(model: nn.Module) -> Iterator[str]:
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    return (name for name, _ in model.named_parameters() if name.startswith(f"{last}."))


def _algorithm(
    config: Config, layout: Layout, rate: Callable[[int], float]
) -> algorithms.Algorithm:
    c = config.algorithm
    rule = weighting.parse(c.weighting)
    if c.optimizer is not None:
        moves = optimizer_rule(c.optimizer, c.lr, c.options, rate, layout.views)
        adaptive = c.name in ("SGAP", "MSGAP")
        return algorithms.descent(c.name, moves, rule if adaptive else weighting.uniform())
    match c.name:
        case "SGP":
            return algorithms.sgp(rate)
        case "MSGP":
            return algorithms.msgp(rate, c.momentum)
        case "SGAP":
            return algorithms.sgap(rate, rule)
        case "MSGAP":
            return algorithms.msgap(rate, c.momentum, rule)
        case "S-ADDOPT":
            return algorithms.s_addopt(rate)


def _git_hash() -> str | None:
    """The revision of the package's own checkout, if it is one."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "min": min(values), "max": max(values)}
