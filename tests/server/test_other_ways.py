"""Other ways to use the page, in Chromium: pictures as words, no single keys, a finger that selects all."""

from pathlib import Path

import pytest

from chromium import CTRL, Page
from review_page import ask, pictured, rows, seen, state, text, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_single_keys_are_turned_off_for_good_and_the_others_work(page: Page, run: Path) -> None:
    page.key("x")
    wait_for(page, 1)
    page.click("#single")
    assert text(page, "#single") == "Single keys: off"
    page.run("window.isOld = true")
    page.call("Page.reload")
    page.wait("!window.isOld && document.body?.dataset.ready")
    seen(page)
    second = rows(page)[1]
    for key in ("x", "c", "?", "/", "]"):
        page.key(key)
    assert not page.run("document.getElementById('dialog').open")
    assert page.run("document.activeElement.id") == "grid"
    page.key("ArrowRight")
    assert page.run("shoal.grid.focused") == second
    ask(page, "Enter")
    pictured(page)
    page.key("f")
    page.key("ArrowLeft")
    page.key("Escape")
    page.wait("!document.getElementById('dialog').open")
    page.key("z", CTRL)
    wait_for(page, 2)
    assert [entry.action.kind for entry in state(run).state.entries] == ["reject", "undo"]
    page.click("#single")
    seen(page)
    page.key("f")
    wait_for(page, 3)
    assert page.run("document.querySelector('#undo kbd').checkVisibility()")
