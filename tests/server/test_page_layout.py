"""Where things stand on the page, in Chromium: nothing lies over what a person decides on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from chromium import Page
from review_page import ask, change, rows, seen, text, wait_for
from served import Served, served
from small_runs import write_small

pytestmark = pytest.mark.browser

Opened = Callable[..., AbstractContextManager[Page]]
Sized = Callable[[int, int], Page]


@pytest.fixture
def sized(shared_page: Page) -> Iterator[Sized]:
    """A page with a category on it, in a window of any size: nothing looked at here is fixed when a page is opened."""

    def sized(width: int, height: int) -> Page:
        shared_page.resize(width, height)
        shared_page.run("location.hash = 'view=map', true")
        shared_page.wait("shoal.view.kind === 'map'")
        shared_page.run("location.hash = '', true")
        shared_page.wait("shoal.view.kind === 'category'")
        seen(shared_page)
        return shared_page

    yield sized
    assert shared_page.complaints() == []


def box(page: Page, selector: str) -> list[float]:
    """Left, right, top and bottom."""
    sides = "(({left, right, top, bottom}) => [left, right, top, bottom])"
    found: list[float] = page.run(
        f"{sides}(document.querySelector('{selector}').getBoundingClientRect())"
    )
    return found


def overlap(page: Page, *selectors: str) -> bool:
    one, other = (box(page, selector) for selector in selectors)
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


@pytest.mark.parametrize("height", [500, 625])
def test_words_about_an_image_stand_below_its_picture_in_a_low_window(
    sized: Sized, height: int
) -> None:
    page = sized(1366, height)
    page.wait("document.querySelector('#details h2')")
    parts = (
        "[...document.getElementById('details').children].filter((one) => one.checkVisibility())"
    )
    edges = page.run(
        f"{parts}.map((one) => one.getBoundingClientRect()).map(({{top, bottom}}) => [top, bottom])"
    )
    assert all(above[1] <= below[0] for above, below in pairwise(edges))
    left, right, top, bottom = box(page, "#details .picture")
    assert abs((right - left) - (bottom - top)) < 1


@pytest.mark.parametrize("width", [400, 800, 1366, 2560])
def test_what_is_said_covers_neither_the_name_nor_an_image(sized: Sized, width: int) -> None:
    page = sized(width, 800)
    seq = page.run("Number(document.body.dataset.seq)")
    page.key("f")
    wait_for(page, seq + 1)
    assert text(page, "#said").startswith("1 image flagged in ")
    assert not any(overlap(page, "#said", name) for name in ("#name", "#facts", "#verbs", "#grid"))
    page.run(f"document.getElementById('said').textContent = '{'x' * 300}', true")
    left, right, *_ = box(page, "#said")
    assert left >= 0
    assert right <= width
    assert page.run(
        "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(document.getElementById('said'))"
    )
    page.key("u")
    wait_for(page, seq + 2)


@pytest.mark.parametrize(("width", "height"), [(400, 800), (1200, 850), (1366, 625), (2560, 1440)])
def test_the_map_ends_within_the_window(sized: Sized, width: int, height: int) -> None:
    page = sized(width, height)
    page.run("location.hash = 'view=map', true")
    page.wait("document.querySelector('#panel canvas')")
    page.settle()
    assert page.run("(({scrollHeight, clientHeight}) => scrollHeight === clientHeight)(panel)")
    *_, top, bottom = box(page, "#panel canvas")
    assert bottom <= height + 1
    assert bottom - top > height / 3


@pytest.mark.parametrize("width", [400, 1280])
def test_long_names_push_nothing_out_of_sight(opened: Opened, tmp_path: Path, width: int) -> None:
    """Two categories are side by side, or below each other on a narrow page, whatever they are called."""
    names = tuple(f"{letter * 190} {number}" for number, letter in enumerate("mnop"))
    run = write_small(
        tmp_path / "long", names=(*names[:2], f"novel-{names[2]}", f"novel-{names[3]}")
    ).path
    fits = "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)"
    with served(run) as server, opened(server, width=width) as page:
        page.run("location.hash = 'view=map', true")
        page.wait("document.querySelector('#panel canvas')")
        page.settle()
        assert page.run(f"{fits}(panel)")
        page.run("location.hash = 'view=merges', true")
        page.wait("document.querySelector('#panel .merge')")
        page.settle()
        assert page.run(f"{fits}(panel)")
        page.run("location.hash = 'view=category&id=2', true")
        page.wait("shoal.view.id === 2")
        seen(page)
        ask(page, "j")
        page.type(names[0])
        page.wait("document.querySelectorAll('#dialog .side-of').length === 2")
        page.settle()
        assert page.run(f"{fits}(dialog)")


def test_only_a_size_that_somebody_chose_is_kept(opened: Opened, shared_server: Served) -> None:
    with opened(shared_server, width=400, height=800) as page:
        page.call("Page.reload")
        page.wait("document.body?.dataset.ready && window.shoal?.grid.rows.length")
        assert page.run("localStorage.getItem('shoal-size')") is None
        page.run("document.getElementById('size').value = 160, true")
        page.run("document.getElementById('size').dispatchEvent(new Event('input')), true")
        assert page.run("[localStorage.getItem('shoal-size'), shoal.grid.size]") == ["160", 160]
        page.run("localStorage.clear(), true")


def test_images_that_came_with_a_label_are_counted_apart_from_decided_ones(page: Page) -> None:
    is_labeled = "[...shoal.grid.rows].filter((row) => shoal.store.given[row] >= 0)"
    n_labeled = page.run("shoal.store.given.filter((id) => id >= 0).length")
    assert 0 < n_labeled < 300
    assert text(page, "#done-words") == f"0 of 300 images decided, {n_labeled} more labeled"
    shares = (
        "[...document.getElementById('bar').children].map((one) => parseFloat(one.style.width))"
    )
    assert page.run(shares) == [0, pytest.approx(n_labeled / 3)]
    page.click('[data-view="all"]')
    page.wait("shoal.view.kind === 'all'")
    change(page, "size", "56")
    row = page.run(is_labeled)[0]
    page.run(f"shoal.grid.go({rows(page).index(row)}), true")
    page.run("document.getElementById('grid').focus(), true")
    seen(page)
    page.key("f")
    wait_for(page, 1)
    assert text(page, "#done-words") == f"1 of 300 images decided, {n_labeled - 1} more labeled"


@pytest.mark.parametrize(
    ("width", "height", "least"), [(844, 390, 240), (683, 384, 240), (320, 256, 110)]
)
def test_a_low_window_has_room_for_images(
    sized: Sized, width: int, height: int, least: int
) -> None:
    page = sized(width, height)
    novel = page.run("[...shoal.store.categories.values()].find((category) => category.novel).id")
    page.run(f"location.hash = 'view=category&id={novel}'")
    page.wait(f"shoal.view.id === {novel}")
    assert page.run("document.getElementById('grid').clientHeight") >= least
    assert page.run("document.getElementById('name').getBoundingClientRect().width") > 50
    page.run("document.getElementById('grid').scrollIntoView({ block: 'end' })")
    left, right, top, bottom = box(page, "#grid")
    assert top >= 0
    assert bottom <= height + 1
    assert right - left <= width


@pytest.mark.slow
def test_large_tiles_have_pictures_of_their_size(opened: Opened, tmp_path: Path) -> None:
    """Whether a small detail is there can be told in the grid, too, on a screen with two pixels for one."""
    run = write_small(tmp_path / "run")
    for row in run.assignments:
        Image.new("RGB", (1000, 1000)).save(tmp_path / row.path)
    run.note(root=str(tmp_path))
    with served(run.path) as server, opened(server) as page:
        widths = "[...document.querySelectorAll('.tile:not([hidden]) img')].map((one) => one.naturalWidth)"
        for size, scale, width in (
            (112, 1, 224),
            (200, 1, 320),
            (200, 2, 640),
            (320, 2, 640),
            (200, 1, 320),
        ):
            how = {"width": 1280, "height": 900, "deviceScaleFactor": scale, "mobile": False}
            page.call("Emulation.setDeviceMetricsOverride", **how)
            page.run(f"shoal.grid.resize({size}), true")
            page.wait(f"{widths}.every((one) => one === {width})")
        assert page.complaints() == []
