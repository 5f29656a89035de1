"""What a run of the simulator needs."""

import torch

from pushsum import topology
from pushsum.engines.simulator import Network
from pushsum.experiment import Experiment
from pushsum.optimizers import Optimizing
from pushsum.training.saving import flattened


def arrays(experiment: Experiment) -> int:
    """How many (n, d) arrays there are at once, at the end of a step, when there are most.

    Before it: x, y and what was pushed, as many steps back as weights look (the last step's at
    least). In it: the gradients, and the new pushed, x and y; S-ADDOPT moves after the exchange
    and has one more. And what the rule keeps (momentum, trackers, an optimizer's state), twice
    unless it changes in place.
    """
    algorithm = experiment.algorithm
    d = experiment.layout.d
    row = torch.zeros(1, d)
    _, local = algorithm.step(algorithm.init(row), row, 1, Network(topology.full(1)))
    kept = sum(t.numel() for t in flattened(local)[0].values()) / d
    kept = kept + 2 if isinstance(local, Optimizing) else 2 * kept  # it works on copies of y and g
    if algorithm.collective:  # nothing is pushed
        return round(2 + 4 + kept)
    depth = algorithm.weighting.depth(experiment.graphs)
    return round(2 + max(1, depth) + 3 + algorithm.vectors + kept)
