"""Zooming the enlarged image in Chromium: it is sharp to the pixel, can be moved and reset."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chromium import Page
from review_page import ask, pictured
from served import served
from small_runs import write_small

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SIDE = 2600
LARGE = "document.querySelector('#dialog .picture img')"
SCALE = (
    f"{LARGE}.getBoundingClientRect().height / document.querySelector('#dialog "
    ".picture').clientHeight"
)
PLACE = f"(({{ x, y }}) => [x, y])({LARGE}.getBoundingClientRect())"


@pytest.fixture
def page(opened: Callable[..., AbstractContextManager[Page]], tmp_path: Path) -> Iterator[Page]:
    """A page on images of checkerboards with squares of one pixel, which turn gray when scaled
    down.
    """
    run = write_small(tmp_path / "run")
    board = (np.indices((SIDE, SIDE)).sum(axis=0) % 2 * 255).astype(np.uint8)
    for row in run.assignments:
        Image.new("L", (40, 20), 128).save(tmp_path / row.path)
    first = run.assignments[2]
    Image.fromarray(board).save(tmp_path / first.path)
    run.note(root=str(tmp_path))
    with served(run.path) as server, opened(server) as page:
        page.run("shoal.grid.go(shoal.grid.rows.indexOf(2)), true")
        ask(page, "Enter")
        pictured(page)
        page.wait("document.querySelector('#dialog .picture img.original')")
        yield page
        assert page.complaints() == []


def double_click(page: Page, x: float, y: float) -> None:
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            page.mouse(kind, x, y, button="left", clickCount=count, buttons=1)
    page.settle()


def contrast(page: Page, file: Path) -> int:
    """Return the largest difference of adjacent pixels in the middle of the rendered picture."""
    x, y = page.middle("#dialog .picture")
    page.screenshot(file)
    with Image.open(file) as found:
        pixels = np.asarray(
            found.convert("L").crop((int(x) - 40, int(y) - 40, int(x) + 40, int(y) + 40)), np.int64
        )
    return int(np.abs(np.diff(pixels, axis=1)).max())


def test_a_double_click_shows_the_image_pixel_by_pixel_and_esc_all_of_it_again(
    page: Page, tmp_path: Path
) -> None:
    assert page.run(f"{LARGE}.naturalWidth") == 2048
    assert contrast(page, tmp_path / "all.png") < 60
    double_click(page, *page.middle("#dialog .picture"))
    page.wait("document.querySelector('.zoom').textContent === '100 % of 2,600 × 2,600 pixels'")
    assert contrast(page, tmp_path / "close.png") > 200
    page.key("Escape")
    assert page.run(SCALE) == 1
    assert page.run("document.getElementById('dialog').open")
    page.key("Escape")
    page.wait("!document.getElementById('dialog').open")


def test_it_is_zoomed_and_moved_by_keys_wheel_and_dragging(page: Page) -> None:
    shown = page.run("document.getElementById('dialog-title').textContent")
    page.key("+")
    page.wait(f"{LARGE}.naturalWidth === {SIDE}")
    page.settle()
    assert page.run(SCALE) == pytest.approx(1.5)
    x, y = page.middle("#dialog .picture")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120)
    page.wait(f"{SCALE} > 1.8")
    for key in ("+", "+", "+"):
        page.key(key)
    left, top = page.run(PLACE)
    page.key("ArrowRight")
    page.key("ArrowDown")
    by_keys = page.run(PLACE)
    assert (by_keys[0] < left, by_keys[1] < top) == (True, True)
    page.mouse("mousePressed", x, y, button="left", clickCount=1, buttons=1)
    page.mouse("mouseMoved", x + 30, y + 20, button="left", buttons=1)
    page.mouse("mouseReleased", x + 30, y + 20, button="left", buttons=1)
    assert page.run(PLACE) == pytest.approx([by_keys[0] + 30, by_keys[1] + 20], abs=0.1)
    for _ in range(24):
        page.key("ArrowLeft")
    frame = page.run("document.querySelector('#dialog .picture').getBoundingClientRect().x")
    assert page.run(PLACE)[0] == pytest.approx(frame, abs=1)  # not beyond its edge
    for _ in range(12):
        page.key("-")
    assert page.run(SCALE) == 1
    assert page.run("document.getElementById('dialog-title').textContent") == shown
    page.key("ArrowRight")  # the next image, as without zoom
    page.wait(f"document.getElementById('dialog-title').textContent !== '{shown}'")
