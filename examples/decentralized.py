"""The same loop as one node of a network: it keeps its data and pushes its model to neighbours.

torchrun --nproc-per-node 4 examples/decentralized.py      (or plain python: one node, alone)
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import pushsum as ps

STEPS, BATCH = 200, 32

digits = ps.data.load("digits")
inputs, labels = digits.scaled(digits.train_x), digits.train_y

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
node = ps.PushSum(model, optimizer, topology="exponential")

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
