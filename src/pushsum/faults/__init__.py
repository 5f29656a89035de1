"""Networks that fail, by plan: which messages are lost or late, and which nodes are away, when.

A plan is a value. What happens to a message is a function of (seed, t, sender, receiver) alone, and
what happens to a node of (seed, t, node), so that a run can be repeated, resumed and compared with
another one under the same faults. Steps t are exchanges, from 1 on.

    ps.iterate(algorithm, graphs, gradient, x0, steps, faults=ps.faults.plan(seed=0, loss=0.3))

Plans compose: `wifi | plan(crash="2@100-200")` has the faults of both.
"""

from pushsum.faults.effective import certificate
from pushsum.faults.plans import Accounting, Plan, own, plan
from pushsum.faults.presets import PRESETS, as_plan, preset, preset_of
from pushsum.faults.rules import CRASHED, HERE, LEFT, LOST, PAUSED, chances
from pushsum.faults.traces import EVENTS, trace
from pushsum.faults.values import Values, Window, refuse_unknown

__all__ = [
    "CRASHED",
    "EVENTS",
    "HERE",
    "LEFT",
    "LOST",
    "PAUSED",
    "PRESETS",
    "Accounting",
    "Plan",
    "Values",
    "Window",
    "as_plan",
    "certificate",
    "chances",
    "own",
    "plan",
    "preset",
    "preset_of",
    "refuse_unknown",
    "trace",
]
