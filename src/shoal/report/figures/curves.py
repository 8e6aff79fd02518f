"""Curves: how K was chosen, how training went, what each mean shift brought."""

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

Row = Mapping[str, float]
"""The metrics of an epoch."""

PANELS = {
    "loss": (
        ("loss", "total", "-", INK),
        ("loss_supervised", "supervised", "--", KNOWN),
        ("loss_shifted", "with neighbors", ":", NOVEL),
        ("loss_contrastive", "contrastive", ":", NOVEL),
    ),
    "validation accuracy, %": (("validation_accuracy", "", "-", KNOWN),),
    "learning rate": (("lr", "", "-", THIRD),),
}
"""What is drawn of training: the metrics of each panel, with their words, line and color."""


@styled
def n_clusters_curve(run: Run) -> Figure:
    """Labeled accuracy against the number of clusters, the chosen number marked, its 80 %
    interval shaded.
    """
    estimate = run.json("estimate")
    curve = estimate.get("curve")
    if not curve or not curve["n_clusters"]:
        raise NotInRun(
            "The curve of K is left out: the number of categories was given, so no other was tried."
        )
    numbers = curve["n_clusters"]
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    if max(numbers) > 10 * max(min(numbers), 1):
        axes.set_xscale("log")  # the numbers that matter are the small ones
        axes.xaxis.set_major_formatter(ScalarFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    marker = "" if len(numbers) > 60 else "o"
    _draw(axes, numbers, _percents(curve["accuracy"]), marker, 3.5)
    if estimate.get("interval"):
        axes.axvspan(*estimate["interval"], color=NOVEL, alpha=0.12, linewidth=0)
    word = "given" if estimate.get("is_given") else "chosen"
    _mark(axes, estimate["n_clusters"], f"{word}: {estimate['n_clusters']}")
    axes.set(xlabel="number of clusters, K", ylabel="labeled accuracy, %")
    return figure


@styled
def n_clusters_over_epochs(run: Run) -> Figure:
    """The estimated number of clusters after each epoch, the kept one marked."""
    epochs, numbers = _points(run.metrics, "n_clusters")
    if not epochs:
        raise NotInRun("K over epochs is left out: it was not estimated while training.")
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    _draw(axes, epochs, numbers, "o", 4)
    for row in _kept(run):
        _mark(axes, row["epoch"], f"snapshot: K = {row['n_clusters']}")
    axes.set(xlabel="epoch", ylabel="estimated K")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=2))
    return figure


@styled
def training_curves(run: Run) -> Figure:
    """Losses, validation accuracy and learning rate over the epochs, and where the snapshot was
    taken.
    """
    metrics = run.metrics
    drawn = [
        label
        for label, lines in PANELS.items()
        if any(_points(metrics, key)[0] for key, *_ in lines)
    ]
    if not drawn:
        raise NotInRun("Training curves are left out: the encoder was not trained in this run.")
    figure = new_figure(5.2, 0.6 + 1.6 * len(drawn))
    first: Axes | None = None
    for at, label in enumerate(drawn):
        axes = plain(figure.add_subplot(len(drawn), 1, at + 1, sharex=first))
        if first is None and run.has("choice.json") and run.json("choice")["kept"] != "trained":
            unused = "not used: the frozen result is kept"
            axes.set_title(unused, loc="right", fontsize=8.5, color=INK, pad=14)
        first = first or axes
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
        for row in _kept(run):
            _mark(axes, row["epoch"], f"snapshot: epoch {row['epoch']}" if at == 0 else "")
        axes.set_ylabel(label, fontsize=8)
        axes.tick_params(labelbottom=at == len(drawn) - 1)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels()
    return figure


@styled
def shift_accuracy(run: Run) -> Figure:
    """Labeled accuracy after each step toward the neighbors, the stopping point marked."""
    left_out = "Accuracy over steps to the neighbors is left out: "
    if not run.has("shifts.json"):
        raise NotInRun(f"{left_out}the run does not hold it.")
    shifts = run.json("shifts")
    values = _percents([value for value in shifts["accuracies"] if value is not None])
    if not values:
        reason = "no image was labeled to measure it with"
        if ReviewedRun.of(run).is_labeled.any():
            reason = "how many are made was decided before, so none was measured"
        raise NotInRun(f"{left_out}{reason}.")
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    _draw(axes, range(len(values)), values, "o", 4)
    chosen = shifts["chosen"]
    if chosen < len(values):
        _mark(axes, chosen, f"stopped after {chosen}")
        axes.plot([chosen], [values[chosen]], "o", markersize=9, color=KNOWN, markeredgecolor=PAPER)
    axes.set(xlabel="steps toward the neighbors", ylabel="labeled accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@styled
def confidence_curve(run: Run) -> Figure:
    """Confidence by the share of an image's nearest images in its category; circles are what
    labels held back gave.
    """
    calibration = run.json("calibration")
    if not calibration["is_calibrated"]:
        raise NotInRun(
            "How confidence was calibrated is left out: labels cannot check it, so it is the share "
            "of neighbors."
        )
    figure = new_figure(*SIZE)
    axes = plain(figure.add_subplot())
    for name, words, color, style in (
        ("labeled", "known category, labeled image", KNOWN, "-"),
        ("novel", "novel category", NOVEL, "--"),
    ):
        curve = calibration[name]
        shares = [at / (len(curve["confidence"]) - 1) for at in range(len(curve["confidence"]))]
        axes.plot(shares, curve["confidence"], style, color=color, linewidth=1.8, label=words)
        most = max(curve["n_images"], default=0)
        # A circle where there is evidence, the larger the more.
        for x, right, n in zip(shares, curve["right"], curve["n_images"], strict=True):
            if n > 0:
                size = 3 + 6 * (n / most) ** 0.5
                axes.plot([x], [right / n], "o", color=color, markersize=size, alpha=0.5)
    axes.plot([0, 1], [0, 1], ":", color=MUTED, linewidth=1, label="the share itself")
    axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, loc="upper left")
    axes.set(
        xlabel="share of the nearest images in the same category",
        ylabel="share right",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    return figure


def _draw(
    axes: Axes, x: Sequence[float], y: Sequence[float], marker: str, markersize: float
) -> None:
    axes.plot(x, y, color=KNOWN, marker=marker, markersize=markersize, linewidth=1.8)


def _mark(axes: Axes, x: float, text: str) -> None:
    """A dashed line with a word beside it, on the side where there is room."""
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


def _points(rows: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    """The epochs in which something was measured, and what was."""
    measured = [row for row in rows if row.get(key) is not None]
    return [row["epoch"] for row in measured], [row[key] for row in measured]


def _kept(run: Run) -> Sequence[Row]:
    """The row of the snapshot, the last that was the best so far, where there is one."""
    return [row for row in run.metrics if row.get("is_best")][-1:]


def _percents(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]
