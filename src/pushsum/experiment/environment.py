"""The software that a run was made with."""

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pushsum import __version__


def environment() -> dict[str, Any]:
    """What a run's last bits depend on besides its configuration, and the time."""
    return {
        "pushsum": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "git": git_hash(),
        "threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def git_hash(file: Path = Path(__file__)) -> str | None:
    """The revision of the package's own checkout, if it is one; '-dirty' if files have changed."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        quiet = subprocess.DEVNULL
        return subprocess.check_output(command, text=True, stderr=quiet, timeout=5).strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # an environment may lie in any checkout
        return git("describe", "--always", "--dirty", "--exclude", "*")
    except (OSError, subprocess.SubprocessError):
        return None
