"""A short run of the fuzzer; a long one is `python -m tests.fuzz 100000 10000`."""

from tests import fuzz


def test_damaged_configurations_and_runs_end_in_a_result_or_one_line() -> None:
    outcomes = fuzz.run(300, 40).outcomes
    assert outcomes["report accepted"] == 40  # one bad run never stops the report of a good one
    for kind in ("read", "sweep", "evaluate", "resume"):
        assert outcomes[f"{kind} accepted"] > 0
        assert outcomes[f"{kind} refused"] > 10
