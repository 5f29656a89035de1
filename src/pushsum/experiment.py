"""A configuration, built: data, split, network, graphs and algorithm, ready to be run."""

import math
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pushsum import __version__, algorithms, batchnorm, data, models, own_code, topology, weighting
from pushsum.config import Config, warnings
from pushsum.data import partition, store
from pushsum.engines import engine, failing
from pushsum.engines.costs import Costs
from pushsum.engines.engine import Setup
from pushsum.engines.gradients import Batch, Layout
from pushsum.engines.world import Abandoned
from pushsum.names import unknown
from pushsum.optimizers import Rule, optimizer_maker, torch_rule
from pushsum.protocol import what_is_sent
from pushsum.randomness import stream


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

    @cached_property
    def _order(self) -> Callable[[int, int], np.ndarray]:
        """(node, pass) -> the order of its samples; the present one of each node is kept."""

        def order(node: int, pass_number: int) -> np.ndarray:
            draw = stream(self.seed, "batches", self.streams[node], pass_number)
            return draw.permutation(len(self.parts[node]))

        return lru_cache(maxsize=len(self.parts))(order)


class Experiment:
    """Everything that a configuration describes, built and ready to run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = _device(config.device)
        self.graphs = _topology(config)
        self.dataset = data.load(config.data.name, config.data.root)
        self.parts = _parts(config, self.dataset)
        self.model = _model(config, self.dataset).to(self.device)
        self.layout = Layout.of(self.model)
        self._refuse_single_samples()
        self.algorithm = _algorithm(config, self.rate)
        self.rule = _rule(config, self.layout, self.rate)
        self.faults = config.faults.plan(config.seed)
        if self.setup(0).faults is not None:  # which refuses what does not go together
            failing.check(self.setup(0))

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
        """In training mode, as far as shapes tell."""
        x = torch.zeros(1, *self.dataset.train_x.shape[1:], device="meta")
        try:
            deepcopy(self.model).to("meta")(x)
        except ValueError:
            return False
        return True

    def warnings(self) -> list[str]:
        """What is allowed, but probably not meant; what the configuration alone tells is first."""
        found = warnings(self.config)
        x = self.dataset.train_x
        if x.dtype == torch.uint8 and x.shape[1] > 4 and x.shape[3] <= 4:
            found.append(
                f"{self.config.data.name}: images of {x.shape[1]} channels and "
                f"{x.shape[2]}x{x.shape[3]} pixels; if the channels are last, put them first: "
                "numpy.moveaxis(x, 3, 1)"
            )
        largest = max(len(part) for part in self.parts)
        if self.config.batch > largest:
            found.append(
                f"batch = {self.config.batch}, but no node has more than {largest} samples: every "
                "step takes all of them; choose a smaller one"
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
        kind = self.wire or next(self.model.parameters()).dtype
        return Costs(self.setup, what_is_sent(self.algorithm), self.layout.d * kind.itemsize)

    def histogram(self) -> np.ndarray:
        """(n, classes): who holds how many samples of each label."""
        labels = self.dataset.train_y.numpy()
        return partition.histogram(self.parts, labels, self.dataset.classes)

    def meta(self) -> dict[str, Any]:
        """What stands beside a run besides its configuration."""
        certificate = self.graphs.certificate()
        steps = range(1, (self.graphs.cycle or 64) * self.config.algorithm.every + 1)
        return {
            **environment(),
            "device": str(self.device),
            "data_sha256": self.data_sha256(),
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
            "faults": None if self.faults is None else self.faults.name,
            "bytes_per_step": sum(self.costs.bytes_from(range(self.n), t) for t in steps)
            / len(steps),
            "finished": False,
        }

    def data_sha256(self) -> str | None:
        """Of the user's own file; the others are checked when they are prepared."""
        name = self.config.data.name
        return store.file_hash(Path(name)) if name.endswith(".npz") else None

    # ----------------------------------------------------------------- pieces of a run

    @cached_property
    def sampler(self) -> Sampler:
        c, alike = self.config, self.config.published.same_batches
        streams = list(range(self.n))
        if alike:  # with the first node that holds the same samples
            streams = [_first_equal(self.parts, part) for part in self.parts]
        return Sampler(self.parts, c.batch, c.seed, streams, reshuffle=not alike)

    def batch(self, t: int, nodes: Sequence[int]) -> Batch:
        """What these nodes work on at step t."""
        indices = [self.sampler.indices(node, t) for node in nodes]
        if len({len(chosen) for chosen in indices}) == 1 and not self.config.data.augment:
            chosen = torch.from_numpy(np.concatenate(indices))
            shape = (len(nodes), len(indices[0]))
            x = self._on_device(self.dataset.scaled(self.dataset.train_x[chosen]))
            targets = self.dataset.train_y[chosen].to(self.device)
            return Batch(x.unflatten(0, shape), targets.unflatten(0, shape))
        return self._batch_by_node(nodes, indices, t)

    def _batch_by_node(self, nodes: Sequence[int], indices: list[np.ndarray], t: int) -> Batch:
        inputs, targets = [], []
        for node, mine in zip(nodes, indices, strict=True):
            chosen = torch.from_numpy(mine)
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
                other = dict(_model(self.config, self.dataset, node).named_parameters())
                views = self.layout.views(x0[node])
                for name in last:
                    views[name].copy_(other[name].detach())
        return x0.to(self.device)

    def start_buffers(self, nodes: int) -> dict[str, Tensor]:
        """(nodes, ...): the network's buffers before step 1.

        Frozen BatchNorms have the statistics of all training samples under the first node's
        parameters, which those of the others equal up to a last layer of their own.
        """
        size, everything = self.config.evaluation.batch, np.unique(np.concatenate(self.parts))
        batches = (
            self._on_device(self.dataset.scaled(self.dataset.train_x[torch.from_numpy(some)]))
            for some in np.array_split(everything, -(-len(everything) // size))
        )
        buffers = batchnorm.frozen_statistics(self.model, batches)
        return {name: b.detach().repeat(nodes, *[1] * b.ndim) for name, b in buffers.items()}

    def test_average(
        self,
        x: Tensor,
        a: Tensor,
        y: Tensor,
        buffers: dict[str, Tensor],
        t: int,
        stopping: Callable[[], bool] = lambda: False,
        policy: batchnorm.BatchNormPolicy | None = None,
    ) -> dict[str, float]:
        """Accuracy and loss of the average model, from the (n, ...) arrays of all nodes.

        With the configured BatchNorm policy, or another. Raises `Abandoned` once `stopping()`,
        which is asked before every batch.
        """
        return self._test(self.average_model(x, a, y, buffers, t, stopping, policy), stopping)

    def average_model(
        self,
        x: Tensor,
        a: Tensor,
        y: Tensor,
        buffers: dict[str, Tensor],
        t: int,
        stopping: Callable[[], bool] = lambda: False,
        policy: batchnorm.BatchNormPolicy | None = None,
    ) -> nn.Module:
        """What `test_average` tests."""
        policy = policy or self.config.evaluation.batchnorm
        average = y.mean(0) if self.config.published.average_of_y else engine.average(x, a)
        training = self._recompute_batches(t, stopping) if policy == "recomputed" else iter(())
        return self._model_of(average, buffers, policy, training)

    def test_nodes(
        self,
        y: Tensor,
        buffers: dict[str, Tensor],
        t: int,
        stopping: Callable[[], bool] = lambda: False,
        policy: batchnorm.BatchNormPolicy | None = None,
    ) -> list[dict[str, float]]:
        """Accuracy and loss of the given nodes' own models, with the average's BatchNorm policy.

        None if the configuration says so.
        """
        policy = policy or self.config.evaluation.batchnorm
        own = []
        for row in range(len(y) if self.config.evaluation.nodes else 0):
            mine = {name: b[row : row + 1] for name, b in buffers.items()}
            training = self._recompute_batches(t, stopping) if policy == "recomputed" else iter(())
            own.append(self._test(self._model_of(y[row], mine, policy, training), stopping))
        return own

    def _model_of(
        self,
        row: Tensor,
        buffers: dict[str, Tensor],
        policy: batchnorm.BatchNormPolicy,
        training: Iterable[Tensor],
    ) -> nn.Module:
        frozen = {name: p.detach() for name, p in self.model.named_parameters()}
        parameters = frozen | self.layout.views(row)
        return batchnorm.average_model(self.model, parameters, buffers, policy, training)

    def _test(self, model: nn.Module, stopping: Callable[[], bool]) -> dict[str, float]:
        right, loss, size = 0, 0.0, self.config.evaluation.batch
        test_x, test_y = self.dataset.test_x, self.dataset.test_y
        with torch.no_grad():
            for first in range(0, len(test_y), size):
                if stopping():
                    raise Abandoned
                x = self._on_device(self.dataset.scaled(test_x[first : first + size]))
                target = test_y[first : first + size].to(self.device)
                outputs = model(x)
                loss += float(F.cross_entropy(outputs, target, reduction="sum"))
                right += int((outputs.argmax(1) == target).sum())
        return {"accuracy": right / len(test_y), "loss": loss / len(test_y)}

    def _recompute_batches(self, t: int, stopping: Callable[[], bool]) -> Iterator[Tensor]:
        draw = stream(self.config.seed, "recompute", t)
        everything = np.unique(np.concatenate(self.parts))
        for _ in range(self.config.evaluation.recompute_batches):
            if stopping():
                raise Abandoned
            size = min(len(everything), self.config.evaluation.batch)
            chosen = torch.from_numpy(draw.choice(everything, size, replace=False))
            yield self._on_device(self.dataset.scaled(self.dataset.train_x[chosen]))

    def _on_device(self, x: Tensor) -> Tensor:
        x = x.to(self.device)
        # convolutions on a CPU are about a third faster this way, and equal to rounding
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


# --------------------------------------------------------------------------- names -> objects


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(unknown("device", name, ("auto", "cpu", "cuda"))) from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError):
        raise ValueError(f"device = {name!r}: not available here; auto chooses") from None
    return device


def _topology(config: Config) -> topology.Topology:
    c = config.topology
    if c.name == "random":
        seed = config.seed if c.seed is None else c.seed
        alike = config.published.per_receiver
        graphs = topology.random(c.nodes, c.inner, c.inter, c.period, seed, alike)
    else:
        graphs = topology.parse(c.name, c.nodes)
    return graphs


def _parts(config: Config, dataset: data.Dataset) -> list[np.ndarray]:
    c, n, seed = config.split, config.topology.nodes, config.seed
    labels = dataset.train_y.numpy()
    match c.kind:
        case "clusters":
            return partition.clusters(labels, n, c.clusters if n > 1 else 1, c.shared, seed)
        case "iid":
            return partition.iid(labels, n, seed)
        case "dirichlet":
            return partition.dirichlet(labels, n, c.alpha, c.minimum, seed)
        case "shards":
            return partition.shards(labels, n, c.per_node, seed)
        case "quantity":
            return partition.quantity(labels, n, c.alpha, c.minimum, seed)


def _model(config: Config, dataset: data.Dataset, node: int = 0) -> nn.Module:
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
        models.load_pretrained(model, c.pretrained, c.fresh_last_layer)
    return model


def _last_layer(model: nn.Module) -> Iterator[str]:
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    return (name for name, _ in model.named_parameters() if name.startswith(f"{last}."))


def _algorithm(config: Config, rate: Callable[[int], float]) -> algorithms.Algorithm:
    c = config.algorithm
    if not own_code.is_named(c.weighting):
        weighting.parse(c.weighting)  # refuses a bad one, whether it is used or not
    return algorithms.parse(c.name, lr=rate, momentum=c.momentum, weighting=c.weighting)


def _rule(config: Config, layout: Layout, rate: Callable[[int], float]) -> Rule | None:
    """The local optimizer that takes the place of the method's own."""
    c = config.algorithm
    if c.optimizer is None:
        return None
    return torch_rule(optimizer_maker(c.optimizer, c.lr, c.options), rate, layout.views)


def environment() -> dict[str, Any]:
    """What a run's last bits depend on besides its configuration, and the time."""
    return {
        "pushsum": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "git": _git_hash(),
        "threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git_hash(file: Path = Path(__file__)) -> str | None:
    """The revision of the package's own checkout, if it is one; '-dirty' if files have changed."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        quiet = subprocess.DEVNULL
        return subprocess.check_output(command, text=True, stderr=quiet, timeout=5).strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # an environment may lie in any checkout
        return git("describe", "--always", "--dirty", "--exclude", "*")
    except (OSError, subprocess.SubprocessError):
        return None


def _first_equal(parts: list[np.ndarray], part: np.ndarray) -> int:
    return next(k for k, other in enumerate(parts) if np.array_equal(other, part))
