"""Markers that need something absent are skipped with the reason; shared fixtures."""

import os
import shutil
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
DATA = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))

torch.set_num_threads(2)  # the same on every machine, so that a timing or a rounding seen here is seen there


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = {
        "slow": None if config.getoption("--slow") else "slow: run with --slow",
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
        "browser": None if CHROMIUM else "no Chromium; install it, or set CHROMIUM to its path",
        "data": None if DATA.is_dir() else f"no real images at {DATA}; set SHOAL_DATA",
    }
    for item in items:
        for marker, reason in absent.items():
            if reason and marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def data_dir() -> Path:
    return DATA


@pytest.fixture(scope="session")
def chromium() -> str:
    assert CHROMIUM
    return CHROMIUM
