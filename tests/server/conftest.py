"""Runs to review in a browser."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chromium import Browser, Page
from digit_runs import write_digits
from review_page import seen
from served import Served, served


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only run of 300 digits."""
    return write_digits(tmp_path_factory.mktemp("digits") / "run", 300).path


@pytest.fixture
def run(digits: Path, tmp_path: Path) -> Path:
    """A copy of the run of digits, to be reviewed."""
    return Path(shutil.copytree(digits, tmp_path / "run"))


@contextmanager
def page_of(browser: Browser, server: Served, **how: object) -> Iterator[Page]:
    """Open a page and yield it once its first view is drawn."""
    with browser.open(server.url, **how) as page:  # type: ignore[arg-type]
        page.wait("document.body.dataset.ready")
        page.run("localStorage.clear(), true")
        seen(page)
        yield page


@pytest.fixture(scope="session")
def opened(browser: Browser) -> Callable[..., object]:
    return lambda server, **how: page_of(browser, server, **how)


@pytest.fixture
def server(run: Path) -> Iterator[Served]:
    with served(run) as found:
        yield found


@pytest.fixture
def page(browser: Browser, server: Served) -> Iterator[Page]:
    """A page on the run; a test fails if the page logs an error or sends a request to another
    origin.
    """
    with page_of(browser, server) as found:
        yield found
        assert found.complaints() == []


@pytest.fixture(scope="module")
def same_page(
    browser: Browser, digits: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """One page for all tests that make no decisions and leave the page unchanged."""
    run = Path(shutil.copytree(digits, tmp_path_factory.mktemp("same") / "run"))
    with served(run) as server, page_of(browser, server) as found:
        yield found
        assert found.complaints() == []
        assert not (run / "review.jsonl").exists()
