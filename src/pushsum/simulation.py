"""Train n nodes with any module, on data in memory, by one call."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pushsum import config, training
from pushsum.data import own
from pushsum.engines.gradients import Layout, Loss
from pushsum.experiment import Experiment
from pushsum.experiment.experiment import Given
from pushsum.faults import Plan, as_plan
from pushsum.optimizers import as_maker, torch_rule
from pushsum.protocol import Algorithm
from pushsum.topology import Topology, as_topology

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a simulation has come to.

    Attributes:
        records: what was measured, from before step 1 on, as `pushsum run` writes it; under
            "local" what the nodes' models, and the personal ones, reach on the node's own data.
        model: the nodes' average, in evaluation mode.
        nodes: of every node, the `state_dict` of its own model.
        personal: the same of the nodes' personal models, where the method has any.
    """

    records: list[Record]
    model: nn.Module
    nodes: list[dict[str, Tensor]]
    personal: list[dict[str, Tensor]] | None

    @property
    def results(self) -> dict[str, float]:
        """What the average model reaches in the end."""
        found: dict[str, float] = self.records[-1]["test"]
        return found

    def __repr__(self) -> str:
        reached = ", ".join(f"{name} {value:.4g}" for name, value in self.results.items())
        return f"Simulation({len(self.nodes)} nodes, {self.records[-1]['step']} steps: {reached})"


def simulate(
    model: nn.Module,
    loss: str | Loss,
    parts: Sequence[Any],
    *,
    algorithm: str | Algorithm = "SGP",
    lr: float | None = None,
    topology: str | Topology = "exponential",
    optimizer: Any = None,
    epochs: int = 10,
    steps: int | None = None,
    batch: int = 32,
    every: int = 1,
    test: Any = None,
    test_every: float = 1,
    faults: Plan | str | None = None,
    seed: int = 0,
    progress: Callable[[Record], None] = lambda record: None,
) -> Simulation:
    """Train one copy of a model per node, each on its own data, over a directed network.

    Args:
        model: where all nodes start; it stays as it is. Its forward pass takes a batch of samples.
        loss: "cross-entropy", "mse", or (outputs, targets) -> the mean loss of a batch.
        parts: the data of each node: a pair of arrays or tensors (x, y), or a map-style torch data
            set of (sample, target), which is read into memory. Floats are used as they are.
        algorithm: the name of a method, or one of `pushsum.algorithms`.
        lr: the step size of a method that is given by its name; None: 0.05.
        topology: one of `pushsum.topology`, or the name of one.
        optimizer: a class of torch.optim with its arguments, which takes the place of the method's
            own local optimizer, e.g. functools.partial(torch.optim.AdamW, lr=0.01).
        epochs: each of (mean number of samples of a node) / batch steps.
        steps: stop after so many steps, unless the epochs are over before.
        batch: samples per node and step.
        every: local moves per exchange.
        test: what the models are tested with, in the form of a part, which is divided among the
            nodes as their labels are; or a list of parts, one for each node. None: the parts.
        test_every: epochs between two records.
        faults: what fails, one of `pushsum.faults`, e.g. plan(seed=0, loss=0.3); None: nothing.
            The average model is then that of the nodes that are there in the end.
        seed: of everything that is random, dropout included.
        progress: called with every record.

    >>> import torch, pushsum as ps
    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> parts = [(x, x.sum(1) + k) for k in range(3)]  # every node has targets of its own
    >>> made = ps.simulate(torch.nn.Linear(2, 1), "mse", parts, lr=0.1, batch=40, epochs=60)
    >>> [round(number, 2) for p in made.model.parameters() for number in p.flatten().tolist()]
    [1.0, 1.0, 1.0]
    """
    n, read = len(parts), own.joined("parts", list(parts))
    *train, held = read
    *tested, test_held = read if test is None else own.joined("test", test)
    arrays = dict(zip(own.ARRAYS, (*train, *tested), strict=True))
    if test_held is not None and len(test_held) != n:
        raise ValueError(f"test: a list of {len(test_held)} parts, and there are {n} nodes")
    graphs = as_topology(topology, n)
    if graphs.n != n:
        raise ValueError(f"topology is of {graphs.n} nodes, and there are {n} parts")
    method: dict[str, Any] = {"every": every}
    if isinstance(algorithm, str):
        method |= {"name": algorithm} | ({} if lr is None else {"lr": lr})
    elif lr is not None:
        raise ValueError(f"lr = {lr}: the algorithm that was given has its own; leave it out")
    content = {
        "seed": seed,
        "epochs": epochs,
        "steps": steps,
        "batch": batch,
        "topology": {"nodes": n},
        "algorithm": method,
        "evaluation": {"every": test_every},
    }
    rule = None
    if optimizer is not None:
        rule = torch_rule(as_maker(optimizer), views=Layout.of(model).views)
    given = Given(
        own.checked("parts", arrays, "parts", held, test_held, tokens=True),
        graphs,
        deepcopy(model),
        loss,
        None if isinstance(algorithm, str) else algorithm,
        rule,
        as_plan(faults),
    )
    return _run(Experiment(config.parse(content, trust=True), given), progress)


def _run(built: Experiment, progress: Callable[[Record], None]) -> Simulation:
    records: list[Record] = []

    def note(step: int, record: Record | None) -> None:
        if record is not None:
            records.append(record)
            progress(record)

    now = training.in_memory(built, note)
    moment, tested, personal = now.moment, built.evaluator, built.algorithm.personal

    def states(rows: Tensor) -> list[dict[str, Tensor]]:
        models = [tested.node_model(rows, now.buffers, k, now.step) for k in range(len(rows))]
        return [{k: v.detach().clone() for k, v in m.state_dict().items()} for m in models]

    average = tested.average_model(*training.present(built, now)[:4], now.step)
    return Simulation(
        records,
        training.own_copy(average),
        states(moment.y),
        None if personal is None else states(personal(moment.state)),
    )
