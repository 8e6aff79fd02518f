"""Helpers for tests that use the page of `shoal review`."""

import json
from pathlib import Path
from typing import Any

from chromium import Page
from shoal.review import verbs
from shoal.review.actions import STATUSES
from shoal.review.review import Review
from shoal.runs import Run

TOO_EARLY = (
    "document.getElementById('notification').textContent.includes("
    "'pressed before this could be seen')"
)


def wait_for(page: Page, seq: int) -> None:
    """Wait until the page has received `seq` actions."""
    page.wait(f"Number(document.body.dataset.seq) >= {seq}")
    seen(page)


def seen(page: Page) -> None:
    """Wait until all visible pictures are drawn: a decision applies to what is on the screen."""
    page.settle()
    page.wait("shoal.grid.shownSince() < Infinity")
    page.wait("shoal.screen.since() <= performance.now()")
    page.settle()


def ask(page: Page, key: str) -> None:
    """Press a key that opens a dialog, and wait for it."""
    page.settle()  # a key applies to what is on the screen
    page.key(key)
    page.wait("document.getElementById('dialog').open")


def answer(page: Page, key: str) -> None:
    """Press a key in a dialog once all of its pictures are loaded."""
    pictured(page)
    page.key(key)


def cards_pictured(page: Page) -> None:
    """Wait until the pictures of suggested merges are drawn: a press before that is ignored."""
    page.wait("!document.querySelector('#panel img:not(.there, .missing)')")
    page.settle()


def pictured(page: Page) -> None:
    """Wait until all pictures of a dialog are loaded."""
    page.wait("document.querySelector('#dialog :is(.question, .facts)')")
    page.wait("!document.querySelector('#dialog form img:not(.there, .missing, .original)')")
    page.settle()


def hold_back(page: Page, path: str) -> None:
    """Hold back all responses to `path` until `let_through`, as a slow server would."""
    held = "new Promise((done) => { window.through = done })"
    page.run(f"window.asked ??= fetch, window.held = {held}, true")
    wait = f"if (String(of[0]).startsWith('{path}')) await held"
    page.run(f"window.fetch = async (...of) => {{ {wait}; return asked(...of) }}, true")


def let_through(page: Page) -> None:
    page.run("window.fetch = asked, window.through(), true")
    page.settle()


def hold_down(page: Page, key: str, code: int = 0, modifiers: int = 0) -> None:
    """Hold down a key, so that it repeats."""
    more = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
    text = {} if modifiers else {"text": "\r" if key == "Enter" else key}
    for is_again in (False, True, True, True):
        page.call("Input.dispatchKeyEvent", type="keyDown", autoRepeat=is_again, **more, **text)
        page.settle()
    page.call("Input.dispatchKeyEvent", type="keyUp", **more)


def rows(page: Page) -> list[int]:
    found: list[int] = page.run("[...shoal.grid.rows]")
    return found


def text(page: Page, selector: str) -> str:
    found: str = page.run(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


def go_to(page: Page, name: str) -> int:
    """Open a category by its button; returns its id."""
    is_it = f"(button) => button.querySelector('bdi').textContent === {json.dumps(name)}"
    number = int(page.run(f"[...document.querySelectorAll('.category')].find({is_it}).dataset.id"))
    page.click(f'.category[data-id="{number}"]')
    try:
        page.wait(f"shoal.view.id === {number}", seconds=20)
    except AssertionError:  # a button that is redrawn between press and release gets no click
        page.click(f'.category[data-id="{number}"]')
        page.wait(f"shoal.view.id === {number}")
    page.run("document.getElementById('grid').focus(), true")
    seen(page)
    return number


def change(page: Page, element_id: str, value: str) -> None:
    """Change the value of a field, with the events that leaving it causes."""
    field = f"document.getElementById('{element_id}')"
    page.run(
        f"{field}.value = '{value}', {field}.dispatchEvent(new Event('input')), "
        f"{field}.dispatchEvent(new Event('change'))"
    )


def state(run: Path) -> Review:
    return Review(Run(run))


def spoken(page: Page) -> list[dict[str, Any]]:
    """Return what a screen reader gets: role, name and properties of all elements that are not
    hidden from it."""
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            "value": node.get("value", {}).get("value"),
            "description": node.get("description", {}).get("value", ""),
            **{one["name"]: one["value"].get("value") for one in node.get("properties", [])},
        }
        for node in nodes
        if not node["ignored"]
    ]


def done(page: Page) -> int:
    """Return how many actions the page has received."""
    return int(page.run("document.body.dataset.seq"))


def statuses(run: Path, some: list[int]) -> list[str]:
    """Return the status of each of these images."""
    return [STATUSES[state(run).state.status[row]] for row in some]


def by_ben(run: Path, kind: str, *some: int) -> None:
    review = Review(Run(run))
    review.act(verbs.decide, kind, None, [review.state.paths[row] for row in some], by="ben")
