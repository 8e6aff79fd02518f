"""Clicks, keys, names and lines act on what they were aimed at, in Chromium. All tests of this file
share one page.
"""

import json
from pathlib import Path

import pytest

from chromium import Page
from review_page import ask, done, go_to, state, text, wait_for

pytestmark = pytest.mark.browser

ONCE = "A double click counts once."
PARTS = (
    "[...document.querySelectorAll('#dialog .part')].map((part) => "
    "[part.querySelector('input').value, ...[...part.querySelectorAll('[data-row]')].map((one) => "
    "one.dataset.row)])"
)


def click(page: Page, selector: str, count: int) -> None:
    x, y = page.middle(selector)
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, x, y, button="left", clickCount=count, buttons=1)
    page.settle()


def test_a_double_click_confirms_one_category(page: Page, run: Path) -> None:
    here = go_to(page, "one")
    before = done(page)
    click(page, "#verbs button.main", 1)
    page.wait(f"shoal.view.id !== {here}")
    wait_for(page, before + 1)
    click(page, "#verbs button.main", 2)
    page.wait(f"document.getElementById('notification').textContent.endsWith('{ONCE}')")
    assert "confirmed as one. " in text(page, "#notification")
    click(page, "#undo", 2)  # two fast clicks undo two actions
    wait_for(page, before + 2)
    assert [entry.kind for entry in state(run).state.actions[before:]] == [
        "confirm",
        "undo",
    ]


def slide(page: Page, n: int) -> list[list[str]]:
    """Move the slider of a split; return the name and the images of each part."""
    slider = "document.querySelector('#dialog input[type=range]')"
    page.run(f"{slider}.value = {n}, {slider}.dispatchEvent(new Event('input')), true")
    page.wait(f"document.querySelectorAll('#dialog .part').length === {n}")
    found: list[list[str]] = page.run(PARTS)
    return found


def name(page: Page, at: int, words: str) -> None:
    field = f"document.querySelectorAll('#dialog .part input')[{at}]"
    page.run(
        f"{field}.value = {json.dumps(words)}, {field}.dispatchEvent(new Event('input')), true"
    )


def test_a_name_of_a_part_stays_with_its_images_and_none_is_lost(page: Page, run: Path) -> None:
    here = go_to(page, "two")
    before = done(page)
    ask(page, "s")
    parts = slide(page, 5)
    at = 4
    name(page, at, "mine")
    for n in (6, 8, 5):
        (mine,) = [part for part in slide(page, n) if part[0] == "mine"]
        assert set(mine[1:]) & set(parts[at][1:]), n
    name(page, 3, "Two")  # refused, because the first part has this name
    page.key("Enter")
    page.wait("document.getElementById('notification').textContent.includes('named Two')")
    assert page.run(
        "document.activeElement === document.querySelectorAll('#dialog .part input')[3]"
    )
    name(page, 3, "mine")
    page.key("Enter")
    page.wait("document.getElementById('notification').textContent.includes('named mine')")
    name(page, 3, "other")
    assert done(page) == before
    # If the server refuses the split anyway, the dialog opens again with all its content.
    page.run("window.sent = fetch, true")
    late = "sent(of[0], { ...of[1], body: of[1].body.replace('\"other\"', '\"three\"') })"
    page.run(
        f"window.fetch = (...of) => String(of[0]).startsWith('/api/act') ? {late} : sent(...of), "
        "true"
    )
    page.run("document.querySelector('#dialog button.main').click(), true")
    page.wait("document.getElementById('notification').textContent.includes('three')")
    page.wait("document.querySelectorAll('#dialog .part').length === 5")
    assert {"mine", "other"} < {part[0] for part in page.run(PARTS)}
    page.run("window.fetch = sent, document.querySelector('#dialog button.main').click(), true")
    wait_for(page, before + 1)
    found = state(run).state
    assert {int(row) for row in parts[at][1:]} <= set(found.members(found.find("mine")).tolist())
    assert found.actions[-1].category == here
