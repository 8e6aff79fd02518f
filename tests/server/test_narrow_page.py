"""A narrow page in Chromium: everything that a wide page offers can be reached by mouse and by
touch.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import Page
from review_page import rows, seen, text, wait_for
from served import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module", params=[400, 1100])
def narrow(
    request: pytest.FixtureRequest,
    opened: Callable[..., AbstractContextManager[Page]],
    digits: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    run = Path(shutil.copytree(digits, tmp_path_factory.mktemp("narrow") / "run"))
    with served(run) as server, opened(server, width=request.param, height=800) as page:
        yield page


@pytest.fixture
def page(narrow: Page) -> Iterator[Page]:
    """The page in its initial state: no touch, no dialog, no selection, the first image in focus.

    Opening a new page takes a second of CPU time, more than most of these tests.
    """
    narrow.call("Emulation.setTouchEmulationEnabled", enabled=False)
    narrow.run(
        "document.getElementById('dialog').close(), shoal.grid.select([]), location.hash = "
        "'view=map', true"
    )
    narrow.wait("shoal.view.kind === 'map'")
    narrow.run("location.hash = '', true")
    narrow.wait("shoal.view.kind === 'category'")
    narrow.run("shoal.grid.go(0), document.getElementById('grid').focus(), true")
    seen(narrow)
    yield narrow
    assert narrow.complaints() == []


def test_what_is_confirmed_is_on_the_screen_in_a_list_across_categories(page: Page) -> None:
    seq = page.run("Number(document.body.dataset.seq)")
    page.run("location.hash = 'view=all', true")
    page.wait("shoal.view.kind === 'all'")
    seen(page)
    row = rows(page)[0]
    caption = "document.querySelector('.tile.focus .caption')"
    name = page.run(f"shoal.store.categories.get(shoal.store.category[{row}]).name")
    assert page.run(f"[{caption}.textContent, {caption}.checkVisibility()]") == [name, True]
    assert page.run(f"{caption}.getBoundingClientRect().height") > 8
    page.click("#verbs .main")
    wait_for(page, seq + 1)
    assert text(page, "#notification") == f"1 image confirmed as {name}"
    page.run("shoal.grid.select(shoal.grid.rows), true")
    page.key("f")
    wait_for(page, seq + 2)
    n_categories = page.run("new Set(shoal.store.category).size")
    assert text(page, "#notification") == f"300 images flagged in {n_categories} categories"
    for n in (3, 4):
        page.key("u")
        wait_for(page, seq + n)
    page.run(f"location.hash = 'view=category&id=' + shoal.store.category[{row}], true")
    page.wait("shoal.view.kind === 'category'")
    seen(page)
    assert not page.run(
        "[...document.querySelectorAll('.tile .caption')].some((one) => one.checkVisibility())"
    )
