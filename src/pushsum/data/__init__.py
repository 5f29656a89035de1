"""Data sets, and how their samples are divided among the nodes."""

from pushsum.data import partition
from pushsum.data.dataset import Dataset, augment
from pushsum.data.library import Entry, catalogue, default_root, load, prepare

__all__ = [
    "Dataset",
    "Entry",
    "augment",
    "catalogue",
    "default_root",
    "load",
    "partition",
    "prepare",
]
