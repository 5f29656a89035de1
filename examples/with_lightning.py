"""Lightning's Trainer: its loop, callbacks and logging, without its DDP and its sharding.

torchrun --nproc-per-node 4 examples/with_lightning.py
"""

import os

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
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


class Digits(pl.LightningModule):
    """The task as Lightning asks for it; the node has hooked into the optimizer already."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, target = batch
        return nn.functional.cross_entropy(self.model(x), target)

    def configure_optimizers(self):
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


mine = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])
samples = TensorDataset(inputs[mine], labels[mine])
sampler = RandomSampler(samples, replacement=True, num_samples=STEPS * BATCH)

# one device and an environment of its own: else the Trainer would take torchrun's processes for
# its own, average gradients over all of them and cut every node's own data once more
local = int(os.environ.get("LOCAL_RANK", "0"))
trainer = pl.Trainer(
    max_steps=STEPS,
    devices=[local] if torch.cuda.is_available() else 1,
    accelerator="auto",
    plugins=LightningEnvironment(),
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Digits(), DataLoader(samples, BATCH, sampler=sampler))

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model(digits.scaled(digits.test_x)).argmax(1)
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
