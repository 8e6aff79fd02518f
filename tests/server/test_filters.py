"""Filters of the page, in Chromium: what they leave, in which order, and what they hide."""

import json
from pathlib import Path

import pytest

from chromium import Page
from review_page import change, rows, seen, state, text, wait_for

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


def test_the_order_of_images_reads_as_what_it_is_and_is_not_offered_where_a_list_has_its_own(
    same_page: Page,
) -> None:
    shown = "document.getElementById('order').checkVisibility()"
    assert same_page.run(shown)
    assert (
        same_page.run("document.getElementById('order').selectedOptions[0].textContent")
        == "Least typical first"
    )
    same_page.click('[data-view="unsure"]')
    same_page.wait("shoal.view.kind === 'unsure'")
    assert not same_page.run(shown)


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


def test_images_that_filters_hide_are_said_to_be_there_and_no_key_leaves_them_unseen(
    page: Page, run: Path
) -> None:
    n_images = len(rows(page))
    page.key("f")
    wait_for(page, 1)
    change(page, "status", "4")
    page.wait("shoal.grid.rows.length === 1")
    page.run("document.getElementById('grid').focus(), true")
    page.key("]")
    page.wait("shoal.grid.rows.length === 0")
    here = page.run("shoal.view.id")
    size = page.run(f"shoal.store.sizes[{here} + 1]")
    assert text(page, "#nothing").startswith(f"The filters hide {size} images here.")
    page.key("c")
    page.wait("document.getElementById('said').textContent.startsWith('The filters hide ')")
    assert page.run("shoal.view.id") == here
    page.click("#clear")
    page.wait(f"shoal.grid.rows.length === {size}")
    assert page.run("location.hash") == f"#view=category&id={here}"
    assert not page.run("document.getElementById('nothing').checkVisibility()")
    assert page.run("document.activeElement.id") == "grid"
    page.key("[")
    page.wait(f"shoal.grid.rows.length === {n_images}")
    seen(page)
    change(page, "status", "4")
    page.wait("shoal.grid.rows.length === 1")
    seen(page)
    page.key("c")  # nothing is left to decide on of what is shown
    page.wait(
        f"document.getElementById('said').textContent.includes('hide {n_images - 1} images that nobody')"
    )
    assert len(state(run).state.entries) == 1
    page.click('[data-view="none"]')
    page.wait("shoal.view.kind === 'none'")
    assert text(page, "#nothing").startswith("There is no image here.")
    assert not page.run("document.getElementById('clear').checkVisibility()")
