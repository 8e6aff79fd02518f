"""The page with two simultaneous reviewers, with screen readers, on all screen sizes, under attack
and after power cuts.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chromium import Page
from digit_runs import HOSTILE, NAMES, write_hostile
from review_page import ask, go_to, rows, spoken, state, text, wait_for
from served import served
from shoal.runs import Run
from small_runs import write_small

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opened = Callable[..., AbstractContextManager[Page]]


def test_a_killed_server_loses_nothing_it_has_answered_and_the_page_says_so(
    opened: Opened, run: Path
) -> None:
    with served(run) as server, opened(server) as page:
        for _ in range(40):
            page.call("Input.dispatchKeyEvent", type="keyDown", key="x", text="x")
        wait_for(page, 10)
        server.kill()
        page.wait("!document.getElementById('banner').hidden")
        assert "All acknowledged actions are saved" in text(page, "#banner")
        page.key("f")
        page.wait("document.getElementById('notification').className.includes('error')")
        assert "No response" in text(page, "#notification")
        answered = int(page.run("document.body.dataset.seq"))
        assert 10 <= answered <= 40
    review = state(run)
    assert answered <= review.state.seq <= answered + 1
    assert (review.state.status == 2).sum() == review.state.seq


def test_the_next_run_at_the_same_address_shows_its_own_pictures(
    opened: Opened, tmp_path: Path
) -> None:
    """A browser caches pictures by URL, and all reviews have the same URLs."""
    port = 0
    shown = []
    for color in ("red", "blue"):
        run = write_small(tmp_path / color)
        (tmp_path / f"{color} photos").mkdir()
        for row in run.assignments:
            Image.new("RGB", (40, 20), color).save(tmp_path / f"{color} photos" / row.path)
        run.note(root=str(tmp_path / f"{color} photos"))
        with served(run.path, "--port", str(port)) as server, opened(server) as page:
            port = server.port
            page.wait("document.querySelector('#details img.original')")
            shown.append(page.run(COLOR % "#details img.original"))
            page.wait("document.querySelector('.tile img.there')")  # made from the originals
            shown.append(page.run(COLOR % ".tile img.there"))
            page.wait(
                "document.querySelector('.category img.there')"
            )  # also made from the originals, as the run has no thumbnails
    assert shown == ["red", "red", "blue", "blue"]


COLOR = """
(async () => {
  const image = document.querySelector("%s");
  await image.decode();
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.drawImage(image, 0, 0, 1, 1);
  const [red, , blue] = pen.getImageData(0, 0, 1, 1).data;
  return red > blue ? "red" : "blue";
})()
"""


def test_names_of_files_and_categories_are_text_whatever_they_say(
    opened: Opened, tmp_path: Path
) -> None:
    run = write_hostile(tmp_path / "hostile")
    photos = tmp_path / "photos"
    for row in run.assignments:
        file = photos / row.path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 9, 3), 90, np.uint8)).save(file, "PNG")
    run.note(root=str(photos))
    with served(run.path) as server, opened(server) as page:
        for name in page.run(
            "[...document.querySelectorAll('.category bdi')].map((b) => b.textContent)"
        ):
            go_to(page, name)
            page.wait("document.querySelector('#details h2')")
            ask(page, "m")
            page.key("Escape")
            page.wait("!document.getElementById('dialog').open")
        assert page.run("document.querySelectorAll('.category bdi').length") == len(HOSTILE)
        page.key("Enter")
        page.wait("document.querySelector('#dialog img.original')")
        page.key("Escape")
        ask(page, "r")
        page.type("<img src=x onerror=alert(1)>")
        page.key("Enter")
        wait_for(page, 1)
        assert text(page, "#name") == "<img src=x onerror=alert(1)>"
        assert page.run("document.querySelectorAll('img[src=x], script:not([src])').length") == 0
        page.click("#history")
        assert "<img src=x onerror=alert(1)>" in text(page, "#dialog")
        assert page.complaints() == []


def test_it_can_be_used_without_seeing_it(page: Page) -> None:
    """Every control has a name, and the grid announces the image in focus and every change."""
    page.wait("document.querySelector('.tile').getAttribute('aria-label')?.includes('confidence')")
    unnamed = page.run(
        "[...document.querySelectorAll('button, input, select, [role=option], "
        "[role=listbox]')].filter((e) => !e.hidden"
        " && !(e.textContent.trim() || e.getAttribute('aria-label') || e.title || "
        "e.closest('label'))).map((e) => e.id)"
    )
    assert unnamed == []
    assert page.run("document.activeElement.id") == "grid"
    page.key("ArrowRight")
    active = page.run("document.getElementById('grid').getAttribute('aria-activedescendant')")
    assert active == f"tile-{rows(page)[1]}"
    assert page.run(f"document.getElementById('{active}').getAttribute('aria-posinset')") == "2"
    page.key("f")
    wait_for(page, 1)
    assert text(page, "#notification") == f"1 image flagged in {text(page, '#name')}"
    page.key("?")
    assert page.run("document.getElementById('dialog').open")
    page.key("Escape")
    assert page.run("document.activeElement.id") == "grid"
    page.key("]")
    page.key("[")
    page.key("/")
    assert page.run("document.activeElement.id") == "find"


CONTROLS = (
    "button",
    "textbox",
    "searchbox",
    "combobox",
    "slider",
    "spinbutton",
    "option",
    "listbox",
    "progressbar",
)


@pytest.mark.parametrize("key", ["m", "n", "r", "j", "s", "g", "Enter", "?"])
def test_every_question_is_a_named_dialog_that_keeps_the_focus(same_page: Page, key: str) -> None:
    ask(same_page, key)
    same_page.wait("document.querySelector('#dialog form').textContent.trim()")
    found = spoken(same_page)
    assert [node["name"] for node in found if node["role"] == "dialog"] == [
        text(same_page, "#dialog-title")
    ]
    assert [node for node in found if node["role"] in CONTROLS and not node["name"].strip()] == []
    for _ in range(12):
        same_page.key("Tab")
        assert same_page.run(
            "document.activeElement === document.body || document.activeElement.closest('dialog') "
            "!== null"
        )
    same_page.key("Escape")
    same_page.wait("!document.getElementById('dialog').open")
    assert same_page.run("document.activeElement.id") == "grid"


def test_the_map_is_used_by_keys_alone(page: Page) -> None:
    page.click('[data-view="map"]')
    page.wait("document.querySelector('#panel canvas')")
    page.run("document.querySelector('#panel canvas').focus(), true")
    (name,) = [node["name"] for node in spoken(page) if node["role"] == "application"]
    assert name.startswith("Map of 300 images")
    for key in ("+", "+", "+", "ArrowLeft", "ArrowUp"):
        page.key(key)
    page.key("Enter")
    page.wait("shoal.view.kind === 'lasso'")
    assert 0 < len(rows(page)) < 300
    n_near = len(rows(page))
    page.click('[data-view="map"]')
    page.wait("document.querySelector('#panel canvas')")
    page.run("document.querySelector('#panel canvas').focus(), true")
    page.key("-")
    page.key("Enter")
    page.wait("shoal.view.kind === 'lasso'")
    assert len(rows(page)) > n_near


def test_nothing_is_cut_off_at_any_width(opened: Opened, run: Path) -> None:
    with served(run) as server:
        for width, dark in (
            (400, False),
            (400, True),
            (1280, False),
            (1280, True),
            (3840, False),
            (3840, True),
        ):
            with opened(server, width=width, height=800, dark=dark) as page:
                check_width(page, width, dark)


def check_width(page: Page, width: int, dark: bool) -> None:
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    over = page.run(
        "[...document.querySelectorAll('#head *, #top *, .category *')].filter((e) => "
        "e.offsetParent && "
        f"e.getBoundingClientRect().right > {width} + 1).map((e) => e.id || e.className)"
    )
    assert over == []
    page.key("a")
    assert page.run("document.getElementById('selected').getBoundingClientRect().left") >= 0
    page.key("s")
    page.wait("document.querySelectorAll('#dialog .part').length === 2")
    assert page.run(
        "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth + "
        "1)(document.getElementById('dialog'))"
    )
    page.key("Escape")
    if width == 400:
        page.click("#menu")
        assert page.run("document.getElementById('side').getBoundingClientRect().left") < width
        page.key("Escape")
        page.wait("getComputedStyle(document.getElementById('side')).visibility === 'hidden'")
    assert page.complaints() == []


def test_a_whole_review_of_the_digits(opened: Opened, digits: Path, tmp_path: Path) -> None:
    """After naming novel categories, moving wrong images and confirming the rest, all images are
    correct; then everything is undone.
    """
    from sklearn.datasets import load_digits

    run = Path(shutil.copytree(digits, tmp_path / "whole"))
    truth = [NAMES[digit] for digit in load_digits().target[:300]]
    with served(run) as server, opened(server, height=1400) as page:
        n_done = 0
        for category in [c.category_id for c in Run(run).categories if c.size]:
            found = state(run).state
            record = found.records[category]
            if record.merged_into is not None:
                continue
            members = found.members(category).tolist()
            kind = max({truth[row] for row in members}, key=[truth[row] for row in members].count)
            go_to(page, record.name)
            if (
                record.name != kind
            ):  # rename first, so that no image is moved to a name that changes later
                is_there = found.find(kind) is not None
                ask(page, "r")
                page.type(kind)
                page.key("Enter")
                if is_there:
                    page.wait("document.querySelectorAll('#dialog .side-of').length === 2")
                    page.key("Enter")
                n_done += 1
                wait_for(page, n_done)
                page.wait(f"document.getElementById('name').textContent === {json.dumps(kind)}")
            for row in [row for row in rows(page) if truth[row] != kind]:
                page.run(f"shoal.grid.go(shoal.grid.rows.indexOf({row})), true")
                ask(page, "m")
                page.type(truth[row])
                if state(run).state.find(truth[row]) is None:
                    page.key("ArrowDown")  # to the row that creates the category
                page.key("Enter")
                n_done += 1
                wait_for(page, n_done)
            page.key("c")
            page.wait(
                f"Number(document.body.dataset.seq) > {n_done} || !shoal.store.open[shoal.view.id "
                "+ 1]"
            )
            n_done = int(page.run("document.body.dataset.seq"))
        found = state(run).state
        assert [found.records[c].name for c in found.category.tolist()] == truth
        for done in range(n_done + 1, 2 * n_done + 1):
            page.key("u")
            wait_for(page, done)
        assert page.complaints() == []
    after = state(run)
    assert after.state.category.tolist() == after.state.category_ids.tolist()
    assert not after.state.status.any()


def test_every_control_is_reached_by_tab_and_shows_that_it_has_the_focus(page: Page) -> None:
    wanted = set(
        page.run(
            "[...document.querySelectorAll('button, input, select, [tabindex=\"0\"]')].filter((e) "
            "=> e.offsetParent && "
            "!e.disabled && !e.closest('#categories')).map((e) => e.id || e.textContent)"
        )
    )
    reached = set()
    page.run("document.querySelector('.skip').focus(), true")
    for _ in range(400):
        page.key("Tab")
        name, outline, is_tile = page.run(
            "((e) => [e.id || e.textContent, getComputedStyle(e).outlineStyle !== 'none' || "
            "getComputedStyle(e).outlineWidth !== '0px' && getComputedStyle(e).outlineStyle !== "
            "'none', "
            "e.id === 'grid' && document.querySelectorAll('.tile.focus').length === "
            "1])(document.activeElement)"
        )
        assert outline or is_tile or name == "", name
        reached.add(name)
        if wanted <= reached:
            break
    assert wanted - reached == set()
