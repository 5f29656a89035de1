"""Lightning Fabric: its precision and devices, without its DDP and its sharding of the data.

torchrun --nproc-per-node 4 examples/with_fabric.py
"""

import os

import torch
from lightning_fabric import Fabric
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

# one device and no strategy: with several, setup() would wrap the model in DDP, which averages
# gradients over all processes, and cut every node's own data once more
local = int(os.environ.get("LOCAL_RANK", "0"))
fabric = Fabric(devices=[local] if torch.cuda.is_available() else 1)
fabric.to_device(model)
# the node takes the plain model and optimizer; Fabric's wrappers call them
node = ps.PushSum(model, optimizer, topology="exponential")
model, optimizer = fabric.setup(model, optimizer)

mine = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])
samples = TensorDataset(inputs[mine], labels[mine])
sampler = RandomSampler(samples, replacement=True, num_samples=STEPS * BATCH)

loader = fabric.setup_dataloaders(DataLoader(samples, BATCH, sampler=sampler))
for x, target in loader:
    optimizer.zero_grad()
    fabric.backward(nn.functional.cross_entropy(model(x), target))
    optimizer.step()
    schedule.step()

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model(fabric.to_device(digits.scaled(digits.test_x))).argmax(1).cpu()
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
