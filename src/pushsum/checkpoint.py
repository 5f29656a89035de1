"""Checkpoints: safetensors + JSON, written atomically, the previous generation kept.

A generation is two files, `step-N.safetensors` and `step-N.json`. The JSON file is written last
and holds the hash of the other, so a generation either is complete or does not count.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from pushsum import files

KEPT = 2  #: generations


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    step: int
    tensors: dict[str, Tensor]
    notes: dict[str, Any]


def save(
    directory: Path, step: int, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    """Write a generation; the older ones stay until it is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    content = bytes_of({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    files.write(directory / f"step-{step}.safetensors", content)
    about = {"step": step, "sha256": hashlib.sha256(content).hexdigest(), "notes": dict(notes)}
    files.write(directory / f"step-{step}.json", json.dumps(about).encode())
    for old in generations(directory)[KEPT:]:
        _remove(directory, old)


def drop_after(directory: Path, step: int) -> None:
    """Remove the generations after a step, from which the run goes on."""
    for later in generations(directory):
        if later > step:
            _remove(directory, later)


def _remove(directory: Path, step: int) -> None:
    for suffix in (".json", ".safetensors"):
        (directory / f"step-{step}{suffix}").unlink(missing_ok=True)


def generations(directory: Path) -> list[int]:
    """The steps of the complete generations, newest first."""
    steps = [path.stem.removeprefix("step-") for path in directory.glob("step-*.json")]
    return sorted((int(step) for step in steps if step.isdigit()), reverse=True)


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
        about = json.loads((directory / f"step-{step}.json").read_text())
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != about["sha256"]:
            raise ValueError("its hash does not match")
        return Checkpoint(step, tensors_of(content), about["notes"])
    except (ValueError, KeyError, OSError) as error:
        older = [s for s in found if s < step]
        run = directory.parent if directory.name == "checkpoints" else directory.parent.parent
        command = f"pushsum run --resume --from-step {older[0]} --into {run}" if older else ""
        offer = f"go on from the one before with {command}" if older else "none is left"
        raise ValueError(f"{path} is corrupt ({error}): {offer}") from None
