"""The pieces of SVG that graphs and charts share, and saving a picture to a file."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from itertools import groupby
from math import inf
from pathlib import Path

from pushsum import files
from pushsum.names import plain

#: Okabe and Ito's colours, which colour-blind readers can tell apart; yellow is too pale for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE = PALETTE[0]
INK, SOFT, FAINT, GRID = "#222222", "#5F5F5F", "#9A9A9A", "#E6E6E6"

FONT = "'Source Sans Pro', 'Helvetica Neue', Helvetica, Arial, sans-serif"


def document(width: float, height: float, title: str, body: Iterable[str]) -> str:
    """A whole picture on white."""
    size = f"{number(width)} {number(height)}".split()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" font-family="{FONT}" role="img">\n'
        f'<title>{fit(title)}</title>\n<rect width="100%" height="100%" fill="#FFFFFF"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def group(kind: str, x: float, y: float, content: str) -> str:
    """Content moved to (x, y)."""
    return f'<g class="{kind}" transform="translate({number(x)} {number(y)})">{content}</g>'


def text(
    x: float,
    y: float,
    content: str,
    size: float,
    colour: str = INK,
    anchor: str = "start",
    weight: int = 400,
    turn: int = 0,
) -> str:
    """Text that starts, ends or has its middle at (x, y), in axes turned by so many degrees."""
    turned = f' transform="rotate({turn})"' if turn else ""
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" fill="{colour}" '
        f'text-anchor="{anchor}" font-weight="{weight}"{turned}>{content}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """A straight, thin line from (x1, y1) to (x2, y2)."""
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line {ends} stroke="{colour}" stroke-width="1"/>'


def curve(points: Sequence[tuple[float, float]], colour: str, dash: str) -> str:
    """A line through the points; a single point is a dot. Pages have the palette's classes."""
    kind = f"curve m{PALETTE.index(colour)}" if colour in PALETTE else "curve"
    if len(points) == 1:
        (x, y) = points[0]
        place = f'cx="{number(x)}" cy="{number(y)}"'
        return f'<circle class="{kind}" {place} r="1.8" fill="{colour}"/>'
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return (
        f'<polyline class="{kind}" points="{path}" '
        f'fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round"{dashes}/>'
    )


def cells(shades: Iterable[Sequence[int]], most: int, kind: str = "") -> str:
    """Unit squares, bluer for larger shades: one path for each but 0, neighbours joined."""
    shapes: dict[int, str] = {}
    for y, row in enumerate(shades):
        x = 0
        for shade, run in groupby(row):
            width = len(list(run))
            if shade > 0:
                shapes[shade] = shapes.get(shade, "") + f"M{x} {y}h{width}v1h-{width}z"
            x += width
    return "".join(
        f'<path {kind}d="{shape}" fill="{BLUE}" fill-opacity="{shade / most}"/>'
        for shade, shape in sorted(shapes.items())
    )


def fit(text: str, room: float = inf, size: float = 1) -> str:
    """Text as SVG, cut to the room there is."""
    text = plain(text)
    if text_width(text, size) <= room:
        return escape(text)
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return escape(text) + "…"


def text_width(text: str, size: float) -> float:
    """About how wide a text is; a common font is not wider."""
    narrow, wide = "iljtfrI.,:;'|()[]/ ", "mwMW@%…—"
    ems = (
        0.3 if c in narrow else 0.85 if c in wide else 0.66 if c.isupper() else 0.54 for c in text
    )
    return size * sum(ems)


def number(value: float) -> str:
    """A coordinate or a size, with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def check_target(path: Path) -> None:
    """Refuse a path that `save` could not write to; a long command asks before it starts."""
    suffix = path.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise ValueError(f"{str(path)!r}: a picture is a .svg or a .png file")
    if not path.parent.is_dir():
        raise ValueError(f"{str(path)!r}: there is no directory {str(path.parent)!r}")
    if path.is_dir():
        raise ValueError(f"{str(path)!r}: this is a directory; give the path of a file")
    if suffix == ".png":
        try:
            for package in ("font_source_sans_pro", "resvg_py"):
                import_module(package)
        except ImportError as error:
            raise ValueError(
                "PNG needs the extra: pip install -c constraints.txt '.[png]', or give a .svg path"
            ) from error


def save(svg: str, path: Path) -> None:
    """Write an SVG to a .svg file, or as a picture of twice its size to a .png file.

    The file appears complete or not at all.
    """
    check_target(path)
    content = _png(svg) if path.suffix.lower() == ".png" else svg.encode()
    try:
        files.write(path, content)
    except OSError as error:
        raise ValueError(f"{str(path)!r}: cannot be written: {error.strerror or error}") from None


def _png(svg: str) -> bytes:
    import font_source_sans_pro as font
    import resvg_py

    return resvg_py.svg_to_bytes(svg, zoom=2, font_dirs=[font.font_directory])
