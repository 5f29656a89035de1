"""Data sets, and how their samples are divided among the nodes."""

from pushsum.data import partition
from pushsum.data.dataset import Dataset, augment
from pushsum.data.library import Entry, catalogue, default_root, is_file, load, prepare
from pushsum.data.own import content_hash

__all__ = [
    "Dataset",
    "Entry",
    "augment",
    "catalogue",
    "content_hash",
    "default_root",
    "is_file",
    "load",
    "partition",
    "prepare",
]
