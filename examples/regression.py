"""Regression: six nodes that see different parts of a curve learn all of it together.

python examples/regression.py
"""

import torch
from torch import nn

import pushsum as ps

NODES = 6
draw = torch.Generator().manual_seed(0)


def measured(low, high, count):
    """Noisy values of a curve between two points."""
    x = low + (high - low) * torch.rand(count, 1, generator=draw)
    noise = 0.05 * torch.randn(count, generator=draw)
    return x, torch.sin(3 * x[:, 0]) + noise


parts = [measured(-1 + node / 3, -1 + (node + 1) / 3, 60) for node in range(NODES)]
test = measured(-1, 1, 200)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
method = ps.algorithms.qgm(lr=0.1, momentum=0.9, weighting="uniform")
common = {"algorithm": method, "test": test, "epochs": 100, "batch": 20, "test_every": 100}

together = ps.simulate(model, "mse", parts, topology="exponential", **common)
alone = [ps.simulate(model, "mse", [part], topology="full", **common) for part in parts]

print(f"together: R^2 = {together.results['r2']:.3f}")
print(f"the best of all who train alone: {max(one.results['r2'] for one in alone):.3f}")
