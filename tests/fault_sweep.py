"""Random graphs, plans, methods and weightings against what must hold when networks fail.

`python -m tests.fault_sweep 10000` tries so many cases; the tests try a few hundred.
"""

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import pushsum as ps
from pushsum.engines.iterate import Iterate
from strategies import WEIGHTINGS, random_cycle

alg = ps.algorithms
METHODS = {  #: that push x; a gradient of 0 lets them average
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


def case(seed: int, steps: int = 24) -> str:
    """Try one; what it was."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    graphs = ps.topology.from_graphs(random_cycle(rng, n, int(rng.integers(1, 4)), 0.5))
    name = str(rng.choice(list(METHODS)))
    weighting = str(rng.choice(list(WEIGHTINGS)))
    what = FAULTS[int(rng.integers(len(FAULTS)))]
    accounting = str(rng.choice(["keep", "outbox"]))
    plan = ps.faults.plan(int(rng.integers(1000)), accounting=accounting, **what)  # type: ignore[arg-type]
    algorithm = METHODS[name](WEIGHTINGS[weighting])
    x0 = torch.from_numpy(rng.normal(size=(n, 2)))
    label = f"{seed}: {name}, {weighting}, {n} nodes, {plan}"
    kept = None
    first: tuple[torch.Tensor, float] | None = None
    parcels: Any = None
    still: dict[str, Any] = {"faults": plan, "full_gradient": torch.zeros_like}
    for r in ps.iterate(algorithm, graphs, lambda y, t: torch.zeros_like(y), x0, steps, **still):
        x, a = mass(r)
        if first is None:
            there = plan.status(1, n) < ps.faults.CRASHED
            first = x0[there].sum(0), float(there.sum())
        assert abs(a - first[1]) < 1e-12, label  # I1, I5
        assert float((x - first[0]).abs().max()) < 1e-12, label
        assert bool(r.y.isfinite().all()), label
        assert bool((r.a[r.alive] > 0).all()), label
        if accounting == "outbox":
            sequences_are_right(parcels, r.moment.memory.parcels)
            parcels = r.moment.memory.parcels
        if r.t == steps // 2:
            kept = r
    assert kept is not None
    rest = list(
        ps.iterate(algorithm, graphs, lambda y, t: 0 * y, x0, steps - kept.t, kept, **still)
    )
    assert torch.equal(rest[-1].x, r.x), label  # I7: the same bits again
    assert torch.equal(rest[-1].a, r.a), label
    return label


def tracked(seed: int, steps: int = 24) -> None:
    """Without lost nodes, trackers sum to the gradients, wherever they are."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    graphs = ps.topology.from_graphs(random_cycle(rng, n, int(rng.integers(1, 4)), 0.5))
    name = str(rng.choice(list(TRACKERS)))
    here = [what for what in FAULTS if not {"leave", "join"} & what.keys()]
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


def limit(seed: int, kind: torch.dtype = torch.float64, steps: int = 250) -> float:
    """I3: how far the nodes are from the exact average once faults have ceased."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    graphs = ps.topology.from_graphs(random_cycle(rng, n, int(rng.integers(1, 3)), 0.7))
    accounting = str(rng.choice(["keep", "outbox"]))
    what = FAULTS[int(rng.integers(len(FAULTS)))]
    plan = ps.faults.plan(int(rng.integers(1000)), accounting=accounting, **what)  # type: ignore[arg-type]
    x0 = torch.from_numpy(rng.normal(size=(n, 2))).to(kind)
    there = plan.status(1, n) < ps.faults.CRASHED
    sgp = ps.algorithms.sgp(0.1)
    *_, r = ps.iterate(sgp, graphs, lambda y, t: 0 * y, x0, steps, faults=ceasing(plan, 40))
    return float((r.y.double() - x0[there].double().mean(0)).abs().max())


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    torch.set_num_threads(1)
    worst = 0.0
    for seed in range(count):
        case(seed)
        if seed % 4 == 0:
            tracked(seed)
        if seed % 20 == 0:
            worst = max(worst, limit(seed))
            assert worst < 1e-10, seed
        if seed % 1000 == 999:
            print(f"{seed + 1} cases, the largest error of a limit {worst:.1e}", flush=True)


if __name__ == "__main__":
    main()
