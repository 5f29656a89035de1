"""`kill -9` at random moments of a run: can it go on, and is the result the same?

Half of the moments are of the clock, from the start of the process to after its end. The other half
are file operations in the run's directory, where it matters: the process dies just before one of
them, of those that begin a run and of those that save it. After a kill the run is resumed, or
started again where there is nothing to resume. In the end its records, times aside, and its last
checkpoint must be those of an undisturbed run.

`python -m tests.kill 200` does that to two hundred runs; a seed may follow.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from pushsum import checkpoint

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "pushsum.cli", "pushsum.training"])
SHORT = ["epochs=3", "model.hidden=[8]", "topology.nodes=3", "gradients=loop"]
OPERATIONS = ("open", "os.mkdir", "os.remove", "os.rename")
KILLS = 3  #: of one run, at most


class End(NamedTuple):
    code: int  #: negative: the signal that ended it
    said: str
    seconds: float
    operations: int  #: in the run's directory


def command(into: Path, words: list[str], operation: int | None, told: Path) -> None:
    """`pushsum run`, in this process, which dies before its k-th file operation."""
    count = 0

    def note(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in OPERATIONS and str(arguments[0]).startswith(str(into)):
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(counter, b".")

    os.dup2(os.open(told, os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    counter = os.open(told.with_suffix(".count"), os.O_WRONLY)
    torch.set_num_threads(1)
    sys.addaudithook(note)
    sys.argv = ["pushsum", "run", *words, "--into", str(into)]
    from pushsum.cli import main

    main()


def run(
    into: Path, words: list[str], operation: int | None = None, seconds: float | None = None
) -> End:
    """One process, killed before an operation or after some seconds, if that is soon enough."""
    told = into.parent / f"{into.name}.stderr"
    told.write_bytes(b"")
    told.with_suffix(".count").write_bytes(b"")
    process = CONTEXT.Process(target=command, args=(into, words, operation, told))
    start = perf_counter()
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
    process.join()
    took = perf_counter() - start
    code = process.exitcode
    process.close()
    assert code is not None
    said = [line for line in told.read_text().splitlines() if line.startswith("pushsum: ")]
    return End(code, " ".join(said), took, told.with_suffix(".count").stat().st_size)


def result(into: Path) -> list[object]:
    """What must not depend on kills."""
    rows = [json.loads(line) for line in (into / "records.jsonl").read_text().splitlines()]
    step, tensors, notes = checkpoint.load(into / "checkpoints")
    meta = json.loads((into / "meta.json").read_text())
    kept = {name: (str(t.dtype), t.flatten().tolist()) for name, t in tensors.items()}
    times = ("seconds", "modelled")
    records = [{k: v for k, v in row.items() if k not in times} for row in rows]
    notes = {k: v for k, v in notes.items() if k not in times}
    return [records, step, kept, notes, meta["finished"]]


def killed(into: Path, chance: random.Random, whole: End, outcomes: Counter[str]) -> bool:
    """Kill a run some times, then let it end; whether it did."""
    words = SHORT
    for kills_left in range(chance.randrange(1, KILLS + 1), -1, -1):
        operation, seconds = None, None
        if kills_left and chance.random() < 0.5:
            seconds = chance.uniform(0, 1.1 * whole.seconds)
        elif kills_left:
            operation = chance.randrange(1, whole.operations + 1)
        end = run(into, words, operation, seconds)
        if end.code == 2 and words is not SHORT:
            outcomes["not resumed"] += 1
            words, refusal = SHORT, end.said
            end = run(into, words)
            if end.code == 2:
                outcomes[f"STUCK: {refusal} | {end.said}".replace(str(into), "RUN")] += 1
                return False
        if end.code == 0:
            outcomes["ended"] += 1
            return True
        if end.code != -signal.SIGKILL:
            outcomes[f"FAILED: code {end.code}: {end.said}".replace(str(into), "RUN")] += 1
            return False
        outcomes["killed"] += 1
        words = ["--resume"]
    return False


def main(count: int, seed: int = 0) -> int:
    """How many of so many runs went wrong."""
    chance, outcomes, wrong = random.Random(seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "first", SHORT)  # the server of processes imports torch
        whole = run(Path(folder) / "whole", SHORT)
        assert whole.code == 0, whole.said
        expected = result(Path(folder) / "whole")
        for number in range(count):
            into = Path(folder) / f"run-{number}"
            if not killed(into, chance, whole, outcomes):
                wrong += 1
            elif result(into) != expected:
                outcomes["DIFFERENT"] += 1
                wrong += 1
    print(f"{count} runs of {whole.seconds:.1f} s and {whole.operations} file operations")
    for outcome, times in outcomes.most_common():
        print(f"{times:6} {outcome}")
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
