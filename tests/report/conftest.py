"""Real runs for reports."""

from collections.abc import Callable
from pathlib import Path

import pytest

from digit_runs import write_digits, write_hostile, write_plain, write_synthetic
from shoal.runs import Run


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_digits(tmp_path_factory.mktemp("digits") / "run", 600)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of 200 images."""
    return write_digits(tmp_path_factory.mktemp("small") / "run", 200)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_hostile(tmp_path_factory.mktemp("hostile") / "run")


@pytest.fixture
def plain_run(tmp_path: Path) -> Callable[..., Run]:
    return lambda rows, categories=None: write_plain(tmp_path / "plain", rows, categories)


@pytest.fixture
def synthetic(tmp_path: Path) -> Callable[..., Run]:
    return lambda *sizes: write_synthetic(tmp_path / "synthetic", *sizes)
