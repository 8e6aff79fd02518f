"""All figures: curves, maps and the dendrogram, their style, and their conversion to files.

Each takes a run, and raises `NotInRun` with a sentence if the run lacks what it draws. Colors are
safe for color-blind readers, and shapes differ too: known is blue and a circle, novel orange and a
diamond. On a page colors become CSS variables, so that figures follow light and dark mode.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from matplotlib.transforms import Bbox
from scipy.cluster import hierarchy

from shoal.errors import NotInRun, shown
from shoal.files import atomic_file, make_folder
from shoal.report.map import MapLayout, cached_layouts, pca_layouts
from shoal.report.rendering import category_tree
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run

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

SIZE = (5.2, 3.0)

# The panels of the training curves: metrics with their labels, line styles and colors
PANELS = {
    "loss": (
        ("loss", "total", "-", INK),
        ("loss_supervised", "supervised", "--", KNOWN),
        ("loss_shifted", "with neighbors", ":", NOVEL),
        ("loss_contrastive", "contrastive", ":", NOVEL),
    ),
    "validation accuracy, %": (("validation_accuracy", "", "-", KNOWN),),
    "estimated K": (("n_clusters", "", "-", NOVEL),),
    "learning rate": (("lr", "", "-", THIRD),),
}

# Maximum height of a dendrogram; with more than about 680 categories the names overlap
MAX_INCHES = 150


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


@house_style()
def n_clusters_curve(run: Run) -> Figure:
    """Labeled accuracy against the number of clusters, with the chosen number and its 80 %
    interval.
    """
    estimate = run.json("estimate")
    curve = estimate.get("curve")
    if not curve or not curve["n_clusters"]:
        raise NotInRun("No curve of K: the number of categories was given, no other was tried.")
    numbers = curve["n_clusters"]
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    if max(numbers) > 10 * max(min(numbers), 1):
        axes.set_xscale("log")  # the small numbers matter most
        axes.xaxis.set_major_formatter(ScalarFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    marker = "" if len(numbers) > 60 else "o"
    accuracies = [100 * share for share in curve["accuracy"]]
    axes.plot(numbers, accuracies, color=KNOWN, marker=marker, markersize=3.5, linewidth=1.8)
    if estimate.get("interval"):
        axes.axvspan(*estimate["interval"], color=NOVEL, alpha=0.12, linewidth=0)
    word = "given" if estimate.get("is_given") else "chosen"
    _mark(axes, estimate["n_clusters"], f"{word}: {estimate['n_clusters']}")
    axes.set(xlabel="number of clusters, K", ylabel="labeled accuracy, %")
    return figure


@house_style()
def training_curves(run: Run) -> Figure:
    """Loss, validation accuracy, estimated K and learning rate by epoch, with the epoch of the
    snapshot.
    """
    metrics = run.metrics
    measured = {
        label: [line for line in lines if _points(metrics, line[0])[0]]
        for label, lines in PANELS.items()
    }
    labels = [label for label, lines in measured.items() if lines]
    if not labels:
        raise NotInRun("No training curves: the encoder was not trained in this run.")
    figure = new_figure(5.2, 0.6 + 1.6 * len(labels))
    panels = figure.subplots(len(labels), 1, sharex=True, squeeze=False)[:, 0]
    if run.has("choice.json") and run.json("choice")["result"] != "trained":
        panels[0].set_title(
            "not used: not significantly better", loc="right", fontsize=8.5, color=INK, pad=14
        )
    snapshots = [row["epoch"] for row in metrics if row.get("is_best")][-1:]
    for index, label in enumerate(labels):
        axes = plain(panels[index])
        for key, name, style, color in measured[label]:
            epochs, values = _points(metrics, key)
            marker = "o" if len(epochs) < 30 else ""
            axes.plot(epochs, values, style, marker=marker, markersize=3, color=color, label=name)
        if len(PANELS[label]) > 1:
            axes.margins(y=0.22)  # room for the legend
            axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, ncols=3, loc="upper right")
        for epoch in snapshots:
            _mark(axes, epoch, f"snapshot: epoch {epoch}" if index == 0 else "")
        axes.set_ylabel(label, fontsize=8)
    panels[-1].set_xlabel("epoch")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels()
    return figure


@house_style()
def shift_accuracy(run: Run) -> Figure:
    """Labeled accuracy after each mean shift, with the number of shifts that was chosen."""
    shifts = run.json("shifts") if run.has("shifts.json") else {"accuracies": []}
    values = [100 * share for share in shifts["accuracies"] if share is not None]
    if not values:
        raise NotInRun("No accuracy by mean shifts: it was not measured.")
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    axes.plot(values, color=KNOWN, marker="o", markersize=4, linewidth=1.8)
    chosen = shifts["chosen"]
    if chosen < len(values):
        _mark(axes, chosen, f"stopped after {chosen}")
        axes.plot([chosen], [values[chosen]], "o", markersize=9, color=KNOWN, markeredgecolor=PAPER)
    axes.set(xlabel="mean shifts", ylabel="labeled accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@house_style()
def confidence_curve(run: Run) -> Figure:
    """Confidence by the share of an image's neighbors in its category. Circles are accuracies on
    held-out labels.
    """
    calibration = run.json("calibration")
    if not calibration["is_calibrated"]:
        raise NotInRun(
            "No calibration of confidence: there are too few labels, so confidence is the share "
            "of neighbors."
        )
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    for name, label, color, style in (
        ("labeled", "known category, labeled image", KNOWN, "-"),
        ("novel", "novel category", NOVEL, "--"),
    ):
        curve = calibration[name]
        shares = np.linspace(0, 1, len(curve["confidence"]))
        axes.plot(shares, curve["confidence"], style, color=color, linewidth=1.8, label=label)
        n_images = np.array(curve["n_images"])
        is_measured = n_images > 0
        accuracy = np.array(curve["n_correct"])[is_measured] / n_images[is_measured]
        # The area of a circle grows with the number of images.
        sizes = (3 + 6 * (n_images[is_measured] / n_images.max(initial=1)) ** 0.5) ** 2
        axes.scatter(shares[is_measured], accuracy, sizes, color, alpha=0.5, linewidths=1, zorder=2)
    axes.plot([0, 1], [0, 1], ":", color=MUTED, linewidth=1, label="share of neighbors")
    axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, loc="upper left")
    axes.set(
        xlabel="share of neighbors in the same category",
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    return figure


def _mark(axes: Axes, x: float, text: str) -> None:
    """Draw a dashed line with a text on the side with more room."""
    axes.axvline(x, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    low, high, at = axes.xaxis.get_transform().transform([*axes.get_xlim(), x])
    is_right = at > (low + high) / 2
    axes.annotate(
        text,
        (x, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if is_right else 5, -2),
        textcoords="offset points",
        ha="right" if is_right else "left",
        va="bottom",
        fontsize=8.5,
        color=INK,
        annotation_clip=False,
    )


def _points(metrics: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Return the epochs in which a metric was measured, and its values; accuracies in percent."""
    scale = 100 if key.endswith("accuracy") else 1
    measured = [row for row in metrics if row.get(key) is not None]
    return [row["epoch"] for row in measured], [scale * row[key] for row in measured]


@house_style()
def map_pca(run: Run) -> Figure:
    """The map by principal components, before and after side by side. Circles are known, diamonds
    novel.
    """
    reviewed = ReviewedRun.of(run)
    return _scatter(reviewed, pca_layouts(reviewed))


@house_style()
def map_tsne(run: Run) -> Figure:
    """The map by t-SNE, before and after side by side."""
    reviewed = ReviewedRun.of(run)
    layouts = cached_layouts(reviewed)
    if not layouts:
        raise NotInRun("No map by t-SNE: `shoal report RUN --tsne` computes it.")
    return _scatter(reviewed, layouts)


def _scatter(run: ReviewedRun, layouts: list[MapLayout]) -> Figure:
    figure = new_figure(5.2 * len(layouts), 4.9)
    panels = figure.subplots(1, len(layouts), squeeze=False)[0]
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
    for axes, layout in zip(panels, layouts, strict=True):
        plain(axes, grid=None).set(xticks=[], yticks=[], title=f"{layout.title} ({layout.method})")
        axes.spines[:].set_visible(False)
        colored = zip(run.categories, cycle(CATEGORY_COLORS), strict=False)
        for category, color in sorted(colored, key=lambda pair: -pair[0].size):
            points = layout.points[run.category_ids[layout.rows] == category.category_id]
            axes.scatter(
                *points.T,
                s=9,
                c=color,
                marker=MARKERS[category.is_novel],
                alpha=0.75,
                rasterized=True,
                edgecolors=INK if category.is_novel else None,
                linewidths=0.3 if category.is_novel else 0,
            )
            if len(points):
                x, y = np.median(points, axis=0)
                name = shown(category.category, 20)
                axes.text(x, y, name, fontsize=7.5, ha="center", va="center", bbox=box)
    figure.draw_without_rendering()  # places the panels
    for axes in panels:
        taken: list[Bbox] = []
        for text in axes.texts:
            area = text.get_window_extent().padded(2)
            text.set_visible(not area.count_overlaps(taken))
            if text.get_visible():
                taken.append(area)
    return figure


@house_style()
def dendrogram(run: Run) -> Figure:
    """The tree of categories: those that join further left are more similar. Circles are known,
    diamonds novel.
    """
    reviewed = ReviewedRun.of(run)
    tree = category_tree(reviewed)
    lowest, right = tree.linkage[[0, -1], 2].tolist()
    # A tenth of the range below the lowest merge, so that the merges fill the figure.
    left = max(0.0, lowest - 0.1 * (right - lowest))
    drawn = hierarchy.dendrogram(tree.linkage, no_plot=True, labels=tree.names)
    # The position of leaf i is 10 i + 5.
    heights = np.maximum(drawn["dcoord"], left)
    corners = np.stack([heights, np.array(drawn["icoord"]) / 10 - 0.5], axis=2)
    brackets = LineCollection(list(corners), colors=MUTED, linewidths=1.2)
    names = drawn["ivl"]
    figure = new_figure(5.2, min(0.7 + 0.22 * len(names), MAX_INCHES))
    axes = plain(figure.add_subplot(), grid="x")
    axes.add_collection(brackets)
    novel_names = {row.category for row in reviewed.categories if row.is_novel}
    for is_novel, color in ((False, KNOWN), (True, NOVEL)):
        ys = [y for y, name in enumerate(names) if (name in novel_names) == is_novel]
        xs = [left] * len(ys)
        axes.plot(xs, ys, MARKERS[is_novel], color=color, markersize=5, clip_on=False, zorder=3)
    axes.set_yticks(range(len(names)), [shown(name, 28) for name in names])
    axes.tick_params(axis="y", length=0, pad=8)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(left, right + 0.03 * (right - left) or 1)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("mean cosine distance")
    return figure


FIGURES: dict[str, Callable[[Run], Figure]] = {
    draw.__name__: draw
    for draw in (
        n_clusters_curve,
        confidence_curve,
        training_curves,
        shift_accuracy,
        map_pca,
        map_tsne,
        dendrogram,
    )
}


def write_figures(run: Run, folder: Path) -> tuple[list[Path], list[str]]:
    """Write every figure of a run as SVG and PNG.

    Returns the files, and a sentence for each figure that is missing.
    """
    make_folder(folder)
    reviewed = ReviewedRun.of(run)
    files = []
    missing = []
    for name, draw in FIGURES.items():
        try:
            figure = draw(reviewed)
        except NotInRun as reason:
            missing.append(str(reason))
            continue
        for kind in ("svg", "png"):
            files.append(folder / f"{name}.{kind}")
            with atomic_file(files[-1]) as file:
                file.write(file_bytes(figure, kind))
    return files, missing
