"""Keys and clicks in Chromium: the list of keys, and the effect of Caps Lock, Shift and read-only
mode.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import SHIFT, Page
from review_page import ask, rows, text
from served import served

pytestmark = pytest.mark.browser

Opened = Callable[..., AbstractContextManager[Page]]


def test_images_are_selected_with_click_shift_drag_and_all(page: Page) -> None:
    shown = rows(page)

    def selected() -> set[int]:
        return set(page.run("[...shoal.grid.selected]"))

    page.click(f"#tile-{shown[0]}")
    page.click(f"#tile-{shown[2]}")
    assert selected() == {shown[0], shown[2]}
    assert text(page, "#verbs button.main") == "Confirm 2 c"
    page.click(f"#tile-{shown[0]}")
    assert selected() == {shown[2]}
    page.click(f"#tile-{shown[5]}", modifiers=SHIFT)
    assert selected() == set(shown[0:6])
    page.click(f"#tile-{shown[8]}")
    assert selected() == {*shown[0:6], shown[8]}
    for last, left in (
        (10, shown[8:11]),
        (7, shown[7:9]),
    ):  # extends from the last click; earlier selections stay
        page.click(f"#tile-{shown[last]}", modifiers=SHIFT)
        assert selected() == {*shown[0:6], *left}
    page.key("Escape")
    assert selected() == set()
    assert text(page, "#verbs button.main") == "Confirm all c"
    (ax, ay) = page.middle(f"#tile-{shown[0]}")
    (bx, by) = page.middle(f"#tile-{shown[1]}")
    page.mouse("mousePressed", ax, ay, button="left", clickCount=1, buttons=1)
    for step in range(1, 9):
        page.mouse(
            "mouseMoved",
            ax + (bx - ax) * step / 8,
            ay + (by - ay) * step / 8 + 4,
            button="left",
            buttons=1,
        )
    page.mouse("mouseReleased", bx, by + 4, button="left", buttons=1)
    assert selected() == set(shown[:2])
    page.key("a")
    assert selected() == set(shown)
    page.key("Escape")
    page.key("Home")
    page.key("ArrowRight", SHIFT)
    page.key("ArrowRight", SHIFT)
    assert selected() == set(shown[:3])
    page.key("Escape")
    page.key(" ")
    assert len(selected()) == 1
    assert page.run("document.querySelectorAll('.tile[aria-selected=true]').length") == 1
    assert text(page, "#selected strong") == "1 selected"


def test_reading_only_offers_no_change(opened: Opened, run: Path) -> None:
    with served(run, "--read-only") as server, opened(server) as page:
        refused = (
            "document.getElementById('notification').textContent === 'This review is read-only.'"
        )
        for key in "cxfmn2rjsguU":
            page.run("document.getElementById('notification').textContent = ''")
            page.key(key)
            page.wait(refused)
            assert not page.run("document.getElementById('dialog').open")
        page.run("document.getElementById('notification').textContent = ''")
        ask(page, "Enter")
        page.key("m")
        page.wait(refused)
        assert page.run("document.querySelector('#dialog .viewer') !== null")
        page.key("Escape")
        assert "Confirm" not in text(page, "#verbs")
        assert page.complaints() == []
    assert not (run / "review.jsonl").exists()
