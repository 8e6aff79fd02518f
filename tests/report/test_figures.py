"""Every figure is drawn from a real run; what it shows is read back from its artists."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from PIL import Image

from shoal.report.figures import (
    FIGURES,
    dendrogram,
    inline_svg,
    map_pca,
    n_clusters_curve,
    write_figures,
)
from shoal.runs import Run


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


def test_a_dendrogram_has_a_name_per_category_and_a_bracket_per_merge(digits: Run) -> None:
    figure = dendrogram(digits)
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(names) == sorted(category.category for category in digits.categories)
    brackets = axes.collections[0].get_segments()
    assert len(brackets) == len(names) - 1


def test_names_on_a_map_do_not_overlap(digits: Run) -> None:
    for axes in map_pca(digits).axes:
        areas = [text.get_window_extent() for text in axes.texts if text.get_visible()]
        assert len(areas) > 1
        assert all(area.count_overlaps(areas) == 1 for area in areas), "only with itself"


@pytest.mark.slow
def test_every_figure_of_a_whole_run_is_written_twice_and_the_missing_one_is_named(
    small: Run, tmp_path: Path
) -> None:
    files, missing = write_figures(small, tmp_path / "figures")
    drawn = sorted(set(FIGURES) - {"map_tsne"})
    assert sorted({file.stem for file in files}) == drawn
    assert len(missing) == 1
    assert "t-SNE" in missing[0]
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
