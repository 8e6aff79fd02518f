"""Figures say what they were made with and what they do not show; their numbers can be had."""

import csv
import io
import json
import statistics

import pytest

from shoal.reproduce.experiments import get_experiment
from shoal.reproduce.figures import build_drawing
from shoal.reproduce.plan import make_plan


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
