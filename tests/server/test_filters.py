"""Filters of the page, in Chromium: what they leave, in which order, and what they hide."""

import json

import pytest

from chromium import Page
from review_page import change, rows, seen

pytestmark = pytest.mark.browser


def test_images_found_by_their_path_are_in_the_order_that_is_said(same_page: Page) -> None:
    page = same_page
    page.click('[data-view="all"]')
    page.wait("shoal.view.kind === 'all'")
    least = [row for row in rows(page) if row < 100]
    change(page, "path", "SCAN_00")
    page.wait("location.hash === '#view=all&path=SCAN_00'")
    assert page.run("document.getElementById('order').value") == "least"
    assert rows(page) == least
    page.run("document.getElementById('grid').focus(), true")
    page.key("o")
    page.wait("document.getElementById('order').value === 'most'")
    assert rows(page) == least[::-1]
    change(page, "order", "least")
    page.wait("location.hash === '#view=all&path=SCAN_00'")
    assert rows(page) == least
    change(page, "path", "")
    page.wait("location.hash === '#view=all'")
    seen(page)


def test_the_order_of_categories_is_in_the_address(same_page: Page) -> None:
    names = "[...document.querySelectorAll('.category .line bdi')].map((one) => one.textContent)"
    change(same_page, "sort", "name")
    same_page.wait("location.hash.endsWith('&sort=name')")
    by_name = same_page.run(names)
    same_page.click('[data-view="all"]')
    same_page.wait("location.hash === '#view=all&sort=name'")
    same_page.call("Page.reload")
    same_page.wait("document.body?.dataset.ready && window.shoal?.view.kind === 'all'")
    assert same_page.run("document.getElementById('sort').value") == "name"
    assert same_page.run(names) == by_name
    same_page.run("location.hash = 'view=all', true")
    same_page.wait("document.getElementById('sort').value === 'open'")
    same_page.wait(f"JSON.stringify({names}) !== '{json.dumps(by_name, separators=(',', ':'))}'")
