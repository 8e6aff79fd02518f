"""Every table from end to end, on the stand-in; tables share cells, as in real use."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UnknownName, UsageError
from shoal.reproduce import loaded_dataset
from shoal.reproduce.experiments import EXPERIMENTS, get_experiment

PROTOCOLS = {"paper": "", "reference": "_reference"}


# Tables with more training runs than the others
LONG = ("12", "13", "iterations")


def plain_first(names):
    """Return every name with both protocols; with the reference protocol, all but the first are
    slow."""

    def is_slow(name, protocol):
        return name in LONG or (protocol == "reference" and name != names[0])

    return [
        pytest.param(name, protocol, marks=[pytest.mark.slow] if is_slow(name, protocol) else [])
        for name in names
        for protocol in PROTOCOLS
    ]


@pytest.mark.parametrize(("name", "protocol"), plain_first([*EXPERIMENTS]))
def test_the_table_runs_and_every_row_of_ours_has_a_number(run, folder, stand_in, name, protocol):
    found = run(name, options=replace(stand_in.options, protocol=protocol))
    assert not found.failures
    stem = f"table{name}{PROTOCOLS[protocol]}"
    assert f"Protocol '{protocol}'" in found.text
    assert ("HIDDEN labels" in found.text) == (protocol == "reference" and name != "7")
    rows = get_experiment(name).rows
    of_row = {row.name: [r for r in found.records if r["row"] == row.name] for row in rows}
    for row in rows:
        assert of_row[row.name]
        is_run = row.method in stand_in.options.methods
        assert all((r["ours"] is not None) == is_run for r in of_row[row.name])
        assert all(np.isfinite(r["ours"]) for r in of_row[row.name] if r["ours"] is not None)
        assert all(r["protocol"] == protocol for r in of_row[row.name])
    assert {file.suffix for file in found.files} == {".md", ".csv"}
    with (folder / f"{stem}.csv").open() as lines:
        assert len(list(csv.DictReader(lines))) == len(found.records)
    assert (folder / f"{stem}.md").read_text() == found.text
    rows_written = [line for line in found.text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows_written}) == 1


def scrambling(read, parts=("train", "test")):
    """Return a reader of benchmarks that shuffles the hidden labels of some parts."""

    def scrambled(name, root, *, part="train"):
        benchmark = read(name, root, part=part)
        if part not in parts:
            return benchmark
        hidden = benchmark.collection.labels == -1
        truth = benchmark.truth.copy()
        truth[hidden] = np.random.default_rng(6).permutation(truth[hidden])
        return replace(benchmark, truth=truth)

    return scrambled


def choices(folder):
    chosen = {}
    for file in (folder / "cells").glob("*.json"):
        found = json.loads(file.read_text())
        chosen[file.name] = [
            found[k]
            for k in ("n_clusters", "n_shifts", "epoch", "validation", "labeled_accuracies")
        ]
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "parts"), [("1", ("test",)), ("2", ("train",)), ("3", ("test",))]
)
def test_the_released_codes_protocol_does_look_at_hidden_labels(
    run, tmp_path, monkeypatch, stand_in, table, parts
):
    """Choices depend on hidden labels of the test part; in the inductive table, of the training
    part."""
    options = replace(
        stand_in.options,
        protocol="reference",
        changes={**stand_in.options.changes, "training.epochs": 10},
    )
    run(table, out=tmp_path / "true", options=options)
    monkeypatch.setattr(loaded_dataset, "read_benchmark", scrambling(stand_in.read, parts))
    run(table, out=tmp_path / "scrambled", options=options)
    before = choices(tmp_path / "true")
    after = choices(tmp_path / "scrambled")
    assert before.keys() == after.keys()
    trained = {name for name in before if "_agglomerative_" not in name}
    assert {name for name in before if before[name][3] != after[name][3]} == trained
    assert any(before[name][:3] != after[name][:3] for name in trained), (
        "K, the shifts or the epoch is another"
    )
    for name in before:
        assert json.loads((tmp_path / "true" / "cells" / name).read_text())[
            "hidden_labels_chose"
        ] == (name in trained)


def test_scrambled_hidden_labels_change_no_choice(run, tmp_path, monkeypatch, stand_in):
    """K, snapshot and number of shifts do not depend on hidden labels; only scores differ."""
    run("1", out=tmp_path / "true")
    monkeypatch.setattr(loaded_dataset, "read_benchmark", scrambling(stand_in.read))
    run("1", out=tmp_path / "scrambled")
    assert choices(tmp_path / "true") == choices(tmp_path / "scrambled")
    accuracy = [
        json.loads(next((tmp_path / name / "cells").glob("cub_cms_cms_given_*")).read_text())[
            "accuracy"
        ]["all"]
        for name in ("true", "scrambled")
    ]
    assert accuracy[0] > accuracy[1]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["1", "2", "3"])
def test_every_method_of_the_paper_runs_and_hidden_labels_change_no_choice(
    run, tmp_path, monkeypatch, stand_in, table
):
    small = {
        "n_init": 2,
        "pim.fit_steps": 20,
        "pim.conditional_entropy_weights": [0.2, 1.0],
        "uno.width": 32,
    }
    small |= {
        "promptcal.first_stage": 0.5,
        "promptcal.memory_size": 32,
        "promptcal.n_negatives": 16,
    }
    run_here = {row.method for row in get_experiment(table).rows}
    small = {
        name: value
        for name, value in small.items()
        if name.partition(".")[0] in {*run_here, "n_init"}
    }
    options = replace(stand_in.options, methods=(), changes={**stand_in.options.changes, **small})
    found = run(table, out=tmp_path / "true", options=options)
    assert not found.failures
    assert all(record["ours"] is not None for record in found.records)
    monkeypatch.setattr(loaded_dataset, "read_benchmark", scrambling(stand_in.read))
    run(table, out=tmp_path / "scrambled", options=options)
    assert choices(tmp_path / "true") == choices(tmp_path / "scrambled")


def test_the_inductive_setup_scores_the_test_part_only(run, tiny, folder):
    run("16", out=folder / "inductive")
    assert ("cub", "test") in tiny["reads"]
    found = [
        json.loads(file.read_text()) for file in (folder / "inductive" / "cells").glob("*.json")
    ]
    inductive = [result for result in found if result["cell"]["setup"] == "inductive"]
    assert {result["cell"]["validation_share"] for result in inductive} == {0.1}
    assert all(result["accuracy"]["all"] > 50 for result in inductive)


def test_what_cannot_be_run_is_refused(run, tmp_path):
    with pytest.raises(UnknownName, match="18"):
        run("18")
    with pytest.raises(UnknownName, match="cubs"):
        run("1", roots={"cubs": "nowhere"})
    with pytest.raises(UsageError):
        run("1", seeds=())
