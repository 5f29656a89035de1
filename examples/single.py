"""A plain loop in one process: an MLP on handwritten digits.

python examples/single.py
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

samples = TensorDataset(inputs, labels)
sampler = RandomSampler(samples, replacement=True, num_samples=STEPS * BATCH)

for x, target in DataLoader(samples, BATCH, sampler=sampler):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), target).backward()
    optimizer.step()
    schedule.step()

with torch.no_grad():
    guesses = model(digits.scaled(digits.test_x)).argmax(1)
print(f"accuracy {(guesses == digits.test_y).float().mean():.3f}")
