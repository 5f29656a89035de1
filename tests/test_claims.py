"""What the evidence pages conclude from the results, as inequalities: new runs may break one."""

from collections.abc import Iterator
from itertools import pairwise

from study.numbers import (
    METHODS,
    TOPOLOGIES,
    Difference,
    Ended,
    chosen,
    difference,
    of,
    paired,
    runs,
    spread,
)
from study.texts.batchnorm import ALL_LABELS, GROUP, centralized
from study.texts.table1 import PAIRS
from study.texts.weights import KS, changed_gap

FOUND = runs()
CONSTANT = ("SGP", "SGAP, lazy(c=0.8)", "SGAP, lazy(c=0.5)", "SGAP, lazy(c=0.25)")
FAR_FIRST = ("MSGAP, far-first", "MSGP"), ("MSGAP, far-first", "MSGAP")


def compared(here: list[Ended], there: list[Ended]) -> Difference:
    found = difference(here, there, "accuracy")
    assert found is not None
    return found


def gap(one: str, other: str, topology: str, *sweeps: str, changed: str = "") -> Difference:
    return compared(
        *(of(FOUND, m, *sweeps, topology=topology, changed=changed) for m in (one, other))
    )


def ahead(one: str, other: str, topology: str) -> bool:
    """By more than the noise."""
    found = gap(one, other, topology)
    return found.clear and found.mean > 0


def mean(some: list[Ended]) -> float:
    found = spread(some, "accuracy")
    assert found is not None
    return found[0]


def test_uniform_weights_are_ahead_on_full_and_exponential():
    for t in ("full", "exponential"):
        assert ahead("SGP", "SGAP", t)
        assert ahead("MSGP", "MSGAP", t)


def test_elsewhere_differences_are_small_or_noise():
    assert ahead("MSGAP", "MSGP", "divide")
    assert gap("MSGAP", "MSGP", "divide").mean < 0.01
    assert not gap("MSGAP", "MSGP", "random").clear
    assert not gap("SGAP", "SGP", "divide").clear
    assert not gap("SGAP", "SGP", "random").clear


def test_far_first_weights_have_the_highest_mean_but_on_full():
    for method, uniform in (("SGAP", "SGP"), ("MSGAP", "MSGP")):
        for t in ("divide", "exponential", "random"):
            far = mean(of(FOUND, f"{method}, far-first", topology=t))
            assert far >= max(mean(of(FOUND, m, topology=t)) for m in (method, uniform))


def test_far_first_weights_are_ahead_with_fresh_seeds():
    for t in ("divide", "random"):
        found = gap("MSGAP, far-first", "MSGP", t, "fresh")
        assert found.clear
        assert found.mean > 0
    assert not gap("MSGAP, far-first", "MSGAP, scale-free", "divide", "fresh").clear
    far, moreau = (of(FOUND, m, "fresh", topology="divide") for m in FAR_FIRST[1])
    assert min(paired(far, moreau, "accuracy").values()) > 0


def test_nothing_gets_as_far_for_the_bytes_of_exponential():
    for t, fewer in (("exponential", ("exponential", "full")), ("divide", ("divide",))):
        sgp = mean(of(FOUND, "SGP", topology=t))
        for run in chosen(FOUND, sweep="budget"):
            assert run.topology not in fewer or run["accuracy"] < sgp
    assert mean(centralized(FOUND, 0.0)) > mean(of(FOUND, "SGP", topology="exponential"))


def test_s_addopt_is_behind_on_full():
    assert ahead("SGP", "S-ADDOPT", "full")


def hundred_classes() -> Iterator[Difference]:
    for topology, pairs in (("divide", (*PAIRS, *FAR_FIRST)), ("random", (PAIRS[1], *FAR_FIRST))):
        for one, other in pairs:
            yield gap(one, other, topology, "quickdraw", changed="data.name=quickdraw")


def test_nothing_is_told_by_a_hundred_classes():
    assert not any(found.clear for found in hundred_classes())


def test_giving_less_hurts_where_the_network_mixes_well():
    for t in ("full", "exponential", "random"):
        for more, less in pairwise(CONSTANT):
            assert mean(of(FOUND, more, topology=t)) > mean(of(FOUND, less, topology=t))


def test_adapting_is_not_shown_to_help_at_equal_giving():
    for c, t in (("0.25", "full"), ("0.8", "random"), ("0.5", "exponential")):
        assert not gap("SGAP", f"SGAP, lazy(c={c})", t).clear


def test_where_some_k_is_ahead():
    cells = [(f"SGAP, moreau(k={k}, v=0.1)", "SGP", t) for k in KS for t in TOPOLOGIES]
    assert [cell for cell in cells if ahead(*cell)] == [
        ("SGAP, moreau(k=0.1, v=0.1)", "SGP", "divide")
    ]
    assert [t for t in TOPOLOGIES if ahead("MSGAP", "MSGP", t)] == ["divide"]


def test_a_small_step_size_tells_nothing():
    for t in ("full", "divide", "exponential"):
        assert not gap("SGAP", "SGP", t, "rates").clear
        assert "**" not in changed_gap(FOUND, "rates", t)


def test_longer_training_shrinks_the_gap_on_full():
    assert changed_gap(FOUND, "longer", "full").startswith("**+")
    assert "**" not in changed_gap(FOUND, "longer", "exponential")
    for seed in range(3):
        sgp, sgap = (of(FOUND, m, "longer", topology="full", seed=seed) for m in ("SGP", "SGAP"))
        assert mean(sgp) > mean(sgap)


def test_the_kind_of_momentum_cannot_be_told():
    for t in ("divide", "exponential", "random"):
        assert not gap("QGM", "MSGP", t).clear
        assert not gap("QGM, Moreau", "MSGAP", t).clear


def test_group_norm_is_worse():
    for method in METHODS:
        for t in TOPOLOGIES:
            normed = of(FOUND, method, "groupnorm", topology=t, changed=GROUP)
            assert mean(normed) < mean(of(FOUND, method, topology=t))


def with_group_norm(one: str, other: str, topology: str) -> Difference:
    return gap(one, other, topology, "groupnorm", changed=GROUP)


def test_small_weights_lose_with_group_norm_too():
    for t in ("full", "exponential", "random"):
        found = with_group_norm("SGP", "SGAP", t)
        assert found.clear
        assert found.mean > 0


def test_gradient_tracking_suffers_most_from_group_norm():
    assert sum(not gap("SGP", "S-ADDOPT", t).clear for t in TOPOLOGIES) == 3
    for t in TOPOLOGIES:
        found = with_group_norm("SGP", "S-ADDOPT", t)
        assert found.clear
        assert found.mean > 0


def test_centralized_sgd_is_the_ceiling():
    for t in ("divide", "exponential", "random"):
        assert mean(of(FOUND, "SGP", topology=t)) < mean(centralized(FOUND, 0.0))


def test_all_labels_everywhere_gain_nothing_sure():
    for norm in ("", GROUP):
        every, half = (centralized(FOUND, 0.0, split, norm) for split in (ALL_LABELS, ""))
        assert not compared(every, half).clear
