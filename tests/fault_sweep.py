"""Random graphs, plans, methods and weightings against what must hold when networks fail.

`python -m tests.fault_sweep 10000` tries so many cases; `... 2500 5000` those from 5000 on, so that
several processes can share the work. The tests try a few hundred.
"""

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import pushsum as ps
from pushsum.engines.iterate import Iterate
from tests.strategies import WEIGHTINGS, random_cycle

alg = ps.algorithms
METHODS = {  #: that push x
    "SGP": lambda w: alg.sgap(0.1, w),
    "MSGAP": lambda w: alg.msgap(0.1, 0.5, w),
    "S-ADDOPT": lambda w: alg.s_addopt(0.1),
    "Push-DIGing": lambda w: alg.push_diging(0.1),
    "SONATA": lambda w: alg.sonata(0.1),
    "Push-LSVRG-UP": lambda w: alg.push_lsvrg_up(0.1, 0.5),
    "OSGP": lambda w: alg.osgp(0.1, delay=2),
    "OSGP, random": lambda w: alg.osgp(0.1, delay=2, random=True),
}
TRACKERS = {  #: lr -> a method
    "ADD-OPT": alg.add_opt,
    "S-ADDOPT": alg.s_addopt,
    "Push-DIGing": alg.push_diging,
    "SONATA": alg.sonata,
    "Push-LSVRG-UP": alg.push_lsvrg_up,
    "AB": alg.ab,
    "Push-Pull": alg.push_pull,
    "ABm": lambda lr: alg.abm(lr, 0.2),
    "ABN": lambda lr: alg.abn(lr, 0.2),
}
FAULTS: tuple[dict[str, Any], ...] = (
    {"loss": 0.3},
    {"loss": 0.6, "burst": 3},
    {"delay": 3},
    {"loss": 0.3, "delay": 2},
    {"sleep": 0.3},
    {"sleep": 0.2, "delay": 2, "loss": 0.2},
    {"straggler": {0: 3}, "loss": 0.2},
    {"partition": "0@5-15", "loss": 0.2},
    {"crash": "0@6-12", "mode": "pause", "loss": 0.2},
    {"leave": "0@6-12", "loss": 0.2, "delay": 1},
    {"join": "0@7", "sleep": 0.1},
    {"crash": "0@6-12", "loss": 0.2, "delay": 1},
    {"crash": ["0@4-7", "1@8-11", "0@12-15"], "sleep": 0.1, "delay": 2},
)


@dataclass(frozen=True)
class Until:
    """Faults that cease."""

    rule: Any
    last: int

    @property
    def longest(self):
        return self.rule.longest

    def fates(self, t, senders, receivers, acks):
        found = self.rule.fates(t, senders, receivers, acks)
        return found if t <= self.last else torch.zeros_like(found)

    def asleep(self, t, n):
        return self.rule.asleep(t, n) & (t <= self.last)


def ceasing(plan: ps.faults.Plan, last: int) -> ps.faults.Plan:
    links = tuple(Until(rule, last) for rule in plan.links)
    return replace(plan, links=links, naps=tuple(Until(rule, last) for rule in plan.naps))


def loses_nodes(what: dict[str, Any]) -> bool:
    return ps.faults.plan(**what).loses_nodes


def mass(r: Iterate) -> tuple[torch.Tensor, float]:
    late = r.under_way
    return r.x.double().sum(0) + late.x, float(r.a.sum()) + late.a


def untracked(r: Iterate) -> float:
    """How far the trackers, with what is under way of them, are from the sum of the gradients."""
    kept, standing = r.state.kept, r.moment.memory
    tracking = getattr(kept, "tracking", kept)
    total = (tracking.tracker - tracking.gradient).sum(0)
    if standing.mail.push:
        total = total + standing.mail.push[-1].sum((0, 1))
    if standing.parcels is not None:
        boxes = standing.parcels
        total = total + boxes.waiting[-1].sum((0, 1)) + boxes.parcel[-1][boxes.open].sum(0)
    return float(total.abs().max())


def sequences_are_right(before: Any, now: Any) -> None:
    """I2: applied without gap or repeat; acknowledged <= applied <= sealed."""
    assert bool((now.acked <= now.applied).all())
    assert bool((now.applied <= now.sealed).all())
    assert bool((now.sealed <= now.acked + 1).all())
    if before is not None:
        stepped = now.applied - before.applied
        assert bool(((stepped == 0) | (stepped == 1) | (now.applied == 0)).all())


def lost_mass(r: Iterate, gone: torch.Tensor) -> tuple[torch.Tensor, float]:
    """What crashes take with them: what the nodes have, and what is under way to or from them."""
    memory, kept = r.moment.memory, r.state.kept
    parts = [(r.x[gone], r.a[gone])]
    if r.setup.algorithm.holds_mass:
        parts += [(x[gone], a[gone]) for x, a in zip(kept.x, kept.a, strict=True)]
    if memory.mail.push:
        parts.append((memory.mail.push[0][:, gone], memory.mail.a[:, gone]))
    if memory.parcels is not None and memory.parcels.waiting:
        parts.append((memory.parcels.link_x[gone], memory.parcels.link_a[gone]))
    x = sum((x.reshape(-1, r.x.shape[1]).double().sum(0) for x, _ in parts), torch.zeros(()))
    return x, float(sum(a.sum() for _, a in parts))


def case(seed: int, steps: int = 20) -> str:
    """Try one; what it was. Gradients are constants, so that SGP's moves are known."""
    rng = np.random.default_rng(seed)
    what = FAULTS[int(rng.integers(len(FAULTS)))]
    n = int(rng.integers(3 if loses_nodes(what) else 2, 6))  # so that nobody is left alone
    graphs = ps.topology.from_graphs(random_cycle(rng, n, int(rng.integers(1, 4)), 0.5))
    name = str(rng.choice(list(METHODS)))
    weighting = str(rng.choice(list(WEIGHTINGS)))
    accounting = str(rng.choice(["keep", "outbox"]))
    plan = ps.faults.plan(int(rng.integers(1000)), accounting=accounting, **what)  # type: ignore[arg-type]
    algorithm = METHODS[name](WEIGHTINGS[weighting])
    x0 = torch.from_numpy(rng.normal(size=(n, 2)))
    slopes = torch.from_numpy(rng.normal(size=(n, 2))) if name == "SGP" else torch.zeros(n, 2)
    label = f"{seed}: {name}, {weighting}, {n} nodes, {plan}"
    there = plan.status(1, n) < ps.faults.CRASHED
    x, a = x0[there].sum(0), float(there.sum())
    records: list[Iterate] = []
    moves: list[torch.Tensor] = []

    def send(state: Any, kept: Any, move: torch.Tensor, t: Any) -> Any:
        if len(move) == n:  # and not when the engine asks what is sent
            moves.append(move)
        return algorithm.send(state, kept, move, t)

    arguments: Any = replace(algorithm, send=send), graphs, lambda y, t: slopes.to(y), x0
    every = int(rng.choice([1, 1, 1, 2]))
    options: Any = {"faults": plan, "full_gradient": torch.zeros_like, "every": every}
    for r in ps.iterate(*arguments, steps * every, **options):
        gone = there & (plan.status(-(-r.t // every), n) == ps.faults.CRASHED)
        if bool(gone.any()):  # I4: what is left is as it was, up to a factor
            assert not bool(r.alive[gone].any()), label
            lost_x, lost_a = lost_mass(records[-1], gone)
            scale = 2.0 ** round(math.log2(mass(r)[1] / (a - lost_a)))
            x, a = (x - lost_x) * scale, (a - lost_a) * scale
        awake = r.moment.memory.awake
        if name == "SGP":  # held nodes make smaller moves
            size = moves[-1] / (-0.1 * slopes)
            assert bool(((size > 0) & (size < 1 + 1e-12)).all()), label
        x = x + moves[-1][awake].sum(0)
        now = mass(r)
        assert abs(now[1] - a) < 1e-12, label  # I1, I5
        assert float((now[0] - x).abs().max()) < 1e-12, label
        assert bool(r.y.isfinite().all()), label
        assert bool((r.a[r.alive] > 0).all()), label
        if accounting == "outbox":
            before = records[-1].moment.memory.parcels if records else None
            sequences_are_right(before, r.moment.memory.parcels)
        there = r.alive
        records.append(r)
    if seed % 4 == 0:  # I7: the same bits again
        half = records[len(records) // 2]
        *_, again = ps.iterate(*arguments, r.t - half.t, half, **options)
        assert torch.equal(again.x, r.x), label
        assert torch.equal(again.a, r.a), label
    return label


def tracked(seed: int, steps: int = 24) -> None:
    """Without lost nodes, trackers sum to the gradients, wherever they are."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    graphs = ps.topology.from_graphs(random_cycle(rng, n, int(rng.integers(1, 4)), 0.5))
    name = str(rng.choice(list(TRACKERS)))
    here = [what for what in FAULTS if not loses_nodes(what)]
    accounting = str(rng.choice(["keep", "outbox"]))
    what = here[int(rng.integers(len(here)))]
    plan = ps.faults.plan(int(rng.integers(1000)), accounting=accounting, **what)  # type: ignore[arg-type]
    targets, x0 = (torch.from_numpy(rng.normal(size=(n, 2))) for _ in range(2))
    slope = lambda y, t=0: y - targets
    run = ps.iterate(
        TRACKERS[name](0.02), graphs, slope, x0, steps, faults=plan, full_gradient=slope
    )
    for r in run:
        assert untracked(r) < 1e-12, f"{seed}: {name}, {n} nodes, {plan}, step {r.t}"
        assert bool(r.y.isfinite().all())


def limit(seed: int, kind: torch.dtype = torch.float64, steps: int = 600) -> float:
    """I3: how far the nodes are from the exact average once faults have ceased."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    graphs = ps.topology.from_graphs(random_cycle(rng, n, int(rng.integers(1, 3)), 0.7))
    accounting = str(rng.choice(["keep", "outbox"]))
    here = [what for what in FAULTS if what.get("mode") == "pause" or "crash" not in what]
    what = here[int(rng.integers(len(here)))]
    plan = ps.faults.plan(int(rng.integers(1000)), accounting=accounting, **what)  # type: ignore[arg-type]
    algorithm = METHODS[str(rng.choice(list(METHODS)))](
        WEIGHTINGS[str(rng.choice(list(WEIGHTINGS)))]
    )
    x0 = torch.from_numpy(rng.normal(size=(n, 2))).to(kind)
    there = plan.status(1, n) < ps.faults.CRASHED
    still = {"faults": ceasing(plan, 40), "full_gradient": torch.zeros_like}
    *_, r = ps.iterate(algorithm, graphs, lambda y, t: 0 * y, x0, steps, **still)
    return float((r.y.double() - x0[there].double().mean(0)).abs().max())


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.set_num_threads(1)
    worst = 0.0
    for seed in range(first, first + count):
        case(seed)
        if seed % 8 == 0:
            tracked(seed)
        if seed % 50 == 0:
            worst = max(worst, limit(seed))
            assert worst < 1e-10, seed
        if (seed + 1 - first) % 500 == 0:
            print(f"{first} .. {seed}: no violation, limits within {worst:.1e}", flush=True)


if __name__ == "__main__":
    main()
