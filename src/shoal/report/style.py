"""The style of figures, and their conversion to files and inline SVG.

Colors are safe for color-blind readers, and shapes differ too: known is blue and a circle, novel
orange and a diamond. On a page colors become CSS variables, so that figures follow light and dark
mode.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#1f2a37"
MUTED = "#5b6776"
GRID = "#dce1e7"
PAPER = "#fefefe"
KNOWN = "#0b63a5"
NOVEL = "#b4500b"
THIRD = "#0f766f"
PAGE_COLORS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    PAPER: "var(--card)",
    KNOWN: "var(--known)",
    NOVEL: "var(--novel)",
    THIRD: "var(--third)",
}

# By whether a category is novel
MARKERS = {False: "o", True: "D"}

# Safe for color-blind readers; used in turn
CATEGORY_COLORS = (
    "#332288",
    "#ddaa33",
    "#44aa99",
    "#cc6677",
    "#117733",
    "#88ccee",
    "#882255",
    "#999933",
    "#aa4499",
)

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a category may be called $1
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.fonttype": "none",  # keeps text as text: smaller, and in the font of the page
    "svg.hashsalt": "shoal",  # reproducible bytes
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the style of Shoal, whatever the rcParams are; also as a decorator."""
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **RC}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the page has more fonts
        yield


class NotebookFigure(Figure):
    """A figure that a notebook shows although pyplot does not manage it."""

    def _repr_png_(self) -> bytes:
        return _saved(self, format="png", facecolor="white")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, without pyplot and its global state."""
    return NotebookFigure(figsize=(width, height), layout="constrained", facecolor="none")


def plain(axes: Axes, *, grid: str | None = "y") -> Axes:
    """Remove top and right spines, and add a grid."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=8, labelcolor=MUTED)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
        axes.set_axisbelow(True)
    return axes


def file_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as SVG or PNG, on white."""
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    return _saved(figure, format=kind, dpi=200, facecolor="white", metadata=metadata)


def inline_svg(figure: Figure, name: str, words: str) -> Markup:
    """Return a figure as an SVG element in the colors of the page.

    `words` is its accessible label.
    """
    saved = _saved(figure, format="svg", transparent=True, metadata={"Date": None}).decode()
    text = saved[saved.index("<svg") :]
    unused = r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>|<!--.*?-->"
    text = re.sub(unused, "", text, flags=re.DOTALL).replace("xlink:href", "href")
    # Prefix ids with the name of the figure: several figures share one page.
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub("|".join(PAGE_COLORS), lambda color: PAGE_COLORS[color[0]], text)
    width, height = (72 * float(size) for size in figure.get_size_inches())
    # The same font size in all figures.
    box = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{1.45 * width:.0f}px"'
    opening = f'<svg class="plot" role="img" aria-label="{escape(words)}" {box}>'
    # Safe as markup: matplotlib escapes its text.
    return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1))


@house_style()
def _saved(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()
