"""Dialogs that stay open while other reviewers act, and keys pressed while the page is busy, in
Chromium.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from chromium import Page
from review_page import ask, by_ben, pictured, rows, state, text, wait_for
from served import served
from shoal.review import verbs
from shoal.review.actions import STATUSES
from shoal.review.review import Review
from shoal.runs import Run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def refused(opened: Callable[..., object], run: Path) -> Iterator[Page]:
    """A page whose actions are refused; the browser may log these refusals, but no other errors."""
    with served(run) as server, opened(server) as found:
        yield found
        assert [line for line in found.complaints() if "409 (Conflict)" not in line] == []


def test_growing_takes_all_but_what_somebody_decided_since_it_was_asked(
    refused: Page, run: Path
) -> None:
    page = refused
    here = refused.run("shoal.view.id")
    ask(page, "g")
    pictured(page)
    shown = (
        "[...document.querySelectorAll('.grow .strip .thumb')].map((one) => "
        "Number(one.dataset.row))"
    )
    confirmed, rejected, *others = page.run(shown)
    by_ben(run, "confirm", confirmed)
    by_ben(run, "reject", rejected)
    wait_for(page, 2)
    page.key("Y")
    wait_for(page, 3)
    page.wait("document.getElementById('notification').textContent.includes('22 images moved to ')")
    assert "2 images skipped because others have changed them (ben: reject 1 image (" in text(
        page, "#notification"
    )
    found = state(run).state
    assert STATUSES[found.status[confirmed]] == "confirmed"
    assert found.category[rejected] == -1
    assert sorted(found.actions[2].rows.tolist()) == sorted(others)
    assert found.actions[2].category == here


def test_where_others_can_come_nobody_acts_before_they_have_said_who_they_are(
    opened: Callable[..., AbstractContextManager[Page]], run: Path
) -> None:
    with served(run, "--host", "0.0.0.0") as server:
        here = replace(server, url=f"http://127.0.0.1:{server.port}/?token={server.token}")
        status, answer = here.act("confirm", rows=[0], by="")
        assert (status, "Enter your name" in answer["error"]) == (400, True)
        with opened(here) as page:
            page.wait(
                "document.getElementById('dialog-title')?.textContent === 'Who is reviewing?'"
            )
            assert page.run("[document.getElementById('who').textContent, shoal.store.undo]") == [
                "Your name",
                "",
            ]
            page.type("ann")
            page.key("Enter")
            page.wait("document.getElementById('who').textContent === 'ann'")
            page.wait("!document.getElementById('dialog').open")
            page.key("x")
            wait_for(page, 1)
    assert state(run).state.actions[0].by == "ann"


@pytest.mark.parametrize("kind", ["flag", "reject"])
def test_of_many_images_those_that_somebody_changed_are_left_out(
    refused: Page, run: Path, kind: str
) -> None:
    page = refused
    first, *others = rows(page)
    page.key("a")
    ask(page, "n")
    page.type("mine")
    by_ben(run, kind, first)
    wait_for(page, 1)
    page.key("Enter")
    wait_for(page, 2)
    page.wait("document.getElementById('notification').textContent.includes('1 image skipped')")
    entry = state(run).state.actions[1]
    assert (entry.kind, sorted(entry.rows.tolist())) == ("create", sorted(others))


def test_a_merge_and_a_split_are_asked_again_with_what_was_answered(
    refused: Page, run: Path
) -> None:
    page = refused
    here = page.run("shoal.view.id")
    first = rows(page)[0]
    other = page.run(f"[...shoal.store.categories.values()].find((one) => one.id !== {here}).name")
    again = (
        "document.getElementById('dialog').open && "
        "document.querySelector('#notification').textContent.includes('in the meantime')"
    )
    ask(page, "s")
    page.wait("document.querySelector('#dialog .part input:enabled')")
    page.run("document.querySelector('#dialog .part input:enabled').focus(), true")
    page.run("document.querySelector('#dialog .part input:enabled').select(), true")
    page.type("my part")
    by_ben(run, "flag", *rows(page))
    wait_for(page, 1)
    page.key("Enter")
    page.wait(
        f"{again} && document.querySelector('#dialog .part input:enabled')?.value === 'my part'"
    )
    page.key("Enter")
    wait_for(page, 2)
    assert state(run).state.find("my part") is not None
    ask(page, "j")
    page.type(other)
    page.run("document.querySelector('#dialog select').value = String(shoal.view.id), true")
    by_ben(
        run,
        "flag",
        *[row for row in state(run).state.members(state(run).state.find(other)).tolist()],
    )
    wait_for(page, 3)
    page.key("Enter")
    page.wait(f"{again} && document.querySelector('#dialog input').value === '{other}'")
    assert page.run("document.querySelector('#dialog select').value") == str(here)
    page.run("document.querySelector('#dialog button.main').click(), true")
    wait_for(page, 4)
    found = state(run).state
    assert (found.actions[3].kind, found.actions[3].category) == ("merge", here)
    assert first in found.members(here) or found.category[first] == found.find("my part")


@pytest.mark.parametrize(("key", "typed"), [("n", "mine"), ("r", "by ann")])
def test_a_question_that_was_asked_before_somebody_acted_is_refused(
    refused: Page, run: Path, key: str, typed: str
) -> None:
    page = refused
    first = rows(page)[0]
    here = page.run("shoal.view.id")
    ask(page, key)
    page.type(typed)
    review = Review(Run(run))
    if key == "n":
        review.act(verbs.decide, "confirm", None, [review.state.paths[first]], by="ben")
    else:
        review.act(verbs.rename, here, "by ben", by="ben")
    wait_for(page, 1)
    page.key("Enter")
    page.wait("document.querySelector('#notification').classList.contains('error')")
    if key == "r":  # the dialog opens again with the typed text
        page.wait("document.querySelector('#dialog input')?.value === 'by ann'")
    else:
        page.wait("!document.getElementById('dialog').open")
    found = state(run).state
    assert len(found.actions) == 1
    assert key == "n" or found.records[here].name == "by ben"
    assert key == "r" or STATUSES[found.status[first]] == "confirmed"
