"""Memory that a process has freed, kept for its next arrays.

The C library returns large blocks to the kernel as soon as they are freed and takes them back page
by page, which costs more than the arithmetic: filling a new array takes two to three times as long
as filling one that exists. Programs that own their process switch that off; a library must not.

What is kept is not always used again: glibc looks for a little more than an aligned array needs, so
one that was freed is too small for the next of its size as soon as something else lies beside it.
Holes of two or three arrays are the price. Where arrays are large, memory is dearer than time.
"""

import ctypes
import sys
from typing import Any

LARGE = 2**29  #: bytes of an array from which on it is returned

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of glibc's mallopt
_set: set[str] = set()  # what this process has been told


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for this process; False where there is no glibc."""
    mallopt = _mallopt()
    if mallopt is None:
        return False
    _set.add("kept")
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def return_if_large(array: int) -> None:
    """If freed memory is kept and arrays of so many bytes are large: only what is below 32 MiB."""
    if "kept" in _set and array >= LARGE:
        _mallopt()(_MMAP_MAX, 2**16)
        _mallopt()(_MMAP_THRESHOLD, 2**25)


def _mallopt() -> Any:
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
