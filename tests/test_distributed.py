"""One process per node: the same numbers as the simulator, step by step, over real messages."""

import os
import re
from itertools import product

import pytest
import torch

import pushsum as ps
from pushsum.engines.distributed.exchange import BUCKET, Exchange
from pushsum.engines.distributed.peers import PeerLost, Peers, take_own_device
from pushsum.engines.engine import Setup
from pushsum.engines.simulator import Network
from pushsum.protocol import Known
from tests.ranks import DEADLINE, on_ranks, running, starving_path

STEPS = 6  # random comes round after four


def algorithms():
    moreau = ps.weighting.moreau(k=0.002, v=0.2)
    return {
        "SGP": ps.algorithms.sgp(0.05),
        "MSGP": ps.algorithms.msgp(0.05, 0.8),
        "SGAP": ps.algorithms.sgap(0.05, moreau),
        "MSGAP": ps.algorithms.msgap(0.05, 0.8, ps.weighting.scale_free_moreau()),
        "far-first": ps.algorithms.sgap(0.05, ps.weighting.far_first()),
        "S-ADDOPT": ps.algorithms.s_addopt(0.05),
        "QGM": ps.algorithms.qgm(0.05, 0.8, moreau),
        "Push-Pull": ps.algorithms.push_pull(0.05),
        "own weights": ps.algorithms.sgap(0.05, nearer_gets_less),
    }


def nearer_gets_less(adjacency, d2):
    away = adjacency.T * (0.1 + d2.T / (1 + d2.T)) / (4 * len(adjacency))
    away = away.fill_diagonal_(0).double()
    return away + torch.diag(1 - away.sum(0))


def topologies(n):
    return {
        "full": ps.topology.full(n),
        "divide": ps.topology.divide(n),
        "exponential": ps.topology.exponential(n),
        "random": ps.topology.random(n, seed=3, period=4),
    }


def problem(n, d, dtype):
    generator = torch.Generator().manual_seed(7)
    targets = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    x0 = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    return targets, x0


def trajectories(rank, n, sizes):
    """Every algorithm on every topology: x, a, y and own weights after every step."""
    peers = Peers(timeout=DEADLINE)
    peers.agree({"nodes": n})
    cases = product(algorithms(), topologies(n), sizes)
    found = {case: trajectory(peers, n, *case) for case in cases}
    peers.leave(0)
    return found


def trajectory(peers, n, name, where, size, steps=STEPS):
    d, dtype, *wire = size
    setup = Setup(algorithms()[name], topologies(n)[where], wire=wire[0] if wire else None)
    exchange, mine = Exchange(peers, setup), slice(peers.rank, peers.rank + 1)
    targets, x0 = problem(n, d, dtype)
    now = exchange.begin(x0[mine])
    trail = []
    for _ in range(steps):
        gradient = Known(now.y - targets[mine])
        again = exchange.advance(now, gradient)
        now = exchange.advance(now, gradient)
        assert torch.equal(again.state.x, now.state.x)  # stepping twice from one state
        assert torch.equal(again.weights, now.weights)
        trail.append(
            (sample(now.state.x[0]), now.state.x[0].sum(), now.state.a, now.y[0].sum(), now.weights)
        )
    return trail


def by_all_reduce(n, name, where, size):
    uniform = algorithms()[name].weighting.name == "uniform"
    return n > 1 and uniform and where in ("full", "random") and len(size) == 2


def sample(row):
    return row[:: max(1, len(row) // 50)].clone()


def simulated(n, name, where, size, steps=STEPS):
    d, dtype, *wire = size
    targets, x0 = problem(n, d, dtype)
    network = Network(
        Setup(algorithms()[name], topologies(n)[where], wire=wire[0] if wire else None)
    )
    now = network.begin(x0)
    for _ in range(steps):
        gradient = Known(now.y - targets)
        again, now = network.advance(now, gradient), network.advance(now, gradient)
        assert torch.equal(again.state.x, now.state.x)
        yield ps.Iterate(now, network.setup)


def assert_equal(found, n, case, steps=STEPS):
    """Bit for bit in float64, where every sum has an order; to rounding in float32."""
    exact = case[-1][1] == torch.float64
    rounding = 2**-6 if case[-1][1] == torch.bfloat16 else 1e-6
    close = {"rtol": 0, "atol": 0} if exact else {"rtol": rounding, "atol": rounding}
    if by_all_reduce(n, *case):  # adds up in an order of its own
        exact, close = False, {"rtol": 1e-12, "atol": 1e-12} if exact else close
    for record, rank in product(simulated(n, *case, steps), range(n)):
        part, x_sum, a, y_sum, weights = found[rank][case][record.t - 1]
        where = f"{case}, node {rank}, step {record.t}"
        own = record.weights[record.edges[0] == rank]
        torch.testing.assert_close(part, sample(record.x[rank]), **close, msg=where)
        torch.testing.assert_close(a, record.a[rank : rank + 1], **close, msg=where)
        torch.testing.assert_close(weights, own, **close, msg=where)
        if exact:
            assert x_sum == record.x[rank].sum(), where
            assert y_sum == record.y[rank].sum(), where


def starved(rank, kind):
    peers = Peers(timeout=DEADLINE)
    peers.agree({"nodes": 4})
    path, weighting = starving_path()
    exchange = Exchange(peers, Setup(ps.algorithms.sgap(0.05, weighting), path))
    now = exchange.begin(torch.ones(1, 5, dtype=kind))
    try:
        for _ in range(6 if kind == torch.float32 else 7):
            now = exchange.advance(now, Known(0 * now.y))
    except ValueError as error:
        return str(error)
    finally:
        peers.leave(0)
    return None


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_scalars_that_are_too_small_are_noticed(kind):
    a, step = ("7.5e-37", 6) if kind == torch.float32 else ("7.2e-43", 7)
    said = (
        f"node 3 has a = {a} after step {step}, too small for {str(kind)[6:]}: y = x / a would be "
        "wrong; let it hear from more nodes, or compute in float64"
    )
    *others, last = on_ranks(4, starved, kind)
    assert others == [None] * 3
    assert last == (None if kind == torch.float64 else said)


SIZES = ((300, torch.float64), (300, torch.float32))


@pytest.mark.parametrize("n", [2, 3])  # other numbers: tests/test_contract.py
def test_equals_the_simulator_at_every_step(n):
    torch.set_num_threads(1)
    found = on_ranks(n, trajectories, n, SIZES)
    for case in found[0]:
        assert_equal(found, n, case)


LARGE = [
    ("SGAP", "full", (BUCKET + 70_000, torch.float64)),  # more than one bucket
    ("MSGAP", "random", (BUCKET + 70_000, torch.float32)),
    ("far-first", "random", (BUCKET + 70_000, torch.float64)),  # scalars differ
    ("S-ADDOPT", "exponential", (70_000, torch.float64)),  # more than short
    ("SGAP", "random", (70_000, torch.float64, torch.bfloat16)),  # rounded on the wire
    ("S-ADDOPT", "full", (300, torch.float64, torch.float16)),
    ("Push-Pull", "random", (300, torch.float64, torch.bfloat16)),
]


def large(rank, n):
    peers = Peers(timeout=DEADLINE)
    peers.agree({"nodes": n})
    return {case: trajectory(peers, n, *case, steps=4) for case in LARGE}


def test_large_vectors_travel_in_buckets_and_stay_equal():
    torch.set_num_threads(1)
    found = on_ranks(3, large, 3)
    for case in LARGE:
        assert_equal(found, 3, case, steps=4)


SMALL = [
    (name, where, size)
    for name in ("SGP", "far-first", "S-ADDOPT")
    for where in ("full", "random")
    for size in ((1, torch.float64), (1, torch.bfloat16), (9, torch.bfloat16))
]


def small(rank, n):
    peers = Peers(timeout=DEADLINE)
    peers.agree({"nodes": n})
    return {case: trajectory(peers, n, *case) for case in SMALL}


def test_single_values_and_half_precision():
    torch.set_num_threads(1)
    found = on_ranks(3, small, 3)
    for case in SMALL:
        assert_equal(found, 3, case)


def used_again(rank, n):
    """Some steps from one state, whose last uses may write over what they were given, and again."""
    peers = Peers(timeout=DEADLINE)
    peers.agree({})
    targets, x0 = (part[rank : rank + 1] for part in problem(n, 50, torch.float64))
    exchange = Exchange(peers, Setup(algorithms()["far-first"], topologies(n)["random"]))
    now = exchange.begin(x0)
    found = []
    for last in (False, True, True):
        now = exchange.advance(now, Known(now.y - targets), last=last)
    for _ in range(2):
        then, trail = now, []
        for last in (False, True, True, True):
            then = exchange.advance(then, Known(then.y - targets), last=last)
            trail.append((then.state.x, then.weights))
        found.append(trail)
    return found


def test_a_state_that_others_came_from_stays_as_it_is():
    for first, second in on_ranks(3, used_again, 3):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def out_of_step(rank):
    peers = Peers(timeout=DEADLINE)
    peers.agree({})
    exchange = Exchange(peers, Setup(ps.algorithms.sgap(0.1, "lazy:c=0.5"), ps.topology.ring(2)))
    now = exchange.begin(torch.zeros(1, 10))._replace(t=rank)
    try:
        exchange.advance(now, Known(torch.zeros(1, 10)))
    except PeerLost as problem:
        return str(problem)


def test_a_node_at_another_step_is_refused():
    first, second = on_ranks(2, out_of_step)
    assert first.startswith("node 1 is at step 2, this node at step 1")
    assert second.startswith("node 0 is at step 1, this node at step 2")


def test_gloo_carries_tensors_of_cpus_alone(monkeypatch):
    peers = Peers(timeout=5)
    peers.n = 2
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for config, serves in [("cpu:gloo,cuda:gloo", (True, False)), ("cuda:nccl", (False, True))]:
        monkeypatch.setattr(torch.distributed, "get_backend_config", lambda config=config: config)
        assert (peers.backend_serves(cpu), peers.backend_serves(cuda)) == serves


def test_processes_of_one_machine_take_a_device_each(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "set_device_index", taken.append)
    for rank in range(6):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        take_own_device()
    assert taken == [0, 1, 2, 3, 0, 1]


def dies_before(rank):
    if rank == 1:
        os._exit(0)
    with pytest.raises(PeerLost) as loss:
        Peers(timeout=2)
    return str(loss.value)


def test_a_node_that_dies_before_they_meet_is_one_line():
    with running(3, dies_before, torchrun=True) as ranks:
        for rank in (0, 2):
            assert re.match(
                r"not all processes connected to .* within 2 s: [^\n]*$", ranks.result(rank)
            )


def dies_within(rank):
    peers = Peers(timeout=20)
    if rank == 1:
        torch.distributed.new_group = lambda **_: os._exit(0)
    with pytest.raises(PeerLost) as loss:
        peers.agree({})
    return str(loss.value)


def test_a_node_that_dies_while_channels_are_opened_is_named():
    with running(3, dies_within) as ranks:
        for rank in (0, 2):
            assert ranks.result(rank).startswith("node 1 is lost: its process ended")


def never_comes(rank):
    if rank == 1:
        return "stayed away"
    peers = Peers(timeout=2)
    try:
        peers.agree({"here": True})
    except PeerLost as problem:
        return str(problem)


def test_a_node_that_never_comes_is_named():
    assert on_ranks(2, never_comes)[0] == "node 1 did not connect within 2 s"


def one_after_another(rank):
    """Two at a time, twice; whether there is a process group after each has left."""
    found = []
    for _ in range(2):
        first, second = (Peers(timeout=DEADLINE) for _ in range(2))
        for peers in (first, second):
            peers.agree({})
        first.leave(0)
        found.append(torch.distributed.is_initialized())
        total = torch.ones(1)
        second.all_reduce(total)
        second.leave(0)
        found += [torch.distributed.is_initialized(), total.item()]
    return found


@pytest.mark.parametrize("theirs", [True, False])
def test_the_last_to_leave_a_group_ends_it_unless_it_is_the_users(theirs):
    for found in on_ranks(2, one_after_another, torchrun=not theirs):
        assert found == [True, theirs, 2.0] * 2
