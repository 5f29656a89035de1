"""Your own topology and your own weighting: a list of graphs and a function.

torchrun --nproc-per-node 4 examples/own.py
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import pushsum as ps

STEPS, BATCH = 200, 32
N = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's word for the number of nodes

# [i, j] = i sends to j: round a ring in the odd steps, from node 0 to all in the even ones
ring = torch.eye(N).roll(1, dims=1)
hub = torch.zeros(N, N)
hub[0] = 1
graphs = ps.topology.from_graphs([ring, hub])


def farther_gets_more(adjacency: torch.Tensor, squared_distances: torch.Tensor) -> torch.Tensor:
    """A node keeps half; the more a receiver differs from it, the more it gets of the rest.

    Both are (n, n) with [i, j] = what sender i knows of j; W[j, i] is what i gives to j.
    """
    wish = adjacency.T * (1 + squared_distances.T / (1 + squared_distances.T))
    wish = wish.fill_diagonal_(0)
    away = wish / (2 * wish.sum(0)).clamp(min=1e-9)
    return away + torch.diag(1 - away.sum(0))


digits = ps.data.load("digits")
inputs, labels = digits.scaled(digits.train_x), digits.train_y

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
node = ps.PushSum(model, optimizer, graphs, farther_gets_more)

mine = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])
samples = TensorDataset(inputs[mine], labels[mine])
sampler = RandomSampler(samples, replacement=True, num_samples=STEPS * BATCH)

for x, target in DataLoader(samples, BATCH, sampler=sampler):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), target).backward()
    optimizer.step()
    schedule.step()

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model(digits.scaled(digits.test_x)).argmax(1)
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
