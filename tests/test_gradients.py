"""The gradients of n networks: every strategy, every awkward model, against plain PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pushsum as ps
from pushsum import models
from pushsum.engines import gradients as module
from pushsum.engines.gradients import (
    Batch,
    Layout,
    candidates,
    draws,
    fastest,
    gradients,
    stacked_buffers,
)
from pushsum.engines.runtime import Abandoned

STRATEGIES = ["loop", "threads", "vmap"]


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def small_net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 36, 3),
    ).to(dtype)


def stacked(model, n, spread=0.1):
    layout = Layout.of(model)
    row = layout.flatten(dict(model.named_parameters()))
    generator = torch.Generator().manual_seed(1)
    return row + spread * torch.randn(n, layout.d, generator=generator, dtype=row.dtype)


def some_batch(n, size=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, size, 1, 6, 6, generator=generator, dtype=dtype)
    return Batch(x, torch.randint(3, (n, size), generator=generator))


def plain(model, y, batch):
    """One ordinary PyTorch model per node."""
    layout = Layout.of(model)
    rows, losses, nets = [], [], []
    for row, x, target in zip(y, batch.inputs, batch.targets, strict=True):
        net = copy.deepcopy(model)
        named = dict(net.named_parameters())
        for name, value in layout.views(row).items():
            named[name].data = value.clone()
        loss = F.cross_entropy(net(x), target)
        loss.backward()
        rows.append(torch.cat([named[name].grad.flatten() for name in layout.names]))
        losses.append(loss.detach())
        nets.append(net)
    return torch.stack(rows), torch.stack(losses), nets


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_strategy_equals_plain_pytorch(strategy, n):
    model, batch = small_net(), some_batch(n)
    y = stacked(model, n)
    buffers = stacked_buffers(model, n)
    untouched = y.clone()
    g, losses = gradients(strategy, model, F.cross_entropy, buffers)(y, batch)
    expected, expected_losses, nets = plain(model, y, batch)
    torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-12, atol=0)
    for name, value in buffers.items():
        theirs = torch.stack([dict(net.named_buffers())[name] for net in nets])
        torch.testing.assert_close(value, theirs, rtol=1e-12, atol=1e-14)
    assert torch.equal(y, untouched)


def test_loop_and_threads_agree_bit_for_bit_in_a_second_call_too():
    model = small_net(torch.float32)
    y, batch = stacked(model, 4), some_batch(4, dtype=torch.float32)
    torch.set_num_threads(1)
    results = []
    for strategy in ("loop", "threads"):
        buffers = stacked_buffers(model, 4)
        compute = gradients(strategy, model, F.cross_entropy, buffers)
        compute(y, batch)
        g, losses = compute(y, batch)
        results.append((g, losses, buffers["1.running_mean"]))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("strategy", ["loop", "threads"])
def test_a_step_is_given_up_between_two_nodes_and_leaves_no_trace(strategy):
    model, asked = small_net(), []
    buffers = stacked_buffers(model, 5)
    before = {name: value.clone() for name, value in buffers.items()}
    stopping = lambda: asked.append(1) is None and len(asked) >= 2
    with pytest.raises(Abandoned):
        gradients(strategy, model, F.cross_entropy, buffers, stopping)(
            stacked(model, 5), some_batch(5)
        )
    assert 2 <= len(asked) <= 3  # not until all nodes are through
    assert all(torch.equal(value, before[name]) for name, value in buffers.items())
    with pytest.raises(Abandoned):
        fastest(model, F.cross_entropy, stacked(model, 5), some_batch(5), stopping=lambda: True)


@pytest.mark.parametrize("strategy", ["loop", "threads"])
def test_nodes_that_hold_and_see_the_same_share_a_gradient(strategy, monkeypatch):
    """Of six: 1 is as 0, 4 as 3; 2 sees another batch, 5 has other statistics."""
    model, y, batch = small_net(), stacked(small_net(), 6), some_batch(6)
    for rows in (y, *batch[:2]):
        rows.copy_(rows[[0, 0, 0, 3, 3, 3]])
    batch.inputs[2, 0] += 1
    results = []
    for many in (0, 2**20):
        monkeypatch.setattr(module, "MANY", many)
        buffers, losses = stacked_buffers(model, 6), []
        buffers["1.running_mean"][5] += 1

        def loss(outputs, targets, seen=losses):
            seen.append(1)
            return F.cross_entropy(outputs, targets)

        found = gradients(strategy, model, loss, buffers)(y, batch)
        results.append((len(losses), [*found, *buffers.values()]))
    (shared, one), (alone, other) = results
    assert (shared, alone) == (4, 6)
    for ours, theirs in zip(one, other, strict=True):
        assert torch.equal(ours, theirs)


def test_one_node_alone_never_gives_up():
    """Its process has promised the step to the others."""
    model = small_net()
    stopping = lambda: True
    compute = gradients("loop", model, F.cross_entropy, stacked_buffers(model, 1), stopping)
    compute(stacked(model, 1), some_batch(1))


def test_the_model_that_is_given_stays_as_it_was():
    model = small_net()
    before = copy.deepcopy(model.state_dict())
    for strategy in STRATEGIES:
        compute = gradients(strategy, model, F.cross_entropy, stacked_buffers(model, 2))
        compute(stacked(model, 2), some_batch(2))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.frozen = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.decode(torch.tanh(self.encode(x)))) * self.scale


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tied_frozen_and_scalar_parameters(strategy):
    torch.manual_seed(0)
    model = Tied().double()
    layout = Layout.of(model)
    assert set(layout.names) == {"encode.weight", "scale"}
    assert layout.d == 17
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    batch = Batch(x, torch.randint(3, (3, 5), generator=generator))
    y = stacked(model, 3)
    g, _ = gradients(strategy, model, F.cross_entropy, stacked_buffers(model, 3))(y, batch)
    torch.testing.assert_close(g, plain(model, y, batch)[0], rtol=1e-10, atol=1e-12)


def test_nodes_may_have_batches_of_different_size():
    model = small_net()
    full = some_batch(3)
    batch = Batch(
        [x[: k + 2] for k, x in enumerate(full.inputs)],
        [t[: k + 2] for k, t in enumerate(full.targets)],
    )
    y = stacked(model, 3)
    assert candidates(model, 3, batch, y.device) == ["loop", "threads"]
    for strategy in ("loop", "threads"):
        g, _ = gradients(strategy, model, F.cross_entropy, stacked_buffers(model, 3))(y, batch)
        torch.testing.assert_close(g, plain(model, y, batch)[0], rtol=1e-10, atol=1e-12)


def test_dropout_is_drawn_from_the_stream_of_the_node_whatever_was_drawn_before():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)).double()
    batch, y = some_batch(4), stacked(model, 4)
    assert draws(model, F.cross_entropy, batch.inputs[0], batch.targets[0])
    assert not draws(small_net(), F.cross_entropy, batch.inputs[0], batch.targets[0])
    seeded = batch._replace(seeds=[5, 6, 7, 8])
    assert candidates(model, 4, seeded, torch.device("cpu")) == ["loop"]
    compute = gradients("loop", model, F.cross_entropy, {})
    before = torch.get_rng_state()
    g, _ = compute(y, seeded)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    later = Batch(batch.inputs[2:], batch.targets[2:], [7, 8])
    assert torch.equal(compute(y[2:], later)[0], g[2:])
    assert not torch.equal(compute(y, batch._replace(seeds=[1, 2, 3, 4]))[0], g)


def test_a_buffer_that_a_module_replaces_is_kept():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(36, 3)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return self.layer(x.flatten(1))

    model, buffers = Counting().double(), {"seen": torch.tensor([0.0, 5.0, 9.0])}
    assert "vmap" not in candidates(model, 3, some_batch(3), torch.device("cpu"))
    gradients("loop", model, F.cross_entropy, buffers)(stacked(model, 3), some_batch(3))
    assert buffers["seen"].tolist() == [1, 6, 10]


def test_the_fastest_is_measured_and_one_of_those_that_can():
    model, batch = small_net(), some_batch(4)
    best, seconds = fastest(model, F.cross_entropy, stacked(model, 4), batch)
    assert set(seconds) == {"loop", "threads", "vmap"}
    assert seconds[best] == min(seconds.values())


def test_a_model_that_vmap_cannot_batch_is_measured_without_it():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(36, 3)

        def forward(self, x):
            x = self.layer(x.flatten(1))
            return x if x.sum() > 0 else 2 * x

    model = Branches().double()
    _, seconds = fastest(model, F.cross_entropy, stacked(model, 3), some_batch(3))
    assert set(seconds) == {"loop", "threads"}


def frozen_below():
    model = models.build("mlp", (1, 8, 8), 3, hidden=(7, 6))
    model.hidden1.requires_grad_(False)
    return model


def tied():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 3))
    model[2].weight = model[1].weight
    return model


@pytest.mark.parametrize(
    "model",
    [
        models.build("mlp", (1, 8, 8), 3, hidden=(7,)),
        models.build("cnn", (1, 8, 8), 3, width=4),
        models.build("resnet-small", (1, 8, 8), 3, width=4, blocks=(1, 1)),
        models.build("resnet-small", (1, 8, 8), 3, width=4, blocks=(1, 1), norm="group"),
        frozen_below(),
        tied(),
    ],
    ids=["mlp", "cnn", "batch norm", "group norm", "frozen", "tied"],
)
def test_a_recorded_pass_equals_vmap_bit_for_bit(model, monkeypatch):
    """Over steps of descent, with a smaller batch and another memory format in between."""
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(5, 12, 1, 8, 8, generator=generator)
    targets = torch.randint(3, (5, 12), generator=generator)
    last = images.flatten(0, 1).contiguous(memory_format=torch.channels_last).view_as(images)
    batches = [Batch(images, targets), Batch(last[:, :4], targets[:, :4])]
    runs = []
    for long_run in (1000, 2):
        monkeypatch.setattr(module, "LONG_RUN", long_run)
        buffers = stacked_buffers(model, 5)
        compute = gradients("vmap", model, F.cross_entropy, buffers)
        y, losses = stacked(model, 5), []
        for step in range(8):
            g, loss = compute(y, batches[step % 2])
            y = y - 0.1 * g
            losses.append(loss)
        runs.append([y, torch.stack(losses), *buffers.values()])
    assert len(compute.recorded) == 2
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


class Counting(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def hooked():
    model = small_net()
    model[4].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return model


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Sequential(small_net(), Counting()), F.cross_entropy),
        (hooked(), F.cross_entropy),
        (small_net(), lambda outputs, targets: 2 * F.cross_entropy(outputs, targets)),
    ],
    ids=["module", "hook", "loss"],
)
def test_what_may_change_from_pass_to_pass_is_not_recorded(model, loss, monkeypatch):
    monkeypatch.setattr(module, "LONG_RUN", 1)
    compute = gradients("vmap", model, loss, stacked_buffers(model, 2))
    for _ in range(3):
        compute(stacked(model, 2), some_batch(2))
    assert not compute.recorded


def test_layout_round_trip_and_refusals():
    model = small_net()
    layout = Layout.of(model)
    row = layout.flatten(dict(model.named_parameters()))
    views = layout.views(row)
    assert all(torch.equal(views[name], p) for name, p in model.named_parameters())
    views["0.bias"].fill_(7.0)
    assert (row == 7.0).sum() == 4  # views, not copies
    with pytest.raises(ValueError, match="Flatten has no trainable parameters"):
        Layout.of(nn.Flatten())
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"mixes parameters of torch.float32 and torch.float64"):
        Layout.of(mixed)
    with pytest.raises(ValueError, match="strategy = 'magic': choose from loop, threads, vmap"):
        gradients("magic", model, F.cross_entropy, {})


def test_one_node_is_ordinary_training_with_torch_sgd():
    """N = 1: MSGAP through `iterate` and torch.optim.SGD give the same network."""
    model = small_net()
    layout = Layout.of(model)
    x0 = layout.flatten(dict(model.named_parameters()))[None]
    batches = [some_batch(1, size=4 + k) for k in range(6)]
    compute = gradients("loop", model, F.cross_entropy, stacked_buffers(model, 1))
    *_, last = ps.iterate(
        ps.algorithms.msgap(0.1, 0.8, ps.weighting.moreau(1.0, 0.1)),
        ps.topology.full(1),
        lambda y, t: compute(y, batches[t - 1])[0],
        x0,
        6,
    )
    net = copy.deepcopy(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(batch.inputs[0]), batch.targets[0]).backward()
        optimizer.step()
    expected = layout.flatten(dict(net.named_parameters()))
    torch.testing.assert_close(last.y[0], expected, rtol=1e-12, atol=1e-14)


def test_large_models_are_not_batched():
    """vmap would hold the activations of all nodes, and their gradients twice."""
    large = torch.nn.Linear(1024, 1024)
    small = torch.nn.Linear(4, 4)
    batch = Batch(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64))
    assert "vmap" in candidates(small, 2, batch, torch.device("cpu"))
    assert "vmap" not in candidates(large, 2, batch, torch.device("cpu"))
