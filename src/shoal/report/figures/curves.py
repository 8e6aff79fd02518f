"""Curves: how the number of clusters was chosen, how training went, what each mean shift brought."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from shoal.report.figures.style import (
    INK,
    KNOWN,
    MUTED,
    NOVEL,
    PAPER,
    THIRD,
    new_figure,
    plain,
    styled,
)
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.runs import Run

SIZE = (5.2, 3.0)


@styled
def n_clusters_curve(run: Run) -> Figure:
    """Labeled accuracy against the number of clusters, the chosen number marked, its 80 % interval shaded."""
    estimate = run.json("estimate")
    curve = estimate.get("curve")
    if not curve or not curve["n_clusters"]:
        raise NotInRun(
            "The curve of K is left out: the number of categories was given, so no other was tried."
        )
    numbers = curve["n_clusters"]
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    dense = len(numbers) > 60
    if max(numbers) > 10 * max(min(numbers), 1):
        axes.set_xscale("log")  # the numbers that matter are the small ones
        axes.xaxis.set_major_formatter(ScalarFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.plot(
        numbers,
        _percents(curve["accuracy"]),
        color=KNOWN,
        marker="" if dense else "o",
        markersize=3.5,
        linewidth=1.8,
    )
    if estimate.get("interval"):
        axes.axvspan(*estimate["interval"], color=NOVEL, alpha=0.12, linewidth=0)
    word = "given" if estimate.get("is_given") else "chosen"
    _mark(axes, estimate["n_clusters"], f"{word}: {estimate['n_clusters']}")
    axes.set(xlabel="number of clusters, K", ylabel="labeled accuracy, %")
    return figure


@styled
def n_clusters_over_epochs(run: Run) -> Figure:
    """The estimated number of clusters after each epoch, the kept one marked."""
    rows = run.metrics
    points = _points(rows, "n_clusters")
    if not points:
        raise NotInRun("K over epochs is left out: it was not estimated while training.")
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    axes.plot(*zip(*points, strict=True), color=KNOWN, marker="o", markersize=4, linewidth=1.8)
    kept = _kept(rows)
    if kept:
        _mark(axes, kept["epoch"], f"snapshot: K = {kept['n_clusters']}")
    axes.set(xlabel="epoch", ylabel="estimated K")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=2))
    return figure


@styled
def training_curves(run: Run) -> Figure:
    """Losses, validation accuracy and learning rate over the epochs, and where the snapshot was taken."""
    rows = run.metrics
    panels = [
        ("loss", (("loss", "total", "-", INK), ("loss_supervised", "supervised", "--", KNOWN),
                  ("loss_shifted", "with neighbors", ":", NOVEL), ("loss_contrastive", "contrastive", ":", NOVEL))),
        ("validation accuracy, %", (("validation_accuracy", "", "-", KNOWN),)),
        ("learning rate", (("lr", "", "-", THIRD),)),
    ]  # fmt: skip
    drawn = [
        (label, lines) for label, lines in panels if any(_points(rows, key) for key, *_ in lines)
    ]
    if not drawn:
        raise NotInRun("Training curves are left out: the encoder was not trained in this run.")
    figure = new_figure(5.2, 0.6 + 1.6 * len(drawn))
    kept = _kept(rows)
    first: Axes | None = None
    for at, (label, lines) in enumerate(drawn):
        axes = plain(figure.add_subplot(len(drawn), 1, at + 1, sharex=first))
        if first is None and _is_rejected(run):
            axes.set_title(
                "not used: the answer without training stands",
                loc="right",
                fontsize=8.5,
                color=INK,
                pad=14,
            )
        first = first or axes
        for key, name, style, color in lines:
            points = _points(rows, key)
            if not points:
                continue
            epochs = [epoch for epoch, _ in points]
            values = [value for _, value in points]
            if key.endswith("accuracy"):
                values = _percents(values)
            marker = "o" if len(points) < 30 else ""
            axes.plot(epochs, values, style, marker=marker, markersize=3, color=color, label=name)
        if len(lines) > 1:
            axes.margins(y=0.22)  # room for the legend
            axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, ncols=3, loc="upper right")
        if kept:
            _mark(axes, kept["epoch"], f"snapshot: epoch {kept['epoch']}" if at == 0 else "")
        axes.set_ylabel(label, fontsize=8)
        axes.tick_params(labelbottom=at == len(drawn) - 1)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels()
    return figure


@styled
def shift_accuracy(run: Run) -> Figure:
    """Labeled accuracy after each step toward the neighbors, the stopping point marked."""
    snapshot = Snapshot.of(run)
    left_out = "Accuracy over steps to the neighbors is left out: "
    if not snapshot.has("shifts.json"):
        raise NotInRun(f"{left_out}the run does not hold it.")
    shifts = snapshot.json("shifts")
    accuracies = [value for value in shifts["accuracies"] if value is not None]
    if not accuracies:
        reason = "no image was labeled to measure it with"
        if snapshot.is_labeled.any():
            reason = "how many are made was decided before, so none was measured"
        raise NotInRun(f"{left_out}{reason}.")
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    axes.plot(
        range(len(accuracies)),
        _percents(accuracies),
        color=KNOWN,
        marker="o",
        markersize=4,
        linewidth=1.8,
    )
    chosen = shifts["chosen"]
    if chosen < len(accuracies):
        _mark(axes, chosen, f"stopped after {chosen}")
        axes.plot(
            [chosen],
            [100 * accuracies[chosen]],
            "o",
            markersize=9,
            color=KNOWN,
            markeredgecolor=PAPER,
        )
    axes.set(xlabel="steps toward the neighbors", ylabel="labeled accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@styled
def confidence_curve(run: Run) -> Figure:
    """Confidence by the share of an image's nearest images in its category; circles are what labels held back gave."""
    calibration = run.json("calibration")
    if not calibration["is_calibrated"]:
        raise NotInRun(
            "How confidence was calibrated is left out: labels cannot check it, so it is the share "
            "of neighbors."
        )
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    for name, words, color, style in CURVES:
        _draw_confidence(axes, calibration[name], words, color, style)
    axes.plot([0, 1], [0, 1], ":", color=MUTED, linewidth=1, label="the share itself")
    axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, loc="upper left")
    axes.set(
        xlabel="share of the nearest images in the same category",
        ylabel="share right",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    return figure


CURVES = (
    ("labeled", "known category, labeled image", KNOWN, "-"),
    ("novel", "novel category", NOVEL, "--"),
)


def _draw_confidence(axes: Axes, curve: dict[str, Any], words: str, color: str, style: str) -> None:
    """A line of confidence, and a circle where there is evidence, the larger the more."""
    shares = [at / (len(curve["confidence"]) - 1) for at in range(len(curve["confidence"]))]
    axes.plot(shares, curve["confidence"], style, color=color, linewidth=1.8, label=words)
    most = max(curve["n_images"], default=0)
    for x, right, n in zip(shares, curve["right"], curve["n_images"], strict=True):
        if n > 0:
            axes.plot(
                [x], [right / n], "o", color=color, markersize=3 + 6 * (n / most) ** 0.5, alpha=0.5
            )


def _is_rejected(run: Run) -> bool:
    """Whether the run's answer is the one without training, though it was trained."""
    return run.has("choice.json") and run.json("choice")["kept"] != "trained"


def _mark(axes: Axes, x: float, text: str) -> None:
    """A dashed line with a word beside it, on the side where there is room."""
    axes.axvline(x, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    low, high = axes.get_xlim()
    middle = (low * high) ** 0.5 if axes.get_xscale() == "log" else (low + high) / 2
    is_left = x > middle
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(-5 if is_left else 5, -2), textcoords="offset points",
        ha="right" if is_left else "left", va="bottom", fontsize=8.5, color=INK, annotation_clip=False,
    )  # fmt: skip


def _points(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]


def _kept(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of the snapshot: the last that was the best so far."""
    best = [row for row in rows if row.get("is_best")]
    return best[-1] if best else None


def _percents(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]
