"""Checkpoints: safetensors + JSON, written atomically, the previous generation kept.

A generation is two files, `step-N.safetensors` and `step-N.json`. The JSON file is written last
and holds the hashes of the other and of itself, so a generation either is complete and intact or
does not count.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pushsum import files

KEPT = 2  #: generations
ENGINE = " --engine distributed"

_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    step: int
    tensors: dict[str, Tensor]
    notes: dict[str, Any]


def save(
    directory: Path, step: int, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    """Write a generation, complete or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with files.appearing(directory / f"step-{step}.safetensors") as file:
        for part in _pieces(tensors):
            digest.update(part)
            file.write(part)
    about = {"step": step, "sha256": digest.hexdigest(), "notes": dict(notes)}
    about["check"] = _check(about)
    files.write(directory / f"step-{step}.json", json.dumps(about).encode())


def thin_out(directory: Path, needed: int) -> None:
    """Remove what is older than the newest generations and than the one that is needed."""
    for old in generations(directory)[KEPT:]:
        if old < needed:
            _remove(directory, old)


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The safetensors format piece by piece: its own writer may copy all tensors first."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # aligned
    header: dict[str, Any] = {}
    end = 0
    for name, t in ordered:
        start, end = end, end + t.nbytes
        shape, offsets = list(t.shape), [start, end]
        header[name] = {"dtype": _KINDS[t.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, t in ordered:
        yield t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _check(about: Mapping[str, Any]) -> str:
    content = {key: value for key, value in about.items() if key != "check"}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def drop_after(directory: Path, step: int) -> None:
    """Remove the generations after a step, from which the run goes on."""
    for later in generations(directory):
        if later > step:
            _remove(directory, later)


def _remove(directory: Path, step: int) -> None:
    for suffix in (".json", ".safetensors"):
        (directory / f"step-{step}{suffix}").unlink(missing_ok=True)


def remove_incomplete(directory: Path) -> None:
    """Remove what killed processes left: drafts, and tensors whose JSON was never written.

    Also those of nodes, which have directories of their own below this one.
    """
    for place in (directory, *directory.glob("node-*")):
        files.remove_drafts(place)
        for path in place.glob("step-*.safetensors"):
            if not path.with_suffix(".json").exists():
                path.unlink()


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
        about = _about(path.with_suffix(".json"))
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != about["sha256"]:
                raise ValueError("its hash does not match")
        return Checkpoint(step, load_file(path), about["notes"])
    except (ValueError, OSError, SafetensorError) as error:
        older = [s for s in found if s < step]
        alone = directory.name == "checkpoints"  # else one of several nodes' directories in it
        run, engine = (directory.parent, "") if alone else (directory.parent.parent, ENGINE)
        command = (
            f"pushsum run --resume --from-step {older[0]} --into {run}{engine}" if older else ""
        )
        offer = f"go on from the one before with {command}" if older else "none is left"
        raise ValueError(f"{path} is corrupt ({error}): {offer}") from None


def _about(path: Path) -> dict[str, Any]:
    about = json.loads(path.read_text())
    if not isinstance(about, dict) or about.get("check") != _check(about):
        raise ValueError(f"the hash in {path.name} does not match")
    return about
