"""Personal models: a common model by SGP, and one of each node's own that is drawn towards it.

python examples/personal.py
"""

import torch
from torch import nn

import pushsum as ps
from pushsum.algorithms import Algorithm, State

NODES, LR, PULL = 4, 0.1, 0.3


def near_the_common(lr, pull):
    """v' = v - lr (g(v) + pull (v - y)) beside SGP, which has y."""
    common = ps.algorithms.sgp(lr)

    def direction(state, gradient, step):
        own, y = state.kept, common.model(state)
        return gradient(), own - lr * (gradient(own) + pull * (own - y))

    return Algorithm(
        "near the common",
        common.optimizer,
        start=lambda x0, step: x0.clone(),
        direction=direction,
        receive=lambda state, own, move, got, step: State(got.push[0], got.a, own),
        personal=lambda state: state.kept,
        asks="points",
    )


# what all nodes have in common is the slope; each has an offset of its own
draw = torch.Generator().manual_seed(0)
slope = torch.tensor([1.0, -2.0, 0.5])
inputs = torch.randn(NODES, 80, 3, generator=draw)
parts = [(x, x @ slope + 2 * node) for node, x in enumerate(inputs)]

torch.manual_seed(0)
made = ps.simulate(
    nn.Linear(3, 1), "mse", parts, algorithm=near_the_common(LR, PULL), epochs=60, batch=20
)


def error(state, part):
    """Of a model with these parameters, on the data of one node."""
    model = nn.Linear(3, 1)
    model.load_state_dict(state)
    x, y = part
    with torch.no_grad():
        return nn.functional.mse_loss(model(x)[:, 0], y).item()


for node, part in enumerate(parts):
    common, own = error(made.nodes[node], part), error(made.personal[node], part)
    print(f"node {node}: error {common:.2f} with the common model, {own:.2f} with its own")
