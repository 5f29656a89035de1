"""Testing a saved run again, in other ways than it was tested while it ran."""

from pathlib import Path
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from pushsum import checkpoint, config, protocol
from pushsum.batchnorm import BatchNormPolicy
from pushsum.experiment import Experiment


class Tested(NamedTuple):
    """What the average model of a checkpoint reaches."""

    step: int
    results: dict[BatchNormPolicy, dict[str, float]]  #: accuracy and loss with each policy


def tested(directory: Path) -> Tested:
    """The newest checkpoint of a run, with every BatchNorm policy; one where they are all alike."""
    path = directory / "config.yaml"
    if not path.exists():
        raise ValueError(f"{directory} holds no run")
    settings = config.read(path, [])
    step, tensors = _all_nodes(directory / "checkpoints")
    built = Experiment(settings)
    tensors = {name: value.to(built.device) for name, value in tensors.items()}
    x, a = tensors["x"], tensors["a"]
    buffers = {k.removeprefix("buffers."): v for k, v in tensors.items() if k.startswith("buffers")}
    y = protocol.corrected(x, a)
    policies = get_args(BatchNormPolicy) if buffers else (settings.evaluation.batchnorm,)
    return Tested(
        step,
        {policy: built.test_average(x, y, buffers, step, policy=policy) for policy in policies},
    )


def _all_nodes(checkpoints: Path) -> tuple[int, dict[str, Tensor]]:
    """The newest generation that every process has, put together."""
    nodes = sorted(
        checkpoints.glob("node-*"), key=lambda path: int(path.name.removeprefix("node-"))
    )
    places = nodes or [checkpoints]
    common = set.intersection(*(set(checkpoint.generations(place)) for place in places))
    newest = max(common, default=None)
    parts = [checkpoint.load(place, newest) for place in places]
    names = [n for n in parts[0].tensors if n in ("x", "a") or n.startswith("buffers.")]
    return parts[0].step, {name: torch.cat([p.tensors[name] for p in parts]) for name in names}
