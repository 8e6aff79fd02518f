"""Every figure is drawn from a real run; what it shows is read back from its artists."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.cluster.hierarchy import ward

from shoal.report.figures.categories import confusion, dendrogram, top_of_tree
from shoal.report.figures.curves import (
    n_clusters_curve,
    n_clusters_over_epochs,
    training_curves,
)
from shoal.report.figures.style import inline_svg
from shoal.report.figures.writing import FIGURES, write_figures
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Run


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for axes in figure.axes for text in axes.texts}


def line(figure: Figure, at: int = 0) -> tuple[list[float], list[float]]:
    found = figure.axes[at].lines[0]
    return list(found.get_xdata()), list(found.get_ydata())


@pytest.mark.slow
def test_the_curve_of_k_shows_every_number_tried_the_chosen_one_and_the_interval(
    digits: Run,
) -> None:
    estimate = digits.json("estimate")
    figure = n_clusters_curve(digits)
    x, y = line(figure)
    assert x == estimate["curve"]["n_clusters"]
    assert y == pytest.approx([100 * accuracy for accuracy in estimate["curve"]["accuracy"]])
    assert texts(figure) == {f"chosen: {estimate['n_clusters']}"}
    (band,) = figure.axes[0].patches
    assert [band.get_x(), band.get_x() + band.get_width()] == estimate["interval"]


@pytest.mark.slow
def test_k_over_epochs_and_the_training_curves_mark_the_snapshot(digits: Run) -> None:
    x, y = line(n_clusters_over_epochs(digits))
    assert x == [row["epoch"] for row in digits.metrics]
    assert y == [row["n_clusters"] for row in digits.metrics]
    figure = training_curves(digits)
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "loss",
        "validation accuracy, %",
        "learning rate",
    ]
    assert "snapshot: epoch 6" in texts(figure)  # the last row that says is_best


def test_the_top_of_the_tree_is_the_categories(digits: Run) -> None:
    top = top_of_tree(ReviewedRun.of(digits))
    assert sorted(top.names) == sorted(category.category for category in digits.categories)
    novel = {name for name, is_novel in zip(top.names, top.is_novel, strict=True) if is_novel}
    assert novel == {category.category for category in digits.categories if category.is_novel}
    assert len(top.joins) == len(top.names) - 1
    assert top.joins[-1][2] == digits.array("tree")[-1, 2]


def points_on_a_line(plain_run: Callable[..., Run], names: list[str]) -> Run:
    """Three tight pairs at 0, 3 and 10."""
    run = plain_run(
        [
            Assignment(
                path=str(i),
                category_id=names.index(n),
                category=n,
                is_novel=n > "b",
                confidence=1,
                outlier_score=0,
            )
            for i, n in enumerate(names)
        ]
    )
    run.write_array("tree", ward(np.array([[0], [0.1], [3], [3.1], [10], [10.1]])))
    return run


def test_a_dendrogram_of_three_categories_by_hand(plain_run: Callable[..., Run]) -> None:
    """a and b join first, then c; no lines cross, so a and b stand side by side."""
    run = points_on_a_line(plain_run, ["a", "a", "b", "b", "c", "c"])
    top = top_of_tree(ReviewedRun.of(run))
    assert top.names == ["a", "b", "c"]
    assert [join[:2] for join in top.joins] == [(0, 1), (0, 2)]
    positions = {label.get_text(): y for label, y in zip(*names_of(dendrogram(run)), strict=True)}
    assert abs(positions["a"] - positions["b"]) == 1


def names_of(figure: Figure):
    return figure.axes[0].get_yticklabels(), figure.axes[0].get_yticks()


def test_a_branch_that_holds_several_categories_says_so(plain_run: Callable[..., Run]) -> None:
    """The tree's three clusters are the pairs; the middle one holds an image of a and one of c."""
    run = points_on_a_line(plain_run, ["a", "b", "a", "c", "c", "c"])
    assert top_of_tree(ReviewedRun.of(run)).names == ["a + 1", "a + 1", "c"]


def test_confusion_counts_every_labeled_image_and_puts_novel_ones_together(
    plain_run: Callable[..., Run],
) -> None:
    landed = [
        ("cat", "cat"),
        ("cat", "cat"),
        ("cat", "dog"),
        ("dog", "dog"),
        ("dog", "novel-1"),
        ("dog", "novel-2"),
    ]
    names = sorted({found for _, found in landed})
    run = plain_run(
        [
            Assignment(
                path=str(at),
                label_given=given,
                category_id=names.index(found),
                category=found,
                is_novel=found.startswith("novel"),
                confidence=1,
                outlier_score=0,
            )
            for at, (given, found) in enumerate(landed)
        ]
    )
    axes = confusion(run).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog", "any novel"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    counts = {(text.get_position()): text.get_text() for text in axes.texts}
    assert counts == {(0, 0): "2", (1, 0): "1", (1, 1): "1", (2, 1): "2"}


@pytest.mark.slow
def test_every_figure_of_a_whole_run_is_written_twice_and_the_missing_one_is_named(
    small: Run, tmp_path: Path
) -> None:
    files, left_out = write_figures(small, tmp_path / "figures")
    drawn = sorted(set(FIGURES) - {"map_tsne"})
    assert sorted({file.stem for file in files}) == drawn
    assert len(left_out) == 1
    assert "t-SNE" in left_out[0]
    for file in files:
        if file.suffix == ".svg":
            assert ElementTree.parse(file).getroot().tag.endswith("svg")
        else:
            with Image.open(file) as image:
                assert min(image.size) > 400


@pytest.mark.slow
def test_hostile_names_are_drawn_as_they_are(hostile: Run, tmp_path: Path) -> None:
    files, _ = write_figures(hostile, tmp_path)
    for file in files:
        if file.suffix == ".svg":
            ElementTree.parse(file)
            assert "<script" not in file.read_text("utf-8")
    inline = inline_svg(dendrogram(hostile), "d", 'a "quoted" <title>')
    ElementTree.fromstring(inline)
    assert 'aria-label="a &#34;quoted&#34; &lt;title&gt;"' in inline
