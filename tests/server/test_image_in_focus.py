"""The image in focus, in Chromium: it is enlarged and decided on while categories are renamed and
other reviewers act.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import CTRL, Page
from review_page import (
    ask,
    hold_down,
    rows,
    statuses,
    text,
    wait_for,
)
from served import served
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def enlarged(page: Page, row: int) -> None:
    """Wait until the enlarged view shows image `row`."""
    page.wait(f"shoal.grid.focused === {row} && document.querySelector('#dialog-title')")
    name = page.run(
        f"fetch('/api/images?rows={row}').then((a) => a.json()).then((found) => found[0].name)"
    )
    page.wait(f"document.querySelector('#dialog-title')?.textContent === '{name}'")
    assert name in text(page, "#dialog dl")


def test_the_enlarged_view_goes_on_and_its_keys_decide_on_the_image_that_is_shown(
    page: Page, run: Path
) -> None:
    first, second, third, fourth, fifth, *_ = rows(page)
    page.key("ArrowRight")
    page.key(" ")  # the enlarged view ignores the selection
    page.key("Home")
    ask(page, "Enter")
    enlarged(page, first)
    page.key("ArrowRight")
    enlarged(page, second)
    page.key("ArrowLeft")
    enlarged(page, first)
    for done, (key, following) in enumerate([("c", second), ("x", third), ("f", fourth)], 1):
        page.key(key)
        wait_for(page, done)
        enlarged(page, following)
    assert statuses(run, [first, second, third, fourth]) == [
        "confirmed",
        "rejected",
        "flagged",
        "predicted",
    ]
    page.key("u")
    wait_for(page, 4)
    enlarged(page, third)  # the page shows the image whose decision was undone
    page.key("z", CTRL)
    wait_for(page, 5)
    enlarged(page, second)
    assert statuses(run, [first, second, third]) == ["confirmed", "predicted", "predicted"]
    page.key("U")
    wait_for(page, 6)
    page.key("Escape")
    page.wait("!document.getElementById('dialog').open")
    assert statuses(run, [first, second, third, fifth]) == [
        "confirmed",
        "rejected",
        "predicted",
        "predicted",
    ]


def test_a_key_that_is_held_down_decides_once(page: Page, run: Path) -> None:
    shown = rows(page)
    hold_down(page, "x")
    page.key("ArrowRight")
    page.key("f")
    wait_for(page, 2)
    assert statuses(run, shown[:4]) == ["rejected", "predicted", "flagged", "predicted"]


def test_the_image_in_focus_stays_in_focus_while_somebody_else_takes_others_out(
    opened: Callable[..., AbstractContextManager[Page]], run: Path
) -> None:
    with served(run) as server, opened(server) as page:
        shown = rows(page)
        page.key("ArrowRight")
        page.key("ArrowRight")
        review = Review(Run(run))
        review.act(verbs.decide, "reject", None, [review.state.paths[shown[0]]], by="ben")
        wait_for(page, 1)
        assert page.run("shoal.grid.focused") == shown[2]
        page.key("x")
        wait_for(page, 2)
        assert statuses(run, shown[:4]) == ["rejected", "predicted", "rejected", "predicted"]
        assert page.complaints() == []
