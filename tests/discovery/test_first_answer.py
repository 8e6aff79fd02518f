"""Given labels say how well an encoder sees the categories, and another one is named where it
hardly does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from photo_runs import run_on
from shoal.discovery import first_answer as module
from shoal.discovery.facts import collect_facts
from shoal.discovery.first_answer import (
    NearestLabelAccuracy,
    nearest_label_accuracy,
)
from shoal.discovery.reporter import Reporter


def points(spread: float, n_classes: int = 5, n_each: int = 20) -> tuple[torch.Tensor, np.ndarray]:
    """Unit rows around a direction per class, and their classes."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(n_classes, 32))
    labels = np.repeat(np.arange(n_classes), n_each)
    rows = centers[labels] + spread * rng.normal(size=(len(labels), 32))
    return F.normalize(torch.from_numpy(rows).float(), dim=1), labels


def test_classes_apart_are_seen_and_noise_is_chance() -> None:
    rows, labels = points(0.1)
    assert nearest_label_accuracy(rows, labels).accuracy == 1
    found = nearest_label_accuracy(*points(50.0))
    assert found.chance == pytest.approx(19 / 99)
    assert abs(found.share) < 0.15


def test_the_nearest_labeled_image_counts_and_never_the_image_itself() -> None:
    """Four on a line: a b | a b. The nearest of each is of the other class."""
    angles = torch.tensor([0.0, 0.1, 1.0, 1.1]).repeat(6)[:24]
    rows = torch.stack([angles.cos(), angles.sin()], 1)
    labels = np.tile([0, 1, 0, 1], 6)
    unlabeled = np.where(np.arange(24) < 4, labels, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_JUDGED", 4)
        assert nearest_label_accuracy(rows, unlabeled) == NearestLabelAccuracy(
            accuracy=0.0, chance=pytest.approx(1 / 3), n_images=4
        )


def test_discover_says_it_and_keeps_what_it_rests_on(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """Every encoder hardly sees where nothing suffices; the colors are seen."""
    monkeypatch.setattr(module, "MIN_JUDGED", 4)
    monkeypatch.setattr(module, "HARDLY", 2.0)
    heard: list[str] = []
    run = run_on(
        photos, tmp_path / "run", replace(settings, train=False), reporter=Reporter(heard.append)
    )
    said = [line for line in heard if "barely tells the categories apart" in line]
    assert len(said) == 1
    assert said[0].startswith("note: ")
    assert "of 18 labeled images" in said[0]
    sees = collect_facts(run)["encoder_sees"]
    assert sees["n_images"] == 18
    assert sees["accuracy"] > 0.8
