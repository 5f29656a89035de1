"""Memory that a process has freed, kept for its next arrays.

The C library returns large blocks to the kernel as soon as they are freed and takes them back page
by page, which costs more than the arithmetic: filling a new array takes two to three times as long
as filling one that exists. Programs that own their process switch that off; a library must not.

Blocks of 32 MiB and more are still returned: among kept ones, a small block in the place of a freed
array leaves a hole that the next array does not fit into, and the peak grows by a whole array.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_RETURNED = 32 * 2**20  # the largest that glibc accepts


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for this process; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _RETURNED)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
