"""Keyboard focus in Chromium: whatever is opened gets the focus and keeps it."""

import pytest

from chromium import Page
from review_page import text

pytestmark = pytest.mark.browser

FOCUSED = "document.activeElement.id"

# The list is redrawn after a short delay.
DRAWN_AGAIN = "new Promise((done) => setTimeout(() => done(true), 400))"


def test_enter_on_a_category_goes_to_its_images(same_page: Page) -> None:
    third = "document.querySelectorAll('.category')[2]"
    number = same_page.run(f"Number({third}.dataset.id)")
    same_page.run(f"{third}.focus(), true")
    same_page.key("Enter")
    same_page.wait(f"shoal.view.id === {number} && {FOCUSED} === 'grid'")
    same_page.run(DRAWN_AGAIN)
    assert same_page.run(FOCUSED) == "grid"
    same_page.key("]")  # continues from this category, not from the top of the list
    same_page.wait("shoal.view.id === Number(document.querySelectorAll('.category')[3].dataset.id)")


def test_enter_behind_a_slash_opens_the_first_category_with_that_name(same_page: Page) -> None:
    same_page.run("document.getElementById('grid').focus(), true")
    same_page.key("/")
    same_page.type("hree")
    same_page.key("Enter")
    same_page.wait(
        f"document.getElementById('name').textContent === 'three' && {FOCUSED} === 'grid'"
    )
    assert not same_page.run("document.getElementById('dialog').open")
    same_page.key("/")
    same_page.type("no such name")
    same_page.key("Enter")
    assert (text(same_page, "#name"), same_page.run(FOCUSED)) == ("three", "find")
    same_page.run("document.getElementById('find').value = '', true")
    same_page.run("document.getElementById('find').dispatchEvent(new Event('input')), true")
