"""Buttons and texts of the page in Chromium: only possible actions on what is shown, and the next
step at the end.
"""

import pytest

from chromium import Page
from review_page import ask, rows, seen, wait_for

pytestmark = pytest.mark.browser


def offered(page: Page, place: str) -> str:
    """Return the texts of the visible buttons in an element."""
    buttons = (
        f"[...document.querySelectorAll('{place} button')].filter((one) => one.checkVisibility())"
    )
    found: str = page.run(f"{buttons}.map((one) => one.textContent).join()")
    return found


def test_a_second_choice_is_offered_only_where_there_is_one(page: Page) -> None:
    page.click('[data-view="all"]')
    page.wait("shoal.view.kind === 'all'")
    seen(page)
    page.wait("document.querySelector('#details').textContent.includes('To second choice')")
    page.settle()
    ask(page, "Enter")
    page.wait("document.querySelector('#dialog .facts')")
    assert "To second choice" in offered(page, "#dialog")
    page.key("Escape")
    page.key("2")
    wait_for(page, 1)
    page.wait("!document.querySelector('#details').textContent.includes('To second choice')")
    ask(page, "Enter")
    page.wait("document.querySelector('#dialog .facts')")
    assert "To second choice 2" not in offered(page, "#dialog").split(",")
    page.key("ArrowRight")
    page.wait("document.querySelector('#dialog [data-second]').checkVisibility()")


@pytest.mark.slow
def test_keys_of_another_alphabet_are_those_of_their_place(page: Page) -> None:
    first = rows(page)[0]
    for key, code in (("а", "KeyF"), ("α", "KeyA")):
        for kind in ("keyDown", "keyUp"):
            page.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code,
                text=key if kind == "keyDown" else "",
            )
        page.settle()
    wait_for(page, 1)
    assert page.run(f"shoal.store.run.statuses[shoal.store.status[{first}]]") == "flagged"
    assert page.run("shoal.grid.selected.size") == len(rows(page))
