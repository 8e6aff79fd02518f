"""The script that chose the default recipes: what it takes away, and that a trial is the recipe with its changes."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from shoal.errors import UsageError
from shoal.methods.registry import load_recipe

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def tuning(load_script):
    return load_script("tuning")


def test_a_third_of_the_known_classes_and_a_fifth_of_the_others_lose_their_labels(tuning):
    labels = np.repeat([-1, 0, 1, 2, 3, 4, 5], 10)
    taken = tuning.take_labels(labels, seed=3)
    assert (taken.labels[labels == -1] == -1).all()
    left = [int((taken.labels == label).sum()) for label in range(6)]
    assert sorted(left) == [0, 0, 8, 8, 8, 8]
    assert np.array_equal(taken.rows, np.flatnonzero(taken.labels != labels))
    assert np.array_equal(taken.truth, labels[taken.rows])
    assert np.array_equal(taken.is_known, np.array(left)[taken.truth] > 0)


def test_a_trial_is_the_default_recipe_with_its_changes(tuning):
    chosen = argparse.Namespace(input_size=224, epochs=40, pool=32, rehearse=False)
    found = tuning._settings(
        {"method": "gcd", "loss.temperature": 0.5, "training.seed": 10}, chosen
    )
    recipe = load_recipe("default", "gcd")
    assert (found.loss.temperature, found.training.seed, found.training.epochs) == (0.5, 10, 40)
    assert (found.training.lr, found.head) == (recipe.training.lr, recipe.head)


def test_a_trial_of_what_its_method_has_not_is_refused(tuning):
    chosen = argparse.Namespace(input_size=224, epochs=40, pool=32, rehearse=False)
    assert tuning._settings({"method": "gcd", "n_init": 5}, chosen).n_init == 5
    with pytest.raises(UsageError, match="unknown setting 'n_init'"):
        tuning._settings({"method": "cms", "n_init": 5}, chosen)


@pytest.mark.parametrize(
    ("name", "n_trials"), [("tail", 24), ("tail_lr", 24), ("settings", 48), ("final", 24)]
)
def test_the_lists_have_as_many_configurations_of_either_method(tuning, name, n_trials):
    listed = tuning.expand(yaml.safe_load((FOLDER / f"trials_{name}.yaml").read_text()))
    tuning.check_even(listed)
    assert len(listed) == len({json.dumps(trial) for trial in listed}) == n_trials
    assert {trial["method"] for trial in listed} == {"cms", "gcd"}
    if name.startswith("tail"):
        assert {trial["n_tail_blocks"] for trial in listed} == {1, 3, 5, 8}


@pytest.mark.parametrize(
    ("name", "n_trials", "counts"),
    [("snapshot", 14, "cms 3, gcd 2"), ("losses", 40, "cms 26, gcd 10")],
)
def test_the_lists_of_early_comparisons_say_what_they_were_run_with_and_that_they_are_uneven(
    tuning, name, n_trials, counts
):
    text = (FOLDER / f"trials_{name}.yaml").read_text()
    listed = tuning.expand(yaml.safe_load(text))
    assert len(listed) == len({json.dumps(trial) for trial in listed}) == n_trials
    with pytest.raises(UsageError, match=rf"\({counts}\); give every method as many, or --uneven"):
        tuning.check_even(listed)
    assert "--uneven" in text
    chosen = argparse.Namespace(input_size=224, epochs=25, pool=16, rehearse=False)
    for trial in listed:
        assert trial["n_tail_blocks"] == tuning._settings(trial, chosen).n_tail_blocks == 5
        assert {"head.kind", "training.lr", "training.seed"} <= trial.keys()


def test_a_list_of_one_method_has_nothing_to_be_even_with(tuning):
    listed = tuning.expand(yaml.safe_load((FOLDER / "trials_losses_again.yaml").read_text()))
    tuning.check_even(listed)
    assert len(listed) == 16
    losses = {(trial["loss.denominator"], trial["loss.detach_norm"]) for trial in listed}
    assert losses == {
        (kind, is_detached) for kind in ("paper", "reference") for is_detached in (False, True)
    }
    assert {trial["training.seed"] for trial in listed} == {10, 11, 12, 13}
    chosen = argparse.Namespace(input_size=224, epochs=25, pool=16, rehearse=False)
    recipe = load_recipe("default", "cms")
    for trial in listed:
        found = tuning._settings(trial, chosen)
        assert (found.head, found.training.lr, found.n_tail_blocks) == (
            recipe.head,
            recipe.training.lr,
            1,
        )


def test_a_list_that_is_refused_is_one_line(tuning, tmp_path, monkeypatch, capsys):
    command = f"tuning.py --trials {FOLDER}/trials_losses.yaml --out {tmp_path}/out --shared {tmp_path} --device cpu"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as ended:
        tuning.main()
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(
        "tuning.py: error: trials: found unequal numbers of configurations (cms 26, gcd 10)"
    )


def test_a_list_that_favors_a_method_is_refused(tuning):
    with pytest.raises(UsageError, match=r"unequal numbers of configurations \(cms 2, gcd 1\)"):
        tuning.check_even(
            tuning.expand(
                [{"method": "cms", "x": [1, 2]}, {"method": "gcd", "training.seed": [1, 2]}]
            )
        )


def judged(tuning, folder, **scores):
    """Files of trials: the depth of a tail, and All of each seed."""
    for name, values in scores.items():
        for seed, value in enumerate(values):
            three = [value, value, value]
            trial = {
                "method": "cms",
                "n_tail_blocks": int(name.removeprefix("d")),
                "training.seed": seed,
            }
            result = {"trial": trial, "tree": three, "shifted": three, "seconds": 1.0}
            (folder / f"trial_{name}_{seed}.json").write_text(json.dumps(result))
    return tuning.table(folder)


def test_the_shallower_tail_within_one_standard_error_is_chosen(tuning, tmp_path):
    """58, 62, 58, 62 have mean 60 and standard error 2.31 / 2 = 1.15: 59.2 is within it, 58.5 is not."""
    found = judged(tuning, tmp_path, d8=[58, 62, 58, 62], d5=[59.2] * 4, d3=[58.5] * 4, d1=[50] * 4)
    assert "| cms | n_tail_blocks 8 | 4 | 60.0 ± 1.2 / " in found
    assert (
        "Chosen for cms: n_tail_blocks 5 (59.2; the shallower tail within 1.2 of 60.0; of 4)."
        in found
    )


def test_the_best_is_chosen_where_no_shallower_tail_is_near_or_one_seed_says_nothing_of_the_error(
    tuning, tmp_path
):
    found = judged(tuning, tmp_path, d8=[50.0], d5=[60.0], d3=[59.9])
    assert "| cms | n_tail_blocks 5 | 1 | 60.0 / " in found
    assert "Chosen for cms: n_tail_blocks 5 (60.0; the best mean; of 3)." in found


@pytest.mark.slow
def test_trials_are_judged_kept_and_not_run_again(tuning, tmp_path, monkeypatch, capsys):
    """Drawings in place of birds: 600 images of 200 classes."""
    trials = [
        {"method": method, "n_tail_blocks": [1, 8], "training.seed": [10, 11]}
        for method in ("cms", "gcd")
    ]
    (tmp_path / "trials.yaml").write_text(json.dumps(trials))
    command = f"tuning.py --rehearse --trials {tmp_path}/trials.yaml --out {tmp_path}/out --shared {tmp_path}"
    monkeypatch.setattr(sys, "argv", command.split())
    n_threads = torch.get_num_threads()
    tuning.main()
    kept = {file: file.read_text() for file in (tmp_path / "out").glob("trial_*.json")}
    assert len(kept) == 8
    found = capsys.readouterr().out
    assert found.count("| 2 |") == 4, "four rows, the mean of two seeds each"
    assert "Chosen for cms: n_tail_blocks" in found
    assert "Chosen for gcd: n_tail_blocks" in found
    assert (tmp_path / "out" / "table.md").read_text() == found.removesuffix("\n")
    tuning.main()
    assert kept == {file: file.read_text() for file in (tmp_path / "out").glob("trial_*.json")}
    torch.set_num_threads(n_threads)
