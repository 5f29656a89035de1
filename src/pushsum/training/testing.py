"""The model of a saved run: to use, or to test in other ways than while it ran."""

import json
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from pushsum import checkpoint, config, protocol
from pushsum.batchnorm import BatchNormPolicy
from pushsum.engines.simulator import Iterate
from pushsum.engines.world import OneProcess
from pushsum.experiment import Experiment
from pushsum.training import saving


class Tested(NamedTuple):
    """What the average model of a checkpoint reaches.

    Attributes:
        step: of the checkpoint.
        results: accuracy and loss with each policy.
        own: the same of every node's own model, where the run tested these.
        refused: why a policy could not be followed.
    """

    step: int
    results: dict[BatchNormPolicy, dict[str, float]]
    own: dict[BatchNormPolicy, list[dict[str, float]]]
    refused: dict[BatchNormPolicy, str]


def tested(directory: Path) -> Tested:
    """The newest checkpoint of a run, with every BatchNorm policy; one where they are all alike."""
    built, step, nodes = _restored(directory)
    policies = get_args(BatchNormPolicy) if nodes.buffers else (built.config.evaluation.batchnorm,)
    answer = Tested(step, {}, {}, {})
    for policy in policies:
        try:
            answer.results[policy] = built.test_average(*nodes, step, policy=policy)
            answer.own[policy] = built.test_nodes(nodes.y, nodes.buffers, step, policy=policy)
        except ValueError as error:  # BatchNorm, of a batch of one sample
            answer.refused[policy] = str(error)
    return answer


def trained(directory: str | Path, policy: BatchNormPolicy | None = None) -> nn.Module:
    """The average model of a run's newest checkpoint, in evaluation mode, a copy of its own.

    Its inputs are those that `pushsum.data.load(...).scaled(...)` gives.

    Args:
        directory: what was given to `pushsum run --into`.
        policy: where BatchNorm's statistics come from, "averaged", "recomputed" or "test-batch";
            None: as the run was tested.
    """
    built, step, nodes = _restored(Path(directory))
    model = built.average_model(*nodes, step, policy=policy)
    for parameter in model.parameters():  # views of one long vector
        parameter.data = parameter.data.clone()
    return model.requires_grad_()


class Nodes(NamedTuple):
    """What all nodes hold."""

    x: Tensor
    a: Tensor
    y: Tensor
    buffers: dict[str, Tensor]


def _restored(directory: Path) -> tuple[Experiment, int, Nodes]:
    """A run's experiment, built again, and the step and state of its newest checkpoint."""
    path, about = directory / "config.yaml", directory / "meta.json"
    if not path.exists() or not about.exists():
        raise ValueError(f"{directory} holds no run")
    settings = config.read(path, [])
    engine = json.loads(about.read_text()).get("engine", "simulator")
    step, tensors = _all_nodes(directory, engine, settings.topology.nodes)
    built = Experiment(settings)
    tensors = {name: value.to(built.device) for name, value in tensors.items()}
    buffers = {k.removeprefix("buffers."): v for k, v in tensors.items() if k.startswith("buffers")}
    x, a = tensors["x"], tensors["a"]
    y = protocol.corrected(x, a)
    if built.faults is not None:  # of the living, and what is under way between them
        found = checkpoint.load(saving.place(directory, engine, 0), step)
        now = saving.restored_run(OneProcess(built.n), built, *found).moment
        seen = Iterate(now, built.setup(step))
        alive, late = seen.alive, seen.under_way
        x = torch.cat([x[alive], late.x[None].to(x)])
        a = torch.cat([a[alive], a.new_tensor([late.a])])
        y, buffers = y[alive], {name: b[alive] for name, b in buffers.items()}
    return built, step, Nodes(x, a, y, buffers)


def _all_nodes(directory: Path, engine: str, n: int) -> tuple[int, dict[str, Tensor]]:
    """The newest generation that every node has, put together."""
    places = dict.fromkeys(saving.place(directory, engine, node) for node in range(n))
    step = saving.newest(directory, engine, n)
    parts = [checkpoint.load(place, step) for place in places]
    names = [n for n in parts[0].tensors if n in ("x", "a") or n.startswith("buffers.")]
    return parts[0].step, {name: torch.cat([p.tensors[name] for p in parts]) for name in names}
