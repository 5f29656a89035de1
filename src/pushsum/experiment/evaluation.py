"""Tests of the average model and of the nodes' own."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pushsum import batchnorm
from pushsum.batchnorm import BatchNormPolicy
from pushsum.config import Config
from pushsum.engines import engine
from pushsum.engines.gradients import Layout
from pushsum.engines.runtime import Abandoned
from pushsum.experiment.sampling import Feed
from pushsum.experiment.task import Task
from pushsum.randomness import stream, torch_seeded


class NodeResults(NamedTuple):
    """What the model of a node reaches on all test samples, and on those of the node's own."""

    everywhere: dict[str, float]
    local: dict[str, float]  #: NaN if the node has none


@dataclass(frozen=True)
class Evaluator:
    """Tests models with parameters of a run.

    Attributes:
        config: of the run.
        task: what is measured.
        feed: the data.
        everything: the samples that any node trains on, for policy "recomputed".
        held_out: the training samples that none does.
        test_parts: the test samples of each node's own.
        model: the pattern of what is tested.
        layout: where its parameters lie in a row.
        policy: where BatchNorm's statistics come from.
        stopping: asked before every batch; once it is True, `Abandoned` is raised.
    """

    config: Config
    task: Task
    feed: Feed
    everything: np.ndarray
    held_out: np.ndarray
    test_parts: Sequence[np.ndarray]
    model: nn.Module
    layout: Layout
    policy: BatchNormPolicy
    stopping: Callable[[], bool] = lambda: False

    def average_model(
        self, x: Tensor, a: Tensor, y: Tensor, buffers: dict[str, Tensor], t: int
    ) -> nn.Module:
        """The average model, from the (n, ...) arrays of all nodes."""
        average = y.mean(0) if self.config.published.average_of_y else engine.average(x, a)
        return self._model_of(average, buffers, t)

    def nodes(
        self, nodes: Sequence[int], y: Tensor, buffers: dict[str, Tensor], t: int
    ) -> list[NodeResults]:
        """What the given nodes' own models reach; nothing if the configuration says so."""
        found = []
        for row, node in enumerate(nodes if self.config.evaluation.nodes else ()):
            model = self.node_model(y, buffers, row, t)
            local = torch.zeros(len(self.feed.dataset.test_y), dtype=torch.bool)
            local[torch.from_numpy(self.test_parts[node])] = True
            found.append(NodeResults(*self._measured(model, self._test(), local)))
        return found

    def node_model(self, y: Tensor, buffers: dict[str, Tensor], row: int, t: int) -> nn.Module:
        """The model of one of the given nodes."""
        mine = {name: b[row : row + 1] for name, b in buffers.items()}
        return self._model_of(y[row], mine, t)

    def _model_of(self, row: Tensor, buffers: dict[str, Tensor], t: int) -> nn.Module:
        frozen = {name: p.detach() for name, p in self.model.named_parameters()}
        parameters, training = frozen | self.layout.views(row), self._training(t)
        return batchnorm.average_model(self.model, parameters, buffers, self.policy, training)

    def _training(self, t: int) -> Iterator[Tensor]:
        """The batches of policy "recomputed"."""
        draw = stream(self.config.seed, "recompute", t)
        size = min(len(self.everything), self.config.evaluation.batch)
        for _ in range(self.config.evaluation.recompute_batches):
            if self.stopping():
                raise Abandoned
            yield self.feed.train(draw.choice(self.everything, size, replace=False))[0]

    def test(self, model: nn.Module) -> dict[str, float]:
        """What a model reaches on the test samples."""
        return self._measured(model, self._test())[0]

    def _test(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.feed.test(self.config.evaluation.batch)

    def validate(self, model: nn.Module) -> dict[str, float] | None:
        """What a model reaches on the samples that are held out, if some are."""
        if not len(self.held_out):
            return None
        batches = np.array_split(
            self.held_out, -(-len(self.held_out) // self.config.evaluation.batch)
        )
        return self._measured(model, map(self.feed.train, batches))[0]

    @torch.no_grad()
    def _measured(
        self,
        model: nn.Module,
        batches: Iterable[tuple[Tensor, Tensor]],
        chosen: Tensor | None = None,
    ) -> tuple[dict[str, float], dict[str, float]]:
        """On all samples of the batches, and on those chosen among them, in one pass."""
        whole, part = _Totals(self.task), _Totals(self.task)
        with torch_seeded(self.config.seed, self.feed.device):  # some draw in evaluation mode too
            for x, targets in batches:
                if self.stopping():
                    raise Abandoned
                outputs = model(x)
                if chosen is not None:
                    here = chosen[whole.samples :][: len(targets)].to(targets.device)
                    part.add(outputs[here], targets[here])
                whole.add(outputs, targets)
        return whole.results(), part.results()


class _Totals:
    """Sums over samples, batch by batch."""

    def __init__(self, task: Task) -> None:
        self.task, self.samples = task, 0
        self.sums = dict.fromkeys(task.measures, 0.0)

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self.samples += len(targets)
        for name, measure in self.task.measures.items() if len(targets) else ():
            self.sums[name] += float(measure(outputs, targets))

    def results(self) -> dict[str, float]:
        count = self.samples or math.nan
        return self.task.results({name: total / count for name, total in self.sums.items()})
