"""Filters of the page, in Chromium: what they leave, in which order, and what they hide."""

import pytest

from chromium import Page
from review_page import change, rows, seen, text

pytestmark = pytest.mark.browser


def test_images_found_by_their_path_are_in_the_order_that_is_said(same_page: Page) -> None:
    page = same_page
    page.click('[data-view="all"]')
    page.wait("shoal.view.kind === 'all'")
    least = [row for row in rows(page) if row < 100]
    change(page, "path", "SCAN_00")
    page.wait("location.hash === '#view=all&path=SCAN_00'")
    assert text(page, "#order") == "Least typical first"
    assert rows(page) == least
    page.run("document.getElementById('grid').focus(), true")
    page.key("o")
    page.wait("document.getElementById('order').textContent === 'Most typical first'")
    assert rows(page) == least[::-1]
    page.key("o")
    change(page, "path", "")
    page.wait("location.hash === '#view=all'")
    seen(page)
