"""`PushSum` in a user's own loop: real processes, against the simulator with the same optimizer."""

import copy
import os
import re
import signal
import warnings
from contextlib import nullcontext
from io import BytesIO
from multiprocessing import Pipe

import pytest
import torch
from torch import nn

import pushsum as ps
from pushsum.engines.arithmetic import LONG
from pushsum.engines.distributed import exchange, rounds
from pushsum.engines.distributed.peers import PeerLost
from pushsum.engines.gradients import Batch, Layout, gradients, stacked_buffers
from pushsum.optimizers import optimizer_maker, torch_rule
from tests.ranks import DEADLINE, on_ranks, running, starving_path

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
    node = ps.PushSum(model, optimizer, "exponential", weighting, overlap=overlap, timeout=DEADLINE)
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
    rule = torch_rule(optimizer_maker(name, rate(1), options), rate, layout.views)
    algorithm = ps.algorithms.Algorithm("own", rule, ps.weighting.parse(weighting))
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


# --------------------------------------------------------------------------- loops of all kinds


class Loop:
    """A user's model, optimizer and step; what is special to a case is overridden there."""

    overlap = False
    explicit = False
    steps = 6

    def __init__(self):
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, rank, t, part=slice(None)):
        x, target = batch(rank, t)
        return nn.functional.cross_entropy(self.model(x[part]), target[part])

    def step(self, rank, t, node):
        self.optimizer.zero_grad()
        self.loss(rank, t).backward()
        self.optimizer.step()


class Groups(Loop):
    def __init__(self):
        super().__init__()
        first, *others = self.model.children()
        groups = [
            {"params": first.parameters()},
            {"params": nn.ModuleList(others).parameters(), "lr": 0.02, "weight_decay": 0.1},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)


class GroupsOverlapped(Groups):
    overlap = True


class Frozen(Loop):
    def __init__(self):
        super().__init__()
        self.model[2].requires_grad_(False)


class Tied(Loop):
    def __init__(self):
        super().__init__()
        self.model[2].weight = nn.Parameter(self.model[2].weight.detach().clone())
        self.model.insert(4, nn.Linear(7, 7, bias=False, dtype=torch.float64))
        self.model[4].weight = self.model[2].weight
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)


class TiedOverlapped(Tied):
    overlap = True


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
        self.seldom = nn.Parameter(torch.ones(7, dtype=torch.float64))
        self.used = True

    def forward(self, x):
        return x * self.scale + (self.seldom if self.used else 0)


class NoDimensions(Loop):
    """One parameter without dimensions, and one that has a gradient in every other step only."""

    overlap = True

    def __init__(self):
        super().__init__()
        self.model.insert(2, Scale())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, rank, t, node):
        self.model[2].used = t % 2 == 0
        super().step(rank, t, node)


class ChannelsLast(Loop):
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 3, 3), nn.Flatten()
        ).double()
        self.model.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, rank, t, part=slice(None)):
        generator = torch.Generator().manual_seed(10 * rank + t)
        x = torch.randn(2, 3, 5, 5, generator=generator, dtype=torch.float64)
        loss = self.model(x.to(memory_format=torch.channels_last)).square().mean()
        weights = [p for p in self.model.parameters() if p.ndim == 4]
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
        return loss


class Accumulated(Loop):
    """Two halves of the batch, added up: the same as one large batch."""

    def step(self, rank, t, node):
        self.optimizer.zero_grad()
        with node.accumulate() if node else nullcontext():
            (self.loss(rank, t, slice(0, 2)) / 2).backward()
        (self.loss(rank, t, slice(2, 4)) / 2).backward()
        self.optimizer.step()


class AccumulatedOverlapped(Accumulated):
    overlap = True


class Scaled(Loop):
    """A GradScaler that skips a step where the loss overflows, each time at another node."""

    explicit = True

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)

    def step(self, rank, t, node):
        self.optimizer.zero_grad()
        overflow = float("inf") if t % (rank + 2) == 0 else 1.0
        self.scaler.scale(self.loss(rank, t) * overflow).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Closure(Loop):
    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)

    def step(self, rank, t, node):
        def closure():
            self.optimizer.zero_grad()
            loss = self.loss(rank, t)
            loss.backward()
            return loss

        self.optimizer.step(closure)


LOOPS = (
    Loop,
    Groups,
    GroupsOverlapped,
    Frozen,
    Tied,
    TiedOverlapped,
    NoDimensions,
    ChannelsLast,
    Accumulated,
    AccumulatedOverlapped,
    Scaled,
    Closure,
)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def all_loops(rank):
    found = {}
    for kind in LOOPS:
        loop = kind()
        frozen = [p.clone() for p in loop.model.parameters() if not p.requires_grad]
        given = None if loop.explicit else loop.optimizer
        node = ps.PushSum(loop.model, given, "exponential", timeout=DEADLINE, overlap=loop.overlap)
        for t in range(1, loop.steps + 1):
            loop.step(rank, t, node)
            if loop.explicit:
                node.push()
        now = [p for p in loop.model.parameters() if not p.requires_grad]
        assert all(map(torch.equal, frozen, now))
        found[kind.__name__] = flat(loop.model), node.a, node.ledger.bytes, node.layout.d
        node.close()
    return found


def literal(kind):
    """The same loops in one process, and the exchange as a product with W."""
    graphs, uniform = ps.topology.exponential(N), ps.weighting.uniform()
    loops = [kind() for _ in range(N)]
    y = torch.stack([flat(loop.model) for loop in loops])
    x, a = y.clone(), torch.ones(N, 1, dtype=torch.float64)
    for t in range(1, kind.steps + 1):
        for rank, loop in enumerate(loops):
            loop.step(rank, t, None)
        x += torch.stack([flat(loop.model) for loop in loops]) - y
        W = uniform.matrix(graphs.adjacency(t), torch.zeros(N, N, dtype=torch.float64))
        x, a = W @ x, W @ a
        y = x / a
        for row, loop in zip(y, loops, strict=True):
            parameters = [p for p in loop.model.parameters() if p.requires_grad]
            for part, p in zip(row.split([p.numel() for p in parameters]), parameters, strict=True):
                p.data.copy_(part.view(p.shape))
    return y, a


def test_loops_of_all_kinds():
    """Groups, frozen and tied parameters, layouts, accumulation, skipped steps, closures."""
    torch.set_num_threads(1)
    found = on_ranks(N, all_loops)
    for kind in LOOPS:
        y, a = literal(kind)
        for rank in range(N):
            own, scalar, sent, d = found[rank][kind.__name__]
            torch.testing.assert_close(own, y[rank], rtol=1e-11, atol=1e-11, msg=kind.__name__)
            assert scalar == pytest.approx(a[rank].item(), abs=1e-14)
            assert sent == kind.steps * (8 * d + 24)  # one out-edge per step; frozen: not in d
    for name in ("Accumulated", "AccumulatedOverlapped"):
        for rank in range(N):
            large = found[rank]["Loop"][0]
            torch.testing.assert_close(found[rank][name][0], large, rtol=1e-11, atol=1e-11)
    sizes = {kind: found[0][kind][3] for kind in ("Loop", "Frozen", "Tied")}
    assert sizes == {"Loop": 122, "Frozen": 122 - 56, "Tied": 122}


# --------------------------------------------------------------------------- many buckets


def wide():
    torch.manual_seed(0)
    return nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(210, 210), nn.Tanh())])


def in_buckets(rank, topology, weighting):
    """The parameters after some steps without and with overlap, and when buckets left."""
    exchange.BUCKET = LONG  # as small as buckets may be
    found, sent = [], []
    kind = rounds.SumRound if (topology, weighting) == ("full", "uniform") else rounds.MessageRound
    send = kind.send

    def noticed(step, bucket, values):
        sent.append(model[0].weight.grad is None)  # the backward pass has not come to its end
        send(step, bucket, values)

    kind.send = noticed
    for overlap in (False, True):
        model = wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sent.clear()
        node = ps.PushSum(model, optimizer, topology, weighting, overlap=overlap, timeout=DEADLINE)
        for t in range(4):
            generator = torch.Generator().manual_seed(10 * t + rank)
            optimizer.zero_grad()
            model(torch.randn(8, 210, generator=generator)).square().mean().backward()
            optimizer.step()
        node.close()
        found.append((flat(model), node.a, list(sent)))
    return found


@pytest.mark.parametrize(
    ("topology", "weighting"),
    [("full", "uniform"), ("exponential", "moreau:k=0.01,v=0.1"), ("ring", "scale-free-moreau")],
)
def test_buckets_that_leave_during_backward_change_nothing(topology, weighting):
    for plain, overlapped in on_ranks(N, in_buckets, topology, weighting):
        assert torch.equal(plain[0], overlapped[0])
        assert plain[1] == overlapped[1]
        assert len(overlapped[2]) == 4 * 6
        assert sum(overlapped[2]) >= 4 * 3
        assert not any(plain[2])


# --------------------------------------------------------------------------- saving


class Scheduled(Loop):
    """AdamW with a schedule, weights that look at what was heard, float32."""

    def __init__(self, overlap, wire):
        self.model = network().float()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.node = ps.PushSum(
            self.model,
            self.optimizer,
            "exponential",
            "moreau:k=0.5,v=0.1",
            overlap=overlap,
            wire=wire,
            timeout=DEADLINE,
        )
        self.parts = self.model, self.optimizer, self.schedule, self.node

    def go_on(self, rank, steps):
        for t in steps:
            self.optimizer.zero_grad()
            x, target = batch(rank, t)
            nn.functional.cross_entropy(self.model(x.float()), target).backward()
            self.optimizer.step()
            self.schedule.step()


def interrupted(rank, overlap, wire):
    whole = Scheduled(overlap, wire)
    whole.go_on(rank, range(1, 5))
    file = BytesIO()
    torch.save([part.state_dict() for part in whole.parts], file)
    whole.go_on(rank, range(5, 9))
    resumed = Scheduled(overlap, wire)
    for part, state in zip(resumed.parts, torch.load(BytesIO(file.getvalue())), strict=True):
        part.load_state_dict(state)
    resumed.go_on(rank, range(5, 9))
    states = [[part.state_dict() for part in loop.parts] for loop in (whole, resumed)]
    with pytest.raises(ValueError, match="the state is that of node") as refusal:
        resumed.node.load_state_dict(states[0][3] | {"node": [1 - rank, 2]})
    for loop in (whole, resumed):
        loop.node.close()
    return *states, str(refusal.value)


@pytest.mark.parametrize(("overlap", "wire"), [(False, None), (True, torch.bfloat16)])
def test_a_saved_state_goes_on_bit_for_bit(overlap, wire):
    for rank, (whole, resumed, refusal) in enumerate(on_ranks(2, interrupted, overlap, wire)):
        assert whole[3]["t"] == 8
        assert whole[3].pop("facts") == resumed[3].pop("facts")
        torch.testing.assert_close(whole, resumed, rtol=0, atol=0)
        assert refusal == (
            f"the state is that of node {1 - rank} of 2, this is node {rank} of 2: "
            "every node saves and loads a file of its own"
        )


# --------------------------------------------------------------------------- what is refused


def in_order(*names):
    return lambda: nn.ModuleDict({name: nn.Linear(2, 2) for name in names})


DIFFERENT = {
    "shapes": ({"model": lambda: nn.Linear(3, 2)}, {"model": lambda: nn.Linear(4, 2)}),
    "order": ({"model": in_order("a", "b")}, {"model": in_order("b", "a")}),
    "more": ({"model": lambda: nn.Linear(3, 2, bias=False)}, {"model": lambda: nn.Linear(3, 2)}),
    "dtype": ({}, {"model": lambda: nn.Linear(3, 2).double()}),
    "wire": ({}, {"wire": torch.bfloat16}),
    "topology": ({}, {"topology": "full"}),
    "seed": (
        {"topology": lambda n: ps.topology.random(n, seed=1)},
        {"topology": lambda n: ps.topology.random(n, seed=2)},
    ),
    "weighting": ({"weighting": "moreau:k=1,v=0.1"}, {"weighting": "moreau:k=2,v=0.1"}),
}


def disagreements(rank):
    """What each case is refused with, the last node being given something else."""
    from pushsum.engines.distributed import messages

    def nothing_may_be_sent(operations):
        raise AssertionError("sent")

    messages.dist.batch_isend_irecv = nothing_may_be_sent
    found = {}
    for name, (usual, other) in DIFFERENT.items():
        options = {"model": lambda: nn.Linear(3, 2), "topology": "exponential"}
        options |= usual | (other if rank == N - 1 else {})
        model, where = options.pop("model")(), options["topology"]
        if callable(where):
            options["topology"] = where(N)
        with pytest.raises(ValueError, match="the nodes differ in") as refusal:
            ps.PushSum(model, None, timeout=DEADLINE, **options)
        found[name] = str(refusal.value)
    return found


def test_nodes_that_differ_are_refused_everywhere_with_both_values():
    found = on_ranks(N, disagreements)
    assert all(lines == found[0] for lines in found)
    graphs = r"random\(3\) [0-9a-f]{12}"
    line = f"the nodes differ in topology: '({graphs})' at node 0, '({graphs})' at node 2"
    first, other = re.fullmatch(line, found[0].pop("seed")).groups()
    assert first != other
    assert {name: re.sub(r" [0-9a-f]{12}'", "'", line) for name, line in found[0].items()} == {
        "shapes": "the nodes differ in parameters: ['weight', 2, 3] at node 0, "
        "['weight', 2, 4] at node 2",
        "order": "the nodes differ in parameters: ['a.weight', 2, 2] at node 0, "
        "['b.weight', 2, 2] at node 2",
        "more": "the nodes differ in parameters: None at node 0, ['bias', 2] at node 2",
        "dtype": "the nodes differ in dtype: 'torch.float32' at node 0, 'torch.float64' at node 2",
        "wire": "the nodes differ in wire: 'None' at node 0, 'torch.bfloat16' at node 2",
        "topology": "the nodes differ in topology: 'exponential(3)' at node 0, 'full(3)' at node 2",
        "weighting": "the nodes differ in weighting: 'moreau(k=1, v=0.1)' at node 0, "
        "'moreau(k=2, v=0.1)' at node 2",
    }


def misfit(rank):
    with pytest.raises((PeerLost, ValueError), match="node") as refusal:
        ps.PushSum(network(), None, ps.topology.ring(N + (rank == 1)), timeout=DEADLINE)
    return str(refusal.value)


def test_nobody_waits_for_a_node_that_was_refused():
    assert on_ranks(N, misfit) == [
        "node 1 left before the first step: its own error says why",
        "topology ring(4) has 4 nodes, but there are 3 processes",
        "node 1 left before the first step: its own error says why",
    ]


def shorter(rank):
    """Node 1 takes three steps, the others would take more."""
    loop = Loop()
    node = ps.PushSum(loop.model, loop.optimizer, "exponential", timeout=DEADLINE)
    for t in range(1, 4 if rank == 1 else 9):
        try:
            loop.step(rank, t, node)
        except PeerLost as loss:
            return str(loss)
    node.close()
    return None


def test_a_node_that_takes_fewer_steps_is_named():
    found = on_ranks(N, shorter)
    assert found[1] is None
    for rank in (0, 2):
        line = (
            r"node 1 left after step 3: all nodes must take as many steps \(noticed in step [4-6]\)"
        )
        assert re.fullmatch(line, found[rank]), found[rank]


def starved(rank, overlap):
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path, weighting = starving_path()
    ps.PushSum(model, optimizer, path, weighting, overlap=overlap, timeout=DEADLINE)
    try:
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.ones(5)).sum().backward()
            optimizer.step()
    except (PeerLost, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("overlap", [False, True])
def test_scalars_that_are_too_small_are_noticed_in_a_users_loop(overlap):
    *others, last = on_ranks(4, starved, overlap)
    assert last == (
        "node 3 has a = 7.5e-37 after step 6, too small for float32: y = x / a would be wrong; "
        "let it hear from more nodes, or compute in float64"
    )
    for said in others:
        assert said is not None
        assert said.startswith("node 3 "), said


def averaging_early(rank, steps, timeout):
    """After so many steps of its own, a node asks for the average."""
    loop = Loop()
    nobody, ring = torch.eye(N), ps.topology.ring(N).adjacency(1)
    graphs = ps.topology.from_graphs([ring, nobody])
    node = ps.PushSum(loop.model, loop.optimizer, graphs, timeout=timeout)
    try:
        for t in range(1, 1 + steps[rank]):
            loop.step(rank, t, node)
        node.average()
    except PeerLost as loss:
        return str(loss)


def test_an_average_is_of_nodes_that_have_taken_the_same_steps():
    """In the sixth step nobody sends, so that node 1 can take it alone."""
    lines = on_ranks(N, averaging_early, [5, 6, 5], DEADLINE)
    same = ": all nodes must take the same steps"
    assert lines[0] == "node 0 has taken 5 steps, node 1 6" + same
    assert lines[1] == "node 1 has taken 6 steps, node 0 5" + same


def test_who_waits_in_average_is_named():
    """Node 0 has taken two steps, the others want its third message."""
    for line in on_ranks(N, averaging_early, [2, 6, 6], 20):
        assert line.startswith("node 0 waits in average(): all nodes must take the same steps")


def endless(rank, pipe_to_tell):
    loop = Loop()
    node = ps.PushSum(loop.model, loop.optimizer, "full", timeout=20)
    try:
        for t in range(1, 10**9):
            loop.step(rank, t, node)
            if t == 5:
                pipe_to_tell.send(rank)
    except PeerLost as loss:
        return str(loss)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_is_lost_is_named_in_every_users_loop(how):
    mine, theirs = Pipe(duplex=False)
    with running(N, endless, theirs) as ranks:
        for _ in range(N):
            assert mine.poll(DEADLINE)
            mine.recv()
        os.kill(ranks.processes[1].pid, how)
        ends = [ranks.result(rank) for rank in (0, 2)]
    mine.close()
    theirs.close()
    for end in ends:
        assert end.startswith("node 1 is lost: its process ended, stopped or is cut off"), end


def wrapped(rank):
    model = network()
    with pytest.raises(ValueError, match="wrapped in DistributedDataParallel") as refusal:
        ps.PushSum(nn.Sequential(nn.parallel.DistributedDataParallel(model)), None)
    return str(refusal.value)


def test_ddp_is_refused():
    (line,) = on_ranks(1, wrapped)
    assert line.endswith("which averages all gradients: give the plain module")


def alone(overlap=False, **options):
    loop = Loop()
    return loop, ps.PushSum(loop.model, loop.optimizer, overlap=overlap, **options)


def test_one_node_without_torchrun_is_the_plain_loop():
    loop, node = alone(weighting="moreau:k=1,v=0.1")
    plain = Loop()
    with node:
        for t in range(1, 5):
            loop.step(0, t, node)
            plain.step(0, t, None)
    assert (node.rank, node.n, node.a, node.t, node.ledger.bytes) == (0, 1, 1.0, 4, 0)
    torch.testing.assert_close(flat(loop.model), flat(plain.model), rtol=1e-14, atol=1e-15)
    loop.step(0, 5, None)
    assert node.t == 4  # after close() the optimizer is an ordinary one


def test_a_second_backward_with_overlap_is_refused():
    loop, _ = alone(overlap=True)
    loop.loss(0, 1).backward()
    line = r"overlap: a second backward\(\) before optimizer.step\(\); put all but the last into"
    with pytest.raises(RuntimeError, match=line):
        loop.loss(0, 2).backward()


def clip_one(loop):
    """An entry that nobody looks at."""
    with torch.no_grad():
        next(p for p in loop.model.parameters() if p.numel() > 16).grad.view(-1)[1].clamp_(0, 0)


def move_one(loop):
    with torch.no_grad():
        next(p for p in loop.model.parameters() if p.numel() > 16).view(-1)[1].add_(1)


CHANGES = {
    "clipped": lambda loop: nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1),
    "clipped in one place": clip_one,
    "unscaled": lambda loop: [p.grad.data.mul_(0.5) for p in loop.model.parameters()],
    "replaced": lambda loop: setattr(
        loop.model[0].weight, "grad", loop.model[0].weight.grad.clone()
    ),
    "moved in one place": move_one,
    "moved behind torch's back": lambda loop: [p.data.mul_(2) for p in loop.model.parameters()],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_after_its_use_is_refused(change):
    loop, _ = alone(overlap=True)
    loop.loss(0, 1).backward()
    change(loop)
    with pytest.raises(RuntimeError, match=r"gradients were changed .* write overlap=False"):
        loop.optimizer.step()


@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_not_finite_is_not_sent(overlap):
    loop, _ = alone(overlap=overlap)

    def step():
        (loop.loss(0, 1) * float("nan")).backward()
        loop.optimizer.step()

    with pytest.raises(FloatingPointError, match=r"node 0 diverged at step 1: .* is not finite"):
        step()


def test_sparse_gradients_with_overlap_are_refused():
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ps.PushSum(model, optimizer, overlap=True), pytest.raises(RuntimeError, match="sparse"):
        model(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("algorithm", ["sgp", "push-diging", "allreduce"])
def test_sparse_gradients_are_as_good(algorithm):
    def trained(sparse):
        torch.manual_seed(0)
        model = nn.Embedding(4, 2, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ps.PushSum(model, optimizer, algorithm=algorithm):
            for word in (1, 2, 1):
                optimizer.zero_grad()
                model(torch.tensor([word])).square().sum().backward()
                optimizer.step()
        return flat(model)

    assert torch.equal(trained(True), trained(False))


def test_parameters_that_the_optimizer_gets_later_are_moved_once():
    def trained(overlap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).double()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        with ps.PushSum(model, optimizer, overlap=overlap):
            for step in range(4):
                if step == 1:
                    optimizer.add_param_group({"params": list(model[1].parameters())})
                optimizer.zero_grad()
                model(torch.ones(2, 3).double()).square().sum().backward()
                optimizer.step()
        return flat(model)

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-14, atol=1e-15)


def test_a_closure_with_overlap_is_refused():
    loop, _ = alone(overlap=True)
    with pytest.raises(RuntimeError, match=r"step\(closure\) runs backward too late; call step"):
        loop.optimizer.step(lambda: loop.loss(0, 1))


@pytest.mark.parametrize(
    ("model", "options", "line"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            {},
            "mixes parameters of torch.float32 and torch.float64: convert it to one dtype, "
            r"e.g. model.float\(\)",
        ),
        (nn.Linear(2, 2).requires_grad_(False), {}, "Linear has no trainable parameters"),
        (nn.LazyLinear(2), {}, "parameter weight is not initialized: run the model once before"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")),
            {},
            "the model lies on cpu and meta: one device per node",
        ),
        (nn.Linear(2, 2, dtype=torch.complex64), {}, "parameter weight is torch.complex64: only"),
        (nn.Linear(2, 2), {"wire": torch.int8}, "wire = torch.int8: parameters travel in a float"),
        (nn.Linear(2, 2), {"wire": torch.float8_e4m3fn}, "travel in a float of 16, 32 or 64 bits"),
        (nn.Linear(2, 2), {"timeout": 0}, "timeout = 0: give a number of seconds > 0"),
        (nn.Linear(2, 2), {"topology": "rong"}, "rong"),
        (nn.Linear(2, 2), {"topology": 3}, "topology = 3: give a name, or one of pushsum.topology"),
        (nn.Linear(2, 2), {"topology": ps.topology.ring(3)}, "has 3 nodes, but there are 1 proc"),
        (nn.Linear(2, 2), {"overlap": True}, "overlap = True needs the optimizer"),
    ],
)
def test_refused_at_the_door(model, options, line):
    with pytest.raises(ValueError, match=line):
        ps.PushSum(model, None, **options)


def test_an_optimizer_in_the_place_of_the_model_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    line = r"model is a SGD: give the module first, then its optimizer: PushSum\(model, optimizer\)"
    with pytest.raises(ValueError, match=line):
        ps.PushSum(optimizer, model)


def test_a_node_says_who_it_is():
    with ps.PushSum(network(), None, "ring", "lazy:c=0.5") as node:
        assert repr(node) == "PushSum(node 0 of 1, SGP, ring(1), lazy(c=0.5) weights)"


def test_optimizers_that_cannot_be_followed_are_refused():
    model = network()
    with pytest.raises(ValueError, match="optimizer is a str, whose steps cannot be followed"):
        ps.PushSum(model, "SGD")
    with pytest.raises(ValueError, match="LBFGS moves all parameters at once"):
        ps.PushSum(model, torch.optim.LBFGS(model.parameters()), overlap=True)


# --------------------------------------------------------------------------- one node alone


def test_a_scaler_under_overlap_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ps.PushSum(model, optimizer, overlap=True):
        scaler.scale(model(batch(0, 1)[0]).sum()).backward()
        with pytest.raises(
            RuntimeError, match=r"a GradScaler, another optimizer\), after they were used"
        ):
            scaler.step(optimizer)


def test_overlap_leaves_the_gradients_of_another_optimizer():
    model = network()
    first, *others = model.children()
    mine = torch.optim.SGD(nn.ModuleList(others).parameters(), lr=0.1)
    another = torch.optim.SGD(first.parameters(), lr=0.1)
    before = first.weight.detach().clone()
    with ps.PushSum(model, mine, overlap=True):
        model(batch(0, 1)[0]).square().sum().backward()
        slope = first.weight.grad.clone()
        mine.step()
        another.step()
    torch.testing.assert_close(first.weight.detach(), before - 0.1 * slope)


class Own(torch.optim.Optimizer):
    """An optimizer with something of its own, which torch's copying would leave out."""

    def __init__(self, parameters, counting):
        super().__init__(parameters, {})
        self.rate, self.counting, self.steps = 0.1, counting, 0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=self.rate)
        self.steps += self.counting


def test_overlap_keeps_what_an_optimizer_has_of_its_own():
    models = network(), network()
    optimizers = [Own(model.parameters(), counting=0) for model in models]
    node = ps.PushSum(models[0], optimizers[0], overlap=True)
    for t in (1, 2):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            optimizer.rate = 0.1 / t
            model(batch(0, t)[0]).square().sum().backward()
            optimizer.step()
    node.close()
    torch.testing.assert_close(flat(models[0]), flat(models[1]))


def test_overlap_refuses_an_optimizer_that_counts_its_steps():
    model = network()
    optimizer = Own(model.parameters(), counting=1)
    with ps.PushSum(model, optimizer, overlap=True):
        line = r"overlap: Own.step\(\) changes its steps, and would .* write overlap=False"
        with pytest.raises(RuntimeError, match=line):
            model(batch(0, 1)[0]).sum().backward()


class Twice(torch.optim.SGD):
    def step(self):
        super().step()


def test_a_step_within_a_step_is_refused():
    """Torch runs the hooks for both, once any plain SGD has been made."""
    model = network()
    torch.optim.SGD(model.parameters())
    optimizer = Twice(model.parameters())
    with (
        ps.PushSum(model, optimizer),
        pytest.raises(RuntimeError, match=r"Twice.step\(\) began within another step\(\)"),
    ):
        optimizer.step()


@pytest.mark.parametrize("explicit", [False, True])
def test_parameters_that_are_trained_later_are_refused(explicit):
    loop = Frozen()
    node = ps.PushSum(loop.model, None if explicit else loop.optimizer)
    loop.step(0, 1, node)
    loop.model[2].requires_grad_(True)
    go_on = node.push if explicit else loop.optimizer.step
    with pytest.raises(RuntimeError, match=r"a parameter of shape \(7, 7\) is trained, but was"):
        go_on()


def test_an_average_is_a_state_of_the_model():
    """Buffers, frozen and tied parameters too."""
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.Linear(5, 5))
    model[2].requires_grad_(False)
    model[3].weight = model[0].weight
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    with ps.PushSum(model, optimizer) as node:
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(node.average())
    torch.testing.assert_close(dict(model.state_dict()), before)


def test_a_state_is_of_the_same_things_and_between_steps():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ps.PushSum(model, optimizer, overlap=True) as node:
        state = node.state_dict()
        model(batch(0, 1)[0]).sum().backward()
        with pytest.raises(RuntimeError, match="step 1 is under way"):
            node.state_dict()
    with (
        ps.PushSum(network(), None, wire=torch.bfloat16) as other,
        pytest.raises(ValueError, match=r"wire is torch.bfloat16 here, but None in the state"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize("state", [{}, None, {"state": {}, "param_groups": []}])
def test_what_is_no_state_of_a_node_is_refused(state):
    with (
        ps.PushSum(network(), None) as node,
        pytest.raises(ValueError, match=r"not one that PushSum.state_dict\(\) has made"),
    ):
        node.load_state_dict(state)


def test_a_parameter_without_dimensions_runs_with_every_method():
    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.alone, self.other = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.ones(2))

    for algorithm in ("sgp", "frost"):  # by columns, and all columns at once
        model = Scalar()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with ps.PushSum(model, optimizer, algorithm=algorithm) as node:
            (model.alone + model.other.sum()).backward()
            optimizer.step()
        assert node.t == 1
        assert model.alone.shape == ()
        torch.testing.assert_close(model.alone.detach(), torch.tensor(0.5))


def test_a_node_that_has_left_does_not_push():
    node = ps.PushSum(network(), None)
    node.close()
    with pytest.raises(RuntimeError, match=r"has left the network: push before close\(\)"):
        node.push()


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "5", None])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(ValueError, match=r"timeout = .*: give a number of seconds > 0"):
        ps.PushSum(network(), None, timeout=timeout)


def remembered(rank, weighting):
    with ps.PushSum(network(), None, "full", weighting, timeout=DEADLINE) as node:
        for _ in range(3):
            node.push()
        return list(node.state_dict()["heard"])


@pytest.mark.parametrize("weighting", ["uniform", "moreau:k=1,v=0.1"])
def test_a_state_holds_no_vectors_that_nobody_will_look_at(weighting):
    """On Full everybody is heard in every step: distances are enough."""
    assert on_ranks(2, remembered, weighting) == [[], []]


def test_half_precision_keeps_its_mass():
    """x must not move where the optimizer did not, whatever a is."""
    model = nn.Linear(300, 10).bfloat16()
    with ps.PushSum(model, None) as node:
        node._state.whole.a.fill_(0.7)
        node._write_model(node._parameters)
        before = node._state.whole.x.clone()
        node.push()
        assert torch.equal(node._state.whole.x, before)


def two_at_once(rank):
    """A generator and its critic, say; the first to close leaves the other what it needs."""
    one, other = network(1), network(2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]
    first, second = (
        ps.PushSum(model, optimizer, "full", timeout=DEADLINE)
        for model, optimizer in zip((one, other), optimizers, strict=True)
    )
    for t in (1, 2):
        for model, optimizer, node in ((one, optimizers[0], first), (other, optimizers[1], second)):
            if node is second or t == 1:
                optimizer.zero_grad()
                model(batch(rank, t)[0]).square().sum().backward()
                optimizer.step()
        if t == 1:
            first.close()
    second.close()
    return [flat(one).tolist(), flat(other).tolist(), torch.distributed.is_initialized()]


def test_two_objects_in_one_process():
    one, other = on_ranks(2, two_at_once, torchrun=True)
    assert one == other  # on Full with uniform weights all agree after every step
    assert one[2] is False


def gives_up(rank):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with ps.PushSum(model, optimizer, "full", timeout=DEADLINE):
            for t in range(1, 4):
                if (rank, t) == (1, 2):
                    raise ValueError("the data has run out")
                model(batch(rank, t)[0]).sum().backward()
                optimizer.step()
    except (ValueError, PeerLost) as problem:
        return str(problem)


def test_an_error_within_the_block_is_passed_on():
    said = on_ranks(3, gives_up, torchrun=True)
    assert said[1] == "the data has run out"
    for rank in (0, 2):
        assert said[rank].startswith("node 1 gave up: ValueError('the data has run out')")


# --------------------------------------------------------------------------- starting together


def starts(rank):
    """What is warned of, and what the model and x are, from other seeds, and from the same."""
    found = []
    for seed, broadcast in ((rank // 2, False), (rank // 2, True), (7, False)):
        model = network(seed)
        with (
            warnings.catch_warnings(record=True) as caught,
            ps.PushSum(model, None, "full", broadcast=broadcast, timeout=DEADLINE) as node,
        ):
            warnings.simplefilter("always")
            said = [str(warning.message) for warning in caught]
            found.append((said, flat(model), node.state_dict()["x"]))
    with pytest.raises(ValueError, match="the nodes differ in broadcast: False at node 0, True"):
        ps.PushSum(network(), None, "full", broadcast=rank == 2, timeout=DEADLINE)
    return found


def test_nodes_that_start_apart_are_noticed_or_start_from_node_0():
    found = on_ranks(3, starts)
    warned = [[said for said, _, _ in ranks] for ranks in found]
    line = (
        "node 2 starts from other parameters than node 0: build the model from the same seed "
        "everywhere, or write broadcast=True to start from those of node 0"
    )
    assert warned == [[[line], [], []], [[], [], []], [[], [], []]]
    for rank, (apart, together, _) in enumerate(found):
        assert torch.equal(apart[1], flat(network(rank // 2)))
        assert torch.equal(together[1], flat(network(0)))
        assert torch.equal(together[2], flat(network(0)))


# --------------------------------------------------------------------------- local moves


def within_a_block(rank):
    """Six steps of blocks of three, whole, and saved and restored after step 4."""

    def made():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        node = ps.PushSum(
            model,
            optimizer,
            "exponential",
            "moreau:k=0.5,v=0.1",
            algorithm="s-addopt",
            every=3,
            timeout=DEADLINE,
        )
        return model, optimizer, node

    def go_on(parts, steps):
        model, optimizer, _ = parts
        for t in steps:
            optimizer.zero_grad()
            x, target = batch(rank, t)
            nn.functional.cross_entropy(model(x), target).backward()
            optimizer.step()

    whole, resumed = made(), made()
    go_on(whole, range(1, 5))
    states = copy.deepcopy([part.state_dict() for part in whole])
    go_on(whole, range(5, 10))
    for part, state in zip(resumed, states, strict=True):
        part.load_state_dict(state)
    go_on(resumed, range(5, 10))
    for *_, node in (whole, resumed):
        node.close()
    return [(flat(model), node.a, node.t, node.ledger.bytes) for model, _, node in (whole, resumed)]


def test_a_state_is_saved_and_loaded_within_a_block_of_local_moves():
    d = flat(network()).numel()
    for whole, resumed in on_ranks(3, within_a_block):
        assert torch.equal(whole[0], resumed[0])
        assert whole[1:3] == resumed[1:3]
        assert whole[3] == 3 * (2 * 8 * d + 24)  # two vectors to one neighbour, three times
        assert resumed[3] == 2 * (2 * 8 * d + 24)


# --------------------------------------------------------------------------- what is not finite


def poisoned(rank, algorithm, overlap):
    """Node 1 has one NaN in the gradient of its first layer, in step 2; what each then holds."""
    exchange.BUCKET = LONG
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    line = ""
    with ps.PushSum(
        model,
        optimizer,
        "full",
        "lazy:c=0.5",
        algorithm=algorithm,
        overlap=overlap,
        timeout=20,
    ) as node:
        if rank == 1:
            model[0].weight.register_hook(
                lambda g: g.index_fill(0, torch.tensor([3]), float("nan")) if node.t else g
            )
        try:
            for t in range(1, 4):
                generator = torch.Generator().manual_seed(10 * t + rank)
                optimizer.zero_grad()
                model(torch.randn(8, 210, generator=generator)).square().mean().backward()
                optimizer.step()
        except (FloatingPointError, PeerLost) as problem:
            line = f"{type(problem).__name__}: {problem}"
    return line, node.t, flat(model).isfinite().all().item()


@pytest.mark.parametrize(
    ("algorithm", "overlap"), [("sgap", False), ("sgap", True), ("allreduce", False)]
)
def test_what_is_not_finite_stays_where_it_is(algorithm, overlap):
    what = "0.weight is not finite after optimizer.step()"
    if algorithm == "allreduce":
        what = "the gradient of 0.weight is not finite"
    line = f"node 1 diverged at step 2: {what}; it was not sent"
    found = on_ranks(3, poisoned, algorithm, overlap)
    assert found[1][0] == f"FloatingPointError: {line}"
    for rank in (0, 2):
        assert found[rank][0].startswith(f"PeerLost: {line}"), found[rank][0]
        assert found[rank][1:] == (1, True)
