"""One run, one server and one page for all tests of a file: each looks at what there is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import Page


@pytest.fixture
def run(shared_run: Path) -> Path:
    return shared_run


@pytest.fixture
def page(shared_page: Page) -> Iterator[Page]:
    """The page, with no question and nothing said on it; the browser may complain of nothing but a refusal."""
    shared_page.run("document.getElementById('dialog').close(), true")  # of a test that failed
    shared_page.run(
        "document.getElementById('said').textContent = document.getElementById('said').className = ''"
    )
    shared_page.settle()
    yield shared_page
    assert [line for line in shared_page.complaints() if "409 (Conflict)" not in line] == []
