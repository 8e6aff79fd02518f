"""Notes and tags, and the list of near-duplicates."""

from pathlib import Path

from chromium import Page
from review_page import ask, change, rows, seen, state, text, wait_for


def test_notes_on_images_and_categories(page: Page, run: Path) -> None:
    """Notes are written, shown, found by tag and undone; Esc changes nothing."""
    row = int(page.run("shoal.grid.focused"))
    ask(page, "t")
    page.type("wing is #blurred")
    page.key("Enter")
    wait_for(page, 1)
    page.wait("document.getElementById('details').textContent.includes('wing is #blurred')")
    page.run("[...document.querySelectorAll('#verbs button')].at(-2).focus(), true")
    ask(page, "Enter")
    page.type("ask ann")
    page.key("Enter")
    wait_for(page, 2)
    assert text(page, "#facts").endswith("ask ann")
    seen(page)
    change(page, "path", "#BLUR")
    page.wait("shoal.grid.rows.length === 1")
    assert rows(page) == [row]
    page.key("Escape")
    found = state(run).state
    assert found.notes == {row: "wing is #blurred"}
    assert [one.note for one in found.categories.values() if one.note] == ["ask ann"]
    page.run("document.getElementById('grid').focus(), true")
    seen(page)
    ask(page, "t")
    assert page.run("document.querySelector('#dialog input').value") == "wing is #blurred"
    page.key("Escape")
    page.key("u")
    wait_for(page, 3)
    assert not any(one.note for one in state(run).state.categories.values())


def test_a_note_on_images_with_different_notes_starts_empty_and_says_that_it_replaces_them(
    page: Page, run: Path
) -> None:
    first, second = rows(page)[:2]
    page.click(f"#tile-{first}")
    ask(page, "t")
    page.type("left wing")
    page.key("Enter")
    wait_for(page, 1)
    page.click(f"#tile-{first}")
    page.click(f"#tile-{second}")
    ask(page, "t")
    assert page.run("document.querySelector('#dialog input').value") == ""
    page.key("Enter")
    assert page.run("document.getElementById('dialog').open"), "an empty note would delete them"
    assert "replaces" in text(page, "#dialog form")
    page.type("both")
    page.key("Enter")
    wait_for(page, 2)
    assert state(run).state.notes == {first: "both", second: "both"}


def test_near_duplicates_are_listed_with_their_similarity(same_page: Page) -> None:
    page = same_page
    before = page.run("location.hash")
    page.click('[data-view="duplicates"]')
    page.wait("shoal.view.kind === 'duplicates'")
    found = rows(page)
    similarity = page.run("[...shoal.view.similarity.values()]")
    assert len(found) == len(similarity)
    assert all(share >= 0.9 for share in similarity)
    page.run(f"location.hash = {before!r}, true")
    page.wait("shoal.view.kind !== 'duplicates'")
