"""`PushSum` in a user's own loop: real processes, against the simulator with the same optimizer."""

import pytest
import torch
from torch import nn

import pushsum as ps
from pushsum.engines.gradients import Batch, Layout, gradients, stacked_buffers
from pushsum.optimizers import optimizer_rule
from tests.ranks import on_ranks

STEPS, N = 7, 3
OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    "AdamW": {"weight_decay": 0.1},
    "Adafactor": {},
}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3)
    ).double()


def batch(rank, t):
    generator = torch.Generator().manual_seed(1000 * rank + t)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64) + rank
    return x, torch.randint(3, (4,), generator=generator)


def rate(t):
    return 0.05 / t


def train(rank, name, options, overlap, weighting="moreau:k=0.5,v=0.1"):
    model = network()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=rate(1), **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: rate(k + 1) / rate(1))
    node = ps.PushSum(model, optimizer, "exponential", weighting, overlap=overlap, timeout=60)
    trail = []
    for t in range(1, STEPS + 1):
        x, target = batch(rank, t)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        schedule.step()
        trail.append((node.layout.flatten(dict(model.named_parameters())), node.a))
    assert node.t == STEPS
    average = node.layout.flatten(node.average())
    node.close()
    return trail, average, node.ledger.bytes


def simulated(name, options, weighting="moreau:k=0.5,v=0.1"):
    model = network()
    layout = Layout.of(model)
    rule = optimizer_rule(name, rate(1), options, rate, layout.views)
    algorithm = ps.algorithms.descent("own", rule, ps.weighting.parse(weighting))
    compute = gradients("loop", model, nn.functional.cross_entropy, stacked_buffers(model, N))

    def gradient(y, t):
        parts = [batch(rank, t) for rank in range(N)]
        return compute(y, Batch([x for x, _ in parts], [target for _, target in parts]))[0]

    x0 = layout.flatten(dict(model.named_parameters())).repeat(N, 1)
    return list(ps.iterate(algorithm, ps.topology.exponential(N), gradient, x0, STEPS))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_users_loop_is_the_algorithm(name, overlap):
    torch.set_num_threads(1)
    found = on_ranks(N, train, name, OPTIMIZERS[name], overlap)
    for record in simulated(name, OPTIMIZERS[name]):
        for rank, (trail, _, _) in enumerate(found):
            y, a = trail[record.t - 1]
            assert a == record.a[rank]
            torch.testing.assert_close(y, record.y[rank], rtol=1e-13, atol=1e-13)
    averages = [average for _, average, _ in found]
    assert all(torch.equal(average, averages[0]) for average in averages)
    torch.testing.assert_close(averages[0], record.average, rtol=1e-12, atol=1e-13)


def test_a_parameter_may_be_a_single_number():
    model = nn.Module()
    model.scale = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with ps.PushSum(model, optimizer):
        model.scale.square().backward()
        optimizer.step()
    assert model.scale.item() == 0.0
