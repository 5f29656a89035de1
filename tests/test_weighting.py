"""Weights satisfy Definition 1, and what does not is refused by name."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pushsum as ps
from pushsum import weighting
from strategies import WEIGHTINGS, graph_cycles

FULL_3 = torch.ones(3, 3, dtype=torch.bool)


@pytest.mark.parametrize("name", WEIGHTINGS)
@settings(max_examples=100, deadline=None)
@given(cycle=graph_cycles(max_nodes=9, max_cycle=1), data=st.data())
def test_every_weighting_satisfies_definition_1(name, cycle, data):
    n = len(cycle[0])
    distances = st.one_of(st.just(0.0), st.floats(0, 1e300), st.floats(0, 5))
    d2 = torch.from_numpy(data.draw(hnp.arrays(float, (n, n), elements=distances)))
    adjacency = torch.from_numpy(cycle[0])
    rule = WEIGHTINGS[name]
    W = rule.matrix(adjacency, d2.fill_diagonal_(0))
    assert W.dtype == torch.float64
    assert (W.sum(0) == 1).all()  # exactly: weights are multiples of 2^-53
    assert torch.equal(W > 0, adjacency.T)
    floor = rule.floor(int(adjacency.sum(1).max()))
    assert W[W > 0].min() >= floor * (1 - 1e-14)


def test_uniform_and_lazy_by_hand():
    adjacency = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1]], dtype=torch.bool)
    W = weighting.uniform().matrix(adjacency, torch.zeros(3, 3))
    expected = torch.tensor([[1 / 3, 0, 0], [1 / 3, 0.5, 0], [1 / 3, 0.5, 1]], dtype=torch.float64)
    torch.testing.assert_close(W, expected, rtol=0, atol=1e-15)
    W = weighting.lazy(0.6).matrix(adjacency, torch.zeros(3, 3))
    expected = torch.tensor([[0.6, 0, 0], [0.2, 0.7, 0], [0.2, 0.3, 1]], dtype=torch.float64)
    torch.testing.assert_close(W, expected, rtol=0, atol=1e-15)


def test_moreau_by_hand():
    """v = 0.1, k = 2, K = 3: floor 0.0272727, ceiling 0.3, in between by the formula."""
    d2 = torch.tensor([[0.0, 0.5, 1e9], [0, 0, 0], [0.1, 0, 0]], dtype=torch.float64)
    W = weighting.moreau(2.0, 0.1).matrix(FULL_3, d2)
    assert W[1, 0].item() == pytest.approx(0.9 / 3.3 * (1.1 - np.exp(-1)), rel=1e-14)
    assert W[2, 0].item() == pytest.approx(0.3, rel=1e-14)
    assert W[0, 0].item() == pytest.approx(1 - 0.3 - 0.9 / 3.3 * (1.1 - np.exp(-1)), rel=1e-14)
    assert W[0, 1].item() == pytest.approx(0.1 * 0.9 / 1.1 / 3, rel=1e-14)
    assert W[0, 2].item() == pytest.approx(0.9 / 3.3 * (1.1 - np.exp(-0.2)), rel=1e-14)


def test_moreau_grows_with_distance_and_stays_below_its_ceiling():
    adjacency = torch.ones(2, 2, dtype=torch.bool)
    given_away = [
        weighting.moreau(0.5, 0.2).matrix(adjacency, torch.tensor([[0, d], [0, 0]]))[1, 0].item()
        for d in (0.0, 0.1, 1.0, 10.0, 60.0)
    ]
    assert given_away == sorted(given_away)
    assert given_away[0] == pytest.approx(0.2 * 0.8 / 1.2 / 2)
    assert given_away[-1] == pytest.approx(0.4)
    assert given_away[-1] <= 0.4


@settings(max_examples=50, deadline=None)
@given(scale=st.floats(1e-12, 1e12), seed=st.integers(0, 1000))
def test_scale_free_moreau_does_not_see_the_scale(scale, seed):
    d2 = torch.from_numpy(np.random.default_rng(seed).exponential(size=(4, 4))).fill_diagonal_(0)
    d2[0, 1] = 0.0  # never heard
    rule, full = weighting.scale_free_moreau(1.0, 0.1), torch.ones(4, 4, dtype=torch.bool)
    torch.testing.assert_close(
        rule.matrix(full, scale * d2), rule.matrix(full, d2), rtol=1e-12, atol=0
    )
    same = weighting.moreau(1 / d2[2, [0, 1, 3]].mean().item(), 0.1).matrix(full, d2)
    torch.testing.assert_close(rule.matrix(full, d2)[:, 2], same[:, 2], rtol=1e-12, atol=0)


@settings(max_examples=50, deadline=None)
@given(scale=st.floats(1e-12, 1e12), seed=st.integers(0, 1000))
def test_far_first_divides_what_uniform_weights_give_whatever_the_scale(scale, seed):
    d2 = torch.from_numpy(np.random.default_rng(seed).exponential(size=(4, 4))).fill_diagonal_(0)
    rule, full = weighting.far_first(1.0, 0.1), torch.ones(4, 4, dtype=torch.bool)
    W = rule.matrix(full, d2)
    torch.testing.assert_close(rule.matrix(full, scale * d2), W, rtol=1e-12, atol=0)
    torch.testing.assert_close(W.diagonal(), torch.full((4,), 0.25).double(), rtol=0, atol=1e-15)
    for i in range(4):
        others = [j for j in range(4) if j != i]
        assert d2[i, others].argsort().tolist() == W[others, i].argsort().tolist()


def test_far_first_is_uniform_where_there_is_nothing_to_choose():
    for adjacency, d2 in ((FULL_3, torch.zeros(3, 3)), (torch.eye(3).roll(1, 0), torch.rand(3, 3))):
        ours = weighting.far_first().matrix(adjacency, d2)
        uniform = weighting.uniform().matrix(adjacency, d2)
        torch.testing.assert_close(ours, uniform, rtol=0, atol=1e-15)


def test_far_first_does_not_starve_whom_it_never_hears():
    links = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]])  # 3 not to 0
    targets = torch.tensor([[0.0], [1.0], [5.0], [2.0]]).double()
    far_first = ps.algorithms.sgap(0.1, weighting.far_first())
    graphs, x0 = ps.topology.from_graphs([links]), torch.zeros(4, 1).double()
    for r in ps.iterate(far_first, graphs, lambda y, t: y - targets, x0, steps=20):
        if r.t > 1:  # it counts as being at the mean, between those that are heard
            assert r.W[1, 0] < r.W[3, 0] < r.W[2, 0]


def test_far_first_takes_who_agrees_as_near():
    far = torch.ones(4, 4).fill_diagonal_(0)
    for nearly in (0.0, 1e-9):
        far[0, 1] = nearly
        given = weighting.far_first(1.0, 0.1).matrix(torch.ones(4, 4), far)[:, 0]
        assert given[1] < 0.05
        assert given[2] > 0.34


def test_far_first_remembers_nothing_where_every_node_has_one_receiver():
    rule, graphs = weighting.far_first(), ps.topology.exponential(6)
    assert rule.looks(graphs) == rule.looks(ps.topology.ring(4)) == "nothing"
    assert rule.looks(ps.topology.full(6)) == "buffers"
    targets, x0 = torch.randn(6, 3).double(), torch.zeros(6, 3).double()

    def end(weights):
        sgap = ps.algorithms.sgap(0.1, weights)
        *_, last = ps.iterate(sgap, graphs, lambda y, t: y - targets, x0, steps=9)
        return last.x

    assert torch.equal(end(rule), end(weighting.uniform()))


def test_a_node_that_heard_nobody_has_its_weights_on_the_floor():
    W = weighting.scale_free_moreau(1.0, 0.1).matrix(FULL_3, torch.zeros(3, 3))
    assert W[1, 0].item() == pytest.approx(0.1 * 0.9 / 1.1 / 3, rel=1e-14)


@pytest.mark.parametrize("corrected", [False, True])
def test_nodes_that_agree_are_apart_in_x_but_not_in_y(corrected):
    seen = []

    def thirds(adjacency, d2):
        seen.append(d2.max().item())
        away = adjacency.T.double().fill_diagonal_(0) / 3
        return away + torch.diag(1 - away.sum(0))

    links = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1]])  # gives and gets differ: so do scalars
    sgap = ps.algorithms.sgap(0.1, weighting.own(thirds, corrected=corrected))
    graphs, x0 = ps.topology.from_graphs([links]), torch.ones(3, 2).double()
    *_, last = ps.iterate(sgap, graphs, lambda y, t: torch.zeros_like(y), x0, steps=9)
    assert last.a.max() > 1.2
    assert seen[-1] == pytest.approx(0, abs=1e-24) if corrected else seen[-1] > 0.1


def test_float32_results_of_a_plain_function_still_conserve_mass():
    thirds = weighting.own(lambda adjacency, d2: adjacency.T.float() / 3)
    assert (thirds.matrix(FULL_3, torch.zeros(3, 3)).sum(0) == 1).all()


def test_names_tell_dials_apart_to_the_last_digit():
    near = [weighting.moreau(k=0.1 + step * 2**-50, v=0.1) for step in range(2)]
    assert near[0].name == "moreau(k=0.1, v=0.1)"
    assert near[1].name != near[0].name
    adjacency, d2 = torch.ones(2, 2), torch.ones(2, 2)
    assert torch.equal(
        weighting.parse(near[1].name).matrix(adjacency, d2), near[1].matrix(adjacency, d2)
    )


# --------------------------------------------------------------------------- refusals


def test_closing_a_rounding_gap_never_takes_more_than_a_node_keeps():
    W = torch.tensor([[1e-9, 0.5], [1 + 5e-7, 0.5]], dtype=torch.float64)
    rule = weighting.own(lambda adjacency, d2: W, floor=1e-10)
    with pytest.raises(ValueError, match=r"column 0 of W sums to more than 1.*: keep more in W"):
        rule.matrix(torch.ones(2, 2), torch.zeros(2, 2))


MISSING = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)  # 1 does not send to 2


@pytest.mark.parametrize(
    ("W", "message"),
    [
        (
            [[0.5, 0, 0], [0.5, 1, 0], [0, 0, 1]],
            r"column 0 of W gives 0 to node 2, below the floor .*: raise the weight$",
        ),
        (np.full((3, 3), 1 / 3), r"column 1 of W gives 0.333333 to node 2, but node 1 does not"),
        ([[0.4, 0.5, 0.3], [0.3, 0.5, 0.3], [0.3, 0, 0.3]], "column 2 of W sums to 0.9, not 1"),
        (
            [[0.4, 0.5, 1.3], [0.3, 0.5, -0.3], [0.3, 0, 0]],
            r"column 2 of W gives -0.3 to node 1.*: raise the weight$",
        ),
        ([[np.nan, 0.5, 0.3]] * 3, "column 0 of W has nan for node 0: weights must be finite"),
        ([[1.0]], r"W has shape \(1, 1\), expected \(3, 3\)"),
    ],
)
def test_definition_1_is_checked_and_the_column_is_named(W, message):
    rule = weighting.own(lambda adjacency, d2: torch.tensor(np.asarray(W)))
    with pytest.raises(ValueError, match=message):
        rule.matrix(MISSING, torch.zeros(3, 3))


def test_the_floor_of_an_own_weighting_can_be_stated():
    def shy(adjacency, d2):
        return torch.tensor([[1 - 1e-8, 0.5], [1e-8, 0.5]], dtype=torch.float64)

    both = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(
        ValueError, match=r"weighting shy: column 0 .* weighting.own\(function, floor"
    ):
        weighting.own(shy).matrix(both, torch.zeros(2, 2))
    W = weighting.own(shy, floor=1e-9).matrix(both, torch.zeros(2, 2))
    assert W[1, 0].item() == pytest.approx(1e-8, rel=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weighting.moreau(0.0, 0.1), r"k = 0.0: this weighting needs a finite k > 0"),
        (lambda: weighting.moreau(-1.0, 0.1), r"k = -1.0"),
        (lambda: weighting.moreau(float("nan"), 0.1), r"k = nan"),
        (lambda: weighting.moreau(float("inf"), 0.1), r"k = inf"),
        (lambda: weighting.moreau(1.0, 0.0), r"v = 0.0: this weighting needs 0 < v < 1"),
        (lambda: weighting.moreau(1.0, 1.0), r"v = 1.0"),
        (lambda: weighting.moreau(1.0, float("nan")), r"v = nan"),
        (lambda: weighting.scale_free_moreau(0.0), r"c = 0.0"),
        (lambda: weighting.scale_free_moreau(1.0, 2.0), r"v = 2.0"),
        (lambda: weighting.far_first(0.0), r"c = 0.0: this weighting needs a finite c > 0"),
        (lambda: weighting.far_first(1.0, 1.0), r"v = 1.0"),
        (lambda: weighting.lazy(0.0), r"c = 0.0: a lazy weighting needs 0 < c <= 1"),
        (lambda: weighting.lazy(1.5), r"c = 1.5"),
        (lambda: weighting.moreau("1", 0.1), r"k = '1': this weighting needs"),
        (lambda: weighting.moreau(1.0, "0.1"), r"v = '0.1': this weighting needs"),
        (lambda: weighting.own(lambda a, d: a, floor=0.0), r"floor = 0.0"),
        (lambda: weighting.as_weighting(0.5), r"weighting = 0.5: give one of"),
        (lambda: weighting.as_weighting(weighting.uniform), r"weighting = uniform: call it"),
        (lambda: weighting.own(3), r"own\(3\): give a function"),
    ],
)
def test_bad_dials_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "rule",
    [weighting.lazy(1e-16), weighting.moreau(1.0, 1e-17), weighting.moreau(1.0, 1 - 1e-15)],
    ids=repr,
)
def test_weights_below_the_grain_stay_positive(rule):
    W = rule.matrix(FULL_3, torch.zeros(3, 3))
    assert (W > 0).all()
    assert (W.sum(0) == 1).all()
    assert W.min() >= rule.floor(3)


def test_matrix_takes_numpy_and_adds_the_diagonal():
    adjacency = np.array([[0, 1], [1, 0]])
    W = weighting.uniform().matrix(adjacency, np.zeros((2, 2), dtype=np.float32))
    assert W.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("adjacency", "d2", "message"),
    [
        (torch.ones(2, 3), torch.zeros(2, 3), r"adjacency has shape \(2, 3\), expected \(n, n\)"),
        (torch.ones(2, 2), torch.zeros(3, 3), r"squared_distances has shape \(3, 3\), expected"),
        (torch.ones(2, 2), torch.tensor([[0, -1.0], [0, 0]]), r"squared_distances\[0, 1\] = -1"),
        (torch.ones(2, 2), torch.tensor([[0, 0], [np.nan, 0]]), r"distances\[1, 0\] = nan"),
    ],
)
def test_matrix_refuses_what_are_no_distances(adjacency, d2, message):
    for rule in (weighting.moreau(1.0, 0.1), weighting.own(lambda a, d: a / 2)):
        with pytest.raises(ValueError, match=message):
            rule.matrix(adjacency, d2)


def test_an_own_function_may_change_what_it_is_given_and_must_return_a_matrix():
    def careless(adjacency, d2):
        adjacency.fill_diagonal_(False)
        d2.fill_(7.0)
        return torch.full((3, 3), 1 / 3)

    adjacency, d2 = FULL_3.clone(), torch.zeros(3, 3, dtype=torch.float64)
    weighting.own(careless).matrix(adjacency, d2)
    assert adjacency.all()
    assert (d2 == 0).all()
    with pytest.raises(ValueError, match="returned NoneType, expected an"):
        weighting.own(lambda adjacency, d2: None).matrix(adjacency, d2)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("uniform", "uniform"),
        ("lazy:c=0.5", "lazy(c=0.5)"),
        ("moreau:k=0.1,v=0.2", "moreau(k=0.1, v=0.2)"),
        ("scale-free-moreau", "scale-free-moreau(c=1, v=0.1)"),
        ("scale-free-moreau:v=0.3", "scale-free-moreau(c=1, v=0.3)"),
        ("far-first", "far-first(c=1, v=0.1)"),
    ],
)
def test_weightings_by_name(text, name):
    assert repr(weighting.parse(text)) == name


@pytest.mark.parametrize("name", weighting.RULES)
def test_a_weighting_is_read_as_it_is_shown(name):
    dials = {"lazy": "c=0.5", "moreau": "k=1,v=0.1", "scale-free-moreau": "c=2,v=0.2"}
    rule = weighting.parse(f"{name}:{dials.get(name, '')}")
    shown = repr(rule)
    for text in (shown, f" {shown} ", shown.replace(", ", ","), weighting.spelled(shown)):
        assert repr(weighting.parse(text)) == shown


@pytest.mark.parametrize(
    "text", ["lazy(c=0.5))", "lazy:c=0.5)", "uniform)", "(", ")" * 2000, "a b"]
)
def test_what_only_looks_like_a_weighting_is_refused(text):
    with pytest.raises(ValueError, match="weighting"):
        weighting.parse(text)


def test_who_is_never_heard():
    """A link counts as heard if the other direction ever opens, within a buffer's life or not."""
    full, ring = torch.ones(6, 6), ps.topology.ring(6).adjacency(1)
    share = weighting.one_way
    assert share(ps.topology.from_graphs([full, ring, ring, ring, ring])) == 0
    assert share(ps.topology.from_graphs([ring])) == share(ps.topology.ring(6)) == 1
    assert share(ps.topology.exponential(8)) == pytest.approx(2 / 3)
    assert share(ps.topology.random(6)) == share(ps.topology.full(1)) == 0
    own = weighting.own(lambda adjacency, d2: adjacency.double())
    assert weighting.warnings(own, ps.topology.ring(6)) == []


OWN = """
import torch
import pushsum as ps

def keep_half(adjacency, squared_distances):
    away = adjacency.T.double().fill_diagonal_(0)
    away /= 2 * away.sum(0).clamp(min=1)
    return away + torch.diag(1 - away.sum(0))

stated = ps.weighting.own(keep_half, floor=0.25, corrected=True)
number = 3
"""


def test_a_function_in_a_file_is_a_weighting(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    plain, stated = weighting.parse("mine.py:keep_half"), weighting.parse("mine.py:stated")
    assert plain.matrix(torch.ones(3, 3), torch.zeros(3, 3))[0].tolist() == [0.5, 0.25, 0.25]
    assert (plain.name, plain.corrected, plain.floor(3)) == ("keep_half", False, 1e-6)
    assert (stated.name, stated.corrected, stated.floor(3)) == ("keep_half", True, 0.25)
    assert weighting.spelled(" mine.py:keep_half") == f"{tmp_path}/mine.py:keep_half"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other.py:keep_half", "other.py:keep_half: there is no such file"),
        ("mine.py:nothing", "mine.py:nothing: the file defines nothing of this name"),
        ("mine.py:number", "weighting = 3: give one of pushsum.weighting"),
        ("broken.py:f", "broken.py:f: the file fails: ZeroDivisionError"),
        ("keep_half", "or FILE.py:function for your own"),
    ],
)
def test_a_file_without_the_function_is_refused(text, message, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        weighting.parse(text)


def test_an_own_weighting_that_looks_at_something_unknown_is_refused():
    with pytest.raises(ValueError, match="sight = 'all': choose from nothing, neighbours, buffers"):
        weighting.own(lambda adjacency, d2: adjacency, sight="all")
