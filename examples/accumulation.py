"""Gradient accumulation: four small batches make one step, and one push.

torchrun --nproc-per-node 4 examples/accumulation.py
"""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import pushsum as ps

STEPS, BATCH, PARTS = 200, 8, 4

digits = ps.data.load("digits")
inputs, labels = digits.scaled(digits.train_x), digits.train_y

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
# overlap: parameters leave while the backward pass still goes on
node = ps.PushSum(model, optimizer, "exponential", overlap=True)

mine = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])
samples = TensorDataset(inputs[mine], labels[mine])
sampler = RandomSampler(samples, replacement=True, num_samples=STEPS * PARTS * BATCH)

for k, (x, target) in enumerate(DataLoader(samples, BATCH, sampler=sampler), start=1):
    last = k % PARTS == 0
    # only overlap needs to be told which backward is the last; without it, leave this line out
    with nullcontext() if last else node.accumulate():
        (nn.functional.cross_entropy(model(x), target) / PARTS).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model(digits.scaled(digits.test_x)).argmax(1)
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
