"""Freed memory that the process keeps.

A step makes new (n, d) arrays and frees old ones. glibc hands arrays of this size back to the
kernel, which then fills every page of the next one with zeros: `python -m benchmarks step` shows
that a step at the size of ResNet-18 takes half as long again. Only runs of the command line ask
for this; a library must not decide it for its user.
"""

import ctypes
import sys

LARGE = 2**29  #: bytes of an array from which on every hole in the heap costs too much
HOLES = 0.4  #: of the arrays in use: what lies unused between them, as measured
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt


def keep_freed_memory(array: int) -> bool:
    """Tell glibc to keep freed arrays of so many bytes; False if they are large, or without glibc.

    >>> keep_freed_memory(LARGE)
    False
    """
    if array >= LARGE or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    )
