"""The script that chose the default recipes: what it takes away, and that a trial is the recipe with its changes."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.methods.catalog import load_recipe

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # workers import it by this name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tuning():
    yield load("tuning")
    del sys.modules["tuning"]


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
    chosen = argparse.Namespace(input_size=224, epochs=40, pool=32)
    found = tuning._settings({"method": "gcd", "loss.temperature": 0.5, "training.seed": 10}, chosen)
    recipe = load_recipe("default", "gcd")
    assert (found.loss.temperature, found.training.seed, found.training.epochs) == (0.5, 10, 40)
    assert (found.training.lr, found.head) == (recipe.training.lr, recipe.head)


@pytest.mark.slow
def test_trials_are_judged_kept_and_not_run_again(tuning, tmp_path, monkeypatch, capsys):
    """Drawings in place of birds: 600 images of 200 classes."""
    rehearsal = load("rehearsal")
    rehearsal._drawings(tmp_path)
    rehearsal._save_tiny_encoder(tmp_path)
    small = {"encoder": str(tmp_path), "n_tail_blocks": 1}
    small |= {"training.batch_size": 64, "head.width": 32, "head.dim": 16, "head.bottleneck": 8}
    trials = [{"method": method, "training.seed": seed, **small} for method in ("cms", "gcd") for seed in (10, 11)]
    (tmp_path / "trials.yaml").write_text(json.dumps(trials))
    command = f"tuning.py --data {tmp_path} --trials {tmp_path}/trials.yaml --out {tmp_path}/out --shared {tmp_path}"
    command += " --epochs 1 --pool 2 --input-size 32 --workers 1 --minutes 20 --device cpu"
    monkeypatch.setattr(sys, "argv", command.split())
    monkeypatch.syspath_prepend(str(FOLDER))
    n_threads = torch.get_num_threads()
    tuning.main()
    kept = {file: file.read_text() for file in (tmp_path / "out").glob("trial_*.json")}
    assert len(kept) == 4
    assert capsys.readouterr().out.count("| 2 |") == 2, "two rows, the mean of two seeds each"
    tuning.main()
    assert kept == {file: file.read_text() for file in (tmp_path / "out").glob("trial_*.json")}
    torch.set_num_threads(n_threads)
