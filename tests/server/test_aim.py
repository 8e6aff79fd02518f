"""What a click, a key, a name or a line is aimed at, in Chromium: one page for all tests of this file."""

import json
from pathlib import Path

import pytest

from chromium import Page
from review_page import ask, go_to, pictured, rows, state, text, wait_for
from served import Served

pytestmark = pytest.mark.browser

ALT = 1
CTRL = 2
ONCE = "A double click counts once."
PARTS = (
    "[...document.querySelectorAll('#dialog .part')].map((part) => "
    "[part.querySelector('input').value, ...[...part.querySelectorAll('[data-row]')].map((one) => one.dataset.row)])"
)


def click(page: Page, selector: str, count: int) -> None:
    x, y = page.middle(selector)
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, x, y, button="left", clickCount=count, buttons=1)
    page.settle()


def done(page: Page) -> int:
    return int(page.run("document.body.dataset.seq"))


def close(page: Page) -> None:
    page.key("Escape")
    page.wait("!document.getElementById('dialog').open")


def test_a_double_click_confirms_one_category(shared_page: Page, shared_run: Path) -> None:
    page = shared_page
    here = go_to(page, "one")
    before = done(page)
    click(page, "#verbs button.main", 1)
    page.wait(f"shoal.view.id !== {here}")
    wait_for(page, before + 1)
    click(page, "#verbs button.main", 2)
    page.wait(f"document.getElementById('said').textContent.endsWith('{ONCE}')")
    assert "confirmed as one. " in text(page, "#said")
    click(page, "#undo", 2)  # whoever undoes fast means each
    wait_for(page, before + 2)
    assert [entry.action.kind for entry in state(shared_run).state.entries[before:]] == [
        "confirm",
        "undo",
    ]


def test_a_double_click_answers_one_question_and_decides_on_one_enlarged_image(
    shared_page: Page, shared_run: Path
) -> None:
    page = shared_page
    go_to(page, "one")
    ask(page, "g")
    for count in (1, 2):
        pictured(page)
        click(page, "#dialog .grow button.main", count)
    pictured(page)
    assert "12 images sure so far" in text(page, "#candidates")
    close(page)
    before = done(page)
    first = rows(page)[0]
    page.run("document.getElementById('grid').focus(), shoal.grid.go(0), true")
    ask(page, "Enter")
    reject = "[...document.querySelectorAll('#dialog button')].find((one) => one.textContent === 'Reject x')"
    pictured(page)
    page.run(f"{reject}.id = 'reject', true")
    for count in (1, 2):
        pictured(page)
        click(page, "#reject", count)
        wait_for(page, before + 1)
    assert ONCE in text(page, "#said")
    close(page)
    assert [entry.action.rows.tolist() for entry in state(shared_run).state.entries[before:]] == [
        [first]
    ]


def slide(page: Page, n: int) -> list[list[str]]:
    """Move the slider of a split; the name and the images of each part."""
    slider = "document.querySelector('#dialog input[type=range]')"
    page.run(f"{slider}.value = {n}, {slider}.dispatchEvent(new Event('input')), true")
    page.wait(f"document.querySelectorAll('#dialog .part').length === {n}")
    found: list[list[str]] = page.run(PARTS)
    return found


def name(page: Page, at: int, words: str) -> None:
    field = f"document.querySelectorAll('#dialog .part input')[{at}]"
    page.run(
        f"{field}.value = {json.dumps(words)}, {field}.dispatchEvent(new Event('input')), true"
    )


def test_a_name_of_a_part_stays_with_its_images_and_none_is_lost(
    shared_page: Page, shared_run: Path
) -> None:
    page = shared_page
    here = go_to(page, "two")
    before = done(page)
    ask(page, "s")
    parts = slide(page, 5)
    at = 4
    name(page, at, "mine")
    for n in (6, 8, 5):
        (mine,) = [part for part in slide(page, n) if part[0] == "mine"]
        assert set(mine[1:]) & set(parts[at][1:]), n
    name(page, 3, "three")  # a category is called so
    page.key("Enter")
    page.wait("document.getElementById('said').textContent.includes('called three already')")
    assert page.run(
        "document.activeElement === document.querySelectorAll('#dialog .part input')[3]"
    )
    name(page, 3, "mine")
    page.key("Enter")
    page.wait("document.getElementById('said').textContent.includes('called mine already')")
    name(page, 3, "other")
    assert done(page) == before
    # Refused by the server all the same, it is asked again, and all of it is there.
    page.run("window.sent = fetch, true")
    late = "sent(of[0], { ...of[1], body: of[1].body.replace('\"other\"', '\"three\"') })"
    page.run(
        f"window.fetch = (...of) => String(of[0]).startsWith('/api/act') ? {late} : sent(...of), true"
    )
    page.run("document.querySelector('#dialog button.main').click(), true")
    page.wait("document.getElementById('said').textContent.includes('three')")
    page.wait("document.querySelectorAll('#dialog .part').length === 5")
    assert {"mine", "other"} < {part[0] for part in page.run(PARTS)}
    page.run("window.fetch = sent, document.querySelector('#dialog button.main').click(), true")
    wait_for(page, before + 1)
    found = state(shared_run).state
    assert {int(row) for row in parts[at][1:]} <= set(found.members(found.find("mine")).tolist())
    assert found.entries[-1].action.category == here


def test_a_name_whose_images_stay_in_the_category_is_said_to_be_of_no_part(
    shared_page: Page,
) -> None:
    placed = 'import("/static/split.js").then(({ placed }) => placed(%s, %s).map((one) => one && one.name))'
    given = [
        {"name": "a", "rows": [1, 2]},
        {"name": "b", "rows": [3, 4, 5]},
        {"name": "c", "rows": [9]},
    ]
    assert shared_page.run(placed % (given, [[8], [1], [2, 3, 4], [5, 9]])) == [None, "a", "b", "c"]
    assert shared_page.run(placed % (given, [[1, 2, 8], [3, 4, 5, 9]])) == [None, "b"]
    assert shared_page.run(placed % (given, [[8], [7]])) == [None, None]
    go_to(shared_page, "four")
    ask(shared_page, "s")
    slide(shared_page, 8)
    for at in range(1, 8):
        name(shared_page, at, f"n{at}")
    slide(shared_page, 2)
    told = text(shared_page, "#dialog output:last-of-type")
    lost = told.removeprefix("No part has the name ").removesuffix(" now.").split(", ")
    assert len(lost) >= 6
    assert set(lost) < {f"n{at}" for at in range(1, 9)}
    assert [part[0] for part in slide(shared_page, 8)][1:] == [f"n{at}" for at in range(1, 8)]
    close(shared_page)


def test_the_map_follows_what_others_do_and_only_the_left_button_draws_on_it(
    shared_page: Page, shared_server: Served
) -> None:
    page = shared_page
    canvas = "document.querySelector('#panel canvas')"
    some = rows(page)[:9]
    page.click('[data-view="map"]')
    page.wait(canvas)
    page.settle()
    page.settle()
    drawn = page.run(f"{canvas}.toDataURL()")
    before = done(page)
    options = "document.querySelector('#panel select').textContent"
    assert shared_server.act("create", rows=some, name="made by ann")[0] == 200
    wait_for(page, before + 1)
    assert page.run(f"{canvas}.toDataURL()") != drawn
    assert "made by ann" in page.run(options)
    x, y, width, height = page.run(
        f"(({{x, y, width, height}}) => [x, y, width, height])({canvas}.getBoundingClientRect())"
    )
    corners = [
        (x + 5, y + 5),
        (x + width - 5, y + 5),
        (x + width - 5, y + height - 5),
        (x + 5, y + height - 5),
    ]
    for button, ends in (
        ("right", ""),
        ("left", f"{canvas}.dispatchEvent(new PointerEvent('pointercancel'))"),
    ):
        page.mouse("mousePressed", *corners[0], button=button, clickCount=1)
        for corner in corners:
            page.mouse("mouseMoved", *corner, button=button)
        page.run(f"{ends or 'true'}, true")
        page.mouse("mouseReleased", *corners[3], button=button, clickCount=1)
        page.settle()
        assert page.run("shoal.view.kind") == "map", button


@pytest.mark.parametrize("modifiers", [ALT, ALT | CTRL])
def test_a_bracket_that_takes_alt_on_a_keyboard_is_a_bracket(
    shared_page: Page, modifiers: int
) -> None:
    here = go_to(shared_page, "one")
    shared_page.call(
        "Input.dispatchKeyEvent", type="keyDown", key="]", code="Digit6", modifiers=modifiers
    )
    shared_page.wait(f"shoal.view.id !== {here}")
    shared_page.settle()
    shared_page.call(
        "Input.dispatchKeyEvent", type="keyDown", key="[", code="Digit5", modifiers=modifiers
    )
    shared_page.wait(f"shoal.view.id === {here}")
