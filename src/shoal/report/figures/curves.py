"""Curves: the choice of K, training, mean shifts, confidence."""

from collections.abc import Mapping, Sequence

import numpy as np
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
    house_style,
    new_figure,
    plain,
)
from shoal.report.not_in_run import NotInRun
from shoal.runs import Run

SIZE = (5.2, 3.0)

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
"""The panels of the training curves: metrics with their labels, line styles and colors."""


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
