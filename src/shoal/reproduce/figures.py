"""The three figures of the paper: what their cells gather, and how it is drawn.

Scoring by hidden labels, of which nothing goes back to a method.
"""

import base64
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.mean_shift import find_neighbors, shift
from shoal.data.benchmarks import BENCHMARKS
from shoal.encoders.embed import ImageRows
from shoal.methods.clusters import Representation
from shoal.methods.cms import learned_attention
from shoal.reproduce.cell_results import Material, Result, nearest_others, score
from shoal.reproduce.clusterings import shifted_by
from shoal.reproduce.loaded_dataset import BenchmarkImages
from shoal.reproduce.plan import Cell, Plan
from shoal.reproduce.tables import Record, describe_making, mean_and_spread, remarks_of, unique

N_ITERATIONS = 8
"""Shifts in the figure of iterations."""
N_QUERIES = 5
N_RETRIEVED = 10
THUMBNAIL = 64
"""Side of the images in the figure of retrieval."""
MAX_TSNE = 5000
"""Images in the figure of t-SNE, drawn at random where there are more."""
RIGHT = "#2a9d4a"
WRONG = "#c8323c"
COLUMNS = ("all", "known", "novel")

SAYS = {
    "iterations": "Accuracy on unlabeled images at the true K; nothing is chosen by it.",
    "retrieval": "An illustration that measures nothing: hidden labels chose the queries, the novel"
    " images whose neighbors gain most by one shift. v: by the embedding, z: by the shifted one; "
    "green: of the query's true class.",
    "tsne": "Colors are true classes.",
}
"""What a reader of each figure must know."""


def gather(
    cell: Cell, learned: Representation, images: BenchmarkImages, device: torch.device
) -> Material:
    """What the figure of a cell is drawn from."""
    if cell.figure == "iterations":
        return gather_iterations(cell, learned, images, device)
    if cell.figure == "retrieval":
        return gather_retrieval(cell, learned, images)
    return gather_tsne(learned.embeddings, images)


def gather_iterations(
    cell: Cell, learned: Representation, images: BenchmarkImages, device: torch.device
) -> Material:
    """Accuracy at the true K after 0, 1, 2 … shifts; the paper calls the first iteration 1."""
    is_scored = images.labels == UNLABELED
    rows = []
    for n_shifts in range(N_ITERATIONS + 1):
        discovery = shifted_by(n_shifts, learned, cell, images.n_classes, device)
        if discovery.n_shifts < n_shifts:
            break  # any further one would leave fewer distinct images than classes
        rows.append({"shifts": n_shifts} | score(discovery.clusters, images, is_scored))
    return rows


def gather_retrieval(cell: Cell, learned: Representation, images: BenchmarkImages) -> Material:
    """The nearest images of a few novel ones, by the embedding and by the embedding shifted once.

    Queries are those novel images whose neighbors change most to the better, then by row: the
    figure is an illustration, and says so.
    """
    points = learned.embeddings
    settings = cell.settings.inference.shift
    own = torch.arange(len(points), device=points.device)
    lists = find_neighbors(
        points, points, settings, exclude=own, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        moved = shift(points, points, lists, settings, attention=learned_attention(learned))
    before = nearest_others(points, points, N_RETRIEVED)
    after = nearest_others(moved, points, N_RETRIEVED)
    right_before = images.truth[before] == images.truth[:, None]
    right_after = images.truth[after] == images.truth[:, None]
    gain = np.where(images.is_known, -np.inf, right_after.sum(axis=1) - right_before.sum(axis=1))
    queries = np.argsort(-gain, kind="stable")[:N_QUERIES]
    return [
        {
            "query": _thumbnail(images.pixels, int(row)),
            "initial": _retrieved(images.pixels, before[row], right_before[row]),
            "shifted": _retrieved(images.pixels, after[row], right_after[row]),
        }
        for row in queries
    ]


def gather_tsne(embeddings: Tensor, images: BenchmarkImages) -> Material:
    """The embeddings in the plane, with their true classes."""
    from sklearn.manifold import TSNE

    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(embeddings))[:MAX_TSNE])
    points = embeddings[torch.from_numpy(rows).to(embeddings.device)].float().cpu().numpy()
    perplexity = min(30.0, (len(rows) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    return [
        {"x": round(float(x), 3), "y": round(float(y), 3), "class": int(label)}
        for (x, y), label in zip(plane, images.truth[rows], strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure of one dataset before it is drawn."""

    plan: Plan
    dataset: str
    materials: dict[str, list[Material]]
    """Row -> the material of each seed that is shown."""
    remarks: list[str]
    notes: list[str]
    """What it was made with, what a reader must know, and the remarks."""


def build_drawing(
    plan: Plan, dataset: str, results: Mapping[str, Result], failures: Mapping[str, str]
) -> Drawing:
    """Put the results of cells, by key, together; rows without one are left out.

    A figure of means shows all seeds, another one the first that is there.
    """
    measure = plan.experiment.measure
    finished: dict[str, list[Cell]] = {}
    remarks: list[str] = []
    for row in plan.experiment.rows:
        cells = plan.grid.get((row.name, dataset), ())
        own = {cell.key: results[cell.key] for cell in cells if cell.key in results}
        remarks += remarks_of(row.name, dataset, cells, own, failures)
        if own:
            finished[row.name] = [cell for cell in cells if cell.key in own]
    made = [cell for cells in finished.values() for cell in cells]
    seeds = sorted({cell.seed for cell in made if cell.seed is not None})
    if measure != "iterations":
        seeds = seeds[:1]
    materials: dict[str, list[Material]] = {}
    for name, done in finished.items():
        shown = [results[cell.key]["material"] for cell in done if cell.seed in (None, *seeds)]
        if measure == "iterations":  # as many shifts as all seeds could make
            shown = [material[: min(map(len, shown))] for material in shown]
        materials[name] = shown
    made_with = describe_making(plan, made, seeds)
    if len(seeds) > 1:
        made_with += ", mean and standard deviation"
    title = f"{BENCHMARKS[dataset].title}, {made_with}"
    remarks = unique(remarks)
    notes = [f"{title}; protocol '{plan.options.protocol}'.", SAYS[measure], *remarks]
    return Drawing(plan=plan, dataset=dataset, materials=materials, remarks=remarks, notes=notes)


def draw(drawing: Drawing) -> Figure:
    """Draw a figure, its title above and its notes below."""
    experiment = drawing.plan.experiment
    if experiment.measure == "iterations":
        figure = _draw_iterations(drawing.materials)
    elif experiment.measure == "retrieval":
        figure = _draw_retrieval(drawing.materials)
    else:
        figure = _draw_tsne(drawing.materials)
    title = experiment.title
    if drawing.plan.options.protocol != "paper":
        title += " (snapshot chosen by hidden labels)"
    figure.suptitle(title, fontsize=10)
    width = round(16 * figure.get_figwidth())  # letters of this size on a line
    lines = [line for note in drawing.notes for line in textwrap.wrap(note, width)]
    figure.text(0.02, -0.02, "\n".join(lines), fontsize=7, va="top")
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def to_records(drawing: Drawing) -> list[Record]:
    """A dictionary per number that is drawn; the places of a t-SNE mean nothing by themselves."""
    experiment = drawing.plan.experiment
    about: Record = {
        "figure": experiment.name,
        "dataset": drawing.dataset,
        "encoder": drawing.plan.encoder,
        "protocol": drawing.plan.options.protocol,
        "notes": " ".join(drawing.notes),
    }
    records = []
    for row, seeds in drawing.materials.items():
        numbers: list[Record] = []
        if experiment.measure == "iterations":
            numbers = _points(seeds)
        elif experiment.measure == "retrieval":
            numbers = [
                {
                    "right_initial": sum(near["right"] for near in query["initial"]),
                    "right_shifted": sum(near["right"] for near in query["shifted"]),
                    "retrieved": len(query["initial"]),
                }
                for query in seeds[0]
            ]
        records += [about | {"row": row} | number for number in numbers]
    return records


def _points(seeds: Sequence[Material]) -> list[Record]:
    """Mean and spread over seeds after each number of shifts, column by column."""
    points: list[Record] = []
    for index, row in enumerate(seeds[0]):
        for name in COLUMNS:
            mean, spread = mean_and_spread([material[index][name] for material in seeds])
            points.append(
                {
                    "shifts": row["shifts"],
                    "column": name.title(),
                    "ours": mean,
                    "spread": spread,
                    "n_seeds": len(seeds),
                }
            )
    return points


def _draw_iterations(materials: Mapping[str, list[Material]]) -> Figure:
    figure = Figure(figsize=(4.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for seeds in materials.values():
        iterations = [row["shifts"] + 1 for row in seeds[0]]
        for name in COLUMNS:
            values = np.array([[row[name] for row in material] for material in seeds])
            means = values.mean(axis=0)
            (line,) = axes.plot(iterations, means, marker="o", label=name.title())
            if len(seeds) > 1:
                spreads = values.std(axis=0, ddof=1)
                axes.fill_between(
                    iterations,
                    means - spreads,
                    means + spreads,
                    color=line.get_color(),
                    alpha=0.2,
                    linewidth=0,
                )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("iteration (1: not shifted)")
    axes.set_ylabel("accuracy at the true K, %")
    figure.legend(loc="outside right upper")  # beside the lines, which it would hide
    return figure


def _draw_retrieval(materials: Mapping[str, list[Material]]) -> Figure:
    queries = [query for seeds in materials.values() for query in seeds[0]]
    n_columns = 1 + max(len(query["initial"]) for query in queries)
    figure = Figure(figsize=(0.7 * n_columns, 1.5 * len(queries)), layout="constrained")
    grid = iter(figure.subplots(2 * len(queries), n_columns, squeeze=False))
    for query in queries:
        for kind, title in (("initial", "v"), ("shifted", "z")):
            first, *others = next(grid)
            _draw_image(first, query["query"], "none")
            first.set_ylabel(title, rotation=0)
            for axes, near in zip(others, query[kind], strict=True):
                _draw_image(axes, near["image"], RIGHT if near["right"] else WRONG)
    return figure


def _draw_image(axes: Axes, image: str, frame: str) -> None:
    axes.imshow(Image.open(io.BytesIO(base64.b64decode(image))))
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color(frame)
        side.set_linewidth(2)


def _draw_tsne(materials: Mapping[str, list[Material]]) -> Figure:
    figure = Figure(figsize=(4 * len(materials), 4), layout="constrained")
    panels = figure.subplots(1, len(materials), squeeze=False)[0]
    for axes, (name, seeds) in zip(panels, materials.items(), strict=True):
        rows = seeds[0]
        axes.scatter(
            [row["x"] for row in rows],
            [row["y"] for row in rows],
            c=[row["class"] for row in rows],
            s=3,
            cmap="turbo",
            linewidths=0,
        )
        axes.set_title(name, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def _retrieved(pixels: ImageRows, rows: Ints, is_right: Bools) -> Material:
    return [
        {"image": _thumbnail(pixels, int(row)), "right": bool(right)}
        for row, right in zip(rows, is_right, strict=True)
    ]


def _thumbnail(pixels: ImageRows, row: int) -> str:
    """An image as base64 JPEG."""
    array = pixels[row].cpu().numpy() if isinstance(pixels, Tensor) else np.asarray(pixels[row])
    buffer = io.BytesIO()
    Image.fromarray(array).resize((THUMBNAIL, THUMBNAIL)).save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()
