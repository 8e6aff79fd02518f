"""How figures look, and how they become files or part of a page.

Colors are safe for color-blind readers and never the only mark: known is blue and a circle, novel
orange and a diamond. On a page each color is replaced by the page's own, so that figures follow
light and dark.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

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
MARKERS = {False: "o", True: "D"}
"""By whether a category is novel."""

CATEGORY_COLORS = (
    *("#332288", "#ddaa33", "#44aa99", "#cc6677", "#117733"),
    *("#88ccee", "#882255", "#999933", "#aa4499"),
)
"""Told apart by people with any kind of color vision; used in turn."""

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a category may be called $1
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.fonttype": "none",  # text stays text: small, and in the font of the page
    "svg.hashsalt": "shoal",  # the same figure has the same bytes
}

Arguments = ParamSpec("Arguments")


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Draw a figure in the style of Shoal, whatever matplotlib's settings are."""

    @wraps(draw)
    def inner(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with _house_style():
            return draw(*args, **kwargs)

    return inner


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches, without pyplot and its global state."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def plain(axes: Axes, *, grid: str | None = "y") -> Axes:
    """Leave only the axes a reader needs."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=8, labelcolor=MUTED)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
        axes.set_axisbelow(True)
    return axes


def file_bytes(figure: Figure, kind: str) -> bytes:
    """A figure as an SVG or PNG file, on white."""
    file = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with _house_style():
        figure.savefig(file, format=kind, dpi=200, facecolor="white", metadata=metadata)
    return file.getvalue()


def inline_svg(figure: Figure, name: str, words: str) -> Markup:
    """A figure as an element of a page, in the page's colors.

    `words` are read to those who cannot see it.
    """
    file = io.StringIO()
    with _house_style():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>|<!--.*?-->",
        "",
        text,
        flags=re.DOTALL,
    )
    text = text.replace("xlink:href", "href")
    text = re.sub(
        r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text
    )  # several figures share one page
    text = re.sub("|".join(PAGE_COLORS), lambda color: PAGE_COLORS[color[0]], text)
    width, height = (72 * float(size) for size in figure.get_size_inches())
    # One size of letters for all figures.
    box = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{1.45 * width:.0f}px"'
    opening = f'<svg class="plot" role="img" aria-label="{escape(words)}" {box}>'
    return Markup(
        re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)
    )  # safe: matplotlib escapes its text


@contextmanager
def _house_style() -> Iterator[None]:
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # drawn as a box; the page has more fonts
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(RC)  # type: ignore[arg-type]
        yield
