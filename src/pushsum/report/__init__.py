"""Records -> one self-contained HTML page and the table as Markdown, CSV and LaTeX.

Reads files and runs nothing; torch is imported only to draw topologies or compare with the paper.
"""

from pushsum.report.runs import Run, Skipped, find, load
from pushsum.report.writing import write

__all__ = ["Run", "Skipped", "find", "load", "write"]
