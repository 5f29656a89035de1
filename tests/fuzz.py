"""Damaged configurations and runs, again and again: `python -m tests.fuzz 100000`.

Each ends in a value or in a ValueError of one line, within two seconds of processor time, and
nothing that it names is opened or executed. A second argument is the first case's number: that of
a case that failed repeats it alone.
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
from copy import deepcopy
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import torch
import yaml
from safetensors.torch import save

from pushsum import checkpoint, config, sweep
from pushsum.report import find, formats
from pushsum.report.page import html
from pushsum.report.results import collect
from tests import fake_runs

SCRIPT = "</script><script>alert(1)</script><img src=x>"
SECONDS = 2  # of processor time
PATIENCE = 300  # seconds after which something waits for what never comes
RUN = ("config.yaml", "meta.json", "records.jsonl")
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


class Failed(BaseException):
    """What should not have happened."""


class Fuzzer:
    """Cases by their numbers, within a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trap, self.canary = directory / "trap.py", directory / "canary.npz"
        self.trap.write_text("raise SystemExit('executed')\n")
        self.canary.write_text("whispered")
        self.odd: list[Any] = [
            *(None, True, False, 0, -1, 1, 2, 3, 7, 1000, 10**9, 10**18, 10**30, 10**400),
            *(0.5, -1.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
            *("", "x", "x" * 5000, "\x1b[31m", "a\nb", "\u202e", "=1+1", "../..", "1e-4", SCRIPT),
            *(
                "SGAP",
                "QGM",
                "S-ADDOPT",
                "random",
                "full",
                "ring",
                "resnet18",
                "clusters",
                "digits",
            ),
            *("moreau:k=1,v=0.1", "lazy:c=0.5", f"{self.trap}:weigh", str(self.canary)),
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
        good = fake_runs.run(directory / "good", records=3)
        self.run = {name: (good / name).read_bytes() for name in RUN}
        checkpoint.save(directory / "saved", 5, {"x": torch.ones(2, 3)}, {"bytes": 7})
        self.saved = json.loads((directory / "saved" / "step-5.json").read_bytes())
        self.tensors = save({"x": torch.ones(2, 3), "a": torch.ones(2, dtype=torch.float64)})
        self.outcomes: Counter[str] = Counter()
        self.touched: list[str] = []
        self.armed = False
        sys.addaudithook(self._watch)

    def _watch(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in FORBIDDEN or (
            event == "open" and str(given[0]) in (str(self.trap), str(self.canary))
        ):
            self.touched.append(f"{event} {given}")

    def case(self, number: int) -> None:
        """One case, the same every time."""
        rng = Random(number)
        place = self.directory / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        kind = rng.choice((self._text, self._structure, self._checkpoint, self._run))
        act = kind(rng, place)
        signal.alarm(PATIENCE)
        start, self.armed = process_time(), True
        try:
            act()
            outcome = "accepted"
        except ValueError as error:
            outcome = "refused"
            if not str(error).isprintable() or not 0 < len(str(error)) < 5000:
                raise Failed(f"not a short line: {str(error)[:500]!r}") from error
        finally:
            self.armed = False
            spent = process_time() - start
            signal.alarm(0)
        self.outcomes[f"{kind.__name__[1:]} {outcome}"] += 1
        if spent > SECONDS:
            raise Failed(f"it took {spent:.1f} s")
        if self.touched:
            raise Failed(f"it did {self.touched}")

    # ----------------------------------------------------------------------- kinds of cases

    def _text(self, rng: Random, place: Path) -> Callable[[], object]:
        recipes = [
            sweep.packaged("pushsum") / "recipes" / f"{name}.yaml" for name in sweep.recipes()
        ]
        source = rng.choice([yaml.safe_dump(c, sort_keys=False) for c in self.configurations[1:]]
                            + [self.run["config.yaml"].decode()]
                            + [recipe.read_text() for recipe in recipes])  # fmt: skip
        (place / "c.yaml").write_bytes(self._cut_up(rng, source.encode()))
        return self._reading(rng, place / "c.yaml")

    def _structure(self, rng: Random, place: Path) -> Callable[[], object]:
        content = self._changed(rng, rng.choice(self.configurations))
        (place / "c.yaml").write_text(written(content).replace("NaN", ".nan"))
        return self._reading(rng, place / "c.yaml")

    def _reading(self, rng: Random, path: Path) -> Callable[[], object]:
        if rng.random() < 0.5:
            return lambda: config.read(path)
        return lambda: sweep.read(str(path))

    def _checkpoint(self, rng: Random, place: Path) -> Callable[[], object]:
        tensors, about = self.tensors, deepcopy(self.saved)
        if rng.random() < 0.7:
            length = int.from_bytes(tensors[:8], "little")
            header = json.loads(tensors[8 : 8 + length])
            if rng.random() < 0.5:
                header = self._changed(rng, header)
                text = written(header).encode()
                tensors = len(text).to_bytes(8, "little") + text + tensors[8 + length :]
            else:
                tensors = self._cut_up(rng, tensors)
        about["sha256"] = hashlib.sha256(tensors).hexdigest()
        if rng.random() < 0.5:
            about = self._changed(rng, about)
        if isinstance(about, dict) and rng.random() < 0.8:  # the hash of what it says now
            about.pop("check", None)
            about["check"] = hashlib.sha256(written(about).encode()).hexdigest()
        content = written(about).encode()
        if rng.random() < 0.2:
            content = self._cut_up(rng, content)
        (place / "step-5.safetensors").write_bytes(tensors)
        (place / "step-5.json").write_bytes(content)
        if rng.random() < 0.05:
            self._replaced(rng, place / rng.choice(("step-5.json", "step-5.safetensors")))
        return lambda: checkpoint.load(place)

    def _run(self, rng: Random, place: Path) -> Callable[[], object]:
        for name, seed in (("good", 0), ("bad", 1)):
            (place / name).mkdir()
            for file, content in self.run.items():
                text = content.replace(b"seed: 0", b"seed: %d" % seed)
                (place / name / file).write_bytes(text)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            path = place / "bad" / rng.choice(RUN)
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
                self._damage(rng, path)

        def act() -> None:
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

        return act

    # ----------------------------------------------------------------------- damage

    def _damage(self, rng: Random, path: Path) -> None:
        chance = rng.random()
        if chance < 0.1:
            self._replaced(rng, path)
        elif chance < 0.4:
            path.write_bytes(self._cut_up(rng, path.read_bytes()))
        elif path.name == "config.yaml":
            text = written(self._changed(rng, yaml.safe_load(self.run[path.name])))
            path.write_text(text.replace("NaN", ".nan"))
        elif path.name == "meta.json":
            path.write_text(written(self._changed(rng, json.loads(self.run[path.name]))))
        else:
            lines = [json.loads(line) for line in self.run[path.name].splitlines()]
            which = rng.randrange(len(lines))
            lines[which] = self._changed(rng, lines[which])
            path.write_text("".join(written(line) + "\n" for line in lines))

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


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def written(value: Any) -> str:
    """JSON, however deep."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        return json.dumps(value)
    finally:
        sys.setrecursionlimit(limit)


def run(count: int, first: int = 0) -> Counter[str]:
    """So many cases; how often each kind was accepted and refused."""

    def end(number: int, frame: object) -> None:
        raise Failed(f"nothing came of it within {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, end)
    try:
        with tempfile.TemporaryDirectory() as directory:
            fuzzer = Fuzzer(Path(directory))
            for number in range(first, first + count):
                try:
                    fuzzer.case(number)
                except BaseException as error:
                    error.add_note(f"in case {number}: python -m tests.fuzz 1 {number}")
                    raise
            return fuzzer.outcomes
    finally:
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    for outcome, times in sorted(run(*map(int, sys.argv[1:] or ("1000",))).items()):
        print(f"{times:8} {outcome}")
