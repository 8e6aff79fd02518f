"""Presses after one that is refused, fails or waits, in Chromium: none decides on an image that was
not meant.
"""

from pathlib import Path

import pytest

from chromium import Page
from review_page import (
    ask,
    by_ben,
    go_to,
    hold_back,
    let_through,
    rows,
    state,
    statuses,
    text,
    wait_for,
)
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DROPPED = "document.getElementById('notification').textContent.includes('were ignored too')"


def last(run: Path, before: int) -> list[tuple[str, str, int]]:
    """Return reviewer, kind and number of images of all actions after `before`."""
    entries = state(run).state.actions[before:]
    return [(entry.by, entry.kind, len(entry.rows)) for entry in entries]


def at_start(page: Page, name: str) -> tuple[int, list[int]]:
    """Open a category with its first undecided image in focus; return the number of earlier actions
    and the images from the focus on.
    """
    go_to(page, name)
    page.key("Escape")
    place = page.run("shoal.grid.rows.findIndex((row) => shoal.store.status[row] === 0)")
    page.run(f"shoal.grid.go({place}), true")
    return int(page.run("document.body.dataset.seq")), rows(page)[place:]


def no_answer(page: Page) -> None:
    """Hold back the next action and let it fail once released, as if the connection was lost."""
    page.run(
        "window.asked ??= fetch, window.held = new Promise((done) => { window.through = done }), "
        "true"
    )
    cut = "held.then(() => { window.fetch = asked; throw new TypeError('cut') })"
    page.run(
        f"window.fetch = (...of) => String(of[0]).startsWith('/api/act') ? {cut} : asked(...of), "
        "true"
    )


def test_what_is_pressed_behind_an_action_that_fails_is_dropped_and_said_once(
    page: Page, run: Path
) -> None:
    before, shown = at_start(page, "one")
    no_answer(page)
    page.key("x")
    page.key("c")  # meant for the remaining images, had the first key succeeded
    page.key("u")
    page.run("through(), true")
    page.wait(DROPPED)
    page.settle()
    assert text(page, "#notification").count("were ignored too") == 1
    assert last(run, before) == []
    page.key("x")  # pressed after the error was shown
    wait_for(page, before + 1)
    assert statuses(run, shown[:2]) == ["rejected", "predicted"]


def test_what_is_pressed_behind_a_refused_action_is_dropped(page: Page, run: Path) -> None:
    before, (first, second, *_) = at_start(page, "two")
    hold_back(page, "/api/")
    page.key("x")
    page.key("x")  # meant for the second image
    by_ben(run, "confirm", first)
    let_through(page)
    page.wait(DROPPED)
    page.settle()
    assert "confirm by ben" in text(page, "#notification")
    assert last(run, before) == [("ben", "confirm", 1)]
    assert statuses(run, [first, second]) == ["confirmed", "predicted"]


def test_what_somebody_changed_after_the_press_is_refused_though_the_page_has_heard_of_it(
    page: Page, run: Path
) -> None:
    before, (first, second, *_) = at_start(page, "three")
    hold_back(page, "/api/act")
    page.key("f")
    page.key("x")
    by_ben(run, "confirm", second)
    wait_for(page, before + 1)  # the page shows ben's action after the presses
    let_through(page)
    page.wait("document.getElementById('notification').textContent.includes('confirm by ben')")
    wait_for(page, before + 2)
    assert statuses(run, [first, second]) == ["flagged", "confirmed"]
    assert len(last(run, before)) == 2


def test_a_category_that_somebody_renamed_after_the_press_is_not_confirmed(
    page: Page, run: Path
) -> None:
    before, shown = at_start(page, "four")
    hold_back(page, "/api/act")
    page.key("f")
    page.key("c")
    Review(Run(run)).act(verbs.rename, page.run("shoal.view.id"), "four by ann", by="ann")
    wait_for(page, before + 1)
    let_through(page)
    page.wait("document.getElementById('notification').textContent.includes('rename by ann')")
    page.settle()
    assert "confirmed" not in statuses(run, shown)
    Review(Run(run)).act(verbs.rename, page.run("shoal.view.id"), "four", by="ann")
    wait_for(page, before + 2)


def test_a_question_is_open_at_once_and_takes_what_is_typed(page: Page, run: Path) -> None:
    before, (_, second, *_) = at_start(page, "three")
    hold_back(page, "/api/act")
    page.key("x")
    page.key("n")
    for key in "fire lily":
        page.key(key)
    page.key("Enter")
    let_through(page)
    wait_for(page, before + 2)
    moved = state(run).state.actions[-1]
    assert (moved.name, list(moved.rows)) == ("fire lily", [second])
    assert [kind for _, kind, _ in last(run, before)] == ["reject", "create"]


def test_a_question_whose_press_is_dropped_is_closed(page: Page, run: Path) -> None:
    before, _ = at_start(page, "three")
    no_answer(page)
    page.key("x")
    ask(page, "m")
    page.type("fire lily")
    page.run("through(), true")
    page.wait(f"!document.getElementById('dialog').open && {DROPPED}")
    assert last(run, before) == []


def said(page: Page, words: str) -> None:
    page.wait(f"document.getElementById('notification').textContent.includes({words!r})")
