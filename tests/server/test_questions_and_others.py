"""Questions that stay open while others work, and keys typed while the page still answers, in Chromium."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chromium import CTRL, Page
from review_page import ask, hold_back, let_through, rows, state, text, wait_for
from served import served
from shoal.review import verbs
from shoal.review.actions import STATUSES
from shoal.review.review import Review
from shoal.runs import RunView

pytestmark = pytest.mark.browser


@pytest.fixture
def refused(opened: Callable[..., object], run: Path) -> Iterator[Page]:
    """A page that is refused something, of which the browser complains as of nothing else."""
    with served(run) as server, opened(server) as found:
        yield found
        assert [line for line in found.complaints() if "409 (Conflict)" not in line] == []


def statuses(run: Path, some: list[int]) -> list[str]:
    return [STATUSES[state(run).state.images.status[row]] for row in some]


def test_growing_does_not_take_what_somebody_decided_since_it_was_asked(refused: Page, run: Path) -> None:
    page = refused
    ask(page, "g")
    page.wait("document.querySelector('.grow .strip .thumb')")
    shown = "[...document.querySelectorAll('.grow .strip .thumb')].map((one) => Number(one.dataset.row))"
    confirmed, rejected, *_ = page.run(shown)
    review = Review(RunView(run))
    for kind, row in (("confirm", confirmed), ("reject", rejected)):
        verbs.decide(review, kind, None, [review.answer.paths[row]], by="ben")
    wait_for(page, 2)
    page.key("y")
    stop = "[...document.querySelectorAll('.grow button')].find((one) => one.textContent.startsWith('Stop'))"
    page.wait(f"{stop} && !{stop}.disabled")
    page.run(f"{stop}.click(), true")
    page.wait("!document.getElementById('dialog').open && document.querySelector('#said').textContent.includes('ben')")
    assert statuses(run, [confirmed, rejected]) == ["confirmed", "rejected"]
    assert len(state(run).state.entries) == 2


@pytest.mark.parametrize(("key", "typed"), [("m", "mine"), ("r", "by ann")])
def test_a_question_that_was_asked_before_somebody_acted_is_refused(
    refused: Page, run: Path, key: str, typed: str
) -> None:
    page = refused
    first, here = rows(page)[0], page.run("shoal.view.id")
    ask(page, key)
    page.type(typed)
    review = Review(RunView(run))
    if key == "m":
        verbs.decide(review, "confirm", None, [review.answer.paths[first]], by="ben")
    else:
        verbs.rename(review, here, "by ben", by="ben")
    wait_for(page, 1)
    page.key("Enter")
    page.wait("!document.getElementById('dialog').open && document.querySelector('#said').classList.contains('error')")
    found = state(run).state
    assert len(found.entries) == 1
    assert key == "m" or found.records[here].name == "by ben"
    assert key == "r" or STATUSES[found.images.status[first]] == "confirmed"


def test_what_is_decided_in_the_enlarged_image_is_answered_before_the_next_key_counts(page: Page, run: Path) -> None:
    first, second, *_ = rows(page)
    ask(page, "Enter")
    hold_back(page, "/api/act")
    page.key("f")
    page.key("Escape")
    page.key("c")
    page.key("z", CTRL)
    let_through(page)
    wait_for(page, 1)
    page.wait("!document.getElementById('dialog').open")
    assert statuses(run, [first, second]) == ["flagged", "predicted"]
    page.key("c")
    wait_for(page, 2)
    assert statuses(run, [first, second]) == ["flagged", "confirmed"]
    assert text(page, "#said")
