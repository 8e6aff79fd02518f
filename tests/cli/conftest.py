"""Arguments of several commands."""

from pathlib import Path

import pytest


@pytest.fixture
def given(photos, tmp_path: Path) -> list[object]:
    """The arguments of `shoal discover`: photos, labels, small settings and --out."""
    where = ["--config", photos.config, "--out", tmp_path / "run"]
    return [photos.folder, "--labels", photos.labels, *where]
