"""Suggested merges in Chromium: cards keep their places while reviewers act."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from chromium import Page
from review_page import TOO_EARLY, cards_pictured, hold_back, let_through, state, text, wait_for
from served import Served
from small_runs import write_small

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CARDS = "[...document.querySelectorAll('#panel .merge')].map((card) => card.dataset.id)"
FOCUS = "[document.activeElement.closest('.merge')?.dataset.id, document.activeElement.textContent]"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four known categories, and four novel ones that each resemble a known one."""
    names = ("gull", "tern", "heron", "egret", "novel-001", "novel-002", "novel-003", "novel-004")
    near = write_small(
        tmp_path / "near", ids=tuple(np.repeat(np.arange(8), 10).tolist()), names=names
    )
    rng = np.random.default_rng(0)
    center = rng.normal(size=(4, 8)) * 5
    x = np.repeat(np.concatenate([center, center]), 10, axis=0) + rng.normal(
        size=(80, 8), scale=0.5
    )
    near.write_array("embeddings", x.astype(np.float32))
    return near.path


@pytest.fixture
def page(opened: Callable[..., AbstractContextManager[Page]], server: Served) -> Iterator[Page]:
    with opened(server, height=500) as page:
        page.click('[data-view="merges"]')
        page.wait("document.querySelectorAll('#panel .merge').length >= 4")
        cards_pictured(page)
        yield page
        assert page.complaints() == []


def test_a_press_on_a_card_counts_once_its_pictures_are_there(
    opened: Callable[..., AbstractContextManager[Page]], server: Served
) -> None:
    with opened(server) as page:
        hold_back(page, "/thumbnails")
        page.click('[data-view="merges"]')
        page.wait("document.querySelector('#panel .merge')")
        page.run("document.querySelector('#panel .merge button').focus(), true")
        page.key("Enter")
        let_through(page)
        cards_pictured(page)
        assert page.run(TOO_EARLY)
        assert page.run("document.body.dataset.seq") == "0"


def test_cards_stay_in_place_and_the_next_one_has_the_focus_when_one_is_decided(
    page: Page, run: Path
) -> None:
    first, _, third, fourth, *_ = page.run(CARDS)
    page.run("document.querySelectorAll('#panel .merge')[3].elementOfTest = true")
    page.run(
        "document.querySelectorAll('#panel .merge')[1].querySelectorAll('.tools button')[2].focus()"
    )
    scrolled = page.run("document.getElementById('panel').scrollTop")
    assert scrolled > 0
    page.key("Enter")
    wait_for(page, 1)
    assert text(page, "#notification") == "marked as different"
    assert "as close as halves of one" in text(page, "#panel .merge")
    assert page.run(CARDS)[:3] == [first, third, fourth]
    assert page.run(FOCUS) == [third, "Mark as different"]
    page.run("document.querySelectorAll('#panel .merge')[1].querySelector('.tools button').focus()")
    page.key("Enter")
    wait_for(page, 2)
    assert text(page, "#notification").startswith("merged into ")
    assert page.run(CARDS)[:2] == [first, fourth]
    assert page.run(FOCUS)[0] == fourth
    page.key("Enter")  # the card has the focus; a focused button would merge the wrong categories
    page.settle()
    assert page.run("document.activeElement.matches('article.merge')")
    assert page.run("document.querySelectorAll('#panel .merge')[1].elementOfTest")
    assert [entry.kind for entry in state(run).state.actions] == ["distinct", "merge"]


def test_a_press_aimed_at_a_card_that_somebody_decides_on_meets_no_other_card(
    page: Page, run: Path, server: Served
) -> None:
    before = page.run(CARDS)
    apart = f'#panel .merge[data-id="{before[1]}"] .tools button:last-child'
    x, y = page.middle(apart)
    page.run(f"document.querySelector('{apart}').focus(), true")
    assert (
        server.act("distinct", by="ben", categories=[int(number) for number in before[1].split()])[
            0
        ]
        == 200
    )
    page.wait(f"document.querySelector('#panel .gone')?.dataset.id === '{before[1]}'")
    wait_for(page, 1)
    assert page.run(CARDS) == before
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, x, y, button="left", clickCount=1, buttons=1)
    page.key("Enter")
    page.settle()
    assert page.run("document.activeElement.matches('.gone')")
    page.run(
        "document.querySelectorAll('#panel .merge')[0].querySelectorAll('.tools button')[2].focus()"
    )
    page.key("Enter")
    wait_for(page, 2)
    assert page.run(CARDS)[:2] == before[2:4]  # deciding updates the list of cards
    assert [entry.by == "ben" for entry in state(run).state.actions] == [True, False]
