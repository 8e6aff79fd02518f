from dataclasses import replace
from pathlib import Path

import pytest

from shoal.reproduce.catalog import get_experiment
from shoal.reproduce.experiment import Options
from shoal.reproduce.runner import cells_of
from shoal.reproduce.tables import Entry, build_table, to_csv, to_latex, to_markdown

OPTIONS = Options(encoder="efficientnet-lite2", changes={"training.epochs": 40})


def results_of(name, values, seeds=(0, 1)):
    """Give every cell of a table an accuracy from `values`, one after the other."""
    cells = cells_of(get_experiment(name), ["cub"], seeds, OPTIONS)
    given = iter(values)
    return {
        cell.key: {"accuracy": {"all": value, "known": value + 1, "novel": value - 1}}
        for cell in cells
        for value in [next(given)]
    }


def test_a_table_by_hand():
    """λ 0.25 has 40 and 42: mean 41, deviation √2; λ 0.35 has one seed only; λ 0.5 none."""
    results = dict(list(results_of("12", [40.0, 42.0, 50.0, 0, 0, 0]).items())[:3])
    table = build_table(get_experiment("12"), ["cub"], (0, 1), OPTIONS, results)
    first = table.entries["0.25", "cub"][0]
    assert (first.mean, first.spread, first.n_seeds, first.paper) == (41.0, pytest.approx(2**0.5), 2, 66.8)
    assert table.entries["0.35", "cub"][1] == Entry(mean=51.0, spread=None, n_seeds=1, paper=76.5)
    assert table.entries["0.5", "cub"][2] == Entry(mean=None, spread=None, n_seeds=0, paper=60.8)
    text = to_markdown(table)
    assert "| 0.25 | 41.0 ± 1.4 (66.8) | 42.0 ± 1.4 (74.9) | 40.0 ± 1.4 (62.8) |" in text
    assert "| 0.35 | 50.0 (68.2) | 51.0 (76.5) | 49.0 (64.0) |" in text
    assert "| 0.5 | – (65.3) | – (74.4) | – (60.8) |" in text
    assert "protocol 'paper'" in text
    assert "encoder efficientnet-lite2, training.epochs 40" in text
    assert "cites the table of α" in text
    assert "0.35, CUB-200-2011: 1 of 2 seeds only." in table.notes
    assert not any(note.startswith(("0.25,", "0.5,")) for note in table.notes)


def test_latex_escapes_and_has_a_column_for_each_number():
    table = build_table(get_experiment("3"), ["cub", "cars"], (0,), OPTIONS, {})
    text = to_latex(table)
    assert "\\begin{tabular}{lcccc}" in text
    assert "Err \\%" in text
    assert "CMS & -- (168) & -- (16) & -- (156) & -- (20.4) \\\\" in text


def test_csv_has_a_line_per_number_and_empty_fields_for_what_is_not_there():
    table = build_table(get_experiment("7"), ["cub"], (0,), OPTIONS, {})
    lines = to_csv(table).splitlines()
    assert lines[0].startswith("table,row,dataset,column,ours,spread,n_seeds,paper")
    choices = '"InfoNCE and supervised contrastive, released code\'s denominator of the latter",'
    choices += '"paper, discarded after training",given,last epoch'
    assert lines[1] == "7,GCD,cub,All,,,0,27.9,efficientnet-lite2,paper," + choices
    assert len(lines) == 3


def test_every_form_of_a_table_says_that_hidden_labels_chose():
    options = replace(OPTIONS, protocol="reference")
    for name in ("1", "2", "3"):
        table = build_table(get_experiment(name), ["cub"], (0,), options, {})
        assert "(protocol 'reference')" in to_markdown(table).splitlines()[0]
        for text in (to_markdown(table), to_latex(table)):
            assert "snapshot and K chosen by HIDDEN labels" in text
            assert "set aside" not in text
            assert "kept from the loss" not in text
        printed = [line for line in to_latex(table).splitlines() if not line.startswith("%")]
        assert "hidden labels choose snapshot and K" in printed[-2]
        assert all(",reference," in line for line in to_csv(table).splitlines()[1:])


def test_the_share_set_aside_is_that_of_the_setup():
    def notes(name):
        return build_table(get_experiment(name), ["cub"], (0,), OPTIONS, {}).notes[0]

    assert "20 % of the labels kept from the loss" in notes("1")
    assert "10 % of the images set aside" in notes("2")
    assert "no labels, so nothing to choose by" in notes("7")


def test_what_a_reader_had_to_say_about_the_images_stands_under_the_table():
    results = results_of("12", [40.0, 50.0, 60.0], seeds=(0,))
    for result in results.values():
        result |= {"notes": ["60 images, but the published train part has 5,994"], "images_skipped": 2}
    notes = build_table(get_experiment("12"), ["cub"], (0,), OPTIONS, results).notes
    assert notes.count("CUB-200-2011: 60 images, but the published train part has 5,994.") == 1
    assert "CUB-200-2011: 2 image(s) could not be decoded and were left out." in notes


def test_a_number_of_clusters_is_whole_for_one_seed_and_has_a_spread_for_several():
    assert Entry(mean=207.0, spread=None, n_seeds=1, paper=168).text(paper_format="g") == "207 (168)"
    assert Entry(mean=206.333, spread=2.5, n_seeds=3, paper=None).text(paper_format="g") == "206.3 ± 2.5"
    assert Entry(mean=50.0, spread=None, n_seeds=1, paper=68.2).text() == "50.0 (68.2)"


def test_nothing_is_written_by_rendering(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    to_markdown(build_table(get_experiment("1"), ["cub"], (0,), OPTIONS, {}))
    assert list(Path().iterdir()) == []
