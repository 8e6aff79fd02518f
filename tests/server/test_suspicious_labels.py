"""Suspicious labels in Chromium: the page describes the effect of each key on such an image."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from chromium import Page
from review_page import rows, seen, state, text, wait_for
from served import served
from shoal.runs import Run

pytestmark = pytest.mark.browser

Opened = Callable[..., AbstractContextManager[Page]]


def show_suspicious(page: Page) -> None:
    page.click('[data-view="labels"]')
    page.wait("shoal.view.kind === 'labels'")
    page.run("document.getElementById('grid').focus(), true")
    seen(page)


def doubted(run: Path) -> tuple[int, str, str]:
    """Put a labeled image into the category of its label, although its neighbors are in another
    category.
    """
    opened = Run.open(run)
    table = list(opened.assignments)
    ids = {one.category: one.category_id for one in table}
    at = next(at for at, one in enumerate(table) if one.label_given not in ("", one.category))
    label = table[at].label_given
    other = table[at].category
    kept = [replace(one, label_given="") for one in table]
    kept[at] = replace(
        table[at],
        **{"category": label, "category_id": ids[label], "is_novel": False, "confidence": 0.1},
        **{"nearest_known": other, "second_category": other},
    )
    opened.write_assignments(kept)
    return at, label, other


def test_a_label_that_the_run_has_kept_is_kept_by_c_and_given_up_by_2(
    opened: Opened, run: Path
) -> None:
    row, label, other = doubted(run)
    with served(run) as server, opened(server) as page:
        show_suspicious(page)
        assert rows(page) == [row]
        assert "c keeps the label, 2 takes the other, x rejects the image" in text(page, "#facts")
        caption = (
            "[...document.querySelectorAll('.tile:not([hidden]) .caption bdi')].map((one) => "
            "one.textContent)"
        )
        assert page.run(caption) == [label, f"or {other}?"]
        page.wait("document.querySelector('#details .facts')")
        assert f"Neighbors suggest{other}" in text(page, "#details .facts")
        page.key("c")
        wait_for(page, 1)
        assert text(page, "#notification") == f"1 image confirmed as {label}"
        page.key("u")
        wait_for(page, 2)
        page.wait(
            "document.querySelector('#details').ariaBusy === 'false' && shoal.grid.focused === "
            f"{row}"
        )
        seen(page)
        page.key("2")
        wait_for(page, 3)
        assert text(page, "#notification") == f"1 image moved to {other}"
    found = state(run).state
    assert found.records[found.category[row]].name == other
