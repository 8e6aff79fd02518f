"""Figures say what they were made with and what they do not show; their numbers can be had."""

import csv
import io
import json
import statistics

import pytest

from shoal.reproduce.experiments import get_experiment
from shoal.reproduce.figures import build_drawing, draw
from shoal.reproduce.plan import make_plan


def written(figure):
    """All words of a figure, lines joined."""
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def results(folder):
    return {file.stem: json.loads(file.read_text()) for file in (folder / "cells").glob("*.json")}


@pytest.mark.slow
def test_the_figure_of_iterations_has_mean_and_spread_of_all_seeds(run, tmp_path):
    found = run("iterations", out=tmp_path, seeds=(0, 1, 2))
    cells = results(tmp_path).values()
    assert len(cells) == 3
    values = [cell["material"][2]["novel"] for cell in cells]
    (point,) = [r for r in found.records if (r["shifts"], r["column"]) == (2, "Novel")]
    assert point["ours"] == pytest.approx(statistics.fmean(values))
    assert point["spread"] == pytest.approx(statistics.stdev(values))
    assert point["n_seeds"] == 3
    assert "seeds 0, 1, 2, mean and standard deviation" in point["notes"]
    lines = list(csv.DictReader(io.StringIO((tmp_path / "figure_iterations_cub.csv").read_text())))
    assert len(lines) == len(found.records) == 9 * 3
    assert float(lines[0]["ours"]) == pytest.approx(found.records[0]["ours"])


def test_a_band_is_drawn_around_the_mean_of_several_seeds_and_none_around_one(stand_in):
    """Accuracies 40 and 60 after every shift: mean 50, the band from 50 - √200 to 50 + √200."""
    experiment = get_experiment("iterations")
    options = stand_in.options
    cells = make_plan(experiment, ["cub"], (0, 1), options).cells
    found = {
        cell.key: {
            "material": [
                {"shifts": i, "all": value, "known": value, "novel": value} for i in range(3)
            ]
        }
        for cell, value in zip(cells, (40.0, 60.0), strict=True)
    }
    axes = draw(
        build_drawing(make_plan(experiment, ["cub"], (0, 1), options), "cub", found, {})
    ).axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[50.0] * 3] * 3
    assert len(axes.collections) == 3
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((50 - 200**0.5, 50 + 200**0.5))
    alone = draw(
        build_drawing(make_plan(experiment, ["cub"], (0,), options), "cub", found, {})
    ).axes[0]
    assert [list(line.get_ydata()) for line in alone.lines] == [[40.0] * 3] * 3
    assert not alone.collections


def test_a_figure_of_one_seed_says_which_one_it_shows(stand_in):
    """Of seeds 0 and 1 only the second is there."""
    experiment = get_experiment("retrieval")
    options = stand_in.options
    _, second = make_plan(experiment, ["cub"], (0, 1), options).cells
    drawing = build_drawing(
        make_plan(experiment, ["cub"], (0, 1), options), "cub", {second.key: {"material": []}}, {}
    )
    assert drawing.notes[0].endswith("seed 1; protocol 'paper'.")
    assert "CMS, CUB-200-2011: 1 of 2 seeds only." in drawing.notes
