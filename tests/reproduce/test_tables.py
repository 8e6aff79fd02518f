"""Numbers are in the right cells, and tables have the notes that a reader needs."""

from dataclasses import replace

import pytest

from shoal.reproduce.experiments import MISPRINTS, get_experiment
from shoal.reproduce.plan import ReproduceOptions, make_plan
from shoal.reproduce.tables import build_table

OPTIONS = ReproduceOptions(encoder="efficientnet-lite2", changes={"training.epochs": 40})


def table_of(name, *, datasets=("cub",), seeds=(0,), options=OPTIONS, results=None):
    plan = make_plan(get_experiment(name), datasets, seeds, options)
    return build_table(plan, results or {}, {})


def results_of(name, values, seeds=(0, 1)):
    """Give every cell of a table an accuracy from `values`, one after the other."""
    cells = make_plan(get_experiment(name), ["cub"], seeds, OPTIONS).cells
    return {
        cell.key: {
            "accuracy": {"all": value, "known": value + 1, "novel": value - 1},
            "notes": [],
            "images": 60,
            "collapse": None,
        }
        for cell, value in zip(cells, values, strict=False)
    }


def test_a_table_by_hand():
    """λ 0.25 has accuracies 40 and 42: mean 41, deviation √2; λ 0.35 has one seed; λ 0.5 none."""
    results = results_of("14", [40.0, 42.0, 50.0])
    text, records = table_of("14", seeds=(0, 1), results=results)
    first = records[0]
    assert (first["ours"], first["n_seeds"], first["paper"]) == (41.0, 2, 66.8)
    assert first["spread"] == pytest.approx(2**0.5)
    last = records[-1]
    assert (last["ours"], last["spread"], last["n_seeds"], last["paper"]) == (None, None, 0, 60.8)
    lines = text.splitlines()
    assert "| 0.25 | 41.0 ± 1.4 (66.8) | 42.0 ± 1.4 (74.9) | 40.0 ± 1.4 (62.8) |" in lines
    assert "| 0.35 | 50.0 (68.2) | 51.0 (76.5) | 49.0 (64.0) |" in lines
    assert "| 0.5 | – (65.3) | – (74.4) | – (60.8) |" in lines


@pytest.mark.parametrize("name", ["1", "2", "3"])
def test_every_form_of_a_table_says_that_hidden_labels_chose(name):
    text, records = table_of(name, options=replace(OPTIONS, protocol="reference"))
    assert "hidden labels" in text.splitlines()[0]
    assert "HIDDEN labels" in text
    assert all(record["protocol"] == "reference" for record in records)
    assert "hidden" not in table_of(name)[0].lower()


def test_a_table_ends_with_the_misprints_of_the_paper_and_remarks():
    results = results_of("14", [40.0, 50.0, 60.0], seeds=(0,))
    for result in results.values():
        result["notes"] = ["60 images", "2 could not be decoded"]
    text, records = table_of("14", results=results)
    *_, misprint, remark, skipped = [line.removeprefix("- ") for line in text.splitlines()]
    assert misprint in MISPRINTS["14"]
    for record in records:
        assert (record["images"], record["remarks"]) == (60, f"{remark} {skipped}")


@pytest.mark.parametrize(("name", "setup"), [("1", "transductive"), ("2", "inductive")])
def test_a_method_that_the_paper_does_not_have_gets_a_row_without_its_numbers(name, setup):
    options = replace(OPTIONS, methods=("legogcd", "cms", "legogcd"))
    experiment = get_experiment(name, options.methods)
    rows = [row.name for row in experiment.rows]
    assert rows.count("LegoGCD, K given") == 1
    assert rows.index("LegoGCD, K given") == rows.index("CMS, K given") + 1
    assert next(row.setup for row in experiment.rows if row.method == "legogcd") == setup
    plan = make_plan(experiment, ["cub"], [0], options)
    assert {cell.method for cell in plan.cells} == {"cms", "legogcd"}
    table, _ = build_table(plan, {}, {})
    assert "| LegoGCD, K given | – | – | – |" in table
    assert get_experiment("4", options.methods) == get_experiment("4"), "rows are not methods"
    assert get_experiment(name, ("cms",)) == get_experiment(name)
