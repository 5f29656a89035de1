"""One step of a run: gradients, the exchange, and what they took."""

from time import perf_counter

import torch
from torch import Tensor

from pushsum.engines.engine import Engine
from pushsum.engines.failing.standing import rows_of
from pushsum.engines.gradients import Gradients, gradients, unchanged_if_abandoned
from pushsum.engines.runtime import Abandoned, Runtime
from pushsum.experiment import Experiment
from pushsum.training.records import Diverged
from pushsum.training.state import RunState


def one_step(
    experiment: Experiment,
    runtime: Runtime,
    now: RunState,
    t: int,
    compute: Gradients,
    engine: Engine,
) -> None:
    """Take step t, and count what it took; once told to stop, raise `Abandoned` unchanged."""
    start = perf_counter()
    asked = _Asked(experiment, runtime, now, t, compute)
    before, sent = dict(engine.seconds), engine.bytes
    with unchanged_if_abandoned(now.buffers) as buffers:
        now.moment = engine.advance(now.moment, asked, last=True)
    spent = {name: value - before[name] for name, value in engine.seconds.items()}
    assert asked.losses is not None, "a method takes a gradient in every step"
    if now.recorded == t - 1:  # not before: a record that is damaged is made again
        now.losses.clear()
    losses = asked.losses
    if experiment.faults is not None:  # who sleeps has computed nothing
        awake = now.moment.memory.awake
        losses = losses[awake.to(losses.device)] if bool(awake.any()) else losses
        for name, value in rows_of(awake, now.buffers, buffers).items():
            now.buffers[name].copy_(value)
    now.losses.append(float(losses.mean()))
    now.bytes += engine.bytes - sent
    for name, seconds in spent.items():
        now.seconds[name] += seconds
    now.seconds["gradients"] += asked.seconds
    now.seconds["total"] += perf_counter() - start
    here = len(runtime.nodes)
    modelled = experiment.costs.seconds(t, asked.seconds / here, spent["weighting"] / here)
    for name, seconds in modelled.items():
        now.modelled[name] += seconds


class _Asked:
    """The gradients of a step, on the nodes' batches; buffers are updated the first time only."""

    def __init__(
        self, experiment: Experiment, runtime: Runtime, now: RunState, t: int, compute: Gradients
    ) -> None:
        self.experiment, self.runtime, self.t, self.compute = experiment, runtime, t, compute
        moment = now.moment
        self.point = experiment.algorithm.gradient_point(moment.state, moment.y)
        if experiment.faults is not None and experiment.algorithm.point is not None:
            self.point = rows_of(moment.memory.alive, self.point, moment.y)
        self.buffers, self.seconds = now.buffers, 0.0
        self.losses: Tensor | None = None

    def __call__(self, point: Tensor | None = None) -> Tensor:
        start = perf_counter()
        batch = self.experiment.batch(self.t, self.runtime.nodes)
        if self.losses is None:
            g, self.losses = self.compute(self.point if point is None else point, batch)
        else:
            kept = {name: value.clone() for name, value in self.buffers.items()}
            g, _ = self.compute(self.point if point is None else point, batch)
            for name, value in kept.items():
                self.buffers[name].copy_(value)
        if not self.runtime.agree_to_start(self.t):  # a pass may take longer than a signal leaves
            raise Abandoned
        refuse_infinite(self.experiment, self.runtime, g, self.losses, self.t)
        self.seconds += perf_counter() - start
        return g

    def full(self, point: Tensor) -> Tensor:
        """Of all samples of each node, without augmentation; buffers stay as they were."""
        start = perf_counter()
        kept = {name: value.clone() for name, value in self.buffers.items()}
        built, stopping = self.experiment, lambda: self.runtime.stopping
        compute = gradients("loop", built.model, built.task.loss, self.buffers, stopping)
        total, size = torch.zeros_like(point), built.config.evaluation.batch
        for batch, shares in built.sampler.everything(built.feed, self.runtime.nodes, size):
            g, _ = compute(point, batch)
            total += shares[:, None].to(g) * g
        for name, value in kept.items():
            self.buffers[name].copy_(value)
        self.seconds += perf_counter() - start
        return total


def refuse_bad_state(runtime: Runtime, now: RunState) -> None:
    """A step may leave the finite numbers although its gradient was finite."""
    x = now.moment.state.x
    if bool(x.sum(1).isfinite().all()) or bool(x.isfinite().all()):
        return
    node = runtime.nodes[int((~x.isfinite().all(1)).nonzero()[0])]
    raise Diverged(
        f"node {node} diverged at step {now.step}: its parameters are not finite; try a smaller "
        "algorithm.lr (the last checkpoint is kept)"
    )


def refuse_infinite(
    experiment: Experiment, runtime: Runtime, g: Tensor, losses: Tensor, t: int
) -> None:
    """`Diverged` at a node whose loss or gradient is not finite."""
    if bool(losses.isfinite().all()) and bool(g.sum(1).isfinite().all()):
        return
    for row, node in enumerate(runtime.nodes):
        if not bool(losses[row].isfinite()):
            where = "its loss"
        elif not bool(g[row].isfinite().all()):
            views = experiment.layout.views(g[row])
            where = "the gradient of " + next(k for k, v in views.items() if not v.isfinite().all())
        else:
            continue
        raise Diverged(
            f"node {node} diverged at step {t}: {where} is not finite; try a smaller algorithm.lr "
            "(the last checkpoint is kept)"
        )
