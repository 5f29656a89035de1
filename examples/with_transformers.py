"""Hugging Face's Trainer: its loop and callbacks, without its DDP and its sharding of the data.

torchrun --nproc-per-node 4 examples/with_transformers.py
"""

import os

import torch
from torch import nn
from torch.utils.data import Dataset

import pushsum as ps

STEPS, BATCH = 200, 32

digits = ps.data.load("digits")
inputs, labels = digits.scaled(digits.train_x), digits.train_y


class Classifier(nn.Module):
    """A model as the Trainer asks for it: with labels it returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None):
        outputs = self.layers(x)
        loss = None if labels is None else nn.functional.cross_entropy(outputs, labels)
        return {"loss": loss, "logits": outputs}


class Mine(Dataset):
    """The samples of this node, as often as the steps need them."""

    def __init__(self, indices: torch.Tensor) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, k: int) -> dict[str, torch.Tensor]:
        one = self.indices[k % len(self.indices)]
        return {"x": inputs[one], "labels": labels[one]}


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
node = ps.PushSum(model, optimizer, topology="exponential")
samples = torch.from_numpy(ps.data.partition.dirichlet(labels, node.n, alpha=0.5)[node.rank])

# the node has met its peers; without torchrun's variables the Trainer takes this process for the
# only one: else it would average gradients over all of them, and cut every node's own data again
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)

from transformers import Trainer, TrainingArguments  # noqa: E402

arguments = TrainingArguments(
    output_dir="build/with_transformers",
    max_steps=STEPS,
    per_device_train_batch_size=BATCH,
    max_grad_norm=0,
    save_strategy="no",
    logging_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Mine(samples), optimizers=(optimizer, schedule)
)
trainer.train()

model.load_state_dict(node.average())
with torch.no_grad():
    guesses = model.eval()(digits.scaled(digits.test_x))["logits"].argmax(1)
print(f"node {node.rank}: accuracy {(guesses == digits.test_y).float().mean():.3f}")
node.close()
