"""What `PushSum` is given: made into what it needs, or refused in one line."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from pushsum import __version__, algorithms, protocol, topology
from pushsum.engines.distributed.peers import Peers
from pushsum.engines.engine import Setup
from pushsum.engines.gradients import Layout
from pushsum.protocol import Algorithm
from pushsum.topology import Topology
from pushsum.weighting import Matrix, Weighting, as_weighting

WIRES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def as_algorithm(given: str | Algorithm, weighting: str | Weighting | Matrix | None) -> Algorithm:
    """The method; its own step size and momentum are those of the optimizer."""
    if isinstance(given, str):
        found = algorithms.named(given, weighting)
    elif isinstance(given, Algorithm):
        found = given
    else:
        raise ValueError(
            f"algorithm = {given!r}: give the name of a method, or one of pushsum.algorithms"
        )
    if found.asks != "model" or found.point is not None:
        raise ValueError(
            f"algorithm = {found.name}: it takes gradients elsewhere than at the model, which a "
            "loop of your own does not have: use pushsum.iterate, or `pushsum run`"
        )
    return found if weighting is None else replace(found, weighting=as_weighting(weighting))


def as_topology(given: str | Topology, n: int) -> Topology:
    """The graphs, of as many nodes as there are processes."""
    graphs = topology.as_topology(given, n)
    if graphs.n != n:
        raise ValueError(f"topology {graphs} has {graphs.n} nodes, but there are {n} processes")
    return graphs


def changes_gradients(method: Algorithm) -> bool:
    """Whether the optimizer is given something else than the node's own gradient."""
    return method.direction is not protocol.own_gradient or method.mean_gradient


def check_model(model: Any) -> None:
    """Refuse what is no plain module with parameters of its own."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is a {type(model).__name__}: give the module first, then its optimizer: "
            "PushSum(model, optimizer)"
        )
    if any(isinstance(part, DistributedDataParallel) for part in model.modules()):
        raise ValueError(
            "the model is wrapped in DistributedDataParallel, which averages all gradients: "
            "give the plain module"
        )
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ValueError(f"parameter {name} is not initialized: run the model once before")
        if p.requires_grad and p.dtype not in WIRES:
            raise ValueError(
                f"parameter {name} is {p.dtype}: only floats of 16 bits or more travel"
            )
        if type(p.data) is not Tensor:
            raise ValueError(
                f"parameter {name} is a {type(p.data).__name__}: sharded models cannot be pushed"
            )
    devices = sorted({str(p.device) for p in model.parameters() if p.requires_grad})
    if len(devices) > 1:
        raise ValueError(f"the model lies on {' and '.join(devices)}: one device per node")


def check_optimizer(optimizer: Any, method: Algorithm, overlap: bool) -> None:
    """Refuse what cannot be followed, or not while the backward pass goes on."""
    if optimizer is not None and not hasattr(optimizer, "_optimizer_step_post_hooks"):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__}, whose steps cannot be followed: give the "
            "optimizer of torch.optim as it was before a library wrapped it"
        )
    if method.plain_sgd and not isinstance(optimizer, torch.optim.SGD | None):
        kind = type(optimizer).__name__
        raise ValueError(f"{method.name} must know what a step size is: optimizer SGD, not {kind}")
    if not overlap:
        return
    if optimizer is None:
        raise ValueError("overlap = True needs the optimizer: it moves during backward()")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "overlap = True: LBFGS moves all parameters at once, from a closure: overlap=False"
        )
    if not method.elementwise or method.mean_gradient:
        raise ValueError(
            f"overlap = True: {method.name} looks at all parameters at once: overlap=False"
        )


def check_wire(wire: torch.dtype | None) -> None:
    """Refuse what parameters cannot travel in."""
    if wire is not None and wire not in WIRES:
        raise ValueError(f"wire = {wire}: parameters travel in a float of 16, 32 or 64 bits")


def check_device(device: torch.device, peers: Peers) -> None:
    """Refuse what the process group cannot carry."""
    if not peers.backend_serves(device):
        raise ValueError(
            f"the process group cannot send tensors of {device}: initialize it with a back end "
            f"for {device.type}, e.g. nccl for cuda"
        )


def facts(layout: Layout, dtype: torch.dtype, setup: Setup) -> dict[str, Any]:
    """What all nodes must have in common, or messages would not fit."""
    shapes = zip(layout.names, layout.shapes, strict=True)
    return {
        "parameters": [[name, *shape] for name, shape in shapes],
        "dtype": str(dtype),
        "wire": str(setup.wire),
        "topology": f"{setup.topology.name} {setup.topology.fingerprint()}",
        "algorithm": setup.algorithm.name,
        "weighting": setup.algorithm.weighting.name,
        "every": setup.every,
        "pushsum": __version__,
        "torch": str(torch.__version__),
    }
