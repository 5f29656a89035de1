"""A short run of the fuzzer; a long one is `python -m tests.fuzz 100000`."""

from tests import fuzz


def test_damaged_configurations_runs_and_checkpoints_end_in_a_value_or_one_line() -> None:
    outcomes = fuzz.run(400)
    assert outcomes["run accepted"] == sum(n for kind, n in outcomes.items() if "run" in kind)
    for kind in ("text", "structure", "checkpoint"):
        assert outcomes[f"{kind} accepted"] > 0
        assert outcomes[f"{kind} refused"] > 10
