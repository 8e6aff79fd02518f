"""Other ways to use the page, in Chromium: pictures as words, no single keys, a finger that selects all."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from chromium import CTRL, Page
from review_page import ask, pictured, rows, seen, spoken, state, text, wait_for
from served import served
from shoal.review.actions import Action, Group
from shoal.runs import Run
from small_runs import write_small

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opened = Callable[..., AbstractContextManager[Page]]


def pictures_of(page: Page, group: str) -> list[str]:
    """What is said of the pictures of a strip, once it is known."""
    strip = f"document.querySelector('.strip[aria-label^=\"{group}\"]')"
    page.wait(f"{strip} && [...{strip}.querySelectorAll('img')].every((one) => one.alt)")
    names = page.run(f"[...{strip}.querySelectorAll('img')].map((one) => one.alt)")
    said = {node["name"] for node in spoken(page) if node["role"] == "image"}
    assert set(names) <= said
    return list(names)


@pytest.mark.parametrize(
    ("key", "group"),
    [("g", "Candidates"), ("s", "Images of part 1"), ("j", "Most typical images of ")],
)
def test_what_a_question_shows_is_said(same_page: Page, run: Path, key: str, group: str) -> None:
    page = same_page
    ask(page, key)
    assignments = Run(run).assignments
    for words in pictures_of(page, group):
        (image,) = [one for one in assignments if one.path == words.split(", ")[0]]
        assert image.category in words
        assert not image.label_given or f"labeled {image.label_given}" in words
    page.key("Escape")
    page.wait("!document.getElementById('dialog').open")


def test_the_cards_of_suggested_merges_say_what_they_show(opened: Opened, tmp_path: Path) -> None:
    near = write_small(tmp_path / "near", ids=tuple(np.repeat([0, 1, 2, 3], 20).tolist()))
    x = np.array(near.array("embeddings"))
    x[60:] = x[40:60] + np.random.default_rng(1).normal(size=(20, 8), scale=0.05)
    near.write_array("embeddings", x.astype(np.float32))
    with served(near.path) as server, opened(server) as page:
        page.click('[data-view="merges"]')
        found = pictures_of(page, "Most typical images of novel-001")
        assert len(found) == 18
        assert all(", novel-001, predicted, confidence" in words for words in found)


def test_single_keys_are_turned_off_for_good_and_the_others_work(page: Page, run: Path) -> None:
    page.key("x")
    wait_for(page, 1)
    page.click("#single")
    assert text(page, "#single") == "Single keys: off"
    page.run("window.isOld = true")
    page.call("Page.reload")
    page.wait("!window.isOld && document.body?.dataset.ready")
    seen(page)
    second = rows(page)[1]
    for key in ("x", "c", "?", "/", "]"):
        page.key(key)
    assert not page.run("document.getElementById('dialog').open")
    assert page.run("document.activeElement.id") == "grid"
    page.key("ArrowRight")
    assert page.run("shoal.grid.focused") == second
    ask(page, "Enter")
    pictured(page)
    page.key("f")
    page.key("ArrowLeft")
    page.key("Escape")
    page.wait("!document.getElementById('dialog').open")
    page.key("z", CTRL)
    wait_for(page, 2)
    assert [entry.action.kind for entry in state(run).state.entries] == ["reject", "undo"]
    page.click("#single")
    seen(page)
    page.key("f")
    wait_for(page, 3)
    assert page.run("document.querySelector('#undo kbd').checkVisibility()")


def test_all_images_are_selected_without_a_key(opened: Opened, run: Path) -> None:
    with served(run) as server, opened(server, width=400, height=800) as page:
        page.click("#all")
        page.wait("shoal.grid.selected.size === shoal.grid.rows.length")
        assert text(page, "#selected strong") == f"{len(rows(page))} selected"
        assert page.complaints() == []


def test_times_are_by_the_clock_of_whoever_reads_them(opened: Opened, tmp_path: Path) -> None:
    """The log has UTC; in Tokyo that is nine hours later."""
    run = write_small(tmp_path / "run").path
    review = state(run)
    done = {"by": "ann", "at": "2026-11-17T18:30:00.000+00:00"}
    review.act(
        lambda _: Action(kind="flag", groups=(Group(category=0, rows=np.array([0])),)), **done
    )
    with served(run) as server, opened(server) as page:
        page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
        page.run("location.hash = 'view=similar&row=0', window.isBefore = true")
        page.call("Page.reload")
        page.wait(
            "!window.isBefore && document.querySelector('#details')?.textContent.includes('flagged by ann')"
        )
        assert "flagged by ann, 2026-11-18 03:30" in text(page, "#details")
        page.click("#history")
        assert text(page, ".history li").startswith("1 · 2026-11-18 03:30 · ann: flag")
