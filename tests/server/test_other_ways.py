"""Other ways to use the page, in Chromium: pictures as words, no single keys, a finger that selects all."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from chromium import CTRL, Page
from review_page import ask, pictured, rows, seen, state, text, wait_for
from served import served
from shoal.review.actions import Action, Group
from small_runs import write_small

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opened = Callable[..., AbstractContextManager[Page]]


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
    flag = Action(kind="flag", groups=(Group(category=0, rows=np.array([0])),))
    at = state(run).act(lambda _: flag, by="ann").at
    log = run / "review.jsonl"
    log.write_text(log.read_text().replace(at, "2026-11-17T18:30:00.000+00:00"))
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
