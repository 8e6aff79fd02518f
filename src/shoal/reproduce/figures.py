"""The three figures of the paper, drawn from what their cells gathered, with what they were made with below."""

import base64
import csv
import io
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce.choices import Choices, choices_of, describe_making
from shoal.reproduce.experiment import Experiment, ReproduceOptions
from shoal.reproduce.plan import Plan
from shoal.reproduce.table_building import remarks_of

RIGHT = "#2a9d4a"
WRONG = "#c8323c"
COLUMNS = ("all", "known", "novel")

Material = list[dict[str, Any]]
"""What a cell gathered."""

SAYS = {
    "iterations": "Accuracy on unlabeled images at the true K; nothing is chosen by it.",
    "retrieval": "An illustration that measures nothing: hidden labels chose the queries, the novel images whose "
    "neighbors gain most by one shift. v: by the embedding, z: by the shifted one; green: of the query's true class.",
    "tsne": "Colors are true classes.",
}
"""What a reader of each figure must know."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure of one dataset before it is drawn."""

    experiment: Experiment
    dataset: str
    options: ReproduceOptions
    materials: dict[str, dict[int | None, Material]] = field(default_factory=dict)
    """Row -> seed -> what the cell gathered; the seed is None where nothing is drawn at random."""
    choices: dict[tuple[str, str], Choices] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def seeds(self) -> list[int]:
        """The seeds that are shown: all in a figure of means, else the first that is there."""
        seeds = sorted(
            {seed for by_seed in self.materials.values() for seed in by_seed if seed is not None}
        )
        return seeds if self.experiment.measure == "iterations" else seeds[:1]

    @property
    def encoder(self) -> str:
        """The encoder of our numbers."""
        return self.options.encoder or self.experiment.encoder

    @property
    def title(self) -> str:
        """The title, and that hidden labels chose the snapshot where they did."""
        protocol = "" if self.options.protocol == "paper" else " (snapshot chosen by hidden labels)"
        return self.experiment.title + protocol

    @property
    def notes(self) -> list[str]:
        """What it was made with, what a reader must know, what is strange about its cells."""
        title = BENCHMARKS[self.dataset].title
        made = describe_making(
            self.encoder, self.options.changes, self.choices, {self.dataset: title}, self.seeds
        )
        spread = ", mean and standard deviation" if len(self.seeds) > 1 else ""
        return [
            f"{title}, {made}{spread}; protocol '{self.options.protocol}'.",
            SAYS[self.experiment.measure],
            *self.remarks,
        ]

    @property
    def shown(self) -> dict[str, list[Material]]:
        """Row -> the material of each seed that is shown."""
        return {
            row: [by_seed[seed] for seed in by_seed if seed in (None, *self.seeds)]
            for row, by_seed in self.materials.items()
        }


def build_drawing(
    plan: Plan, dataset: str, results: Mapping[str, Mapping[str, Any]], failures: Mapping[str, str]
) -> Drawing:
    """Put the results of cells, by key, together; rows without one are left out."""
    drawing = Drawing(experiment=plan.experiment, dataset=dataset, options=plan.options)
    for row in plan.experiment.rows:
        keys = plan.keys(row, dataset)
        own_results = {key: results[key] for key in keys if key in results}
        drawing.remarks.extend(
            text
            for text in remarks_of(row, dataset, keys, own_results, failures)
            if text not in drawing.remarks
        )
        if own_results:
            drawing.materials[row.name] = {
                keys[key]: result["material"] for key, result in own_results.items()
            }
            drawing.choices[row.name, dataset] = choices_of(plan.grid[row.name, dataset][0])
    return drawing


def draw(drawing: Drawing) -> Figure:
    """Draw a figure, its title above and its notes below."""
    how = {"iterations": _iterations, "retrieval": _retrieval, "tsne": _tsne}[
        drawing.experiment.measure
    ]
    figure: Figure = how(drawing.shown)
    figure.suptitle(drawing.title, fontsize=10)
    width = round(16 * figure.get_figwidth())  # letters of this size on a line
    lines = [line for note in drawing.notes for line in textwrap.wrap(note, width)]
    figure.text(0.02, -0.02, "\n".join(lines), fontsize=7, va="top")
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def to_records(drawing: Drawing) -> list[dict[str, Any]]:
    """A dictionary per number that is drawn; the places of a t-SNE, which mean nothing by themselves, are none."""
    about = {
        "figure": drawing.experiment.name,
        "dataset": drawing.dataset,
        "encoder": drawing.encoder,
        "protocol": drawing.options.protocol,
        "notes": " ".join(drawing.notes),
    }
    if drawing.experiment.measure == "iterations":
        return [
            about | {"row": row} | point
            for row, seeds in drawing.shown.items()
            for point in _points(seeds)
        ]
    if drawing.experiment.measure == "retrieval":
        return [
            about | {"row": row} | _right(query)
            for row, (first, *_) in drawing.shown.items()
            for query in first
        ]
    return []


def to_csv(drawing: Drawing) -> str:
    """A line per number that is drawn; empty where there is none."""
    records = to_records(drawing)
    if not records:
        return ""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def _points(seeds: Sequence[Material]) -> list[dict[str, Any]]:
    """Mean and spread over seeds after each number of shifts, column by column."""
    points = []
    for index, row in enumerate(seeds[0]):
        for name in COLUMNS:
            values = [material[index][name] for material in seeds]
            spread = statistics.stdev(values) if len(values) > 1 else None
            ours = {"ours": statistics.fmean(values), "spread": spread, "n_seeds": len(values)}
            points.append({"shifts": row["shifts"], "column": name.title()} | ours)
    return points


def _right(query: Mapping[str, Any]) -> dict[str, Any]:
    """How many of the retrieved images are of the query's class."""
    counts = {
        f"right_{kind}": sum(near["right"] for near in query[kind])
        for kind in ("initial", "shifted")
    }
    return counts | {"retrieved": len(query["initial"])}


def _iterations(shown: Mapping[str, list[Material]]) -> Figure:
    figure = Figure(figsize=(4.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for seeds in shown.values():
        points = _points(seeds)
        for name in COLUMNS:
            own = [point for point in points if point["column"] == name.title()]
            at = [point["shifts"] + 1 for point in own]
            means = [point["ours"] for point in own]
            (line,) = axes.plot(at, means, marker="o", label=name.title())
            if len(seeds) > 1:
                low, high = (
                    [mean + sign * point["spread"] for mean, point in zip(means, own, strict=True)]
                    for sign in (-1, 1)
                )
                axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("iteration (1: not shifted)")
    axes.set_ylabel("accuracy at the true K, %")
    figure.legend(loc="outside right upper")  # beside the lines, which it would hide
    return figure


def _retrieval(shown: Mapping[str, list[Material]]) -> Figure:
    queries = [query for first, *_ in shown.values() for query in first]
    n_columns = 1 + max(len(query["initial"]) for query in queries)
    figure = Figure(figsize=(0.7 * n_columns, 1.5 * len(queries)), layout="constrained")
    grid = figure.subplots(2 * len(queries), n_columns, squeeze=False)
    for index, query in enumerate(queries):
        for line, (kind, title) in enumerate((("initial", "v"), ("shifted", "z"))):
            axes = grid[2 * index + line]
            _picture(axes[0], query["query"], None)
            axes[0].set_ylabel(title, rotation=0)
            for at, near in zip(axes[1:], query[kind], strict=True):
                _picture(at, near["image"], RIGHT if near["right"] else WRONG)
    return figure


def _picture(axes: Axes, image: str, frame: str | None) -> None:
    axes.imshow(Image.open(io.BytesIO(base64.b64decode(image))))
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color(frame or "none")
        side.set_linewidth(2)


def _tsne(shown: Mapping[str, list[Material]]) -> Figure:
    figure = Figure(figsize=(4 * len(shown), 4), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (name, (rows, *_)) in zip(panels, shown.items(), strict=True):
        classes = [row["class"] for row in rows]
        axes.scatter(
            [row["x"] for row in rows],
            [row["y"] for row in rows],
            c=classes,
            s=3,
            cmap="turbo",
            linewidths=0,
        )
        axes.set_title(name, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure
