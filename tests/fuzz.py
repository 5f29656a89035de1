"""Damaged configurations and run directories: `python -m tests.fuzz 100000 10000`.

The arguments are how many of each, and the number of the first: shards start at numbers of their
own, and the number of a case that failed repeats it alone. All is done in this process.

A configuration is read, as one run or as a sweep, and some are planned as by `run --dry-run`. A run
directory is opened by `report`, `evaluate` and `run --resume`. Each ends in a result or in an error
of one line, within two seconds of processor time, and nothing that it names is executed.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from importlib import resources
from io import StringIO
from pathlib import Path
from random import Random
from time import process_time
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml
from safetensors.torch import load, save

from pushsum import checkpoint, config, sweep, training
from pushsum.cli import main
from pushsum.experiment import Experiment
from pushsum.report import find, formats
from pushsum.report.page import html
from pushsum.report.results import collect
from pushsum.training import loop
from tests import fake_runs

SCRIPT = "</script><script>alert(1)</script><img src=x>"
SECONDS = 2  # of processor time
PATIENCE = 300  # seconds after which something waits for what never comes
STEPS = 2  # that a resumed run takes, if it comes so far
MOST_NODES = 1000  # of what is planned: larger networks take their time, and rightly
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
             "socket.connect", "pty.spawn")  # fmt: skip
PIECES = (
    *("&a ", "*a", "<<: ", "!!bool ", "!!python/object/apply:os.getpid []", "!!binary ", "! "),
    *("[", "]", "{", "}", "[" * 99, "{a: " * 99, ": ", "- ", "? ", ",", "#", "|\n", ">\n", "---\n"),
    *("'", '"', "\\", "\\ud800", '"\\x1b[31m"', "\n", "\t", " ", "\x00", "\x1b[31m", "\u202e"),
    *("0x", "0b_", "1e-4", "1e999", ".nan", "-.inf", "9" * 400, "9" * 5000, "1:" * 300, "-", "~"),
    *("null", "true", "NaN", "-Infinity", "2020-99-99", "=1+1", "a: 1\na: 2\n", "%TAG ! x\n"),
    *("sweep:", "grid:", "cells:", "seed", "random", "é"),
)


TINY = ("data.name=TINY", "batch=2", "topology.nodes=3", "gradients=loop", "steps=3",
        "evaluation.every=0.2", "model.hidden=[3]")  # fmt: skip
#: What the runs are of that are damaged.
RUNS = {
    "plain": (),
    "buffers": (
        "algorithm.name=SGAP",
        "topology.name=random",
        "topology.period=2",
        "algorithm.weighting=far-first",
    ),
    "trackers": ("algorithm.name=S-ADDOPT", "data.validation=0.2"),
    "optimizer": ("algorithm.name=SGP", "algorithm.optimizer=Adam", "algorithm.options={eps: 0.1}"),
    "faults": ("faults.loss=0.2", "faults.delay=2", "faults.crash=2@2-3", "algorithm.name=SGP"),
    "BatchNorm": (
        "model={name: resnet-small, width: 2, blocks: [1]}",
        "evaluation.recompute_batches=2",
    ),
    "nodes": ("algorithm.name=QGM", "faults=null"),  # a directory for each
}


class Failed(BaseException):
    """What should not have happened."""


class Enough(BaseException):
    """A resumed run has taken its steps."""


class Fuzzer:
    """Cases by their numbers, within a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trap, self.canary = directory / "trap.py", directory / "canary.npz"
        self.trap.write_text("raise SystemExit('executed')\n")
        self.canary.write_text("whispered")
        self.pipe = directory / "pipe"
        os.mkfifo(self.pipe)
        self.odd: list[Any] = [
            *(None, True, False, 0, -1, 1, 2, 3, 7, 1000, 10**9, 10**18, 10**30, 10**400),
            *(0.5, -1.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
            *("", "x", "x" * 5000, "\x1b[31m", "a\nb", "\u202e", "=1+1", "../..", "1e-4", SCRIPT),
            *("SGAP", "QGM", "S-ADDOPT", "random", "full", "ring", "resnet18", "clusters"),
            *(
                "1@2-3",
                "digits",
                "/dev/zero",
                str(self.pipe),
                f"{self.pipe}.csv",
                "0->1",
                "moreau:k=1,v=0.1",
                "lazy:c=0.5",
                f"{self.trap}:weigh",
                str(self.canary),
            ),
            *([], {}, [[]], [1, "a"], [0] * 3000, {"a": {"b": [{}]}}, {"": None}, {"1": 1}),
            *(lambda: nested(25), lambda: nested(200), lambda: nested(5000)),
        ]
        self.configurations = [
            yaml.safe_load(yaml.safe_dump(config.Config().model_dump(mode="json"))),
            {"epochs": 2, "algorithm": {"name": "SGAP", "lr": 0.1}, "model": {"hidden": [4]}},
            {
                "batch": 8,
                "sweep": {
                    "cells": [{"algorithm.name": "SGP"}, {"algorithm.name": "SGAP"}],
                    "grid": {"topology.name": ["full", "ring"], "seed": [0, 1, 2]},
                },
            },
        ]
        recipes = resources.files("pushsum") / "recipes"
        self.texts = [
            *(yaml.safe_dump(c, sort_keys=False).encode() for c in self.configurations),
            *((recipes / f"{name}.yaml").read_bytes() for name in sweep.recipes()),
        ]
        fake_runs.run(directory / "good", records=3)
        for name, words in RUNS.items():
            self._made(name, words)
        self.outcomes: Counter[str] = Counter()
        self.longest: dict[str, float] = {}  # processor time
        self.touched: list[str] = []
        self.forbidden: tuple[Path, ...] = ()
        self.armed = False
        sys.addaudithook(self._watch)

    def _made(self, name: str, words: tuple[str, ...]) -> None:
        """A run, and what is to be damaged of it."""
        chance, tiny = np.random.default_rng(0), self.directory / "tiny.npz"
        x, y = chance.integers(0, 256, (16, 1, 4, 4), np.uint8), np.arange(16) % 4
        np.savez(tiny, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
        small = [word.replace("TINY", str(tiny)) for word in TINY]
        small = [word for word in small if name != "BatchNorm" or "hidden" not in word]
        place = self.directory / name
        training.run(Experiment(config.read(None, [*small, *words])), place)
        if name == "nodes":
            meta = json.loads((place / "meta.json").read_bytes())
            (place / "meta.json").write_text(json.dumps(meta | {"engine": "distributed"}))
            step, tensors, notes = checkpoint.load(place / "checkpoints")
            shutil.rmtree(place / "checkpoints")
            for node in range(3):
                mine = {k: t[node : node + 1] for k, t in tensors.items() if k != "weights"}
                checkpoint.save(place / "checkpoints" / f"node-{node}", step, mine, notes)

    def _watch(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in FORBIDDEN or (event == "open" and Path(str(given[0])) in self.forbidden):
            self.touched.append(f"{event} {given}")

    def opened(self, what: str, act: Callable[[], object], *forbidden: Path) -> None:
        """Do something with the case: it ends in time, with a result or an error of one line."""
        self.forbidden = (self.trap, *forbidden)
        signal.alarm(PATIENCE)
        start, self.armed = process_time(), True
        try:
            act()
            outcome = "accepted"
        except Enough:
            outcome = "accepted"
        except (ValueError, OSError) as error:
            outcome = "refused"
            if not str(error).isprintable() or not 0 < len(str(error)) < 5000:
                raise Failed(f"{what}: not a short line: {str(error)[:500]!r}") from error
        except BaseException as error:
            error.add_note(f"of {what}")
            raise
        finally:
            self.armed = False
            spent = process_time() - start
            signal.alarm(0)
        self.outcomes[f"{what} {outcome}"] += 1
        self.longest[what] = max(self.longest.get(what, 0.0), spent)
        if spent > SECONDS:
            raise Failed(f"{what} took {spent:.1f} s")
        if self.touched:
            raise Failed(f"{what} did {self.touched}")

    def _place(self) -> Path:
        place = self.directory / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    # ----------------------------------------------------------------------- configurations

    def configuration(self, number: int) -> None:
        """A damaged one, the same every time."""
        rng, path = Random(number), self._place() / "c.yaml"
        if rng.random() < 0.5:
            path.write_bytes(self._cut_up(rng, rng.choice(self.texts)))
        else:
            path.write_text(as_yaml(self._changed(rng, rng.choice(self.configurations))))
        read: list[config.Config] = []
        if rng.random() < 0.5:
            self.opened("read", lambda: read.append(config.read(path)), self.canary)
        else:
            self.opened("sweep", lambda: sweep.read(str(path)), self.canary)
        if read and read[0].topology.nodes <= MOST_NODES:
            self.opened("plan", lambda: command("run", path, "--dry-run"))

    # ----------------------------------------------------------------------- run directories

    def run_directory(self, number: int) -> None:
        """A damaged one beside a good one, the same every time."""
        rng, place = Random(number), self._place()
        kind = rng.choice(tuple(RUNS))
        shutil.copytree(self.directory / "good", place / "good")
        bad = place / "bad"
        shutil.copytree(self.directory / kind, bad)
        paths = sorted(path for path in bad.rglob("*.*") if path.name != ".lock")
        for path in rng.sample(paths, rng.choice((1, 1, 1, 2, 4))):
            self._damage(rng, path)
        self.opened("report", lambda: self._report(place), self.canary)
        self.opened("evaluate", lambda: command("evaluate", bad))
        self.opened("resume", lambda: resumed(bad))

    def _report(self, place: Path) -> None:
        results = collect(*find(place))
        page = html(results, place)
        if page.count("<script") > 2 or "<img" in page:
            raise Failed("the page holds elements of somebody else")
        json.dumps(formats.data(results, place), allow_nan=False)
        for form in (formats.markdown, formats.comma_separated, formats.latex):
            page += form(results)
        if not page.replace("\n", "").isprintable():
            raise Failed("control characters")
        for secret in ("whispered", str(self.directory)):
            if secret in page:
                at = page.index(secret)
                raise Failed(f"it tells of other files: {page[at - 60 : at + 60]!r}")

    # ----------------------------------------------------------------------- damage

    def _damage(self, rng: Random, path: Path) -> None:
        chance, content = rng.random(), path.read_bytes()
        if chance < 0.1:
            self._replaced(rng, path)
        elif chance < 0.3:
            path.write_bytes(self._cut_up(rng, content))
        elif path.name == "config.yaml":
            changed = self._changed(rng, yaml.safe_load(content))
            path.write_text(as_yaml(changed))
            if rng.random() < 0.7:  # the checkpoints tell the same
                for about in path.parent.rglob("step-*.json"):
                    saved = read_json(about)
                    if isinstance(saved, dict) and isinstance(saved.get("notes"), dict):
                        saved["notes"]["config"] = changed
                        about.write_text(sealed(saved))
        elif path.name == "records.jsonl":
            lines = [json.loads(line) for line in content.splitlines()]
            which = rng.randrange(len(lines))
            lines[which] = self._changed(rng, lines[which])
            path.write_text("".join(written(line) + "\n" for line in lines))
        elif path.suffix == ".safetensors":
            self._damage_tensors(rng, path, content)
        else:
            changed = self._changed(rng, read_json(path))
            sealing = path.name != "meta.json" and rng.random() < 0.8
            path.write_text(sealed(changed) if sealing else written(changed))

    def _damage_tensors(self, rng: Random, path: Path, content: bytes) -> None:
        length = int.from_bytes(content[:8], "little")
        chance = rng.random()
        if chance < 0.3:
            header = written(self._changed(rng, json.loads(content[8 : 8 + length]))).encode()
            content = len(header).to_bytes(8, "little") + header + content[8 + length :]
        elif chance < 0.5:
            content = self._cut_up(rng, content)
        else:
            tensors = load(content)
            name = rng.choice(sorted(tensors))
            tensors[name] = another(rng, tensors[name])
            if rng.random() < 0.1:
                del tensors[name]
            content = save(tensors)
        path.write_bytes(content)
        about = path.with_suffix(".json")
        if (saved := read_json(about)) and isinstance(saved, dict) and rng.random() < 0.9:
            saved["sha256"] = hashlib.sha256(content).hexdigest()
            about.write_text(sealed(saved))

    def _replaced(self, rng: Random, path: Path) -> None:
        path.unlink()
        match rng.randrange(6):
            case 0:
                os.mkfifo(path)
            case 1:
                path.symlink_to(self.canary)
            case 2:
                path.symlink_to("/dev/zero")
            case 3:
                path.mkdir()
            case 4:
                path.touch()
                os.truncate(path, 1 << 40)

    def _cut_up(self, rng: Random, content: bytes) -> bytes:
        for _ in range(rng.choice((1, 1, 2, 5))):
            start = rng.randrange(len(content) + 1)
            end = start + rng.choice((0, 0, 1, 3, 40, len(content)))
            match rng.randrange(4):
                case 0:
                    piece = rng.choice(PIECES).encode()
                case 1:
                    piece = bytes([rng.randrange(256)])
                case 2:
                    piece = content[start:end] * rng.choice((0, 2, 50))
                case _:
                    piece = b""
            content = content[:start] + piece + content[end:]
        return content

    def _changed(self, rng: Random, value: Any) -> Any:
        """The same with one or more odd values, keys and lists in it."""
        value = deepcopy(value)
        for _ in range(rng.choice((1, 1, 1, 3))):
            value = self._with_one_change(rng, value)
        return value

    def _with_one_change(self, rng: Random, value: Any) -> Any:
        inside = value.values() if isinstance(value, dict) else value
        if not isinstance(value, dict | list) or not inside or rng.random() < 0.1:
            odd = rng.choice(self.odd)
            return odd() if callable(odd) else deepcopy(odd)
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        chance = rng.random()
        if chance < 0.08:
            del value[key]
        elif chance < 0.16 and isinstance(value, dict):
            value[str(rng.choice(self.odd))[:3000]] = value.pop(key)
        elif chance < 0.2 and isinstance(value, list):
            value.extend([value[key]] * rng.choice((1, 100)))
        else:
            value[key] = self._with_one_change(rng, value[key])
        return value


def command(*words: object) -> None:
    """A command line, as a user would see it: ValueError with the line that it ends with."""
    out, told = StringIO(), StringIO()
    with (
        mock.patch("pushsum.experiment.environment.git_hash", return_value=None),
        mock.patch.object(sys, "argv", ["pushsum", *map(str, words)]),
        redirect_stdout(out),
        redirect_stderr(told),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    for text in (out.getvalue(), told.getvalue()):
        if not text.replace("\n", "").isprintable():
            raise Failed(f"control characters on the terminal: {text[:500]!r}")
    if code:
        raise ValueError(told.getvalue().splitlines()[-1])  # after warnings, and progress


def resumed(place: Path) -> None:
    """`run --resume`, for a few steps: a configuration may ask for very many."""
    taken, one_step = iter(range(STEPS)), loop.one_step

    def step(*given: Any) -> None:
        if next(taken, None) is None:
            raise Enough
        one_step(*given)

    with (
        mock.patch.object(loop, "one_step", step),
        mock.patch("pushsum.engines.distributed.launcher.launch", side_effect=Enough),
    ):
        command("run", "--resume", "steps=1000", "--into", place)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def another(rng: Random, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of another shape or type, or with other numbers."""
    match rng.randrange(6):
        case 0:
            return tensor.flatten()
        case 1:
            return torch.cat([tensor, tensor]) if tensor.ndim else tensor.expand(3).clone()
        case 2:
            return tensor.to(rng.choice((torch.float64, torch.int64, torch.bool, torch.bfloat16)))
        case 3:
            return tensor[..., :0].clone() if tensor.ndim else tensor
        case _:
            odd = rng.choice((0.0, -1.0, 1e9, 1e30, float("nan"), float("inf")))
            whole = not tensor.is_floating_point()
            return torch.full_like(tensor, rng.choice((-1, 0, 1, 100)) if whole else odd)


def sealed(about: Any) -> str:
    """What stands beside a checkpoint, with the hash of what it says now."""
    if not isinstance(about, dict):
        return written(about)
    about.pop("check", None)
    return written(about | {"check": hashlib.sha256(written(about).encode()).hexdigest()})


def read_json(path: Path) -> Any:
    """What a file says that may be damaged already; None: nothing."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size > 1 << 20:
        return None
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None


def as_yaml(value: Any) -> str:
    return written(value).replace("NaN", ".nan").replace("Infinity", ".inf")


def written(value: Any) -> str:
    """JSON, however deep."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        return json.dumps(value)
    finally:
        sys.setrecursionlimit(limit)


def run(configurations: int, directories: int = 0, first: int = 0) -> Fuzzer:
    """So many cases: how often each was accepted and refused, and the longest that one took."""

    def end(number: int, frame: object) -> None:
        raise Failed(f"nothing came of it within {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, end)
    try:
        with tempfile.TemporaryDirectory() as directory:
            fuzzer = Fuzzer(Path(directory))
            for count, case, words in (
                (configurations, fuzzer.configuration, "1 0"),
                (directories, fuzzer.run_directory, "0 1"),
            ):
                for number in range(first, first + count):
                    try:
                        case(number)
                    except BaseException as error:
                        error.add_note(f"repeat it by: python -m tests.fuzz {words} {number}")
                        raise
            return fuzzer
    finally:
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    done = run(*map(int, sys.argv[1:] or ("1000", "100")))
    for outcome, times in sorted(done.outcomes.items()):
        print(f"{times:8} {outcome}")
    for what, seconds in sorted(done.longest.items()):
        print(f"{seconds:8.2f} s of processor time at most: {what}")
