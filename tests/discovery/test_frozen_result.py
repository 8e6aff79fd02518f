"""Another encoder is recommended if labels show that this one barely separates the categories."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from photo_runs import run_on
from shoal.discovery import frozen_result as module
from shoal.discovery.frozen_result import advise_encoder
from shoal.discovery.reporter import Reporter


def points(spread: float, n_classes: int = 5, n_each: int = 20) -> tuple[torch.Tensor, np.ndarray]:
    """Unit rows around a direction per class, and their classes."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(n_classes, 32))
    labels = np.repeat(np.arange(n_classes), n_each)
    rows = centers[labels] + spread * rng.normal(size=(len(labels), 32))
    return F.normalize(torch.from_numpy(rows).float(), dim=1), labels


def test_an_encoder_is_recommended_for_noise_but_not_for_separated_classes() -> None:
    assert advise_encoder(*points(0.1), "efficientnet-lite2") == ""
    assert "19 % by chance" in advise_encoder(*points(50.0), "efficientnet-lite2")
    assert advise_encoder(*points(50.0), "dinov2-base") == ""


def test_an_image_is_not_its_own_neighbor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four points on a line: a b | a b. The nearest neighbor of each is of the other class."""
    monkeypatch.setattr(module, "MIN_LABELED", 4)
    angles = torch.tensor([0.0, 0.1, 1.0, 1.1]).repeat(6)[:24]
    rows = torch.stack([angles.cos(), angles.sin()], 1)
    labels = np.where(np.arange(24) < 4, np.tile([0, 1, 0, 1], 6), -1)
    assert "0 % of 4 images" in advise_encoder(rows, labels, "efficientnet-lite2")


def test_discover_recommends_an_encoder_once(photos, settings, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MIN_LABELED", 4)
    monkeypatch.setattr(module, "MIN_SKILL", 2.0)
    lines: list[str] = []
    reporter = Reporter(lines.append)
    run_on(photos, tmp_path / "run", replace(settings, train=False), reporter=reporter)
    (note,) = (line for line in lines if "barely separates the categories" in line)
    assert note.startswith("note: ")
    assert "of 18 images" in note
