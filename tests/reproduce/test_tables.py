"""Numbers in their places, and every form of a table with what a reader must know."""

from dataclasses import replace

import pytest

from shoal.reproduce.experiments import get_experiment
from shoal.reproduce.plan import ReproduceOptions, make_cell, make_plan
from shoal.reproduce.tables import build_table, choice_notes, choices_of, to_latex, to_markdown

OPTIONS = ReproduceOptions(encoder="efficientnet-lite2", changes={"training.epochs": 40})


def table_of(name, *, datasets=("cub",), seeds=(0,), options=OPTIONS, results=None):
    plan = make_plan(get_experiment(name), datasets, seeds, options)
    return build_table(plan, results or {}, {})


def results_of(name, values, seeds=(0, 1)):
    """Give every cell of a table an accuracy from `values`, one after the other."""
    cells = make_plan(get_experiment(name), ["cub"], seeds, OPTIONS).cells
    return {
        cell.key: {"accuracy": {"all": value, "known": value + 1, "novel": value - 1}}
        for cell, value in zip(cells, values, strict=False)
    }


def chosen(table, row_name, options=OPTIONS, decided=()):
    experiment = get_experiment(table)
    row = next(row for row in experiment.rows if row.name == row_name)
    return choices_of(make_cell(experiment, row, "cub", 0, options), decided)


def test_a_table_by_hand():
    """λ 0.25 has 40 and 42: mean 41, deviation √2; λ 0.35 has one seed only; λ 0.5 none."""
    results = results_of("14", [40.0, 42.0, 50.0])
    table = table_of("14", seeds=(0, 1), results=results)
    first = table.records[0]
    assert (first["ours"], first["n_seeds"], first["paper"]) == (41.0, 2, 66.8)
    assert first["spread"] == pytest.approx(2**0.5)
    last = table.records[-1]
    assert (last["ours"], last["spread"], last["n_seeds"], last["paper"]) == (None, None, 0, 60.8)
    lines = to_markdown(table).splitlines()
    assert "| 0.25 | 41.0 ± 1.4 (66.8) | 42.0 ± 1.4 (74.9) | 40.0 ± 1.4 (62.8) |" in lines
    assert "| 0.35 | 50.0 (68.2) | 51.0 (76.5) | 49.0 (64.0) |" in lines
    assert "| 0.5 | – (65.3) | – (74.4) | – (60.8) |" in lines
    remarks = {record["row"]: record["remarks"] for record in table.records}
    assert [remarks[row] is None for row in ("0.25", "0.35", "0.5")] == [True, False, True]


def test_latex_escapes_and_has_a_column_for_each_number():
    text = to_latex(table_of("3", datasets=["cub", "cars"]))
    assert "\\begin{tabular}{lcccc}" in text
    assert "Err \\%" in text
    assert "CMS & -- (168) & -- (16) & -- (156) & -- (20.4) \\\\" in text
    own = ReproduceOptions(encoder="/models/a_b&c#1")
    assert "/models/a\\_b\\&c\\#1" in to_latex(table_of("7", options=own))


@pytest.mark.parametrize("name", ["1", "2", "3"])
def test_every_form_of_a_table_says_that_hidden_labels_chose(name):
    table = table_of(name, options=replace(OPTIONS, protocol="reference"))
    for text in (to_markdown(table), to_latex(table)):
        assert "hidden labels" in "\n".join(text.splitlines()[:2])
        assert "HIDDEN labels" in text
    assert all(record["protocol"] == "reference" for record in table.records)
    plain = table_of(name)
    assert "hidden" not in (to_markdown(plain) + to_latex(plain)).lower()


def test_every_form_of_a_table_has_its_notes_remarks_and_the_misprints_of_the_paper():
    results = results_of("14", [40.0, 50.0, 60.0], seeds=(0,))
    for result in results.values():
        result |= {"notes": ["60 images"], "images": 60, "images_skipped": 2}
    table = table_of("14", results=results)
    lines = to_markdown(table).splitlines()
    assert [f"- {note}" for note in table.notes] == lines[-len(table.notes) :]
    assert to_latex(table).count("\\footnotesize") == len(table.notes)
    *_, misprint, remark, skipped = table.notes
    for record in table.records:
        assert record["misprints"] == misprint
        assert (record["images"], record["remarks"]) == (60, f"{remark} {skipped}")


def test_rows_and_datasets_are_named_where_they_differ_in_a_choice():
    names = ("GCD, K given", "CMS, K given", "CMS, K estimated")
    rows = {name: {"cub": chosen("1", name), "cars": chosen("1", name)} for name in names}
    rows["GCD, K given"]["cars"]["head"] = "none"
    notes = dict(note.split(": ", 1) for note in choice_notes(rows))
    assert not any(name in notes["Snapshot"] for name in names)
    assert "given (GCD, K given | CMS, K given); " in notes["K"]
    assert notes["K"].endswith("(CMS, K estimated).")
    assert "none (GCD, K given on Stanford Cars)" in notes["Head"]


@pytest.mark.parametrize(
    ("row", "protocol", "is_hidden"),
    [
        ("CMS, K estimated", "paper", False),
        ("CMS, K estimated", "reference", True),
        ("Agglomerative, K estimated", "reference", False),
    ],
)
def test_choices_say_whether_hidden_labels_chose(row, protocol, is_hidden):
    found = chosen("1", row, replace(OPTIONS, protocol=protocol))
    assert ("HIDDEN" in found["k_rule"]) == is_hidden
    assert ("HIDDEN" in found["snapshot"]) == is_hidden


def test_the_rule_that_decided_is_named_where_it_is_not_the_one_asked_for():
    plain = chosen("1", "CMS, K estimated")["k_rule"]
    assert chosen("1", "CMS, K estimated", decided=["pairs", None])["k_rule"] == plain
    other = chosen("1", "CMS, K estimated", decided=["median", "gap", "median"])["k_rule"]
    assert "'gap' and 'median'" in other
    assert chosen("1", "CMS, K given", decided=["gap"])["k_rule"] == "given"
