"""The page in Chromium, used with keyboard and mouse."""

from pathlib import Path

import pytest

from chromium import CTRL, SHIFT, Page
from review_page import ask, change, go_to, rows, state, text, wait_for
from shoal.review.review import Review
from shoal.review.reviewed_run import Decisions, ReviewedRun
from shoal.runs import Run

pytestmark = pytest.mark.browser


def test_the_first_view_is_a_category_with_its_least_typical_images_first(
    page: Page, run: Path
) -> None:
    snapshot = ReviewedRun.of(Run(run))
    largest = max(snapshot.categories, key=lambda c: c.size)
    assert text(page, "#name") == largest.category
    least = snapshot.members[largest.category_id][::-1].tolist()
    assert rows(page)[:5] == least[:5]
    page.key("o")
    assert rows(page)[:5] == least[::-1][:5]
    assert page.run("document.getElementById('order').value") == "most"
    page.wait("document.querySelector('.tile img.there')")
    page.wait("document.querySelector('#details h2')")
    assert (
        "nearest" in text(page, "#details").casefold()
        or "second" in text(page, "#details").casefold()
    )


@pytest.mark.parametrize("relabels", [False, True])
def test_a_split_asks_what_becomes_of_labels_that_would_leave(
    page: Page, run: Path, relabels: bool
) -> None:
    answer = Review(Run(run)).state
    here = go_to(page, "zero")
    ask(page, "s")
    slider = "document.querySelector('#dialog input[type=range]')"
    for n in range(2, 8):  # until images with one label are in two parts
        page.run(f"{slider}.value = {n}, {slider}.dispatchEvent(new Event('input')), true")
        page.wait("!document.querySelector('#dialog button.main').disabled")  # parts are shown
        assert page.run("document.querySelectorAll('#dialog .part').length") == n
        if not page.run("document.querySelector('#dialog label:has(select)').hidden"):
            break
    page.run(f"document.querySelector('#dialog select').selectedIndex = {int(relabels)}, true")
    page.click("#dialog button.main")
    wait_for(page, 1 + relabels)
    found = state(run).state
    split = found.actions[0]
    leaving = [row for row in split.rows.tolist() if answer.columns["label_given"][row] == "zero"]
    staying = [row for row in found.members(here) if answer.columns["label_given"][row] == "zero"]
    assert leaving
    assert all(
        len(staying) >= sum(row in leaving for row in part.rows.tolist()) for part in split.groups
    )
    decisions = Decisions(state(run).state)
    expected = [answer.paths[row] for row in leaving] if relabels else []
    assert sorted(decisions.contradicted) == sorted(expected)


def test_move_new_rename_merge_split_by_keys_alone(page: Page, run: Path) -> None:
    here = page.run("shoal.view.id")
    one, two, three, *_ = rows(page)
    other = next(c.category for c in Run(run).categories if c.category_id != here and c.size > 10)
    ask(page, "m")
    page.type(other)
    page.key("Enter")
    wait_for(page, 1)
    page.key(" ")
    page.key("ArrowRight", SHIFT)
    ask(page, "n")
    page.type("two odd ones")
    page.key("Enter")
    wait_for(page, 2)
    ask(page, "r")
    assert "Rename" in text(page, "#dialog-title")
    page.type("a better name")
    page.key("Enter")
    wait_for(page, 3)
    assert text(page, "#name") == "a better name"
    ask(page, "j")
    page.type("two odd ones")
    assert page.run("document.querySelectorAll('#dialog .side-of').length") == 2
    page.key("Enter")
    wait_for(page, 4)
    found = state(run).state
    assert found.find("two odd ones") is None, "of two named categories, the larger keeps its name"
    into = found.find("a better name")
    assert into is not None
    assert {two, three} <= set(found.members(into).tolist())
    assert one not in found.members(into)
    page.wait(f"shoal.view.id === {into}")
    ask(page, "s")
    page.wait("document.querySelectorAll('#dialog .part').length === 2")
    page.key("ArrowRight")  # the slider has the focus
    page.wait("document.querySelectorAll('#dialog .part').length === 3")
    page.click("#dialog button.main")
    wait_for(page, 5)
    found = state(run).state
    assert {"a better name", "a better name (2)", "a better name (3)"} <= {
        r.name for r in found.categories.values()
    }
    for done in range(6, 11):
        page.key("u")
        wait_for(page, done)
    found = state(run).state
    plain = Review(Run(run)).state
    assert found.category.tolist() == plain.category_ids.tolist()
    assert {c: r.name for c, r in found.categories.items()} == {
        c.category_id: c.category for c in plain.found.values()
    }
    assert page.run("document.getElementById('undo').disabled")
    page.click("#history")
    assert "undo move 1 image (" in text(page, ".history li")
    page.key("Escape")
    page.key("z", CTRL | SHIFT)
    wait_for(page, 11)
    assert page.run("document.getElementById('undo').title") == f"Undo: move 1 image ({other})"


def test_similar_images_map_merges_labels_and_filters_have_an_address(page: Page) -> None:
    row = page.run("shoal.grid.focused")
    page.key("l")
    page.wait("shoal.view.kind === 'similar'")
    assert rows(page)[0] == row
    assert page.run("location.hash") == f"#view=similar&row={row}"
    page.click('[data-view="uncertain"]')
    for kind in ("similar", "category"):  # going back does not wait for a pending search
        page.run("history.back()")
        page.wait(f"shoal.view.kind === '{kind}'")
        page.settle()
    page.click('[data-view="labels"]')
    page.wait("location.hash === '#view=labels'")
    page.click('[data-view="all"]')
    change(page, "low", "0.9")
    page.wait("location.hash === '#view=all&low=0.9'")
    assert page.run("[...shoal.grid.rows].every((row) => shoal.store.confidence[row] >= 225)")
    change(page, "path", "SCAN_00")
    page.wait("location.hash.includes('path=SCAN_00')")
    assert page.run("shoal.grid.rows.length > 0 && shoal.grid.rows.every((row) => row < 100)")
    n_rows = len(rows(page))
    page.open_again()
    page.wait("document.body?.dataset.ready")
    assert len(rows(page)) == n_rows
    change(page, "low", "0")
    change(page, "path", "")
    page.wait("location.hash === '#view=all'")
    page.click('[data-view="merges"]')
    page.wait("document.querySelector('#panel p')?.textContent.includes('close')")
    page.click('[data-view="map"]')
    page.wait("document.querySelector('#panel canvas')")
    draw_around(page, 1.0)
    assert sorted(rows(page)) == list(range(300))
    page.run("history.back()")
    page.wait("document.querySelector('#panel canvas')")
    page.wait("document.getElementById('layout').textContent.includes('t-SNE.')")
    draw_around(page, 0.5)
    inside = rows(page)
    assert 0 < len(inside) < 300
    assert page.run("document.querySelector('#panel canvas').checkVisibility()")  # beside the grid
    assert page.run("document.getElementById('grid').checkVisibility()")
    page.open_again()
    page.wait("document.body?.dataset.ready")
    assert rows(page) == inside


def test_history_shows_what_an_action_was_about(page: Page) -> None:
    here = go_to(page, "three")
    page.key("End")
    row = page.run("shoal.grid.focused")
    page.key("f")
    wait_for(page, 1)
    go_to(page, "one")
    page.click("#history")
    page.click(".history button")
    page.wait(f"shoal.view.id === {here} && shoal.grid.focused === {row}")


def test_similar_images_have_their_similarity_and_filters_fold_away(page: Page) -> None:
    page.key("l")
    page.wait("shoal.view.kind === 'similar'")
    captions = page.run("[...document.querySelectorAll('.caption')].map((one) => one.textContent)")
    values = [float(caption.split()[0]) for caption in captions if caption]
    assert values[0] == 1
    assert all(-1 <= value <= 1 for value in values)
    is_hidden = "document.getElementById('filter-fields').hidden"
    assert page.run(is_hidden)
    change(page, "path", "SCAN_00")  # the filter applies while typing
    page.wait(f"!{is_hidden} && shoal.grid.rows.length < 300")
    assert text(page, "#toggle-filters") == "Filters (1)"


def draw_around(page: Page, share: float) -> None:
    """Draw a lasso around the left part of the map."""
    box = "document.querySelector('#panel canvas').getBoundingClientRect()"
    x, y, width, height = page.run(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
    right = x + share * width - 5
    page.mouse("mousePressed", x + 5, y + 5, button="left", clickCount=1, buttons=1)
    for at in ((right, y + 5), (right, y + height - 5), (x + 5, y + height - 5)):
        page.mouse("mouseMoved", *at, button="left", buttons=1)
    page.mouse("mouseReleased", x + 5, y + height - 5, button="left", buttons=1)
    page.wait("shoal.view.kind === 'lasso'")
