"""Curves: the choice of K, training, mean shifts, confidence."""

from collections.abc import Mapping, Sequence

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
from shoal.report.not_in_run import NotInRun
from shoal.review.reviewed_run import ReviewedRun
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


@styled
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
    _plot(axes, numbers, _percents(curve["accuracy"]), marker, 3.5)
    if estimate.get("interval"):
        axes.axvspan(*estimate["interval"], color=NOVEL, alpha=0.12, linewidth=0)
    word = "given" if estimate.get("is_given") else "chosen"
    _mark(axes, estimate["n_clusters"], f"{word}: {estimate['n_clusters']}")
    axes.set(xlabel="number of clusters, K", ylabel="labeled accuracy, %")
    return figure


@styled
def training_curves(run: Run) -> Figure:
    """Loss, validation accuracy, estimated K and learning rate by epoch, with the epoch of the
    snapshot.
    """
    metrics = run.metrics
    labels = [
        label
        for label, lines in PANELS.items()
        if any(_points(metrics, key)[0] for key, *_ in lines)
    ]
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
        axes = panels[index]
        plain(axes)
        for key, name, style, color in PANELS[label]:
            epochs, values = _points(metrics, key)
            if not epochs:
                continue
            if key.endswith("accuracy"):
                values = _percents(values)
            marker = "o" if len(epochs) < 30 else ""
            axes.plot(epochs, values, style, marker=marker, markersize=3, color=color, label=name)
        if len(PANELS[label]) > 1:
            axes.margins(y=0.22)  # room for the legend
            axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, ncols=3, loc="upper right")
        for epoch in snapshots:
            _mark(axes, epoch, f"snapshot: epoch {epoch}" if axes is panels[0] else "")
        axes.set_ylabel(label, fontsize=8)
    panels[-1].set_xlabel("epoch")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels()
    return figure


@styled
def shift_accuracy(run: Run) -> Figure:
    """Labeled accuracy after each mean shift, with the number of shifts that was chosen."""
    missing = "No accuracy by mean shifts: "
    if not run.has("shifts.json"):
        raise NotInRun(f"{missing}the run does not contain it.")
    shifts = run.json("shifts")
    values = _percents([value for value in shifts["accuracies"] if value is not None])
    if not values:
        reason = "no image was labeled"
        if ReviewedRun.of(run).is_labeled.any():
            reason = "the number of shifts was fixed, so it was not measured"
        raise NotInRun(f"{missing}{reason}.")
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    _plot(axes, range(len(values)), values, "o", 4)
    chosen = shifts["chosen"]
    if chosen < len(values):
        _mark(axes, chosen, f"stopped after {chosen}")
        axes.plot([chosen], [values[chosen]], "o", markersize=9, color=KNOWN, markeredgecolor=PAPER)
    axes.set(xlabel="mean shifts", ylabel="labeled accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@styled
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
        shares = [at / (len(curve["confidence"]) - 1) for at in range(len(curve["confidence"]))]
        axes.plot(shares, curve["confidence"], style, color=color, linewidth=1.8, label=label)
        most = max(curve["n_images"], default=0)
        # The area of a circle is proportional to the number of images.
        for x, n_correct, n in zip(shares, curve["n_correct"], curve["n_images"], strict=True):
            if n > 0:
                size = 3 + 6 * (n / most) ** 0.5
                axes.plot([x], [n_correct / n], "o", color=color, markersize=size, alpha=0.5)
    axes.plot([0, 1], [0, 1], ":", color=MUTED, linewidth=1, label="share of neighbors")
    axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, loc="upper left")
    axes.set(
        xlabel="share of neighbors in the same category",
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    return figure


def _plot(
    axes: Axes, x: Sequence[float], y: Sequence[float], marker: str, markersize: float
) -> None:
    axes.plot(x, y, color=KNOWN, marker=marker, markersize=markersize, linewidth=1.8)


def _mark(axes: Axes, x: float, text: str) -> None:
    """Draw a dashed line with a text on the side with more room."""
    axes.axvline(x, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    low, high = axes.get_xlim()
    middle = (low + high) / 2
    if axes.get_xscale() == "log":
        middle = (low * high) ** 0.5
    side, offset = ("right", -5) if x > middle else ("left", 5)
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(offset, -2),
        textcoords="offset points", ha=side, va="bottom", fontsize=8.5, color=INK,
        annotation_clip=False,
    )  # fmt: skip


def _points(metrics: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Return the epochs in which a metric was measured, and its values."""
    measured = [row for row in metrics if row.get(key) is not None]
    return [row["epoch"] for row in measured], [row[key] for row in measured]


def _percents(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]
