"""An image whose picture is not loaded has not been seen, in Chromium: no press decides on it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import Page
from review_page import (
    TOO_EARLY,
    hold_back,
    let_through,
    rows,
    seen,
    state,
    wait_for,
)
from served import served

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opened = Callable[..., AbstractContextManager[Page]]


@pytest.fixture
def small(opened: Opened, run: Path) -> Iterator[Page]:
    """A page so low that it has not requested most pictures."""
    with served(run) as server, opened(server, height=420) as page:
        yield page
        assert [line for line in page.complaints() if "ERR_FAILED" not in line] == []


def test_a_category_is_confirmed_only_when_its_pictures_are_there(small: Page, run: Path) -> None:
    hold_back(small, "/thumbnails")
    before = small.run("shoal.view.id")
    small.key("]")
    small.wait(f"shoal.view.id !== {before} && shoal.grid.rows.length")
    here = small.run("shoal.view.id")
    for key in ("c", "x"):
        small.run("document.getElementById('notification').textContent = ''")
        small.key(key)
        small.wait(TOO_EARLY)
    assert not (run / "review.jsonl").exists()
    let_through(small)
    seen(small)
    small.key("c")
    wait_for(small, 1)
    assert set(state(run).state.actions[0].rows) <= set(state(run).state.members(here).tolist())


def test_an_image_that_was_scrolled_to_is_decided_on_when_its_picture_is_there(
    small: Page, run: Path
) -> None:
    small.click('[data-view="all"]')
    small.wait("shoal.view.kind === 'all'")
    seen(small)
    first = rows(small)[0]
    later = rows(small)[150]
    hold_back(small, "/thumbnails")
    small.run("shoal.grid.go(150), true")
    small.key("f")
    small.wait(TOO_EARLY)
    small.key("Home")
    small.key("f")  # the picture of this image is loaded
    wait_for(small, 1)
    assert state(run).state.actions[0].rows.tolist() == [first]
    small.run("shoal.grid.go(150), true")
    let_through(small)
    seen(small)
    small.key("f")
    wait_for(small, 2)
    assert state(run).state.actions[1].rows.tolist() == [later]


def test_a_picture_that_cannot_be_had_is_said_to_be_missing_and_can_be_decided_on(
    small: Page, run: Path
) -> None:
    small.run("window.asked = fetch, true")
    fails = (
        "(...of) => String(of[0]).startsWith('/thumbnails') ? Promise.reject(new "
        "TypeError('cut')) : asked(...of)"
    )
    small.run(f"window.fetch = {fails}, true")
    before = small.run("shoal.view.id")
    small.key("]")
    small.wait(f"shoal.view.id !== {before} && document.querySelector('.tile .missing')")
    assert "no picture" in small.run(
        "getComputedStyle(document.querySelector('.tile:has(.missing)'), '::before').content"
    )
    seen(small)
    first = rows(small)[0]
    small.key("x")
    wait_for(small, 1)
    assert state(run).state.actions[0].rows.tolist() == [first]


def test_pictures_are_loaded_before_they_are_scrolled_to(page: Page) -> None:
    page.resize(600, 500)
    page.run("document.querySelector('[data-view=all]').click(), true")
    page.wait("shoal.grid.rows.length === 300")
    seen(page)
    page.run(
        "window.requested = [], window.sent = fetch, window.fetch = (...of) => "
        "(requested.push(...(String(of[0]).match(/rows=([^&]*)/)?.[1] ?? '').split('%2C')), "
        "sent(...of)), true"
    )
    page.run("document.getElementById('grid').scrollTop += 100, true")
    page.wait(
        "requested.some((row) => "
        "shoal.grid.rows.indexOf(Number(row)) > Math.max(...shoal.grid.tiles.keys()))"
    )
