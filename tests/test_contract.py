"""One text, every engine: simulator, processes and a user's own loop give the same bits."""

import subprocess
import sys
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

import pushsum as ps
from pushsum.algorithms import METHODS, Algorithm
from pushsum.engines.distributed import exchange
from pushsum.engines.distributed.exchange import BUCKET, Exchange
from pushsum.engines.distributed.peers import Peers
from pushsum.engines.engine import HEAD, Setup
from tests.ranks import DEADLINE, on_ranks

STEPS, D = 6, 7
WEIGHTINGS = ("uniform", "lazy:c=0.3", "moreau:k=0.5,v=0.1", "scale-free-moreau", "far-first")
TOPOLOGIES = ("full", "divide", "exponential", "random")
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.5, weight_decay=0.01)
ADAMW = partial(torch.optim.AdamW, lr=0.05)
PRIVATE = "private Push-DIGing"  # by the function that makes it, not by name


def cases():
    """Every method that is made of lr, with every weighting that it takes."""
    for name, method in METHODS.items():
        weightings = WEIGHTINGS if "weighting" in method.parameters else ("uniform",)
        yield from ((name, weighting) for weighting in weightings)
    yield PRIVATE, "uniform"


def made(name, weighting="uniform"):
    if name == PRIVATE:
        return ps.algorithms.private_push_sum(made("Push-DIGing"), steps=2, scale=3.0)
    return ps.algorithms.parse(name, lr=0.05, momentum=0.5, weighting=weighting)


def chosen(n, every, topologies):
    """Three nodes on every graph that a method takes; other numbers, and local moves, on fewer."""
    for (name, weighting), where in product(cases(), topologies):
        if name in STATIC:
            takes = every == 1 and where in ("divide", *["full"] * (n == 3))
        elif (n, every) == (3, 1):
            takes = True
        else:
            takes = where == "exponential" or (where == "random" and name not in UNIFORM)
        if takes:
            yield name, weighting, where


STATIC = tuple(name for name in METHODS if made(name).static)
UNIFORM = tuple(name for name, method in METHODS.items() if "weighting" not in method.parameters)
UNIFORM += (PRIVATE,)
IN_A_LOOP = tuple(  # one gradient per step, at the model
    name for name in (*METHODS, PRIVATE) if made(name).asks == "model" and made(name).point is None
)


def problem(n, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    x0 = torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype)
    return x0, torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype)


def graphs(name, n):
    options = {"seed": 3, "period": 3} if name == "random" else {}
    return ps.topology.parse(name, n, **options)


class Bowl:
    """Gradients of |y - target|^2 / 2, wherever a method asks for them."""

    def __init__(self, point, targets):
        self.point, self.targets = point, targets

    def __call__(self, point=None):
        return (self.point if point is None else point) - self.targets

    full = __call__


class Vector(nn.Module):
    """A model that is one vector: its gradients are set by hand."""

    def __init__(self, x):
        super().__init__()
        self.x = nn.Parameter(x.clone())


def own_loop(rank, n, name, weighting, where, optimizer, **options):
    x0, targets = problem(n)
    model = Vector(x0[rank])
    moves = optimizer(model.parameters())
    trail = []
    with ps.PushSum(
        model, moves, graphs(where, n), algorithm=made(name, weighting), timeout=DEADLINE, **options
    ) as node:
        for _ in range(STEPS):
            model.x.grad = model.x.detach() - targets[rank]
            given = model.x.grad
            moves.step()
            assert model.x.grad is given  # the user's own is put back
            trail.append((model.x.detach().clone(), node.a))
        average = node.average()["x"]
    return trail, average


def processes(rank, n, every):
    peers = Peers(timeout=DEADLINE)
    peers.agree({})
    found = {}
    for name, weighting, where in chosen(n, every, TOPOLOGIES):
        x0, targets = problem(n)
        algorithm = made(name, weighting)
        network = Exchange(peers, Setup(algorithm, graphs(where, n), every=every))
        now = network.begin(x0[rank : rank + 1])
        trail = []
        for _ in range(STEPS):
            gradient = Bowl(algorithm.gradient_point(now.state, now.y), targets[rank])
            before, now = now, network.advance(now, gradient)
            if n == 3:
                assert torch.equal(network.advance(before, gradient).state.x, now.state.x)
            trail.append((now.y[0], float(now.state.a)))
        found[name, weighting, where] = trail
    peers.leave(STEPS)
    return found


def loops(rank, n, every):
    found = {}
    for name, weighting, where in chosen(n, every, ("divide", "exponential")):
        if name in IN_A_LOOP:
            found[name, weighting, where] = own_loop(
                rank, n, name, weighting, where, partial(torch.optim.SGD, lr=0.05), every=every
            )
    return found


def simulated(n, name, weighting, where, **options):
    x0, targets = problem(n)
    algorithm, options = made(name, weighting), {**options, "full_gradient": lambda y: y - targets}
    run = ps.iterate(algorithm, graphs(where, n), lambda y, t: y - targets, x0, STEPS, **options)
    return list(run)


def close(n, name, weighting, where):
    """All-reduce, where everybody gives the same to everybody, adds up in its own order."""
    complete = where in ("full", "random") or n <= 2
    loose = name == "AllReduce" or (n > 1 and complete and weighting == "uniform")
    return {"rtol": 1e-12, "atol": 1e-12} if loose else {"rtol": 0, "atol": 0}


@pytest.mark.parametrize("name", METHODS)
def test_the_table_says_what_a_method_is_made_of(name):
    method = METHODS[name]
    assert method.adaptive == ("weighting" in method.parameters)
    assert method.momentum == ("momentum" in method.parameters)
    assert ps.algorithms.parse(name.lower(), lr=0.1, momentum=0.5, weighting="uniform").name == name


def test_the_table_of_methods_does_not_wait_for_torch():
    code = "import sys, pushsum.methods, pushsum.networks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("n", "every"), [(1, 1), (2, 1), (3, 1), (6, 1), (3, 3)])
def test_processes_equal_the_simulator(n, every):
    torch.set_num_threads(1)
    found = on_ranks(n, processes, n, every)
    for case in found[0]:
        for r in simulated(n, *case, every=every):
            for rank in range(n):
                y, a = found[rank][case][r.t - 1]
                torch.testing.assert_close(
                    y, r.y[rank], **close(n, *case), msg=f"{case} {rank} {r.t}"
                )
                assert a == pytest.approx(float(r.a[rank]), abs=1e-15)


@pytest.mark.parametrize(("n", "every"), [(1, 1), (2, 1), (3, 1), (6, 1), (3, 3)])
def test_a_users_loop_equals_the_simulator(n, every):
    torch.set_num_threads(1)
    found = on_ranks(n, loops, n, every)
    optimizer = partial(torch.optim.SGD, lr=0.05)
    for case in found[0]:
        records = simulated(n, *case, optimizer=optimizer, every=every)
        tolerance = close(n, *case)
        for r, rank in product(records, range(n)):
            y, a = found[rank][case][0][r.t - 1]
            torch.testing.assert_close(y, r.y[rank], **tolerance, msg=f"{case} {rank} {r.t}")
            assert a == pytest.approx(float(r.a[rank]), abs=1e-15)
        for rank in range(n):
            torch.testing.assert_close(
                found[rank][case][1], records[-1].average, rtol=1e-13, atol=1e-13
            )


KEEPING = ("OSGP", "ABm", "DEXTRA", "Push-DIGing", "FROST")  # states of several kinds


def loops_in_buckets(rank, n):
    exchange.BUCKET = 2
    optimizer = partial(torch.optim.SGD, lr=0.05)
    return {name: own_loop(rank, n, name, "uniform", "divide", optimizer)[0] for name in KEEPING}


def test_a_users_loop_keeps_a_state_right_that_arrives_in_parts():
    """What is kept of the last state is read before it is written over, and scalars once."""
    torch.set_num_threads(1)
    found = on_ranks(3, loops_in_buckets, 3)
    for name in KEEPING:
        records = simulated(
            3, name, "uniform", "divide", optimizer=partial(torch.optim.SGD, lr=0.05)
        )
        for r, rank in product(records, range(3)):
            y, a = found[rank][name][r.t - 1]
            assert torch.equal(y, r.y[rank]), f"{name} {rank} {r.t}"
            assert a == float(r.a[rank])


def with_optimizers(rank, n):
    return {
        (name, kind): own_loop(rank, n, name, "uniform", "exponential", maker)[0]
        for name, (kind, maker) in product(
            ("SGP", "S-ADDOPT", "Push-DIGing", "Push-Pull", "OSGP", "AllReduce"),
            (("SGD", SGD), ("AdamW", ADAMW)),
        )
    }


def test_any_optimizer_moves_along_the_methods_direction():
    """Gradient tracking with AdamW in a user's loop is what `iterate` does with AdamW."""
    torch.set_num_threads(1)
    found = on_ranks(3, with_optimizers, 3)
    for name, kind in found[0]:
        records = simulated(
            3, name, "uniform", "exponential", optimizer=SGD if kind == "SGD" else ADAMW
        )
        loose = {"rtol": 1e-12, "atol": 1e-12} if name == "AllReduce" else {"rtol": 0, "atol": 0}
        for r, rank in product(records, range(3)):
            y, _ = found[rank][name, kind][r.t - 1]
            torch.testing.assert_close(y, r.y[rank], **loose, msg=f"{name} {kind} {rank} {r.t}")


@pytest.mark.parametrize("optimizer", [None, SGD, ADAMW, torch.optim.Adagrad])
@pytest.mark.parametrize(("name", "weighting"), [*cases()])
def test_stepping_twice_from_one_record_gives_the_same(name, weighting, optimizer):
    graph = "divide" if name in STATIC else "random"
    if made(name, weighting).plain_sgd and optimizer not in (None, SGD):
        with pytest.raises(ValueError, match=f"{name} must know what a step size is"):
            simulated(3, name, weighting, graph, optimizer=optimizer)
        return
    x0, targets = problem(3)
    algorithm, where = made(name, weighting), graphs(graph, 3)
    run = partial(
        ps.iterate,
        algorithm,
        where,
        lambda y, t: y - targets,
        x0,
        optimizer=optimizer,
        full_gradient=lambda y: y - targets,
    )
    records = list(run(9))
    for middle in (records[2], records[5]):
        again = list(run(9 - middle.t, after=middle))
        assert torch.equal(again[-1].x, records[-1].x)
        assert torch.equal(again[-1].y, records[-1].y)


# --------------------------------------------------------------------------- local moves


@pytest.mark.parametrize(("name", "weighting"), [c for c in cases() if c[0] not in STATIC])
def test_a_local_move_is_a_step_with_the_identity(name, weighting):
    """The same method on graphs with self-loops alone in between; buffers count exchanges."""
    H = 3
    alone = torch.eye(4)
    cycle = [graphs("exponential", 4).adjacency(t) for t in (1, 2)]
    stretched = ps.topology.from_graphs([g for graph in cycle for g in (alone, alone, graph)])
    x0, targets = problem(4)
    run = partial(ps.iterate, full_gradient=lambda y: y - targets)
    gradient = lambda y, t: y - targets
    ours = run(made(name, weighting), "exponential", gradient, x0, 13, every=H)
    theirs = run(made(name, weighting), stretched, gradient, x0, 13)
    looks = made(name, weighting).weighting.looks(graphs("exponential", 4)) != "nothing"
    for one, other in zip(ours, theirs, strict=True):
        local = one.t % H != 0
        if len(one.weights):
            assert torch.equal(one.W, torch.eye(4, dtype=torch.float64)) == local
        if not looks:  # distances are then taken from other values
            torch.testing.assert_close(one.x, other.x, rtol=0, atol=1e-15)


def test_graphs_count_exchanges():
    seen = [r.edges.tolist() for r in simulated(4, "SGP", "uniform", "exponential", every=2)]
    hops = [graphs("exponential", 4).edges(t).tolist() for t in (1, 2)]
    assert seen[1::2] == [hops[0], hops[1], hops[0]]
    assert all(edges == [[0, 1, 2, 3]] * 2 for edges in seen[::2])


# --------------------------------------------------------------------------- one's own method

NEW = '''
from pushsum.algorithms import Algorithm, Sent, State, sgd

def average_twice(lr):
    """Gradient descent on twice the gradient; what arrives is mixed with what was there."""

    def direction(state, gradient, step):
        return 2 * gradient(), ()

    def receive(state, carried, move, got, step):
        return State((got.push[0] + state.x + move) / 2, (got.a + state.a) / 2)

    return Algorithm("average twice", sgd(lr), direction=direction, receive=receive)
'''


def test_a_new_method_is_one_function(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from pushsum.cli import app

    assert len(NEW.strip().splitlines()) <= 25
    file = tmp_path / "mine.py"
    file.write_text(NEW)
    name = f"{file}:average_twice"
    x0, targets = problem(3)
    *_, last = ps.iterate(
        ps.algorithms.parse(name, lr=0.05), "ring", lambda y, t: y - targets, x0, 300
    )
    torch.testing.assert_close(last.average, targets.mean(0), rtol=0, atol=0.1)
    found = on_ranks(3, own_loop_of, name)
    *_, last = ps.iterate(
        ps.algorithms.parse(name, lr=1.0),
        "exponential",
        lambda y, t: y - targets,
        x0,
        STEPS,
        optimizer=SGD,
    )
    for rank, (trail, _) in enumerate(found):
        assert torch.equal(trail[-1][0], last.y[rank])
    for engine in ("simulator", "distributed"):
        words = [f"algorithm.name={name}", "steps=3", "model.hidden=[4]", "topology.nodes=2"]
        into = ["--engine", engine, "--into", str(tmp_path / engine)]
        done = CliRunner().invoke(app, ["run", *words, *into])
        assert done.exit_code == 0, done.output


def own_loop_of(rank, name):
    x0, targets = problem(3)
    model = Vector(x0[rank])
    optimizer = SGD(model.parameters())
    trail = []
    with ps.PushSum(model, optimizer, "exponential", algorithm=name, timeout=DEADLINE):
        for _ in range(STEPS):
            model.x.grad = model.x.detach() - targets[rank]
            optimizer.step()
            trail.append((model.x.detach().clone(),))
    return trail, None


# --------------------------------------------------------------------------- what is refused


def test_what_does_not_go_together_is_one_line():
    model = Vector(torch.zeros(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elsewhere = Algorithm("Elsewhere", ps.algorithms.sgd(0.1), point=lambda state: state.x)
    with pytest.raises(ValueError, match=r"Elsewhere: .* use pushsum\.iterate"):
        ps.PushSum(model, optimizer, algorithm=elsewhere)
    with pytest.raises(ValueError, match="overlap = True: AllReduce looks at all parameters"):
        ps.PushSum(model, optimizer, algorithm="allreduce", overlap=True)
    with pytest.raises(ValueError, match=r"unknown algorithm 'sgd' \(did you mean"):
        ps.PushSum(model, optimizer, algorithm="sgd")
    with pytest.raises(ValueError, match="QGM must know what a step size is: optimizer SGD"):
        ps.PushSum(model, torch.optim.Adam(model.parameters()), algorithm="qgm")
    with pytest.raises(ValueError, match="every = 0"):
        ps.PushSum(model, optimizer, every=0)
    with (
        ps.PushSum(model, None, algorithm="s-addopt") as node,
        pytest.raises(RuntimeError, match="S-ADDOPT changes what the optimizer is given"),
    ):
        node.push()
    static = Algorithm("Static", ps.algorithms.sgd(0.1), static=True)
    x0 = torch.zeros(4, 1)
    with pytest.raises(ValueError, match="Static is for a graph that never changes"):
        ps.iterate(static, "exponential", lambda y, t: y, x0, 1)
    with pytest.raises(ValueError, match="every = 2: Static exchanges in every step"):
        ps.iterate(static, "ring", lambda y, t: y, x0, 1, every=2)


def test_a_model_that_was_converted_is_refused():
    model = Vector(torch.zeros(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ps.PushSum(model, optimizer):
        model.double()
        model.x.grad = torch.ones(2, dtype=torch.float64)
        with pytest.raises(RuntimeError, match=r"parameter x is torch\.float64, and was"):
            optimizer.step()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_overlap_keeps_momentum_of_parameters_without_a_gradient(overlap, fused):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).double()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, fused=fused
    )
    with ps.PushSum(model, optimizer, overlap=overlap):
        for t in range(4):
            optimizer.zero_grad(set_to_none=False)
            part = model if t % 2 == 0 else model[0]  # the last layer rests in odd steps
            part(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
            optimizer.step()
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).double()
    alone = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for t in range(4):
        alone.zero_grad(set_to_none=False)
        part = other if t % 2 == 0 else other[0]
        part(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
        alone.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


def test_a_method_knows_the_step_size_of_every_group():
    """Groups are columns: two in one model are what each is in a model of its own."""

    def trained(rates):
        models = [Vector(torch.full((2,), rate)) for rate in rates]
        pairs = zip(models, rates, strict=True)
        groups = [{"params": model.parameters(), "lr": lr} for model, lr in pairs]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        with ps.PushSum(nn.ModuleList(models), optimizer, algorithm="qgm"):
            for _ in range(5):
                for model in models:
                    model.x.grad = model.x.detach() ** 2
                optimizer.step()
        return [model.x.detach() for model in models]

    both = trained([0.1, 0.3])
    assert torch.equal(both[0], trained([0.1])[0])
    assert torch.equal(both[1], trained([0.3])[0])
    assert not torch.equal(both[0], both[1])


def poisoned(rank):
    model = Vector(torch.zeros(BUCKET + 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with ps.PushSum(model, optimizer, "full", "lazy:c=0.5", timeout=DEADLINE) as node:
            for t in range(1, 4):
                model.x.grad = torch.ones(BUCKET + 3)
                model.x.grad[0] = float("nan") if (rank, t) == (1, 2) else 1.0
                optimizer.step()
    except Exception as problem:
        return type(problem).__name__, str(problem), node.ledger.bytes


def test_the_node_that_has_nan_says_so_before_it_sends_and_the_others_repeat_it():
    found = on_ranks(3, poisoned)
    kind, _, sent = found[1]
    assert kind == "FloatingPointError"
    assert sent == 2 * (HEAD + 4 * (BUCKET + 3))  # of step 1, to two nodes
    assert all("node 1 diverged at step 2: x is not finite" in text for _, text, _ in found)
