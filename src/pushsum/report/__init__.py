"""Records -> one self-contained HTML page and the tables as Markdown, CSV, LaTeX and JSON.

Reads files and runs nothing; torch is imported only to draw topologies or compare with the paper.
"""

from pushsum.report.runs import Run, Skipped, find, load
from pushsum.report.writing import data, follow, write

__all__ = ["Run", "Skipped", "data", "find", "follow", "load", "write"]
