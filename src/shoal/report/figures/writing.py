"""All figures by name, and how they are written to files."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from shoal.files import atomic_file, make_folder
from shoal.report.figures.categories import dendrogram
from shoal.report.figures.curves import (
    confidence_curve,
    n_clusters_curve,
    shift_accuracy,
    training_curves,
)
from shoal.report.figures.images import map_pca, map_tsne
from shoal.report.figures.style import file_bytes
from shoal.report.not_in_run import NotInRun
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run

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
"""Each takes a run, and raises `NotInRun` with a sentence if the run lacks what it draws."""


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
