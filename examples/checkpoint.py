"""Checkpoint and resume: one file per node and step; a second start goes on bit for bit.

torchrun --nproc-per-node 4 examples/checkpoint.py [FOLDER]
"""

import sys
from pathlib import Path

import torch
from torch import nn

import pushsum as ps

STEPS, BATCH, EVERY = 200, 32, 50
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints")

digits = ps.data.load("digits")
inputs, labels = digits.scaled(digits.train_x), digits.train_y

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
node = ps.PushSum(model, optimizer, topology="exponential")

mine = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])
parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "node": node}


def file(t: int, rank: int) -> Path:
    """A node has its own x and a, so it has its own file."""
    return FOLDER / f"step{t}-node{rank}.pt"


# a stop may have come between two nodes' saving: take the newest step that all of them have
steps = range(EVERY, STEPS + 1, EVERY)
if saved := [t for t in steps if all(file(t, rank).exists() for rank in range(node.n))]:
    state = torch.load(file(saved[-1], node.rank))
    torch.set_rng_state(state.pop("random"))
    for name, part in parts.items():
        part.load_state_dict(state[name])

for t in range(node.t + 1, STEPS + 1):
    chosen = mine[torch.randint(len(mine), (BATCH,))]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
    optimizer.step()
    schedule.step()
    if t % EVERY == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        FOLDER.mkdir(exist_ok=True)
        unfinished = file(t, node.rank).with_suffix(".part")
        torch.save(state | {"random": torch.get_rng_state()}, unfinished)
        unfinished.rename(file(t, node.rank))  # a file is there whole or not at all

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model(digits.scaled(digits.test_x)).argmax(1)
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
