"""A small transformer that learns to write, from pieces of text that no node has alone.

python examples/language_model.py
"""

import functools

import torch
from torch import nn

import pushsum as ps

LENGTH, WIDTH = 24, 32
TEXTS = [  # every node has verses of its own
    "one for the money, two for the show, three to make ready, and four to go. ",
    "the rain in spain stays mainly in the plain, and the snow stays on the hill. ",
    "she sells sea shells by the sea shore, and he sells sand by the sand dune. ",
    "a ring of nodes sends round and round what every node alone has found. ",
]
letters = sorted(set("".join(TEXTS)))


def windows(text, count=64):
    """Pieces of a text, and what follows each of their letters."""
    codes = torch.tensor([letters.index(letter) for letter in text * 3])
    pieces = codes.unfold(0, LENGTH + 1, 1)[:count]
    return pieces[:, :-1], pieces[:, 1:]


class Writer(nn.Module):
    """(b, LENGTH) letters -> (b, LENGTH, letters): what may follow each of them."""

    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(len(letters), WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.05, batch_first=True)
        self.next = nn.Linear(WIDTH, len(letters))

    def forward(self, x):
        """Every place sees itself and what is before it."""
        hidden = self.letter(x) + self.place(torch.arange(x.shape[1]))
        earlier = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.next(self.block(hidden, src_mask=earlier, is_causal=True))


torch.manual_seed(0)
made = ps.simulate(
    Writer(),
    "cross-entropy",
    [windows(text) for text in TEXTS],
    topology="exponential",
    optimizer=functools.partial(torch.optim.AdamW, lr=0.01),
    epochs=40,
    batch=32,
    test_every=10,
)

for record in made.records:
    print(f"step {record['step']:3}: perplexity {record['test']['perplexity']:.2f}")
