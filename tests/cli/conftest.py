"""What several commands are given."""

from pathlib import Path

import pytest


@pytest.fixture
def given(photos, tmp_path: Path) -> list[object]:
    """Photos, their labels, small settings, and a folder to write."""
    where = ["--config", photos.config, "--out", tmp_path / "run"]
    return [photos.folder, "--labels", photos.labels, *where]
