"""Networks that fail, in simulation: what must hold under any plan."""

import functools
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pushsum as ps
from fault_sweep import TRACKERS, case, limit, mass, tracked
from pushsum import config, training
from pushsum.config import Link
from pushsum.engines.engine import Setup
from pushsum.experiment import Experiment
from pushsum.experiment.costs import Costs
from pushsum.protocol import what_is_sent
from pushsum.theory import theorem1

SGP = ps.algorithms.sgp(0.01)


X0 = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
ACCOUNTINGS = ("keep", "outbox")


def still(y, t):
    return torch.zeros_like(y)


def pull(y, t):
    return y - TARGETS


def last(algorithm, graphs, gradient, x0, steps, plan):
    full = lambda y: gradient(y, 0)
    for r in ps.iterate(algorithm, graphs, gradient, x0, steps, faults=plan, full_gradient=full):
        assert bool(r.y.isfinite().all())
    return r


# --------------------------------------------------------------------------- invariants


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6))
def test_mass_sequences_and_bits_under_any_plan(seed):
    case(seed, steps=16)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_trackers_sum_to_the_gradients_under_any_plan(seed):
    tracked(seed, steps=12)


@pytest.mark.parametrize("seed", range(8))
def test_the_limit_is_the_exact_average_once_faults_cease(seed):
    assert limit(seed) < 1e-10


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
@pytest.mark.parametrize("loss", [0.3, 0.6])
def test_the_average_is_exact_at_any_loss(accounting, loss):
    full, plan = ps.topology.full(6), ps.faults.plan(1, loss=loss, accounting=accounting)
    for kind, goal in ((torch.float64, 1e-10), (torch.float32, 5e-6)):
        x0 = X0.to(kind)
        r = last(SGP, full, still, x0, 150 if accounting == "keep" else 450, plan)
        assert float((r.y.double() - x0.double().mean(0)).abs().max()) < goal


@pytest.mark.parametrize("loss", [0.3, 0.6])
def test_plain_push_sum_is_wrong(loss):
    plan = ps.faults.plan(0, loss=loss, accounting="none")
    r = last(SGP, ps.topology.exponential(6), still, X0, 60, plan)
    assert float((r.average - X0.mean(0)).abs().max()) > 0.1


def test_mass_changes_by_the_moves_alone():
    before = X0.sum(0)
    plan = ps.faults.plan(2, loss=0.3, delay=2)
    x = X0
    for r in ps.iterate(SGP, ps.topology.random(6), pull, X0, 40, faults=plan):
        now = mass(r)[0]
        assert float((now - before - (r.pushed - x).sum(0)).abs().max()) < 1e-12
        assert float((r.average - now / mass(r)[1]).abs().max()) < 1e-12
        before, x = now, r.x


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_a_crash_moves_the_average_by_what_the_node_had(accounting):
    plan = ps.faults.plan(0, loss=0.2, crash="2@10", accounting=accounting)
    *_, before, after = ps.iterate(SGP, ps.topology.full(6), still, X0, 10, faults=plan)
    x, a = mass(before)
    lost_x, lost_a = before.x[2].clone(), float(before.a[2])
    if accounting == "outbox":  # its own outbox is lost with it
        box = before.moment.memory.parcels
        lost_x += box.waiting[0][2].sum(0) + box.parcel[0][2][box.open[2]].sum(0)
        lost_a += float(box.waiting_a[2].sum() + box.parcel_a[2][box.open[2]].sum())
    expected = (x - lost_x) / (a - lost_a)
    assert float((after.average - expected).abs().max()) < 1e-12
    far = lost_a / (a - lost_a) * (lost_x / lost_a - before.average).abs()
    assert bool(((after.average - before.average).abs() <= far + 1e-12).all())
    assert after.alive.tolist() == [True, True, False, True, True, True]


def test_at_consensus_a_crash_moves_nothing():
    x0 = X0[:1].expand(6, 3).clone()
    plan = ps.faults.plan(0, loss=0.2, delay=1, crash="2@10")
    r = last(SGP, ps.topology.full(6), still, x0, 30, plan)
    assert float((r.average - x0[0]).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["SGP", "MSGAP", "S-ADDOPT"])
def test_an_empty_plan_is_no_plan(name):
    algorithm = ps.algorithms.parse(name, lr=0.05, momentum=0.5, weighting="far-first")
    runs = [
        list(ps.iterate(algorithm, "random", pull, X0, 20, faults=plan))[-1]
        for plan in (None, ps.faults.plan(5, hold=0.2))
    ]
    assert all(torch.equal(getattr(runs[0], k), getattr(runs[1], k)) for k in ("x", "a", "y"))


def test_a_plan_under_which_all_goes_well_changes_nothing():
    nothing = ps.faults.own(lambda t, senders, receivers: 0 * senders)
    free = list(ps.iterate(SGP, "exponential", pull, X0, 20))[-1]
    planned = last(SGP, "exponential", pull, X0, 20, nothing)
    assert float((free.x - planned.x).abs().max()) < 1e-14


# --------------------------------------------------------------------------- nodes that are away

# On quadratics with full gradients S-ADDOPT is ADD-OPT, and SONATA is Push-DIGing.
DISTINCT = [name for name in TRACKERS if name not in ("S-ADDOPT", "SONATA")]
DEAF = ps.faults.own(lambda t, s, r: torch.where((r == 2) & (s != 2) & (t < 80), -1, 0))


def test_a_node_that_hears_nobody_holds_and_comes_back():
    run = list(ps.iterate(ps.algorithms.s_addopt(0.05), "full", pull, X0, 500, faults=DEAF))
    held, r = [bool(r.held[2]) for r in run], run[-1]
    assert any(held[:80])
    assert not any(held[90:])
    assert float((r.y - TARGETS.mean(0)).abs().max()) < 1e-10


CUT = ps.faults.own(lambda t, s, r: torch.where((r == 2) & (s != 2) & (20 <= t < 80), -1, 0))


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("plan", "name"),
    [(CUT, "SGP"), (CUT, "S-ADDOPT"), (ps.faults.plan(0, sleep=(2, 20, 120)), "SGAP")],
    ids=["cut off", "cut off, tracking", "asleep"],
)
def test_held_nodes_take_steps_that_others_could_take(plan, name, every):
    """Of a held node a stays small, and lr / a would be too long a step for this curvature."""
    lr = 0.3 / every
    method = ps.algorithms.parse(name, lr=lr, weighting="far-first")
    free, r = (
        list(ps.iterate(method, "full", pull, X0, 250 * every, every=every, faults=faults))[-1]
        for faults in (None, plan)
    )
    assert float((r.y - free.y).abs().max()) < 1e-10


@pytest.mark.parametrize("plan", [DEAF, ps.faults.plan(0, sleep=(2, 10, 110))], ids=str)
def test_momentum_of_where_y_went_does_not_feed_on_a_small_a(plan):
    r = last(ps.algorithms.qgm(0.02, 0.5), "full", pull, X0, 250, plan)
    assert float((r.average - TARGETS.mean(0)).abs().max()) < 0.1
    assert float((r.y - r.average).abs().max()) < 1


@pytest.mark.parametrize(("accounting", "steps"), [("keep", 1000), ("outbox", 200)])
def test_a_long_sleep_leaves_everybody_finite(accounting, steps):
    plan = ps.faults.plan(0, sleep=(2, 10, 10 + steps), accounting=accounting)
    r = last(ps.algorithms.s_addopt(0.1), "full", pull, X0, steps + 260, plan)
    assert float((r.y - TARGETS.mean(0)).abs().max()) < 1e-10


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
@pytest.mark.parametrize("name", DISTINCT)
def test_trackers_find_the_optimum_of_the_living(name, accounting):
    late = 1 if accounting == "keep" else 0
    plan = ps.faults.plan(0, loss=0.2, delay=late, crash="2@30", accounting=accounting)
    r = last(TRACKERS[name](0.1), "full", pull, X0, 450, plan)
    assert float((r.y[r.alive] - TARGETS[r.alive].mean(0)).abs().max()) < 1e-10


@pytest.mark.parametrize("name", DISTINCT)
def test_trackers_rejoin_and_sleep(name):
    plan = ps.faults.plan(0, loss=0.2, sleep=0.2, crash="2@30-60", delay=1)
    r = last(TRACKERS[name](0.08), "full", pull, X0, 600, plan)
    assert float((r.y - TARGETS.mean(0)).abs().max()) < 1e-8


@pytest.mark.parametrize("name", TRACKERS)
def test_trackers_without_a_reset_are_refused(name):
    plan = ps.faults.plan(0, crash="2@30", reset=None)
    with pytest.raises(ValueError, match="give reset=1"):
        ps.iterate(TRACKERS[name](0.05), "full", pull, X0, 10, faults=plan)


@pytest.mark.parametrize("method", [SGP, ps.algorithms.s_addopt(0.05)])
def test_twenty_crashes_and_rejoins(method):
    times = [(k % 6, 12 * k + 10, 12 * k + 18) for k in range(20)]
    run = ps.iterate(method, "full", pull, X0, 300, faults=ps.faults.plan(0, crash=times))
    for r in run:
        a = mass(r)[1]
        assert 0.5 < int(r.alive.sum()) / a < 2
        assert bool(r.y.isfinite().all())
    assert bool(r.alive.all())
    assert not bool(r.held.any())
    assert float((r.average - TARGETS.mean(0)).abs().max()) < 0.3


def test_steps_do_not_shrink_when_those_are_lost_that_had_little():
    deaf = ps.faults.own(lambda t, s, r: torch.where((r > 1) & (r != s) & (t < 20), -1, 0))
    plan = deaf | ps.faults.plan(0, crash="2+3+4+5@20")
    *_, before, r = ps.iterate(SGP, "full", still, X0, 20, faults=plan)
    assert float(before.a[:2].sum()) > 4
    assert 0.7 < 2 / mass(r)[1] < 1.5


def test_asynchronous_push_finds_the_weighted_optimum_or_catches_up():
    pace = torch.ones(6, 1, dtype=torch.float64)
    pace[1] = 1 / 5
    for catch_up, goal in ((1, (pace * TARGETS).sum(0) / pace.sum()), (5, TARGETS.mean(0))):
        plan = ps.faults.plan(0, straggler={1: 5}, catch_up=catch_up)
        r = last(ps.algorithms.sgp(0.02), "full", pull, X0, 600, plan)
        assert float((r.average - goal).abs().max()) < 0.05


@pytest.mark.parametrize("plan", [None, {"loss": 0.3}, {"leave": "2@10"}, {"crash": "2@10-20"}])
def test_osgp_accounts_for_what_it_has_under_way(plan):
    faults = plan and ps.faults.plan(0, **plan)
    run = ps.iterate(ps.algorithms.osgp(0.1, delay=3), "full", still, X0, 200, faults=faults)
    for r in run:
        a = mass(r)[1]
        assert 0 < r.under_way.a < a
        assert 0.5 < int(r.alive.sum()) / a < 2
        if plan is None or "crash" not in plan:
            assert float((r.average - X0.mean(0)).abs().max()) < 1e-12
    assert float((r.y[r.alive] - r.average).abs().max()) < 1e-6


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adafactor])
def test_a_sleeping_nodes_optimizer_sleeps_too(optimizer):
    plan = ps.faults.plan(0, sleep="2@1-4", join="5@4")
    made = functools.partial(optimizer, lr=0.05)
    run = list(ps.iterate(SGP, "full", pull, X0, 5, optimizer=made, faults=plan))
    for r in run[:3]:
        kept = r.moment.optimizer.state
        mine = (
            [[*e.values()] for e in kept[2:3]]
            if len(kept) == 6
            else [[e[2] for e in (kept[0]["exp_avg"], kept[0]["exp_avg_sq"])]]
        )
        assert all(not bool(torch.as_tensor(v).any()) for entries in mine for v in entries)
        assert torch.equal(r.y[2], X0[2])
    assert not torch.equal(run[-1].y[2], X0[2])


# --------------------------------------------------------------------------- plans


def test_what_happens_is_a_function_of_seed_step_and_link():
    plan = ps.faults.plan(3, loss=0.3, delay=3)
    i, j = torch.arange(1000), torch.arange(1000).flip(0)
    fates = plan.fates(7, i, j)
    assert torch.equal(fates[100:], plan.fates(7, i[100:], j[100:]))
    assert not torch.equal(fates, plan.fates(8, i, j))
    assert 0.25 < float((fates == ps.faults.LOST).double().mean()) < 0.35
    assert torch.bincount(fates[fates >= 0], minlength=4).min() > 100
    assert plan == ps.faults.plan(3, loss=0.3, delay=3)


def test_values_of_links_and_nodes():
    plan = ps.faults.plan(0, loss={(0, 1): 1.0, "2": 1.0})
    fates = plan.fates(1, torch.tensor([0, 0, 2, 1]), torch.tensor([1, 2, 0, 0]))
    assert fates.tolist() == [-1, 0, -1, 0]
    matrix = ps.faults.plan(0, loss=torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert matrix.fates(1, torch.tensor([0, 1]), torch.tensor([1, 0])).tolist() == [-1, 0]


def test_plans_compose_and_read_traces(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(
        "step,event,node,to,value\n50,join,3,,\n3,lose,0,1,\n5,delay,2,0,2\n9,sleep,4,,\n14,wake,4,,\n"
        "20,crash,3,,\n7,join,5,,\n"
    )
    plan = ps.faults.trace(file) | ps.faults.plan(0, delay={(2, 0): 1})
    assert plan.longest == 3
    assert plan.fates(3, torch.tensor([0]), torch.tensor([1])).tolist() == [-1]
    assert int(plan.fates(5, torch.tensor([2]), torch.tensor([0]))) >= 2
    assert [bool(plan.asleep(t, 6)[4]) for t in (8, 9, 13, 14)] == [False, True, True, False]
    assert plan.status(25, 6).tolist() == [0, 0, 0, 2, 0, 0]
    assert plan.status(6, 6).tolist() == [0, 0, 0, 0, 0, ps.faults.LEFT]  # it joins in step 7
    assert not bool(plan.status(50, 6).any())
    file.write_text("step,event,node,to,value\n3,lose,0,1,\n", encoding="utf-8-sig")
    assert ps.faults.trace(file).fates(3, torch.tensor([0]), torch.tensor([1])).tolist() == [-1]
    file.write_text("step,event,node,to,value\n\u00b2,lose,0,1,\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: step = '\u00b2': a whole number"):
        ps.faults.trace(file)
    for content in ("", "3,lose,0,1,\n"):
        file.write_text(content)
        with pytest.raises(ValueError, match="begin with a line step,event,node"):
            ps.faults.trace(file)


def test_numbers_for_nodes_may_be_a_tuple_and_times_a_list():
    assert ps.faults.plan(0, sleep=(0.0, 1.0)).asleep(1, 2).tolist() == [False, True]
    plan = ps.faults.plan(0, sleep=(1, 5, 9))  # node 1, steps 5 to 8
    assert [bool(plan.asleep(t, 2)[1]) for t in (4, 5, 8, 9)] == [False, True, True, False]


def test_presets_run():
    for name in ps.faults.PRESETS:
        r = last(SGP, "exponential", still, X0, 20, name)
        assert r.t == 20


def test_churn_takes_every_node_away_once():
    plan = ps.faults.plan(0, churn=(50, 10))
    away = torch.stack([plan.status(t, 6) == ps.faults.CRASHED for t in range(1, 1001)])
    assert not bool(away[0].any())
    assert bool(((away[200:].double().mean(0) - 0.2).abs() < 0.03).all())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"loss": 1.5}, r"loss = 1.5: a number in \[0, 1\]"),
        ({"delay": 0.5}, "delay = 0.5: an integer"),
        ({"loss": float("nan")}, "loss = nan"),
        ({"loss": [[0.1, "b"], [0, 0]]}, r"loss = .*n or \(n, n\) numbers"),
        ({"crash": "2@"}, "write NODE@FIRST-UNTIL"),
        ({"crash": "2@5-3"}, "crash = '2@5-3': write"),
        ({"crash": 5}, "crash = 5: write"),
        ({"sleep": None}, "sleep = None: write"),
        ({"straggler": {(0, 1): 2}}, "name nodes"),
        ({"straggler": "3"}, r"straggler = '3': give a number, n, or \{2: value\}"),
        ({"loss": {"\u00b2": 0.1}}, "name a node"),
        ({"join": "2@5-9"}, "without an end"),
        ({"accounting": "kept"}, "did you mean keep"),
        ({"churn": (10, 20)}, "1 <= down < every"),
        ({"partition": "1@5"}, "has no end"),
    ],
)
def test_bad_plans_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        ps.faults.plan(0, **arguments)


def test_what_cannot_run_under_a_plan_says_so():
    lossy = ps.faults.plan(0, loss=0.1)
    with pytest.raises(ValueError, match="stops when one is missing"):
        ps.iterate(ps.algorithms.all_reduce(0.1), "full", pull, X0, 1, faults=lossy)
    for name in ("DEXTRA", "FROST"):
        with pytest.raises(ValueError, match="messages that are lost change it"):
            ps.iterate(ps.algorithms.parse(name, lr=0.1), "full", pull, X0, 1, faults=lossy)
    for faults, said in (
        ({"crash": "9@1"}, "there is no node 9"),
        ({"loss": torch.full((3, 3), 0.1)}, "numbers for 3 nodes, and there are 6"),
        ({"crash": "0+1+2+3+4+5@2"}, "at step 2 no node is left"),
        ({"leave": "0+1+2+3+4+5@2"}, "at step 2 no node is left"),
    ):
        with pytest.raises(ValueError, match=said):
            last(SGP, "full", pull, X0, 2, ps.faults.plan(0, **faults))


@pytest.mark.parametrize(
    "found", [None, [0.5] * 30, [float("nan")] * 30, [0], [1] * 30, [False] * 30]
)
def test_what_a_function_of_faults_must_return(found):
    with pytest.raises(ValueError, match="faults at step 1: the function returned"):
        last(SGP, "full", pull, X0, 1, ps.faults.own(lambda t, senders, receivers: found))
    with pytest.raises(ValueError, match="longest = -1"):
        ps.faults.own(lambda t, senders, receivers: senders, longest=-1)


# --------------------------------------------------------------------------- certificate and time


def test_theorem_1_beside_a_run_under_loss():
    graphs, plan = ps.topology.full(4), ps.faults.plan(0, loss=0.3, hold=0)
    found = ps.faults.certificate(plan, graphs, 60)
    assert found.horizon > graphs.certificate().horizon
    c = ps.theory.constants(graphs, "uniform", faults=plan, steps=60)
    assert c.horizon == found.horizon
    x0 = X0[:4]
    run = ps.iterate(SGP, graphs, lambda y, t: y - TARGETS[:4], x0, 40, faults=plan)
    assert all(row.holds for row in theorem1(c, x0, run))


def test_a_certificate_takes_a_preset_and_says_what_it_cannot_measure():
    graphs = ps.topology.ring(6)
    assert ps.faults.certificate("lan", graphs, 60).horizon >= 5
    with pytest.raises(ValueError, match="does not connect the nodes"):
        ps.faults.certificate(ps.faults.plan(crash="2@10"), graphs, 60)
    with pytest.raises(ValueError, match="steps = 0"):
        ps.faults.certificate("lan", graphs, 0)


@pytest.mark.parametrize(
    ("faults", "silent"),
    [
        ({"loss": 0.3}, False),
        ({"partition": "0@5-9"}, False),
        ({"crash": "0@5-9", "mode": "pause"}, False),
        ({"delay": 1}, True),
        ({"sleep": 0.1}, True),
        ({"crash": "0@5-9"}, True),
        ({"loss": 0.1, "accounting": "none"}, True),
        ({"loss": 0.1, "accounting": "outbox"}, True),
    ],
)
def test_constants_say_where_theorem_1_is_silent(faults, silent):
    plan = ps.faults.plan(0, **faults)
    note = ps.theory.constants(ps.topology.full(4), "uniform", faults=plan, steps=60).note
    assert ("Theorem 1 says nothing" in note) == silent


# Four nodes in a ring, each message takes one second, each gradient two.
SLOW = {"straggler": {3: 5}}
LATE = ps.faults.own(lambda t, senders, receivers: torch.ones_like(senders), longest=1)
TIMES = {  # faults, link, algorithm -> seconds that a step computes, and waits for messages
    "even": ({}, {}, ps.algorithms.sgp(0.1), 2, 1),
    "a slow node": ({}, {"uneven": {3: 0.1}}, ps.algorithms.sgp(0.1), 2, 10),
    "a slow link": ({}, {"uneven": {"0->1": 0.5}}, ps.algorithms.sgp(0.1), 2, 2),
    "a slow link that is not used": ({}, {"uneven": {"1->0": 0.5}}, ps.algorithms.sgp(0.1), 2, 1),
    "a fast node has slow neighbours": ({}, {"uneven": {3: 9}}, ps.algorithms.sgp(0.1), 2, 1),
    "a far node": ({}, {"far": {3: 5}}, ps.algorithms.sgp(0.1), 2, 6),
    "a near link": ({}, {"latency": 5, "far": {"0->1": 0}}, ps.algorithms.sgp(0.1), 2, 6),
    "waited for": (SLOW | {"wait": True}, {}, ps.algorithms.sgp(0.1), 10, 1),
    "waited for, gone": (SLOW | {"wait": True, "crash": "3@1"}, {}, ps.algorithms.sgp(0.1), 2, 1),
    "at its own pace": (SLOW, {"uneven": {3: 0.1}}, ps.algorithms.sgp(0.1), 2, 1),
    "hidden": ({}, {}, ps.algorithms.osgp(0.1), 2, 0),
    "hidden in part": ({}, {"uneven": {3: 0.1}}, ps.algorithms.osgp(0.1), 2, 8),
    "a latency in part": ({}, {"far": {3: 5}}, ps.algorithms.osgp(0.1), 2, 4),
    "a latency, in three steps": ({}, {"far": {3: 5}}, ps.algorithms.osgp(0.1, delay=3), 2, 0),
    "no bandwidth in three": ({}, {"uneven": {3: 0.1}}, ps.algorithms.osgp(0.1, delay=3), 2, 8),
    "all lost": ({"loss": 1}, {}, ps.algorithms.sgp(0.1), 2, 0),
    "all asleep": ({"sleep": 1}, {}, ps.algorithms.sgp(0.1), 2, 0),
    "late": (LATE, {"far": {3: 5}}, ps.algorithms.sgp(0.1), 2, 4),
    "all-reduce": ({}, {}, ps.algorithms.all_reduce(0.1), 2, 1.5),
    "all-reduce, a slow node": ({}, {"uneven": {3: 0.1}}, ps.algorithms.all_reduce(0.1), 2, 15),
}


@pytest.mark.parametrize("case", TIMES)
def test_time_of_uneven_nodes_and_links(case):
    given, link, algorithm, compute, wait = TIMES[case]
    plan = given if isinstance(given, ps.faults.Plan) else ps.faults.plan(**given)
    setup = Setup(algorithm, ps.topology.ring(4))
    costs = Costs(lambda t: setup, what_is_sent(algorithm), 10**9 // 8, Link(**link), plan)
    found = costs.seconds(1, 2.0, 0.5)
    assert (found["compute"], found["transfer"]) == pytest.approx((compute, wait))
    assert found["weighting_hidden"] == pytest.approx(min(wait, 0.5))
    assert found["total"] == pytest.approx(compute + wait + found["weighting_exposed"])


def test_messages_have_the_time_of_the_moves_between_exchanges():
    """A message of OSGP has the one step that it is late."""
    for algorithm, waits in ((ps.algorithms.sgp(0.1), [0, 10]), (ps.algorithms.osgp(0.1), [0, 8])):
        setup = Setup(algorithm, ps.topology.ring(4), every=2)
        link, plan = Link(uneven={"3": 0.1}), ps.faults.plan()
        costs = Costs(lambda t, setup=setup: setup, (1, 0, 0), 10**9 // 8, link, plan)
        assert [costs.seconds(t, 2.0, 0.0)["transfer"] for t in (1, 2)] == pytest.approx(waits)


# --------------------------------------------------------------------------- runs


SETTINGS = {
    "epochs": 1,
    "gradients": "loop",
    "model": {"hidden": [8]},
    "evaluation": {"nodes": False},
    "faults": {"loss": 0.3, "delay": 2, "sleep": 0.2, "crash": "2@4-9"},
}


@pytest.mark.parametrize(
    ("name", "accounting"), [("MSGAP", "keep"), ("S-ADDOPT", "outbox"), ("S-ADDOPT", "keep")]
)
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path, name, accounting):
    content = SETTINGS | {
        "algorithm": {"name": name},
        "topology": {"name": "random"},
        "faults": {**SETTINGS["faults"], "accounting": accounting},
    }

    def go(where, steps, resume):
        made = Experiment(config.parse(content | {"steps": steps}))
        training.run(made, tmp_path / where, resume=resume)
        return json.loads((tmp_path / where / "records.jsonl").read_text().splitlines()[-1])

    whole = go("whole", 12, False)
    go("parts", 6, False)
    parts = go("parts", 12, True)
    for key in ("test", "consensus", "a", "faults", "bytes"):
        assert whole[key] == parts[key], key
    assert whole["faults"]["alive"] == 6
    assert whole["faults"]["lost"] > 0
    model = ps.trained(tmp_path / "parts")
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_time_of_a_slow_link_and_node_in_records(tmp_path: Path):
    content = {**SETTINGS, "steps": 3, "link": {"uneven": {2: 0.1}}}
    content["faults"] = {"straggler": {3: 5}, "wait": True}  # costs time, and nothing else
    made = Experiment(config.parse(content))
    line = training.run(made, tmp_path / "run")
    assert "faults" not in line
    assert line["modelled"]["transfer"] == pytest.approx(3 * 10 * 8 * 4 * made.layout.d / 1e9)
    assert line["modelled"]["compute"] == pytest.approx(5 * line["seconds"]["gradients"] / 6)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"link": {"uneven": {9: 0.1}}}, "link.uneven: there is no node 9: nodes are 0 .. 5"),
        ({"link": {"far": {"0->6": 1}}}, "link.far: there is no node 6"),
        ({"link": {"uneven": {0: 0}}}, "link.uneven = 0.0: a number in"),
        ({"link": {"far": {"0-1": 1}}}, "link.far of '0-1': name a node, 2, or a link"),
        ({"faults": {"straggler": {7: 2}, "wait": True}}, "faults: there is no node 7"),
        (
            {"faults": {"straggler": 5}},
            "faults.straggler = 5: name nodes and values, e.g. {3: 5}",
        ),
        ({"faults": {"crash": 2}}, "faults.crash = 2: write NODE@FIRST-UNTIL, e.g. 2@100-200"),
        ({"faults": {"crash": [2, 10]}}, "faults.crash = [2, 10]: write NODE@FIRST-UNTIL"),
        ({"faults": {"churn": 10}}, "faults.churn = 10: should be [every, down], e.g. [1000, 50]"),
    ],
)
def test_what_a_configuration_of_faults_must_be(section, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Experiment(config.parse({**SETTINGS, "faults": {}} | section))


def test_batchnorm_statistics_stay_while_a_node_sleeps():
    content = SETTINGS | {
        "steps": 3,
        "data": {"name": "digits"},
        "model": {"name": "resnet-small", "width": 2, "blocks": [1, 1, 1]},
        "faults": {"sleep": "2@2-9"},
    }
    one, more = (
        training.in_memory(Experiment(config.parse(content | {"steps": steps}))).buffers
        for steps in (1, 3)
    )
    for name, value in one.items():
        assert torch.equal(value[2], more[name][2]), name
        assert not torch.equal(value[1], more[name][1]), name


def test_mass_stays_in_records(tmp_path: Path):
    content = SETTINGS | {"steps": 8, "faults": {"loss": 0.3, "delay": 2}}
    line = training.run(Experiment(config.parse(content)), tmp_path / "run")
    assert line["faults"]["mass_error"] < 1e-12
    assert line["faults"]["under_way"] > 0
    links = torch.tensor(line["faults"]["lost_on"])
    assert int(links.sum()) == line["faults"]["lost"] > 0
    assert not bool(links.diagonal().any())
    assert line["a"]["min"] == line["faults"]["smallest_a"] > 0
