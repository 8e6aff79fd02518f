"""Keys and clicks with a slow server, in Chromium: each decides once, on what was on the screen at
that moment.
"""

from pathlib import Path

import pytest

from chromium import CTRL, Page
from review_page import (
    TOO_EARLY,
    answer,
    ask,
    done,
    go_to,
    hold_back,
    hold_down,
    let_through,
    pictured,
    rows,
    seen,
    state,
    statuses,
    text,
    wait_for,
)
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def detailed(page: Page, row: int) -> None:
    """Wait until the details of an image are on the screen."""
    name = page.run(
        f"fetch('/api/images?rows={row}').then((a) => a.json()).then((found) => found[0].name)"
    )
    page.wait(
        f"shoal.grid.focused === {row} && document.querySelector('#details h2')?.textContent === "
        f"'{name}'"
    )
    page.settle()


def test_a_key_confirms_nothing_of_a_category_that_was_not_shown_yet(page: Page, run: Path) -> None:
    here = go_to(page, "one")
    before = done(page)
    hold_back(page, "/api/act")
    page.key("c")
    page.key("c")
    page.click("#verbs button.main")
    let_through(page)
    page.wait(f"shoal.view.id !== {here} && {TOO_EARLY}")
    assert done(page) == before + 1
    there = rows(page)
    assert "confirmed" not in statuses(run, there)
    page.key("x")
    wait_for(page, before + 2)
    assert statuses(run, there[:2]) == ["rejected", "predicted"]


def drag(page: Page, first: int, last: int) -> None:
    """Drag a selection box from one image to another."""
    (ax, ay) = page.middle(f"#tile-{first}")
    (bx, by) = page.middle(f"#tile-{last}")
    page.mouse("mousePressed", ax, ay, button="left", clickCount=1, buttons=1)
    page.mouse("mouseMoved", bx, by + 4, button="left", buttons=1)
    page.mouse("mouseReleased", bx, by + 4, button="left", buttons=1)
    page.settle()


def test_what_is_selected_before_an_answer_comes_stays_selected(page: Page, run: Path) -> None:
    go_to(page, "three")
    shown = rows(page)
    before = done(page)
    page.key(" ")
    hold_back(page, "/api/act")
    page.key("f")
    drag(page, shown[2], shown[3])
    let_through(page)
    wait_for(page, before + 1)
    assert page.run("[...shoal.grid.selected]") == shown[2:4]
    page.key("Escape")
    page.key("Home")
    hold_back(page, "/api/act")
    page.key("x")
    page.key("x")  # applies to the next image, once the first request has returned
    page.click(f"#tile-{shown[5]}")
    let_through(page)
    wait_for(page, before + 3)
    page.wait("shoal.grid.selected.size")
    assert page.run("[...shoal.grid.selected]") == [shown[5]]
    page.key("Escape")
    page.key("Home")
    hold_back(page, "/api/act")
    page.key("f")
    page.key("x")
    drag(page, shown[4], shown[5])  # not the image that the key was pressed for
    let_through(page)
    page.wait(TOO_EARLY)
    assert page.run("[...shoal.grid.selected]") == shown[4:6]
    words = ["rejected", "rejected", "flagged", *["predicted"] * 3]
    assert statuses(run, shown[:6]) == words
    page.key("Escape")


def test_growing_answers_once_to_a_held_key_and_hears_keys_after_a_click(page: Page) -> None:
    go_to(page, "four")
    before = done(page)
    ask(page, "g")
    answer(page, "b")
    pictured(page)
    hold_down(page, "y")
    assert "12 images accepted so far" in text(page, ".grow .muted")
    page.click(".grow .strip")
    answer(page, "b")
    assert "0 images accepted so far" in text(page, ".grow .muted")
    answer(page, "y")
    while "Do all" in text(page, ".grow .question"):
        answer(page, "n")
    assert text(page, ".grow .question") == "12 images will be moved here."
    page.click(".grow .strip")
    pictured(page)
    hold_down(page, "Enter", 13)
    wait_for(page, before + 1)
    page.key("Escape")
    hold_down(page, "z", 90, CTRL)
    wait_for(page, before + 2)
    page.key("U")
    wait_for(page, before + 3)
    assert done(page) == before + 3


def test_the_second_choice_is_that_of_the_image_that_is_shown_beside_it(
    page: Page, run: Path
) -> None:
    page.click('[data-view="all"]')
    page.wait("shoal.view.kind === 'all'")
    page.run("document.getElementById('grid').focus(), true")
    seen(page)
    first, *_, second = rows(page)  # never visible so far, so that its details are not loaded
    before = done(page)
    detailed(page, first)
    hold_back(page, "/api/images")
    page.key("End")
    page.key("2")
    page.wait(TOO_EARLY)
    tools = "[...document.querySelectorAll('#details button')]"
    page.wait("document.getElementById('details').ariaBusy === 'true'")
    assert page.run(
        f"{tools}.every((one) => one.disabled)"
    )  # they belong to another image than the one in focus
    page.key("Home")
    page.wait(f"{tools}.every((one) => !one.disabled)")
    page.key("End")
    let_through(page)
    detailed(page, second)
    assert page.run(f"{tools}.every((one) => !one.disabled)")
    page.key("Home")
    detailed(page, first)
    page.run(f"{tools}.find((one) => one.textContent.startsWith('To second')).click(), true")
    wait_for(page, before + 1)
    assert statuses(run, [first, second]) == ["moved", "predicted"]
    found = state(run).state
    assert (
        found.categories[found.category[first]].name == Run(run).assignments[first].second_category
    )


def test_a_split_is_made_only_as_it_is_shown(page: Page, run: Path) -> None:
    here = go_to(page, "zero")
    before = done(page)
    hold_back(page, "/api/parts")
    ask(page, "s")
    page.key("Enter")
    let_through(page)
    page.wait("document.querySelectorAll('#dialog .part').length === 2")
    hold_back(page, "/api/parts")
    page.key("ArrowRight")
    page.key("Enter")
    let_through(page)
    page.wait("document.querySelectorAll('#dialog .part').length === 3")
    assert done(page) == before
    page.key("Enter")
    wait_for(page, before + 1)
    assert len(state(run).state.actions[-1].groups) == 2
    page.key("u")
    wait_for(page, before + 2)
    assert page.run("shoal.view.id") == here


def test_no_key_counts_between_a_double_click_and_the_enlarged_image(page: Page, run: Path) -> None:
    go_to(page, "two")
    first, second, *_ = rows(page)
    before = done(page)
    hold_back(page, "/api/images")  # before the key, as loaded details are shown at once
    page.key("f")
    wait_for(page, before + 1)
    # The page may receive the action before the response to the key; until then, presses wait.
    page.wait("document.getElementById('notification').textContent.includes('flagged')")
    page.click(f"#tile-{second}", times=2)
    page.wait("document.getElementById('dialog').open", seconds=20)
    page.key("x")
    page.click(f"#tile-{first}")
    let_through(page)
    page.wait("document.querySelector('#dialog .facts')", seconds=20)
    page.wait(TOO_EARLY)
    page.key("Escape")
    page.wait("!document.getElementById('dialog').open")
    page.settle()
    assert (done(page), page.run("shoal.grid.selected.size")) == (before + 1, 0)


def test_no_key_decides_right_after_somebody_else_has_moved_the_focus(
    page: Page, run: Path
) -> None:
    go_to(page, "two")
    page.key("Home")
    before = done(page)
    first, second, *_ = rows(page)
    page.run(
        "new MutationObserver(() => (window.drawn = performance.now())).observe(document.body, "
        "{ attributeFilter: ['data-seq'] }), true"
    )
    review = Review(Run(run))
    review.act(verbs.decide, "reject", None, [review.state.paths[first]], by="ben")
    page.wait(f"Number(document.body.dataset.seq) > {before} && shoal.screen.since() < Infinity")
    assert page.run("shoal.grid.focused") == second
    assert page.run("shoal.screen.since() - window.drawn") >= 500
    press = (
        "((at) => { const event = new KeyboardEvent('keydown', { key: 'x', bubbles: true }); "
        "Object.defineProperty(event, 'timeStamp', { value: at }); "
        "document.getElementById('grid').dispatchEvent(event); return true })"
    )
    page.run(f"{press}(shoal.screen.since() - 1)")
    page.wait(TOO_EARLY)
    assert done(page) == before + 1
    seen(page)
    page.key("x")
    wait_for(page, before + 2)
    assert statuses(run, [second]) == ["rejected"]


def test_a_key_is_not_about_what_somebody_else_has_put_in_its_place(page: Page, run: Path) -> None:
    """Another reviewer rejects the image in focus before a key pressed for it is processed."""
    go_to(page, "one")
    page.key("Home")
    before = done(page)
    (_, second, third, *_) = rows(page)
    as_it_was = statuses(run, [third])
    hold_back(page, "/api/act")
    page.key("f")
    page.key("x")
    review = Review(Run(run))
    review.act(verbs.decide, "reject", None, [review.state.paths[second]], by="ben")
    wait_for(page, before + 1)
    let_through(page)
    page.wait(TOO_EARLY)
    wait_for(page, before + 2)
    assert statuses(run, [second, third]) == ["rejected", *as_it_was]
    assert state(run).state.seq == before + 2
