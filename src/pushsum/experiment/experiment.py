"""Everything that a configuration describes."""

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pushsum import batchnorm, data, own_code
from pushsum.config import Config, warnings
from pushsum.data import partition, store
from pushsum.engines.engine import Setup
from pushsum.engines.failing import exchange as failing
from pushsum.engines.gradients import Batch, Layout, Loss, draws
from pushsum.experiment import build
from pushsum.experiment.costs import Costs
from pushsum.experiment.environment import environment
from pushsum.experiment.evaluation import Evaluator
from pushsum.experiment.sampling import Feed, Sampler
from pushsum.experiment.task import LOSSES, task
from pushsum.faults import Plan, as_plan, refuse_unknown
from pushsum.names import one_line
from pushsum.networks import NETWORKS
from pushsum.optimizers import Rule
from pushsum.protocol import Algorithm, what_is_sent
from pushsum.randomness import torch_seeded
from pushsum.topology import Topology

UNSCALED = 10.0  #: the root mean square of a feature above which the user is told


class Given(NamedTuple):
    """Objects that take the place of what the configuration names."""

    dataset: data.Dataset | None = None
    graphs: Topology | None = None
    model: nn.Module | None = None
    loss: str | Loss | None = None
    algorithm: Algorithm | None = None
    rule: Rule | None = None
    faults: Plan | None = None


class Experiment:
    """Everything that a configuration describes, built and ready to run."""

    def __init__(self, config: Config, given: Given | None = None) -> None:
        config.refuse_untrusted()
        self.config = config
        given = given or Given()
        self.device = build.device(config.device)
        self.dataset = given.dataset or build.dataset(config)
        self.whole_parts = self.parts = build.parts(config, self.dataset)
        self.held_out = np.empty(0, dtype=np.int64)
        if config.data.validation:
            self.parts, self.held_out = partition.hold_out(
                self.parts, config.data.validation, config.seed
            )
        self.graphs = given.graphs or build.graphs(config)
        ours = given.model is None and config.model.name in NETWORKS
        if given.model is not None:
            self.model = given.model.to(self.device)
        pattern = build.model(config, self.dataset, shapes_only=True) if ours else self.model
        self.layout = Layout.of(pattern)
        self.dtype = next(pattern.parameters()).dtype
        self.feed = Feed(self.dataset, self.device, self.dtype)
        self._refuse_single_samples()
        loss = config.loss if given.loss is None else given.loss
        self.task = task(loss, self.dataset, self._outputs(ours))
        known = ours and loss in (None, *LOSSES)
        self.random = not known and self._draws()
        self.algorithm = given.algorithm or build.algorithm(config, self.rate)
        self.rule = given.rule or build.rule(config, self.rate, self.layout.views)
        self.plan = given.faults or config.faults.plan(config.seed)
        self.plan.check(self.n)
        for name, values in zip(("link.uneven", "link.far"), config.link.values(), strict=True):
            refuse_unknown(name, values.named, self.n)
        self.faults = as_plan(self.plan)
        if self.setup(0).faults is not None:  # which refuses what does not go together
            failing.check(self.setup(0))

    @cached_property
    def model(self) -> nn.Module:
        """The network that the first node starts from; made when it is needed."""
        return build.model(self.config, self.dataset).to(self.device)

    def _outputs(self, ours: bool) -> Tensor:
        """Of the network, for the first two training samples; of ours the shape is known."""
        if ours and self.dataset.train_x.dtype != torch.int64:
            return torch.zeros(
                len(self.dataset.train_y[:2]), self.dataset.outputs, device=self.device
            )
        x, _ = self.feed.train(np.arange(min(2, len(self.dataset.train_y))))
        try:
            with torch_seeded(0, self.device), torch.no_grad():
                outputs = deepcopy(self.model).eval()(x)
        except Exception as error:
            raise ValueError(
                f"the model fails on samples {tuple(x.shape)} of {x.dtype}: "
                f"{one_line(repr(error), 300)}"
            ) from error
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"the model returned {type(outputs).__name__}, expected a tensor of outputs"
            )
        return outputs

    def _draws(self) -> bool:
        """Whether the forward pass draws at random; only one strategy then has a stream a node."""
        held = self.parts[0][: max(2, self.config.batch)]
        try:
            random = draws(self.model, self.task.loss, *self.feed.train(held))
        except Exception as error:
            raise ValueError(
                f"a training step of the model and the loss fails: {one_line(repr(error), 300)}"
            ) from error
        if random and self.config.gradients in ("threads", "vmap"):
            raise ValueError(
                f"gradients = {self.config.gradients}: the model draws random numbers (dropout), "
                "and only loop draws them in an order that can be repeated: set loop, or auto"
            )
        return random

    def _refuse_single_samples(self) -> None:
        """BatchNorm has no variance of one number per channel: torch would refuse it later."""
        c, policy = self.config, self.config.evaluation.batchnorm
        alone = [k for k, part in enumerate(self.parts) if min(c.batch, len(part)) == 1]
        every = [f"node {k} has batches of one sample: raise batch" for k in alone]
        left = len(self.dataset.test_y) % c.evaluation.batch
        if policy == "recomputed" and c.evaluation.batch == 1:
            every.append("evaluation.batch = 1: raise it")
        if policy == "test-batch" and 1 in (left, c.evaluation.batch):
            every.append(
                f"evaluation.batch = {c.evaluation.batch}: the last of "
                f"{len(self.dataset.test_y)} test samples is alone: choose another"
            )
        if every and not self._takes_one_sample():
            raise ValueError(f"{every[0]}, or set model.norm=group; BatchNorm needs two samples")

    def _takes_one_sample(self) -> bool:
        """In training mode."""
        x, _ = self.feed.train(np.arange(1))
        try:
            with torch_seeded(0, self.device), torch.no_grad():
                deepcopy(self.model).train()(x)
        except ValueError:
            return False
        return True

    def warnings(self) -> list[str]:
        """What is allowed, but probably not meant; what the configuration alone tells is first."""
        found = warnings(self.config)
        largest = max(len(part) for part in self.parts)
        if self.config.batch > largest:
            found.append(
                f"batch = {self.config.batch}, but no node has more than {largest} samples: every "
                "step takes all of them; choose a smaller one"
            )
        for what, values in (("features", self.dataset.train_x), ("targets", self.dataset.train_y)):
            if self.config.data.standardize or not values.is_floating_point():
                continue
            norms = torch.linalg.vector_norm(
                values.flatten(1) if values.ndim > 1 else values, dim=0
            )
            if (size := float(norms.max()) / math.sqrt(len(values))) > UNSCALED:
                found.append(
                    f"{self.dataset.name}: {what} are as large as {size:.4g}, which is hard on "
                    "gradient descent: data.standardize=true gives all the same size"
                )
        return found

    # ----------------------------------------------------------------- sizes

    @property
    def n(self) -> int:
        return self.graphs.n

    @cached_property
    def steps_per_epoch(self) -> int:
        """After so many a node of average size has gone through its samples once."""
        held = sum(len(part) for part in self.parts)
        return max(1, held // (self.config.topology.nodes * self.config.batch))

    @cached_property
    def steps(self) -> int:
        planned = self.config.epochs * self.steps_per_epoch
        return min(planned, self.config.steps or planned)

    def rate(self, t: int) -> float:
        """The step size at step t."""
        c, schedule = self.config.algorithm, self.config.algorithm.schedule
        epoch = (t - 1) / self.steps_per_epoch
        match schedule.kind:
            case "constant":
                return c.lr
            case "cosine":
                return c.lr * (1 + math.cos(math.pi * (t - 1) / self.steps)) / 2
            case "steps":
                return c.lr * schedule.factor ** sum(epoch >= m for m in schedule.milestones)

    def began(self, step: int) -> int:
        """After which step the algorithm last began: 0, or with `published.restart` a milestone."""
        if not self.config.published.restart:
            return 0
        milestones = (m * self.steps_per_epoch for m in self.config.algorithm.schedule.milestones)
        return max((m for m in milestones if m <= step), default=0)

    def setup(self, step: int) -> Setup:
        """What a run goes on with after a step."""
        c = self.config
        every, start = c.algorithm.every, self.began(step)
        how = self.algorithm, self.graphs, self.rule, every, start, self.wire, c.seed
        return Setup(*how, self.faults)

    @property
    def wire(self) -> torch.dtype | None:
        """The dtype that parameters travel in; None: their own."""
        name = self.config.link.wire
        kind: torch.dtype | None = None if name is None else getattr(torch, name)
        return kind

    @cached_property
    def costs(self) -> Costs:
        """What a step costs the network."""
        kind = self.wire or self.dtype
        vectors = what_is_sent(self.algorithm, self.n, self.layout.d)
        vector = self.layout.d * kind.itemsize
        return Costs(self.setup, vectors, vector, self.config.link, self.plan)

    def meta(self) -> dict[str, Any]:
        """What stands beside a run besides its configuration."""
        certificate = self.graphs.certificate()
        return {
            **environment(),
            "device": str(self.device),
            "data_sha256": self.data_sha256(),
            "code_sha256": own_code.hashes(self.config.values),
            "d": self.layout.d,
            "nodes": self.n,
            "classes": self.dataset.classes,
            "measure": self.task.headline._asdict(),
            "certificate": {
                "period": certificate.period,
                "diameter": certificate.diameter,
                "horizon": certificate.horizon,
            },
            "steps_per_epoch": self.steps_per_epoch,
            "steps": self.steps,
            "split": partition.histogram(
                self.parts, self.dataset.groups, int(self.dataset.groups.max()) + 1
            ).tolist(),
            "algorithm": self.algorithm.name,
            "weighting": self.algorithm.weighting.name,
            "faults": None if self.faults is None else self.faults.name,
            "bytes_per_step": self.costs.bytes_per_step(),
            "finished": False,
        }

    def data_sha256(self) -> str | None:
        """Of the user's own data; the others are checked when they are prepared."""
        name = self.config.data.name
        if own_code.is_named(name):
            return data.content_hash(self.dataset)
        return store.file_hash(Path(name)) if data.is_file(name) else None

    # ----------------------------------------------------------------- pieces of a run

    @cached_property
    def test_parts(self) -> Sequence[np.ndarray]:
        """The test samples of each node's own: as the data say, or divided as for training."""
        found = self.dataset
        return found.test_parts or partition.of_test(
            self.whole_parts, found.groups, found.test_groups, self.config.seed
        )

    @cached_property
    def sampler(self) -> Sampler:
        """Which samples a node draws."""
        c, alike = self.config, self.config.published.same_batches
        streams = list(range(self.n))
        if alike:  # with the first node that holds the same samples
            streams = [
                next(k for k, other in enumerate(self.parts) if np.array_equal(other, part))
                for part in self.parts
            ]
        return Sampler(self.parts, c.batch, c.seed, streams, not alike, c.data.augment, self.random)

    def batch(self, t: int, nodes: Sequence[int]) -> Batch:
        """What these nodes work on at step t."""
        return self.sampler.batch(self.feed, t, nodes)

    @cached_property
    def evaluator(self) -> Evaluator:
        """What tests the models of a run."""
        c = self.config
        return Evaluator(
            c,
            self.task,
            self.feed,
            everything=np.unique(np.concatenate(self.parts)),
            held_out=self.held_out,
            test_parts=self.test_parts if c.evaluation.nodes else (),
            model=self.model,
            layout=self.layout,
            policy=c.evaluation.batchnorm,
        )

    def start(self) -> Tensor:
        """(n, d): where the nodes start; all at the same point unless the configuration says so."""
        parameters = dict(self.model.named_parameters())
        x0 = self.layout.flatten(parameters).repeat(self.n, 1)
        if self.config.model.fresh_last_layer:
            last = list(build.last_layer(self.model))
            for node in range(1, self.n):
                other = dict(build.model(self.config, self.dataset, node).named_parameters())
                views = self.layout.views(x0[node])
                for name in last:
                    views[name].copy_(other[name].detach())
        return x0.to(self.device)

    def start_buffers(self, nodes: int) -> dict[str, Tensor]:
        """(nodes, ...): the network's buffers before step 1.

        Frozen BatchNorms have the statistics of all training samples under the first node's
        parameters, which those of the others equal up to a last layer of their own.
        """
        size, everything = self.config.evaluation.batch, self.evaluator.everything
        some = np.array_split(everything, -(-len(everything) // size))
        batches = (self.feed.train(indices)[0] for indices in some)
        buffers = batchnorm.frozen_statistics(self.model, batches)
        return {name: b.detach().repeat(nodes, *[1] * b.ndim) for name, b in buffers.items()}
