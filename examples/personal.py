"""Personal models: a common model by SGP, and one of each node's own that is drawn towards it.

python examples/personal.py
"""

import torch
from torch import nn

import pushsum as ps

NODES = 4


def draw(samples, seed):
    """What all nodes have in common is the slope; each has an offset of its own."""
    slope = torch.tensor([1.0, -2.0, 0.5])
    inputs = torch.randn(NODES, samples, 3, generator=torch.Generator().manual_seed(seed))
    return [(x, x @ slope + 2 * node) for node, x in enumerate(inputs)]


torch.manual_seed(0)
made = ps.simulate(
    nn.Linear(3, 1),
    "mse",
    parts=draw(80, seed=1),
    test=draw(40, seed=2),  # a list: every node is tested on data of its own
    algorithm=ps.algorithms.ditto(0.1, penalty=0.3, personal_lr=0.1),
    epochs=60,
    batch=20,
)

local = made.records[-1]["local"]
common, own = (local[models]["loss"]["mean"] for models in ("nodes", "personal"))
print(f"error on a node's own data: {common:.2f} with the common model, {own:.2f} with its own")
