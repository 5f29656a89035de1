"""Checkpoints of a run: what is in them, and how a run goes on from one."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from pushsum import algorithms, checkpoint, files, protocol
from pushsum.engines.world import World
from pushsum.experiment import Experiment
from pushsum.training.progressing import Progressing


def place(directory: Path, world: World) -> Path:
    """Where this process keeps its checkpoints: a process that is one node has its own."""
    checkpoints = directory / "checkpoints"
    if world.name == "simulator":
        return checkpoints
    return checkpoints / f"node-{world.nodes[0]}"


def save(directory: Path, world: World, experiment: Experiment, now: Progressing) -> None:
    """Write a generation."""
    network, local = now.state
    memory, steps = _exchange(world, experiment, now.step).saved(network.memory)
    kept, notes = flattened(local)
    tensors = {"x": network.x, "a": network.a, "weights": network.weights}
    tensors |= _under("memory", memory) | _under("buffers", now.buffers) | _under("local", kept)
    about = {
        "memory": steps,
        "local": notes,
        "bytes": now.bytes,
        "seconds": now.seconds,
        "modelled": now.modelled,
        "losses": now.losses,
        "recorded": now.recorded,
    }
    checkpoint.save(place(directory, world), now.step, tensors, about)


def reopen(
    directory: Path, world: World, experiment: Experiment, from_step: int | None
) -> Progressing:
    """The run as its newest checkpoint, or that of a step, has it; later records are dropped."""
    mine = place(directory, world)
    if from_step is None:
        from_step = _newest_of_all(mine, world)
    step, tensors, notes = checkpoint.load(mine, from_step)
    checkpoint.drop_after(mine, step)
    tensors = {name: value.to(experiment.device) for name, value in tensors.items()}
    x, a = tensors["x"], tensors["a"]
    exchange = _exchange(world, experiment, step)
    memory = exchange.restored(_section(tensors, "memory."), notes["memory"])
    y = protocol.corrected(x, a)
    network = protocol.State(x, a, y, memory, x, tensors["weights"].cpu())
    pattern = experiment.algorithm.init(x).local
    local = _restored(pattern, _section(tensors, "local."), notes["local"])
    return Progressing(
        step,
        algorithms.State(network, local),
        _section(tensors, "buffers."),
        notes["bytes"],
        notes["seconds"],
        notes["modelled"],
        notes["losses"],
        notes["recorded"],
    )


def _newest_of_all(mine: Path, world: World) -> int | None:
    """The newest step of which every process has a checkpoint; None: this process says why not."""
    everyone = world.listed(checkpoint.generations(mine))
    common = set.intersection(*(set(steps) for steps in everyone))
    if common:
        return max(common)
    if len(everyone) > 1:
        had = "; ".join(f"node {k}: {steps or 'none'}" for k, steps in enumerate(everyone))
        raise ValueError(f"there is no step of which every node has a checkpoint ({had})")
    return None


def drop_records_after(path: Path, step: int) -> None:
    """Records of steps that will be taken again."""
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            break  # a line that a crash cut short
    files.write(path, "".join(kept).encode())


def _exchange(world: World, experiment: Experiment, step: int) -> Any:
    return world.exchange(experiment.graphs, experiment.began(step))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def flattened(local: Any, name: str = "kept") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An algorithm's own state as named tensors and JSON."""
    if hasattr(local, "saved"):
        tensors, notes = local.saved()
        return {f"{name}.{key}": value for key, value in tensors.items()}, {name: notes}
    if isinstance(local, Tensor):
        return {name: local}, {}
    found: dict[str, Tensor] = {}
    for position, part in enumerate(local or ()):
        found |= flattened(part, f"{name}.{position}")[0]
    return found, {}


def _restored(
    pattern: Any, tensors: dict[str, Tensor], notes: dict[str, Any], name: str = "kept"
) -> Any:
    """The inverse of `flattened`, in the shape of `pattern`."""
    if hasattr(pattern, "saved"):
        return pattern.restored(_section(tensors, f"{name}."), notes[name])
    if isinstance(pattern, Tensor):
        return tensors[name]
    if pattern is None:
        return None
    parts = [_restored(p, tensors, notes, f"{name}.{k}") for k, p in enumerate(pattern)]
    return type(pattern)(*parts)
