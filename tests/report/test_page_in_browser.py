"""The page in Chromium, operated as by a reader."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chromium import Browser, Page
from shoal.boxes import Box, box_name
from shoal.report.page import render_report
from shoal.runs import Run
from small_runs import write_small

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def file(small: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page") / "report.html"
    found.write_text(render_report(small), encoding="utf-8")
    return found


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """An open report; no test may cause an error in the browser or a request to another site."""
    with browser.open(file) as found:
        yield found
        assert found.complaints() == []


@pytest.fixture(scope="module")
def opened(browser: Browser, file: Path) -> Iterator[Page]:
    with browser.open(file) as found:
        yield found


@pytest.fixture
def same_page(opened: Page) -> Iterator[Page]:
    """One report shared by tests that change only its size, its map and the displayed image."""
    opened.resize(1280, 900)
    opened.run("viewer.close(), document.getElementById('map-reset').click(), true")
    opened.settle()
    yield opened
    assert opened.complaints() == []


def text(page: Page, element_id: str) -> str:
    found: str = page.run(f"document.getElementById('{element_id}').textContent")
    return found


def visible_cards(page: Page) -> list[str]:
    found: list[str] = page.run(
        "cards.filter((card) => card.offsetParent).map((card) => card.dataset.name)"
    )
    return found


def choose(page: Page, element_id: str, value: str) -> None:
    page.run(
        f"(() => {{ const e = document.getElementById('{element_id}'); e.value = '{value}'; "
        "e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change')) })()"
    )
    page.settle()


def place_of_point(page: Page, panel: int, at: int) -> tuple[float, float]:
    """Return the position of image number `at` of the map on the screen."""
    page.middle("#panels")
    x, y = page.run(f"panels[{panel}].place({at})")
    left, top = page.run(
        f"(({{left, top}}) => [left, top])(panels[{panel}].canvas.getBoundingClientRect())"
    )
    return left + x, top + y


def test_the_gallery_filters_and_sorts(page: Page, small: Run) -> None:
    everything = [c.category for c in sorted(small.categories, key=lambda c: (-c.size, c.category))]
    assert visible_cards(page) == everything
    choose(page, "filter", "NOVEL-00")
    novel = [c.category for c in small.categories if c.is_novel]
    assert sorted(visible_cards(page)) == novel
    assert text(page, "gallery-status") == f"{len(novel)} of {len(everything)} cards"
    choose(page, "filter", "no such thing")
    assert visible_cards(page) == []
    assert page.run("document.getElementById('nothing').offsetParent !== null")
    choose(page, "filter", "")
    choose(page, "kind", "known")
    assert sorted(visible_cards(page)) == sorted(
        c.category for c in small.categories if not c.is_novel
    )
    choose(page, "kind", "")
    choose(page, "sort", "uncertainty")
    assert visible_cards(page)[0] == min(small.categories, key=lambda c: c.confidence).category
    choose(page, "sort", "novelty")
    least_similar = min(
        (c for c in small.categories if c.is_novel), key=lambda c: c.nearest_known_similarity
    )
    assert visible_cards(page)[0] == least_similar.category


def test_an_image_opens_large_with_what_is_known_of_it_and_arrow_keys_turn_pages(
    page: Page, small: Run
) -> None:
    page.click("#cards .card .strip .tile")
    row = int(page.run("document.querySelector('#cards .card .strip .tile').dataset.row"))
    image = small.assignments[row]
    assert page.run("viewer.open")
    assert text(page, "viewer-name") == image.path
    facts = text(page, "viewer-facts")
    assert f"Confidence{image.confidence:.2f}" in facts
    assert f"Second choice{image.second_category}" in facts
    assert text(page, "viewer-place").startswith("1 of 12")
    page.key("ArrowRight")
    assert text(page, "viewer-place").startswith("2 of 12")
    assert text(page, "viewer-name") != image.path
    page.key("ArrowLeft")
    page.key("ArrowLeft")
    assert text(page, "viewer-place").startswith("1 of 12")
    assert page.run("document.getElementById('viewer-image').firstChild.naturalWidth") == 64
    page.key("Escape")
    assert not page.run("viewer.open")
    assert page.run("document.activeElement.matches('.tile')")  # the focus returns to the image


def test_the_original_of_a_box_is_its_image(browser: Browser, tmp_path: Path) -> None:
    run = write_small(tmp_path / "run")
    run.note(root=str(tmp_path))
    boxes = [Box(10 * row, 5, 8, 6) for row in range(12)]
    rows = zip(run.assignments, boxes, strict=True)
    run.write_assignments([replace(row, path=box_name("a #1.png", box)) for row, box in rows])
    file = tmp_path / "report.html"
    file.write_text(render_report(run), encoding="utf-8")
    with browser.open(file) as page:
        page.click("button.tile")
        link = page.run("document.getElementById('viewer-open').href")
        assert link == (tmp_path / "a #1.png").as_uri()
        assert page.complaints() == []


def test_the_map_shows_the_image_under_the_mouse_in_both_panels(
    same_page: Page, small: Run
) -> None:
    point = place_of_point(same_page, 0, 100)
    same_page.mouse("mouseMoved", *point)
    same_page.settle()
    assert (
        same_page.run(
            "!document.getElementById('tip').hidden && document.querySelector('#tip "
            "img').naturalWidth"
        )
        == 64
    )
    hovered = same_page.run("hovered")
    assert small.assignments[hovered].category in text(same_page, "tip-words")
    assert same_page.run("panels.length") == 2


def test_a_lasso_selects_the_images_inside_and_lists_them(same_page: Page) -> None:
    x, y = same_page.middle("#panels canvas")
    same_page.mouse("mousePressed", x - 60, y - 60, button="left", clickCount=1, modifiers=8)
    for dx, dy in ((60, -60), (60, 60), (-60, 60)):
        same_page.mouse("mouseMoved", x + dx, y + dy, button="left", buttons=1, modifiers=8)
    same_page.mouse("mouseReleased", x - 60, y + 60, button="left", clickCount=1, modifiers=8)
    same_page.settle()
    inside = same_page.run(
        "(() => { const p = panels[0], w = p.width / 2, h = p.height / 2; return "
        "p.layout.x.filter((_, at) => "
        "{ const [x, y] = p.place(at); return Math.abs(x - w) < 59 && Math.abs(y - h) < 59 "
        "}).length })()"
    )
    n = same_page.run("selected.size")
    assert 0 < inside <= n < inside + 40
    assert text(same_page, "selection-title") == f"{n} images selected"
    assert same_page.run("document.querySelectorAll('#selection .tile').length") == min(n, 400)
    same_page.click("#selection .tile")
    assert same_page.run("viewer.open")
    same_page.key("Escape")
    same_page.click("#selection-clear")
    assert same_page.run("selected.size === 0 && document.getElementById('selection').hidden")


def test_the_map_works_with_the_keyboard_alone(page: Page, small: Run) -> None:
    page.run("panels[0].canvas.focus()")
    page.key("ArrowRight")
    first = page.run("hovered")
    assert small.assignments[first].path in text(page, "map-status")
    x = page.run("panels[0].place(hovered)[0]")
    page.key("ArrowRight")
    assert page.run("panels[0].place(hovered)[0]") > x
    page.key("+")
    assert page.run("panels[0].zoom") == pytest.approx(1.4)
    page.key("Enter")
    assert page.run("viewer.open")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(same_page: Page, width: int) -> None:
    same_page.resize(width, 900)
    same_page.settle()
    assert same_page.run("document.documentElement.scrollWidth") == width
    same_page.click("#cards .card .strip .tile")
    assert same_page.run("viewer.scrollWidth <= viewer.clientWidth")


def test_hostile_names_are_shown_in_the_browser_and_run_nothing(
    browser: Browser, hostile: Run, tmp_path: Path
) -> None:
    found = tmp_path / "hostile.html"
    found.write_text(render_report(hostile), encoding="utf-8")
    for width in (1280, 390):
        with browser.open(found, width=width) as page:
            page.run("window.alert = () => { throw new Error('alert was called') }")
            for at in range(8):
                page.run(f"view([images.row[{6 * at}]], 0)")
                page.settle()
            assert page.run("document.querySelectorAll('script').length") == 4
            assert page.run("document.documentElement.scrollWidth") == width
            assert "<script>alert(1)</script>.png" in page.run("document.body.innerText")
            assert page.complaints() == []


def test_a_script_that_is_not_ours_cannot_run(page: Page) -> None:
    page.run(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: "
        "'window.stranger = 1'}))"
    )
    assert page.run("window.stranger === undefined")
    refused = page.complaints()
    assert len(refused) == 1
    assert "Content Security Policy" in refused[0]
    page.browser.events.clear()
