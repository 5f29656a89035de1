"""Half precision: a GradScaler skips steps that overflow, so the node is told to push by itself.

torchrun --nproc-per-node 4 examples/scaler.py
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import pushsum as ps

STEPS, BATCH = 200, 32

digits = ps.data.load("digits")
inputs, labels = digits.scaled(digits.train_x), digits.train_y
local = int(os.environ.get("LOCAL_RANK", "0"))
device = torch.device(f"cuda:{local}" if torch.cuda.is_available() else "cpu")

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24)  # so high that steps overflow
# optimizer=None: a skipped optimizer.step() would leave the neighbours waiting for this node
node = ps.PushSum(model, None, topology="exponential")

mine = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])
samples = TensorDataset(inputs[mine], labels[mine])
sampler = RandomSampler(samples, replacement=True, num_samples=STEPS * BATCH)

for x, target in DataLoader(samples, BATCH, sampler=sampler):
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(device)), target.to(device))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    node.push()  # in every iteration, whether the optimizer has moved or not

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model(digits.scaled(digits.test_x).to(device)).argmax(1).cpu()
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
