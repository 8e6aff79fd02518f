"""The three figures of the paper, drawn from what their cells gathered."""

import base64
import io
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from shoal.reproduce.experiment import Experiment

RIGHT, WRONG = "#2a9d4a", "#c8323c"

Materials = Mapping[str, list[dict[str, Any]]]
"""Row of the experiment -> what its cell gathered."""


def draw(experiment: Experiment, materials: Materials, protocol: str = "paper") -> Figure:
    """Draw a figure; rows without material are left out. The title says where hidden labels chose the snapshot."""
    drawing = {"iterations": _iterations, "retrieval": _retrieval, "tsne": _tsne}[experiment.measure]
    figure: Figure = drawing(materials)
    title = experiment.title if protocol == "paper" else f"{experiment.title} (snapshot chosen by hidden labels)"
    figure.suptitle(title, fontsize=10)
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def _iterations(materials: Materials) -> Figure:
    figure = Figure(figsize=(4.5, 3.2))
    axes = figure.subplots()
    for rows in materials.values():
        for name in ("all", "known", "novel"):
            axes.plot([row["shifts"] + 1 for row in rows], [row[name] for row in rows], marker="o", label=name.title())
    axes.set_xlabel("iteration (1: not shifted)")
    axes.set_ylabel("accuracy at the true K, %")
    axes.legend()
    return figure


def _retrieval(materials: Materials) -> Figure:
    queries = [query for rows in materials.values() for query in rows]
    n_columns = 1 + max(len(query["initial"]) for query in queries)
    figure = Figure(figsize=(0.7 * n_columns, 1.5 * len(queries)))
    grid = figure.subplots(2 * len(queries), n_columns, squeeze=False)
    for place, query in enumerate(queries):
        for line, (kind, title) in enumerate((("initial", "v"), ("shifted", "z"))):
            axes = grid[2 * place + line]
            _picture(axes[0], query["query"], None)
            axes[0].set_ylabel(title, rotation=0)
            for at, found in zip(axes[1:], query[kind], strict=True):
                _picture(at, found["image"], RIGHT if found["right"] else WRONG)
    return figure


def _picture(axes: Axes, image: str, frame: str | None) -> None:
    axes.imshow(Image.open(io.BytesIO(base64.b64decode(image))))
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color(frame or "none")
        side.set_linewidth(2)


def _tsne(materials: Materials) -> Figure:
    figure = Figure(figsize=(4 * len(materials), 4))
    panels = figure.subplots(1, len(materials), squeeze=False)[0]
    for axes, (name, rows) in zip(panels, materials.items(), strict=True):
        classes = [row["class"] for row in rows]
        axes.scatter([row["x"] for row in rows], [row["y"] for row in rows], c=classes, s=3, cmap="turbo", linewidths=0)
        axes.set_title(name, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure
