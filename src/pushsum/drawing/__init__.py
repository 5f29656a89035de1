"""Pictures: a topology as graphs (SVG or terminal), results as line charts (SVG), and saving them.

Only the standard library is imported up front, because the command line loads this package.
"""

from pushsum.drawing.charts import Panel, Series, chart_svg
from pushsum.drawing.graphs import graphs_svg, graphs_text
from pushsum.drawing.svg import check_target, save

__all__ = [
    "Panel",
    "Series",
    "chart_svg",
    "check_target",
    "graphs_svg",
    "graphs_text",
    "save",
]
