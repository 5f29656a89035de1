# %% [markdown]
# # Adaptive, or merely lazy?
#
# A notebook kept as Python: open it in an editor that knows `# %%` cells, or turn it into an
# .ipynb file with `jupytext --to ipynb adaptive_or_lazy.py`.
#
# Moreau weighting gives more to neighbours that are further away. It also gives less to everybody
# than uniform weights do. What comes from which? Here on problems that we know exactly, in
# seconds; the evidence pages ask the same of networks and photographs.

# %%
from pathlib import Path

import torch

import pushsum as ps
from pushsum.drawing import save
from pushsum.drawing.charts import Panel, Series, chart_svg

# %% [markdown]
# ## Six nodes that want different things
#
# `quadratic` has a minimum that no node knows alone: every node's gradient is off by a vector of
# its own, of length 3 (root mean square), and the six vectors sum to zero.

# %%
nodes, dimensions, steps = 6, 10, 300
problem = ps.problems.quadratic(nodes, dimensions, kappa=3.0, sigma=0.1)
start = torch.zeros(nodes, dimensions, dtype=torch.float64)
graphs = ps.topology.exponential(nodes)
print(graphs.certificate())

# %% [markdown]
# ## Four ways to give
#
# A lazy weighting gives the constant c/K. Near consensus Moreau weights sit on their floor, 0.082/K
# for v = 0.1, and far away they reach 0.9/K; so `lazy` with c = 0.9 and c = 0.082 are what Moreau
# would be if it always, or never, saw a distance.

# %%
K = 2  # on this graph a node sends to itself and to one other
moreau = ps.weighting.moreau(k=1, v=0.1)
floor = K * moreau.floor(K)
rules = {
    "uniform": ps.weighting.uniform(),
    "lazy, c = 0.9": ps.weighting.lazy(0.9),
    "Moreau": moreau,
    "lazy at Moreau's floor": ps.weighting.lazy(floor),
}


def distances(rule):
    """After every step, how far the furthest node is from the average (L1)."""
    run = ps.iterate(ps.algorithms.sgap(0.05, rule), graphs, problem.gradient, start, steps)
    return [float((r.y - r.average).abs().sum(1).max()) for r in run]


found = {name: distances(rule) for name, rule in rules.items()}
for name, values in found.items():
    print(f"{name:24} {sum(values[-100:]) / 100:6.2f}")

# %% [markdown]
# The less is given, the further apart the nodes stay. Moreau weights lie between their two
# constants, as they must.

# %%
late = {name: sum(values[-100:]) / 100 for name, values in found.items()}
assert late["uniform"] < late["lazy, c = 0.9"] < late["Moreau"] < late["lazy at Moreau's floor"]

panel = Panel(
    "SGAP on Exponential, N = 6",
    "step",
    "distance (L1)",
    [Series(name, range(1, steps + 1), values) for name, values in found.items()],
)
save(chart_svg("How far the nodes stay apart", [panel]), Path("distances.svg"))

# %% [markdown]
# ## The lazy twin
#
# What Moreau weighting gives on average over the run is a number. Give everybody just that, always,
# and compare: whatever is left is due to adapting.

# %%
run = ps.iterate(ps.algorithms.sgap(0.05, moreau), graphs, problem.gradient, start, steps)
shares = []
for r in run:
    senders, receivers = r.edges
    shares.append(K * r.weights[senders != receivers])
c = float(torch.stack(shares).mean())
twin = distances(ps.weighting.lazy(c))
print(f"Moreau gives {c:.2f}/K on average; distance {late['Moreau']:.2f}")
print(f"its lazy twin gives as much to all; distance {sum(twin[-100:]) / 100:.2f}")
assert sum(twin[-100:]) < sum(found["Moreau"][-100:])

# %% [markdown]
# The twin's nodes are closer together. Moreau spends what it gives on those that are far away at
# the moment, and lets the near ones drift.

# %% [markdown]
# ## And the error?
#
# The distance is one thing, the average model another: on a quadratic it hardly notices who gave
# how much. Networks are not quadratics; that is what the evidence pages are for.

# %%
errors = {}
for name, rule in {**rules, "the twin": ps.weighting.lazy(c)}.items():
    run = ps.iterate(ps.algorithms.sgap(0.05, rule), graphs, problem.gradient, start, steps)
    *_, last = run
    errors[name] = float(problem.value(last.average))
    print(f"{name:24} {errors[name]:.4f}")
assert max(errors.values()) < 1.05 * min(errors.values())
