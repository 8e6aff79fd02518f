"""Trainings are cached: other tables reuse finished ones, and interrupted ones resume."""

import json
from dataclasses import replace

import pytest
import torch

from shoal.errors import UsageError
from shoal.reproduce import loaded_dataset
from shoal.reproduce.runner import reproduce
from shoal.training.trainer import Trainer


def counting_epochs(monkeypatch, stop_at=None):
    """Return a list of the epochs trained from now on; interrupt after `stop_at` of them."""
    seen = []
    original = Trainer.run_epoch

    def run_epoch(self, epoch, progress=None):
        if stop_at == len(seen):
            raise KeyboardInterrupt
        seen.append(epoch)
        return original(self, epoch, progress)

    monkeypatch.setattr(Trainer, "run_epoch", run_epoch)
    return seen


def scores(found):
    return {(r["row"], r["column"]): r["ours"] for r in found.records}


@pytest.mark.slow
def test_a_training_serves_tables_of_later_calls_and_of_the_same_one(
    run, tmp_path, monkeypatch, stand_in
):
    seen = counting_epochs(monkeypatch)
    options = {"device": torch.device("cpu"), "options": stand_in.options}
    together = reproduce(["1", "4", "1"], {"cub": "nowhere"}, tmp_path / "one", **options)
    assert [found.files[0].name for found in together] == ["table1.md", "table4.md"]
    assert seen == [0, 1, 0, 1], "two epochs of GCD and two of CMS for both tables"
    run("1", out=tmp_path / "two")
    assert len(seen) == 8
    later = run("4", out=tmp_path / "two")
    assert len(seen) == 8, "Table 4 needs other cells, and no other training"
    assert scores(later) == scores(together[1])


def test_a_training_that_was_cut_off_goes_on_within(run, tmp_path, monkeypatch, stand_in):
    options = replace(stand_in.options, changes={**stand_in.options.changes, "training.epochs": 3})
    whole = run("17", out=tmp_path / "whole", options=options)
    with monkeypatch.context() as patch:
        counting_epochs(patch, stop_at=2)
        with pytest.raises(KeyboardInterrupt):
            run("17", out=tmp_path / "cut", options=options)
    seen = counting_epochs(monkeypatch)
    assert scores(run("17", out=tmp_path / "cut", options=options)) == scores(whole)
    assert seen == [2]
    records = [json.loads(file.read_text()) for file in tmp_path.glob("*/cells/*.json")]
    assert records[0]["validation"] == records[1]["validation"]


def test_a_training_of_other_images_is_not_taken(run, tmp_path, monkeypatch, stand_in):
    run("17", out=tmp_path)
    for file in (tmp_path / "cells").glob("*.json"):
        file.unlink()

    def darker(name, root, *, part="train"):
        found = stand_in.read(name, root, part=part)
        return replace(
            found, collection=replace(found.collection, images=found.collection.images // 2)
        )

    monkeypatch.setattr(loaded_dataset, "read_benchmark", darker)
    with pytest.raises(UsageError):
        run("17", out=tmp_path)
