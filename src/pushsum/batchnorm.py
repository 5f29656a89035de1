"""What the average model is tested with: BatchNorm statistics belong to no node's average.

Nodes average parameters. BatchNorm's running statistics are not parameters: every node keeps its
own, of its own data, so the average model comes without any, and three answers are in use.

| policy | the average model normalizes with |
|---|---|
| averaged | the mean over nodes of their running means, and of their running variances |
| recomputed | statistics of training data under the average parameters |
| test-batch | the statistics of the very batch that is tested, as in the published experiments |

"averaged" leaves out the variance of the nodes' means around their mean, so on non-IID data its
variances are too small. With "test-batch" the answer for one sample depends on the others in its
batch. Models without BatchNorm, or with frozen ones, are the same under all three.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

BatchNormPolicy = Literal["averaged", "recomputed", "test-batch"]


@final
class FrozenBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm in evaluation mode at all times: it learns scale and shift, its statistics stay."""

    def train(self, mode: bool = True) -> "FrozenBatchNorm2d":
        """Stays in evaluation mode."""
        super().train(False)
        return self


def average_model(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    node_buffers: Mapping[str, Tensor],
    policy: BatchNormPolicy,
    training_batches: Iterable[Tensor] = (),
) -> nn.Module:
    """A model to test: `parameters`, with BatchNorm statistics by `policy`, in evaluation mode.

    Pure: `model` serves as the pattern and stays exactly as it was, and the model returned does
    not change when it is called. It shares the memory of `parameters`, and lives where they do.
    Dropout and the like are off under every policy.

    A node's own model is the case of one node: its parameters and row i:i+1 of the buffers.

    Args:
        model: the module that the nodes train.
        parameters: name -> tensor, the average parameters.
        node_buffers: name -> (n, ...) tensor, every node's buffers. Numbers that are not floating
            point are taken from the first node.
        policy: see above.
        training_batches: inputs for "recomputed", which runs them through the model in training
            mode and takes the plain mean over batches of each batch's mean and (unbiased)
            variance, layer by layer, whatever the sizes of the batches. Others leave it unread.

    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    >>> ones = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    >>> two_nodes = {name: torch.stack([b, b + 2]) for name, b in model.named_buffers()}
    >>> average_model(model, ones, two_nodes, "averaged")[1].running_var
    tensor([2.])
    """
    if policy not in get_args(BatchNormPolicy):
        raise ValueError(f"policy = {policy!r}: choose {', '.join(get_args(BatchNormPolicy))}")
    mean = {
        n: b.mean(0) if b.is_floating_point() else b[0].clone() for n, b in node_buffers.items()
    }
    tested = _rebuilt(model, parameters, mean).eval()
    layers = [layer for layer in _with_statistics(tested) if not _frozen(layer)]
    if policy == "recomputed" and layers:
        _recompute(tested, layers, training_batches)
    if policy == "test-batch":
        for layer in layers:  # without running statistics, torch takes those of the batch
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return tested


def frozen_statistics(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """The buffers of a model after its frozen BatchNorms have seen these batches; pure.

    The others, and all buffers of a model without frozen ones, are as they were.
    """
    seeing = deepcopy(model).eval()
    frozen = [layer for layer in _with_statistics(seeing) if _frozen(layer)]
    if frozen:
        _recompute(seeing, frozen, batches)
    return dict(seeing.named_buffers())


def _with_statistics(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def _frozen(layer: _BatchNorm) -> bool:
    return isinstance(layer, FrozenBatchNorm2d)


def _rebuilt(
    model: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> nn.Module:
    """A copy of the module that holds these tensors; no parameter is copied."""
    instead: dict[int, Tensor] = {
        id(p): nn.Parameter(parameters[name], requires_grad=False)
        for name, p in model.named_parameters()
    }
    instead |= {id(b): buffers[name] for name, b in model.named_buffers()}
    return deepcopy(model, instead)  # takes what `instead` has for an object, copies the others


@torch.no_grad()
def _recompute(model: nn.Module, layers: list[_BatchNorm], batches: Iterable[Tensor]) -> None:
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for the cumulative mean
        layer.training = True  # of a frozen one, too
    seen = False
    for x in batches:
        model(x)
        seen = True
    if not seen:
        raise ValueError("policy = 'recomputed' needs training_batches: there were none")
    for layer in layers:
        layer.training = False
