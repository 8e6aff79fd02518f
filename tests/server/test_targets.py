"""Finding a category and moving images to one, in Chromium."""

from pathlib import Path

import pytest

from chromium import Page
from review_page import ask, go_to, rows, state, text, wait_for

pytestmark = pytest.mark.browser

NAMES = "[...document.querySelectorAll('.category bdi')].map((one) => one.textContent)"
TARGETS = "[...document.querySelectorAll('#targets bdi')].map((one) => one.textContent)"


def test_escape_empties_the_field_and_shows_all_categories(page: Page) -> None:
    everything = page.run(NAMES)
    page.key("/")
    page.type("three")
    assert page.run(NAMES) == ["three"]
    page.key("Escape")
    assert page.run(NAMES) == everything
    page.key("/")
    page.type("three")
    page.key("Enter")
    page.wait(f"{NAMES}.length === {len(everything)}")
    assert text(page, "#name") == "three"


def test_confirming_goes_on_from_a_category_whose_new_name_is_not_in_the_list(page: Page) -> None:
    page.run("document.getElementById('find').value = 'novel-001', true")
    page.run("document.getElementById('find').dispatchEvent(new Event('input')), true")
    here = go_to(page, "novel-001")
    ask(page, "r")
    page.type("petunia")
    page.key("Enter")
    wait_for(page, 1)
    page.key("c")
    wait_for(page, 2)
    page.wait(f"shoal.view.kind === 'category' && shoal.view.id !== {here}")


def test_enter_takes_the_first_match_and_a_new_category_is_chosen_explicitly(
    page: Page, run: Path
) -> None:
    here = go_to(page, "one")
    first, second, third, *_ = rows(page)
    n_before = len(state(run).state.categories)
    ask(page, "m")
    page.type("THREE")
    page.key("Enter")
    wait_for(page, 1)
    found = state(run).state
    assert found.category[first] == found.find("three")
    ask(page, "m")
    page.type("nov")
    assert page.run(TARGETS)[-1] == "nov"  # the row that would create this category
    page.key("Enter")
    wait_for(page, 2)
    found = state(run).state
    assert found.category[second] == found.find("novel-001")
    assert len(found.categories) == n_before
    ask(page, "m")
    page.type("fire lily")
    page.key("Enter")
    assert page.run("document.getElementById('dialog').open")
    page.key("ArrowDown")
    page.key("Enter")
    wait_for(page, 3)
    found = state(run).state
    assert found.category[third] == found.find("fire lily")
    ask(page, "n")
    page.type("Fire-Lily")
    page.key("Enter")
    assert page.run("document.getElementById('dialog').open"), "it exists in another case"
    page.key("Escape")
    ask(page, "j")
    page.wait(f"{TARGETS}.length > 1")  # neighboring categories, listed before typing
    assert "one" not in page.run(TARGETS)
    assert page.run("shoal.view.id") == here


def test_a_digit_moves_images_to_a_likely_category(page: Page, run: Path) -> None:
    go_to(page, "one")
    first = rows(page)[0]
    ask(page, "m")
    page.wait("document.querySelector('#targets kbd')")
    page.wait("!document.querySelector('#targets img:not(.there)')")
    page.settle()
    target = page.run(TARGETS)[1]
    assert len(set(page.run(TARGETS))) > 2
    page.key("2")
    wait_for(page, 1)
    found = state(run).state
    assert found.category[first] == found.find(target)


def test_a_merge_keeps_the_known_name_unless_another_one_is_chosen(page: Page, run: Path) -> None:
    known = go_to(page, "one")
    ask(page, "j")
    page.type("novel-001")
    page.key("Enter")
    wait_for(page, 1)
    found = state(run).state
    assert known in found.categories
    assert found.find("novel-001") is None
    assert page.run("shoal.view.id") == known


def test_undoing_a_merge_goes_back_to_the_merged_category(page: Page) -> None:
    here = go_to(page, "one")
    ask(page, "j")
    page.type("two")
    page.key("Enter")
    wait_for(page, 1)
    page.wait(f"shoal.view.id !== {here}")
    page.key("u")
    wait_for(page, 2)
    page.wait(f"shoal.view.id === {here}")


def test_selected_images_are_dragged_onto_a_category(page: Page, run: Path) -> None:
    go_to(page, "one")
    first, second, *_ = rows(page)
    page.click(f"#tile-{first}")
    page.click(f"#tile-{second}")
    target = page.run("shoal.store.categories.values().find(({ name }) => name === 'three').id")
    x, y = page.middle(f'.category[data-id="{target}"]')
    page.mouse("mousePressed", *page.middle(f"#tile-{first}"), button="left", clickCount=1)
    page.mouse("mouseMoved", x + 9, y, button="left", buttons=1)
    page.mouse("mouseMoved", x, y, button="left", buttons=1)
    page.settle()
    assert text(page, "#drag") == "2 images"
    page.mouse("mouseReleased", x, y, button="left")
    wait_for(page, 1)
    assert state(run).state.category[[first, second]].tolist() == [target, target]


def test_dragging_to_the_end_of_the_list_scrolls_it(page: Page) -> None:
    page.resize(1280, 500)
    page.settle()
    first = rows(page)[0]
    page.click(f"#tile-{first}")
    box = page.run("document.getElementById('categories').getBoundingClientRect().toJSON()")
    x = box["x"] + 20
    page.mouse("mousePressed", *page.middle(f"#tile-{first}"), button="left", clickCount=1)
    page.mouse("mouseMoved", x, box["bottom"] - 60, button="left", buttons=1)
    page.mouse("mouseMoved", x, box["bottom"] - 5, button="left", buttons=1)
    page.wait(
        "(({scrollTop, scrollHeight, clientHeight}) => scrollTop > 0"
        " && scrollTop >= scrollHeight - clientHeight - 1)(document.getElementById('categories'))"
    )
    page.mouse("mouseMoved", 700, 300, button="left", buttons=1)
    page.mouse("mouseReleased", 700, 300, button="left")
    assert page.run("document.querySelector('.category.target')") is None


def test_a_split_gives_a_part_to_an_existing_category_and_shows_all_of_its_images(
    page: Page, run: Path
) -> None:
    here = go_to(page, "one")
    target = page.run("shoal.store.categories.values().find(({ name }) => name === 'three').id")
    ask(page, "s")
    page.wait("document.querySelectorAll('#dialog .part').length === 2")
    part = "document.querySelectorAll('#dialog .part')[1]"
    images = f"[...{part}.querySelectorAll('[data-row]')].map((one) => Number(one.dataset.row))"
    n_images = int(page.run(f"{part}.querySelector('.muted').textContent.split(' ')[0]"))
    if n_images > 16:
        page.run(f"{part}.querySelector('button').click(), true")
    leaving = page.run(images)
    assert len(leaving) == n_images
    page.run(f"{part}.querySelector('input').select(), true")
    page.run(f"{part}.querySelector('input').focus(), true")
    page.type("Three")
    page.key("Enter")
    wait_for(page, 1)
    found = state(run).state
    assert set(found.category[leaving].tolist()) == {target}
    assert not set(found.members(here).tolist()) & set(leaving)
