"""Names of a configuration -> objects."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pushsum import algorithms, data, models, own_code, topology, weighting
from pushsum.config import Config
from pushsum.data import partition
from pushsum.names import unknown
from pushsum.optimizers import Rule, optimizer_maker, torch_rule
from pushsum.randomness import stream, torch_seeded


def device(name: str) -> torch.device:
    """The device of that name, or the one to choose here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise ValueError(unknown("device", name, ("auto", "cpu", "cuda"))) from None
    try:
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError):
        raise ValueError(f"device = {name!r}: not available here; auto chooses") from None
    return found


def graphs(config: Config) -> topology.Topology:
    """Who may send to whom."""
    c = config.topology
    return topology.parse(
        c.name,
        c.nodes,
        inner=c.inner,
        inter=c.inter,
        period=c.period,
        seed=config.seed if c.seed is None else c.seed,
        per_receiver=config.published.per_receiver,
    )


def dataset(config: Config) -> data.Dataset:
    """The samples."""
    c = config.data
    return data.load(
        c.name,
        c.root,
        target=c.target,
        test=c.test,
        standardize=c.standardize,
        nodes=config.topology.nodes,
        seed=config.seed,
    )


def parts(config: Config, dataset: data.Dataset) -> list[np.ndarray]:
    """Who holds which samples: as the data say, or by the configured split."""
    c, n, seed = config.split, config.topology.nodes, config.seed
    for found, what in ((dataset.parts, "is"), (dataset.test_parts, "has test samples that are")):
        if found is not None and len(found) != n:
            raise ValueError(
                f"topology.nodes = {n}: {dataset.name} {what} divided among {len(found)} nodes"
            )
    if dataset.parts is not None:
        return list(dataset.parts)
    if dataset.train_y.ndim > 1 and dataset.classes and c.kind not in ("iid", "quantity"):
        raise ValueError(
            f"split.kind = {c.kind}: sequences have no labels to split by: choose iid or quantity, "
            "or let the data's function return the nodes' parts"
        )
    options = {
        "clusters": (c.clusters if n > 1 else 1, c.shared),
        "iid": (),
        "dirichlet": (c.alpha, c.minimum),
        "shards": (c.per_node,),
        "quantity": (c.alpha, c.minimum),
    }
    split: Callable[..., list[np.ndarray]] = getattr(partition, c.kind)
    return split(dataset.groups, n, *options[c.kind], seed=seed)


def model(
    config: Config, dataset: data.Dataset, node: int = 0, shapes_only: bool = False
) -> nn.Module:
    """The network that a node starts from; `shapes_only`, of one of ours: without its memory."""
    c, shape = config.model, tuple(dataset.train_x.shape[1:])
    seed = int(stream(config.seed, "initialization", node).integers(2**62))
    if own_code.is_named(c.name):
        built = _own_model(c.name, shape, dataset.outputs, seed)
    else:
        built = models.build(
            c.name,
            shape,
            dataset.outputs,
            width=c.width,
            blocks=c.blocks,
            norm=c.norm,
            stem=c.stem,
            hidden=c.hidden,
            generator=torch.Generator().manual_seed(seed),
            shapes_only=shapes_only,
        )
    if c.pretrained is not None:  # of shapes alone: refuses what does not fit
        models.load_pretrained(built, c.pretrained, c.fresh_last_layer)
    return built


def _own_model(name: str, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """What a function, or a class, of FILE.py makes of the shape of a sample and the outputs."""
    with torch_seeded(seed):
        built = own_code.called("model", name, {"shape": shape, "outputs": outputs})
    if not isinstance(built, nn.Module):
        raise ValueError(f"model {name}: returned {type(built).__name__}, expected an nn.Module")
    return built


def last_layer(model: nn.Module) -> Iterator[str]:
    """The names of the parameters of the last linear layer."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("model.fresh_last_layer: the model has no linear layer")
    last = linear[-1]
    return (name for name, _ in model.named_parameters() if name.startswith(f"{last}."))


def algorithm(config: Config, rate: Callable[[int], float]) -> algorithms.Algorithm:
    """The method."""
    c = config.algorithm
    if not own_code.is_named(c.weighting):
        weighting.parse(c.weighting)  # refuses a bad one, whether it is used or not
    given = {"lr": rate, "momentum": c.momentum, "weighting": c.weighting}
    try:
        return algorithms.parse(c.name, c.parameters, **given)
    except ValueError as error:
        where = "algorithm.parameters: " if c.parameters else ""
        raise ValueError(f"{where}{error}") from None


def rule(
    config: Config,
    rate: Callable[[int], float],
    views: Callable[[Tensor], Mapping[str, Tensor]],
) -> Rule | None:
    """The local optimizer that takes the place of the method's own."""
    c = config.algorithm
    if c.optimizer is None:
        return None
    return torch_rule(optimizer_maker(c.optimizer, c.lr, c.options), rate, views)
