"""Hypothesis strategies and random draws shared by the tests."""

import numpy as np
from hypothesis import strategies as st

import pushsum as ps


@st.composite
def graph_cycles(draw, max_nodes: int = 7, max_cycle: int = 5) -> list[np.ndarray]:
    """Directed, irregular, time-varying: random graphs whose cycle is strongly connected."""
    n = draw(st.integers(1, max_nodes))
    m = draw(st.integers(1, max_cycle))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_cycle(rng, n, m, draw(st.sampled_from([0.0, 0.2, 0.5, 0.9])))


def random_cycle(rng: np.random.Generator, n: int, m: int, density: float) -> list[np.ndarray]:
    """m random graphs whose union contains a random directed ring, so that it is connected."""
    graphs = [(rng.random((n, n)) < density) | np.eye(n, dtype=bool) for _ in range(m)]
    order = rng.permutation(n)
    for i, j in zip(order, np.roll(order, -1), strict=True):
        graphs[rng.integers(m)][i, j] = True
    return graphs


WEIGHTINGS = {
    "uniform": ps.weighting.uniform(),
    "lazy": ps.weighting.lazy(0.3),
    "moreau": ps.weighting.moreau(0.7, 0.2),
    "scale-free": ps.weighting.scale_free_moreau(1.3, 0.2),
    "far-first": ps.weighting.far_first(1.3, 0.2),
}
