import csv
import io
from dataclasses import replace

import pytest

from shoal.reproduce.experiment import ReproduceOptions
from shoal.reproduce.paper_experiments import get_experiment
from shoal.reproduce.plan import make_plan
from shoal.reproduce.result_table import TableEntry, to_csv, to_latex, to_markdown, to_records
from shoal.reproduce.table_building import build_table

OPTIONS = ReproduceOptions(encoder="efficientnet-lite2", changes={"training.epochs": 40})


def results_of(name, values, seeds=(0, 1)):
    """Give every cell of a table an accuracy from `values`, one after the other."""
    cells = make_plan(get_experiment(name), ["cub"], seeds, OPTIONS).cells
    given = iter(values)
    return {
        cell.key: {"accuracy": {"all": value, "known": value + 1, "novel": value - 1}}
        for cell in cells
        for value in [next(given)]
    }


def test_a_table_by_hand():
    """λ 0.25 has 40 and 42: mean 41, deviation √2; λ 0.35 has one seed only; λ 0.5 none."""
    results = dict(list(results_of("14", [40.0, 42.0, 50.0, 0, 0, 0]).items())[:3])
    table = build_table(make_plan(get_experiment("14"), ["cub"], (0, 1), OPTIONS), results)
    first = table.entries["0.25", "cub"][0]
    assert (first.mean, first.spread, first.n_seeds, first.paper) == (
        41.0,
        pytest.approx(2**0.5),
        2,
        66.8,
    )
    assert table.entries["0.35", "cub"][1] == TableEntry(
        mean=51.0, spread=None, n_seeds=1, paper=76.5
    )
    assert table.entries["0.5", "cub"][2] == TableEntry(
        mean=None, spread=None, n_seeds=0, paper=60.8
    )
    text = to_markdown(table)
    assert "| 0.25 | 41.0 ± 1.4 (66.8) | 42.0 ± 1.4 (74.9) | 40.0 ± 1.4 (62.8) |" in text
    assert "| 0.35 | 50.0 (68.2) | 51.0 (76.5) | 49.0 (64.0) |" in text
    assert "| 0.5 | – (65.3) | – (74.4) | – (60.8) |" in text
    assert "protocol 'paper'" in text
    assert (
        "- Ours: encoder efficientnet-lite2, images of 224 px, 40 epochs, seeds 0, 1, mean ± standard"
        in text
    )
    assert "cites the table of α" in text
    assert "0.35, CUB-200-2011: 1 of 2 seeds only." in table.notes
    assert not any(note.startswith(("0.25,", "0.5,")) for note in table.notes)


def test_latex_escapes_and_has_a_column_for_each_number():
    table = build_table(make_plan(get_experiment("3"), ["cub", "cars"], (0,), OPTIONS), {})
    text = to_latex(table)
    assert "\\begin{tabular}{lcccc}" in text
    assert "Err \\%" in text
    assert "CMS & -- (168) & -- (16) & -- (156) & -- (20.4) \\\\" in text


def printed(table):
    return [line for line in to_latex(table).splitlines() if not line.startswith("%")]


def test_a_printed_table_says_what_ours_and_the_papers_numbers_were_made_with():
    options = replace(
        OPTIONS, input_size=112, changes={**OPTIONS.changes, "training.batch_size": 64}
    )
    line = (
        "Ours: encoder efficientnet-lite2, images of 112 px, 40 epochs, training.batch\\_size 64, seeds 0, 1, "
        "mean $\\pm$ standard deviation; protocol 'paper', which says who chooses and not which losses are taken ("
    )
    found = printed(build_table(make_plan(get_experiment("14"), ["cub"], (0, 1), options), {}))
    assert sum(line in text for text in found) == 1
    assert (
        sum(
            "In parentheses the paper's, with dino-vitb16, another encoder. -- not run." in text
            for text in found
        )
        == 1
    )
    same = "\n".join(
        printed(build_table(make_plan(get_experiment("14"), ["cub"], (0,), ReproduceOptions()), {}))
    )
    assert "encoder dino-vitb16, images of 224 px, 200 epochs, seed 0; protocol" in same
    assert "standard deviation" not in same, "of one seed there is none"
    assert "the paper's, with dino-vitb16." in same
    own = ReproduceOptions(encoder="/models/a_b&c#1")
    found = "\n".join(printed(build_table(make_plan(get_experiment("7"), ["cub"], (0,), own), {})))
    assert "encoder /models/a\\_b\\&c\\#1, images of the encoder's own size, 25 epochs" in found


def test_datasets_are_named_where_their_epochs_differ():
    table = build_table(make_plan(get_experiment("14"), ["cub", "imagenet100"], (0,), OPTIONS), {})
    assert "images of 224 px, 40 epochs, seed 0" in table.notes[0]
    own = {key: replace(found, epochs=8) for key, found in table.choices.items() if key[1] == "cub"}
    shown = replace(table, choices=table.choices | own).notes[0]
    assert "images of 224 px, 8 epochs on CUB-200-2011, 40 epochs on ImageNet-100, seed 0" in shown


@pytest.mark.parametrize(
    ("name", "has_kmeans"), [("1", True), ("3", True), ("4", True), ("7", True), ("12", False)]
)
def test_the_starts_of_k_means_stand_under_every_table_that_has_it(name, has_kmeans):
    note = "Semi-supervised k-means: 10 starts (100 in GCD's released code)."
    table = build_table(make_plan(get_experiment(name), ["cub"], (0,), OPTIONS), {})
    assert (f"- {note}" in to_markdown(table).splitlines()) == has_kmeans
    assert any(note in line for line in printed(table)) == has_kmeans
    published = replace(OPTIONS, changes={"gcd.n_init": 100})
    notes = build_table(make_plan(get_experiment(name), ["cub"], (0,), published), {}).notes
    assert any("100 starts (as in GCD's released code)" in text for text in notes) == has_kmeans


def test_the_released_codes_settings_are_said_of_the_rows_that_have_them():
    def first_note(name):
        return build_table(
            make_plan(get_experiment(name), ["cub"], (0,), replace(OPTIONS, protocol="reference")),
            {},
        ).notes[0]

    assert (
        "CMS: the released code's losses, head and bank, as listed below, its views, gradients not cut; "
        in first_note("1")
    )
    assert (
        "GCD: its own losses and head, the released code's views, gradients not cut; "
        in first_note("1")
    )
    assert "frozen features: K by given labels; " in first_note("1")
    assert "GCD" not in first_note("14")
    assert "frozen" not in first_note("14")


def test_csv_has_a_line_per_number_and_empty_fields_for_what_is_not_there():
    table = build_table(make_plan(get_experiment("7"), ["cub"], (0,), OPTIONS), {})
    lines = to_csv(table).splitlines()
    assert lines[0].startswith("table,row,dataset,column,ours,spread,n_seeds,paper")
    choices = '"InfoNCE and supervised contrastive, released code\'s denominator of the latter",'
    choices += '"paper, discarded after training",given,last epoch,10 starts (100 in GCD\'s released code),40,224'
    assert lines[1] == "7,GCD,cub,All,,,0,27.9,efficientnet-lite2,paper,,,," + choices
    assert len(lines) == 3


def test_every_form_of_a_table_says_that_hidden_labels_chose():
    options = replace(OPTIONS, protocol="reference")
    for name in ("1", "2", "3"):
        table = build_table(make_plan(get_experiment(name), ["cub"], (0,), options), {})
        title = "(protocol 'reference': hidden labels chose snapshot and K)"
        assert to_markdown(table).splitlines()[0].endswith(title)
        assert title in printed(table)[1]
        for text in (to_markdown(table), "\n".join(printed(table))):
            assert "snapshot and K chosen by HIDDEN labels" in text
            assert "set aside" not in text
            assert "kept from the loss" not in text
        assert all(",reference," in line for line in to_csv(table).splitlines()[1:])
    nothing_to_choose = build_table(make_plan(get_experiment("7"), ["cub"], (0,), options), {})
    assert nothing_to_choose.header.endswith("(protocol 'reference')")


def test_every_form_of_a_table_has_its_remarks_and_the_misprints_of_the_paper():
    results = results_of("14", [40.0, 50.0, 60.0], seeds=(0,))
    first, *_ = results.values()
    first |= {"notes": ["60 images, but the published train part has 5,994"], "images": 60}
    table = build_table(make_plan(get_experiment("14"), ["cub"], (0,), OPTIONS), results)
    remark = "CUB-200-2011: 60 images, but the published train part has 5,994."
    assert f"- {remark}" in to_markdown(table).splitlines()
    assert any(remark in line for line in printed(table))
    assert any(
        "The section of the paper on $\\lambda$ cites the table of $\\alpha$." in line
        for line in printed(table)
    )
    records = to_records(table)
    assert [record["remarks"] for record in records] == [remark] * 3 + [None] * 6
    assert [record["images"] for record in records] == [60] * 3 + [None] * 6
    assert {record["misprints"] for record in records} == {
        "The section of the paper on λ cites the table of α."
    }
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [(line["images"], line["remarks"]) for line in lines[:1]] == [("60", remark)]


def test_one_epoch_is_not_called_epochs():
    table = build_table(
        make_plan(
            get_experiment("14"), ["cub"], (0,), ReproduceOptions(changes={"training.epochs": 1})
        ),
        {},
    )
    assert "images of 224 px, 1 epoch, seed 0" in table.notes[0]


def test_the_share_set_aside_is_that_of_the_setup():
    def notes(name):
        return build_table(make_plan(get_experiment(name), ["cub"], (0,), OPTIONS), {}).notes[0]

    assert "20 % of the labels kept from the loss" in notes("1")
    assert "10 % of the images set aside" in notes("2")
    assert "no labels, so nothing to choose by" in notes("7")


def test_what_a_reader_had_to_say_about_the_images_stands_under_the_table():
    results = results_of("14", [40.0, 50.0, 60.0], seeds=(0,))
    for result in results.values():
        result |= {
            "notes": ["60 images, but the published train part has 5,994"],
            "images_skipped": 2,
        }
    notes = build_table(make_plan(get_experiment("14"), ["cub"], (0,), OPTIONS), results).notes
    assert notes.count("CUB-200-2011: 60 images, but the published train part has 5,994.") == 1
    assert "CUB-200-2011: 2 images could not be decoded and were left out." in notes


def test_a_number_of_clusters_is_whole_for_one_seed_and_has_a_spread_for_several():
    assert (
        TableEntry(mean=207.0, spread=None, n_seeds=1, paper=168).text(paper_format="g")
        == "207 (168)"
    )
    assert (
        TableEntry(mean=206.333, spread=2.5, n_seeds=3, paper=None).text(paper_format="g")
        == "206.3 ± 2.5"
    )
    assert TableEntry(mean=50.0, spread=None, n_seeds=1, paper=68.2).text() == "50.0 (68.2)"
