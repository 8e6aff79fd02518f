"""The demo: photographs whose true classes are used only for scoring."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.discovery import api as module
from shoal.discovery.api import PHOTOS, demo_table, run_demo
from shoal.errors import UsageError
from shoal.runs import Run


def test_demo_photographs_match_the_truth_and_are_small() -> None:
    files = sorted(PHOTOS.glob("*.webp"))
    assert [file.name for file in files] == sorted(demo_table("truth.csv"))
    assert sum(file.stat().st_size for file in files) < 4e6
    for file in files:
        with Image.open(file) as image:
            assert min(image.size) == 160


def test_half_of_the_images_of_every_other_category_are_labeled() -> None:
    truth = demo_table("truth.csv")
    labels = demo_table("labels.csv")
    known = set(labels.values())
    assert len(known) == 8
    assert len(set(truth.values())) == 16
    assert all(truth[name] == label for name, label in labels.items())
    assert len(labels) == sum(label in known for label in truth.values()) // 2


def test_a_run_that_is_not_a_demo_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path).write_json("provenance", {"root": "/photos"})
    with pytest.raises(UsageError):
        run_demo(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["provenance.json"]


@pytest.mark.slow
def test_demo_accuracy_is_as_measured_and_a_scrambled_truth_changes_only_the_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured with seed 0: see docs/results.md. Random clusters would score about 10 %."""
    first, score = run_demo(tmp_path / "a", device="cpu")
    assert score.accuracy.all > 0.85
    assert first.json("accuracy")["all"] == score.accuracy.all
    assert abs(first.n_clusters - 16) <= 2
    truth = demo_table("truth.csv")
    shuffled = np.random.default_rng(0).permutation(list(truth.values())).tolist()
    scrambled = dict(zip(truth, shuffled, strict=True))
    monkeypatch.setattr(module, "demo_table", lambda name: scrambled)
    second, score = run_demo(tmp_path / "b", device="cpu")
    assert score.accuracy.all < 0.3
    for name in ("assignments.csv", "categories.csv", "estimate.json", "embeddings.npy"):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes(), name
