"""The model of a saved run: to use, or to test in other ways than while it ran."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from pushsum import checkpoint, config, files, own_code, protocol
from pushsum.batchnorm import BatchNormPolicy
from pushsum.engines.engine import with_late
from pushsum.engines.iterate import Iterate
from pushsum.engines.runtime import OneProcess
from pushsum.experiment import Experiment
from pushsum.measures import Measure
from pushsum.names import one_line
from pushsum.reading import MOST_META, json_value
from pushsum.training import saving
from pushsum.training.state import RunState


class Tested(NamedTuple):
    """What the average model of a checkpoint reaches.

    Attributes:
        step: of the checkpoint.
        results: what is measured, with each policy.
        own: the same of every node's own model, where the run tested these.
        refused: why a policy could not be followed.
        measure: what counts first.
    """

    step: int
    results: dict[BatchNormPolicy, dict[str, float]]
    own: dict[BatchNormPolicy, list[dict[str, float]]]
    refused: dict[BatchNormPolicy, str]
    measure: Measure


def tested(
    directory: Path,
    trust: bool = False,  # noqa: PT028
    policies: Sequence[BatchNormPolicy] = get_args(BatchNormPolicy),  # noqa: PT028
) -> Tested:
    """The newest checkpoint of a run, with these BatchNorm policies; one where they are alike."""
    built, step, nodes = _restored(directory, trust)
    policies = policies if nodes.buffers else (built.config.evaluation.batchnorm,)
    answer = Tested(step, {}, {}, {}, built.task.headline)
    for policy in policies:
        evaluator = replace(built.evaluator, policy=policy)
        try:
            answer.results[policy] = evaluator.test(evaluator.average_model(*nodes[:4], step))
            own = evaluator.nodes(nodes.numbers, nodes.y, nodes.buffers, step)
            answer.own[policy] = [found.everywhere for found in own]
        except ValueError as error:  # BatchNorm, of a batch of one sample
            answer.refused[policy] = str(error)
    return answer


def trained(
    directory: str | Path, policy: BatchNormPolicy | None = None, trust: bool = False
) -> nn.Module:
    """The average model of a run's newest checkpoint, in evaluation mode, a copy of its own.

    Its inputs are those that `pushsum.data.load(...).scaled(...)` gives.

    Args:
        directory: what was given to `pushsum run --into`.
        policy: where BatchNorm's statistics come from, "averaged", "recomputed" or "test-batch";
            None: as the run was tested.
        trust: whether to run files that the model needs and the run's configuration names. Its
            weighting, method and topology are not needed.
    """
    built, step, nodes = _restored(Path(directory), trust)
    policy = policy or built.config.evaluation.batchnorm
    return own_copy(replace(built.evaluator, policy=policy).average_model(*nodes[:4], step))


def own_copy(model: nn.Module) -> nn.Module:
    """The model with parameters that are views of nothing longer, and can be trained."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model.requires_grad_()


class Nodes(NamedTuple):
    """What the nodes hold."""

    x: Tensor
    a: Tensor
    y: Tensor
    buffers: dict[str, Tensor]
    numbers: list[int]  #: of those that are there


def _restored(directory: Path, trust: bool) -> tuple[Experiment, int, Nodes]:
    """A run's experiment, built again, and the step and state of its newest checkpoint."""
    path, about = directory / "config.yaml", directory / "meta.json"
    if not path.exists() or not about.exists():
        raise ValueError(f"{directory} holds no run")
    settings = config.parse(_without_method(config.mapping(path)), trust)
    try:
        engine = json_value(files.content(about, MOST_META)).get("engine", "simulator")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{about} is damaged: {one_line(error)}") from None
    step, tensors = _all_nodes(directory, engine, settings.topology.nodes)
    where = f"{directory}: the checkpoint of step {step}"
    built = Experiment(settings)
    with saving.understood(where):
        return built, step, _nodes(directory, engine, built, step, tensors, where)


def _nodes(
    directory: Path,
    engine: str,
    built: Experiment,
    step: int,
    tensors: dict[str, Tensor],
    where: str,
) -> Nodes:
    saving.refuse_misfit(tensors, built, built.n, where)
    tensors = {name: value.to(built.device) for name, value in tensors.items()}
    buffers = {k.removeprefix("buffers."): v for k, v in tensors.items() if k.startswith("buffers")}
    x, a = tensors["x"], tensors["a"]
    if built.faults is not None:
        found = checkpoint.load(saving.place(directory, engine, 0), step)
        now = saving.restored_run(OneProcess(built.n), built, built.config, *found)
        return present(built, now)
    y = protocol.corrected(x, a)
    if built.algorithm.holds_mass:
        for name, value in tensors.items():
            if name.startswith("kept.0."):
                x = x + value
            elif name.startswith("kept.1."):
                a = a + value
    return Nodes(x, a, y, buffers, list(range(built.n)))


def present(built: Experiment, now: RunState) -> Nodes:
    """What the nodes of a run hold; under faults the living, and what is under way between them."""
    state, y, buffers = now.moment.state, now.moment.y, now.buffers
    if built.faults is None:
        return Nodes(*with_late(built.algorithm, state), y, buffers, list(range(built.n)))
    seen = Iterate(now.moment, built.setup(now.step))
    alive, late = seen.alive.to(y.device), seen.under_way
    return Nodes(
        torch.cat([state.x[alive], late.x[None].to(state.x)]),
        torch.cat([state.a[alive], state.a.new_tensor([late.a])]),
        y[alive],
        {name: b[alive] for name, b in buffers.items()},
        alive.nonzero()[:, 0].tolist(),
    )


def _without_method(content: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the code of what a trained model needs no more."""
    method, graphs = (content.get(section) for section in ("algorithm", "topology"))
    if isinstance(method, dict):
        code = own_code.named(method)
        for key in (*code, *["parameters"] * ("name" in code)):
            method.pop(key, None)
    if isinstance(graphs, dict) and "name" in own_code.named(graphs):
        graphs["name"] = "ring"  # which every method takes
    return content


def _all_nodes(directory: Path, engine: str, n: int) -> tuple[int, dict[str, Tensor]]:
    """The newest generation that every node has, put together."""
    step = saving.newest(directory, engine, n)
    if step is None:
        raise ValueError(f"{directory}: there is no checkpoint that every node has")
    parts = [checkpoint.load(place, step) for place in saving.places(directory, engine, n)]
    others = [n for n in parts[0].tensors if n.startswith(("buffers.", "kept."))]
    try:
        whole = {name: torch.cat([p.tensors[name] for p in parts]) for name in ("x", "a", *others)}
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{directory}: its checkpoints do not fit: {one_line(error)}") from None
    return parts[0].step, whole
