"""One process per node: the same numbers as the simulator, step by step, over real messages."""

from itertools import product

import pytest
import torch

import pushsum as ps
from pushsum.engines.distributed.exchange import Exchange
from pushsum.engines.distributed.peers import Peers
from tests.ranks import on_ranks

STEPS = 12
D = 70_000  # long enough to be taken in blocks


def algorithms():
    moreau = ps.weighting.moreau(k=0.002, v=0.2)
    return {
        "SGP": ps.algorithms.sgp(0.05),
        "MSGP": ps.algorithms.msgp(0.05, 0.8),
        "SGAP": ps.algorithms.sgap(0.05, moreau),
        "MSGAP": ps.algorithms.msgap(0.05, 0.8, ps.weighting.scale_free_moreau()),
        "S-ADDOPT": ps.algorithms.s_addopt(0.05),
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
    found = {}
    for (name, algorithm), (where, graphs), (d, dtype) in product(
        algorithms().items(), topologies(n).items(), sizes
    ):
        targets, x0 = problem(n, d, dtype)
        peers = Peers(timeout=60)
        peers.agree({"case": f"{name} {where} {d}"})
        exchange = Exchange(peers, graphs)
        state = algorithm.init(x0[rank : rank + 1])
        steps = []
        for t in range(1, STEPS + 1):
            g = state.network.y - targets[rank : rank + 1]
            state = algorithm.step(state, g, t, exchange)
            network = state.network
            sample = network.x[0, :: max(1, d // 50)]
            steps.append((sample, network.x.sum(), network.a, network.y.sum(), network.weights))
        found[name, where, d, dtype] = steps
        peers.leave(STEPS)
    return found


def simulated(n, name, where, d, dtype):
    targets, x0 = problem(n, d, dtype)
    run = ps.iterate(algorithms()[name], topologies(n)[where], lambda y, t: y - targets, x0, STEPS)
    return list(run)


SIZES = ((300, torch.float64), (D, torch.float64), (300, torch.float32))


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_equals_the_simulator_at_every_step(n):
    torch.set_num_threads(1)
    found = on_ranks(n, trajectories, n, SIZES)
    for case in found[0]:
        for record in simulated(n, *case):
            for rank in range(n):
                sample, total, a, y_total, weights = found[rank][case][record.t - 1]
                where = f"{case}, node {rank}, step {record.t}"
                *_, d, dtype = case
                x, y = record.x[rank], record.y[rank]
                close = (
                    {"rtol": 0, "atol": 0}
                    if dtype == torch.float64
                    else {"rtol": 1e-6, "atol": 1e-6}
                )
                torch.testing.assert_close(sample, x[:: max(1, d // 50)], **close, msg=where)
                assert torch.equal(a, record.a[rank : rank + 1]) or dtype != torch.float64, where
                own = record.weights[record.edges[0] == rank]
                torch.testing.assert_close(weights, own, **close, msg=where)
                if dtype == torch.float64:
                    assert total == x[None].sum(), where
                    assert y_total == y[None].sum(), where
