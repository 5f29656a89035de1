"""Checkpoints: safetensors + JSON, written atomically, the previous generation kept.

A generation is two files, `step-N.safetensors` and `step-N.json`. The JSON file is written last
and holds the hashes of the other and of itself, so a generation either is complete and intact or
does not count.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pushsum import files
from pushsum.names import one_line
from pushsum.reading import json_value

KEPT = 2  #: generations
MOST_NOTES = 1 << 26  #: bytes of a generation's JSON: a loss for every step since the last record

DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.uint8, torch.bool),
)
_JSON = re.compile(r"step-(0|[1-9][0-9]{0,17})\.json")


class Corrupt(ValueError):
    """A generation that is not as it was written; `older` is the step of the one before it."""

    def __init__(self, what: str, older: int | None) -> None:
        left = "none is left" if older is None else f"the one before it is that of step {older}"
        super().__init__(f"{what}: {left}")
        self.older = older


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    step: int
    tensors: dict[str, Tensor]
    notes: dict[str, Any]


def save(
    directory: Path, step: int, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    """Write a generation, complete or not at all."""
    _refuse_links(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{step}.safetensors"
    files.write_tensors(path, tensors)
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    about = {"step": step, "sha256": digest, "notes": dict(notes)}
    about["check"] = _check(about)
    files.write(directory / f"step-{step}.json", json.dumps(about).encode())


def thin_out(directory: Path, needed: int) -> None:
    """Remove what is older than the newest generations and than the one that is needed."""
    for old in generations(directory)[KEPT:]:
        if old < needed:
            _remove(directory, old)


def _check(about: Mapping[str, Any]) -> str:
    content = {key: value for key, value in about.items() if key != "check"}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def drop_after(directory: Path, step: int) -> None:
    """Remove the generations after a step, from which the run goes on."""
    for later in generations(directory):
        if later > step:
            _remove(directory, later)


def _remove(directory: Path, step: int) -> None:
    _refuse_links(directory)
    for suffix in (".json", ".safetensors"):
        (directory / f"step-{step}{suffix}").unlink(missing_ok=True)


def remove_incomplete(directory: Path) -> None:
    """Remove what killed processes left: drafts, and tensors whose JSON was never written.

    Also those of nodes, which have directories of their own below this one.
    """
    for place in (directory, *directory.glob("node-*")):
        _refuse_links(place)
        files.remove_drafts(place)
        for path in place.glob("step-*.safetensors"):
            if not path.with_suffix(".json").exists():
                path.unlink()


def _refuse_links(directory: Path) -> None:
    """What is written and removed here must be the run's own, whoever made its directory."""
    shared = directory.name == "checkpoints"  # else it is one of several nodes' below that
    for place in (directory,) if shared else (directory.parent, directory):
        if place.is_symlink():
            raise ValueError(
                f"{place} is a link, and what it leads to may be another's: put the directory "
                "itself there"
            )


def generations(directory: Path) -> list[int]:
    """The steps of the complete generations, newest first."""
    names = (_JSON.fullmatch(path.name) for path in directory.glob("step-*.json"))
    return sorted((int(name[1]) for name in names if name), reverse=True)


def load(directory: Path, step: int | None = None) -> Checkpoint:
    """The newest generation, or that of a step; a corrupt one is refused, the previous offered."""
    found = generations(directory)
    if not found:
        raise ValueError(f"{directory}: there is no checkpoint to resume from")
    if step is None:
        step = found[0]
    if step not in found:
        known = " and ".join(map(str, found))
        raise ValueError(f"{directory}: no checkpoint of step {step}, but of {known}")
    path = directory / f"step-{step}.safetensors"
    try:
        notes, digest = _about(path.with_suffix(".json"), step)
        with files.opened(path) as file:
            tensors = load_file(path)  # refuses a file that is longer than its header says
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError("its hash does not match")
        for name, tensor in tensors.items():
            if tensor.dtype not in DTYPES:
                raise ValueError(f"{name} is {tensor.dtype}, which no checkpoint holds")
        return Checkpoint(step, tensors, notes)
    except (ValueError, OSError, MemoryError, RuntimeError, SafetensorError) as error:
        older = max((s for s in found if s < step), default=None)
        raise Corrupt(f"{path} is corrupt ({one_line(error)})", older) from None


def _about(path: Path, step: int) -> tuple[dict[str, Any], str]:
    """The notes of a generation, and the hash that its tensors should have."""
    match json_value(files.content(path, MOST_NOTES)):
        case {"step": int(own), "sha256": str(digest), "notes": dict(notes), "check": check} as it:
            if own == step and check == _check(it):
                return notes, digest
    raise ValueError(f"the hash in {path.name} does not match")
