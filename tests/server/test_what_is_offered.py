"""What the page offers and says in Chromium: only what can be done, of what is shown, and the next step at the end."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import Page
from review_page import ask, hold_back, let_through, pictured, rows, seen, state, text, wait_for
from served import served
from shoal.review import verbs

pytestmark = pytest.mark.browser

SAID = "document.getElementById('said').textContent"


def offered(page: Page, place: str) -> str:
    """The words of the buttons that are there."""
    buttons = (
        f"[...document.querySelectorAll('{place} button')].filter((one) => one.checkVisibility())"
    )
    found: str = page.run(f"{buttons}.map((one) => one.textContent).join()")
    return found


def test_the_map_says_how_it_was_made_and_what_its_colors_are(same_page: Page) -> None:
    same_page.click('[data-view="map"]')
    same_page.wait("document.querySelector('#panel canvas')")
    assert "shoal report --tsne" in text(same_page, "#panel .how")
    assert text(same_page, "#panel .legend") == "knownnovel"
    dots = "[...document.querySelectorAll('#panel .legend .dot')]"
    assert (
        len(set(same_page.run(f"{dots}.map((one) => getComputedStyle(one).backgroundColor)"))) == 2
    )


def test_a_second_choice_is_offered_only_where_there_is_one(page: Page) -> None:
    page.click('[data-view="all"]')
    page.wait("shoal.view.kind === 'all'")
    seen(page)
    page.wait("document.querySelector('#details').textContent.includes('To second choice')")
    page.settle()
    ask(page, "Enter")
    page.wait("document.querySelector('#dialog .facts')")
    assert "To second choice" in offered(page, "#dialog")
    page.key("Escape")
    page.key("2")
    wait_for(page, 1)
    page.wait("!document.querySelector('#details').textContent.includes('To second choice')")
    ask(page, "Enter")
    page.wait("document.querySelector('#dialog .facts')")
    assert "To second choice 2" not in offered(page, "#dialog").split(",")
    page.key("ArrowRight")
    page.wait("document.querySelector('#dialog [data-second]').checkVisibility()")


@pytest.mark.slow
def test_keys_of_another_alphabet_are_those_of_their_place(page: Page) -> None:
    first = rows(page)[0]
    for key, code in (("а", "KeyF"), ("α", "KeyA")):
        for kind in ("keyDown", "keyUp"):
            page.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code,
                text=key if kind == "keyDown" else "",
            )
        page.settle()
    wait_for(page, 1)
    assert page.run(f"shoal.store.run.statuses[shoal.store.status[{first}]]") == "flagged"
    assert page.run("shoal.grid.selected.size") == len(rows(page))


def test_history_says_how_much_of_it_is_listed(same_page: Page) -> None:
    same_page.run("document.getElementById('history').click(), true")
    same_page.wait("document.querySelector('#dialog form p')")
    assert text(same_page, "#dialog form") == "Nothing yet."
    same_page.key("Escape")
    entry = "{seq: 3026, at: '2026-01-01T00:00:00', by: 'ada', words: 'flag'}"
    same_page.run(f"shoal.store.seq = 3026, shoal.store.entries = [{entry}], true")
    same_page.run("document.getElementById('history').click(), true")
    same_page.wait("document.querySelector('#dialog .history')")
    assert "The last 1 of 3,026 actions" in text(same_page, "#dialog form")
    same_page.key("Escape")
    same_page.run("shoal.store.seq = 0, shoal.store.entries = [], true")


def test_images_without_category_are_moved_first_of_all(same_page: Page) -> None:
    same_page.click('[data-view="none"]')
    same_page.wait("shoal.view.kind === 'none'")
    assert text(same_page, "#verbs .main") == "Move m"


def test_the_end_names_the_next_step(page: Page, run: Path) -> None:
    review = state(run)
    verbs.decide(review, "confirm", None, review.answer.paths, by="ada")
    wait_for(page, 1)
    page.wait("shoal.store.counts[0] === 0")
    seen(page)
    page.key("c")
    page.wait(f"{SAID}.startsWith('Every category is decided.')")
    assert "shoal export" in text(page, "#said")


def test_a_refusal_is_said_of_the_enlarged_image_that_is_still_shown(
    opened: Callable[..., AbstractContextManager[Page]], run: Path
) -> None:
    with served(run) as server, opened(server) as page:
        first, second, *_ = rows(page)
        ask(page, "Enter")
        pictured(page)
        name = text(page, "#dialog-title")
        hold_back(page, "/api/act")
        page.key("c")
        review = state(run)
        verbs.decide(review, "reject", None, [review.answer.paths[first]], by="ann")
        wait_for(page, 1)
        let_through(page)
        page.wait("document.getElementById('said').className === 'shown error'")
        page.wait("document.querySelector('#dialog dl').textContent.includes('rejected by ann')")
        assert text(page, "#dialog-title") == name
        page.key("ArrowRight")
        page.wait(f"document.getElementById('dialog-title').textContent !== '{name}'")
        assert page.run("shoal.grid.focused") == second
