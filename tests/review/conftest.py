from pathlib import Path

import pytest

from shoal.review.review import Review
from shoal.runs import Run
from small_runs import write_small


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_small(tmp_path / "run")


@pytest.fixture
def review(run: Run) -> Review:
    return Review(run)
