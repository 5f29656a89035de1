"""accelerate: its mixed precision and accumulation, without its DDP and its sharding of the data.

torchrun --nproc-per-node 4 examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import pushsum as ps

STEPS, BATCH, PARTS = 200, 16, 2

digits = ps.data.load("digits")
inputs, labels = digits.scaled(digits.train_x), digits.train_y

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

accelerator = Accelerator(gradient_accumulation_steps=PARTS)
# prepare(model) would wrap the model in DDP, which averages gradients over all processes, and
# prepare(loader) would cut every node's own data once more: both are left alone
model = accelerator.prepare_model(model, evaluation_mode=True)
# the node watches the plain optimizer: accelerate's wrapper calls it when a step is due
node = ps.PushSum(model, optimizer, topology="exponential")
optimizer = accelerator.prepare_optimizer(optimizer)

mine = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])
samples = TensorDataset(inputs[mine], labels[mine])
sampler = RandomSampler(samples, replacement=True, num_samples=STEPS * PARTS * BATCH)

for x, target in DataLoader(samples, BATCH, sampler=sampler):
    with accelerator.accumulate(model):
        outputs = model(x.to(accelerator.device))
        accelerator.backward(nn.functional.cross_entropy(outputs, target.to(accelerator.device)))
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        schedule.step()

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model(digits.scaled(digits.test_x).to(accelerator.device)).argmax(1).cpu()
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
