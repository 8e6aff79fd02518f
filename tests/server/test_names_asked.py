"""Questions for a name, in Chromium."""

import json

import pytest

from chromium import Page
from review_page import ask, text

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("key", ["r", "m", "n"])
def test_a_name_that_is_there_in_other_letters_is_told(same_page: Page, key: str) -> None:
    others = "[...shoal.store.categories.values()].filter((one) => one.id !== shoal.view.id).map((one) => one.name)"
    other = same_page.run(others)[0]
    ask(same_page, key)
    same_page.run("document.querySelector('#dialog input').select(), true")
    same_page.type(f" {other.upper()}  ")
    assert text(same_page, "#dialog p").startswith(f"{other} is there already, written otherwise.")
    own = same_page.run("shoal.store.categories.get(shoal.view.id).name")
    same_page.run("document.querySelector('#dialog input').select(), true")
    same_page.type(own.upper())
    is_told = own in json.dumps(text(same_page, "#dialog p"))
    assert is_told == (key != "r")  # a category may be written otherwise than before
    same_page.key("Escape")
