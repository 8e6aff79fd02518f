"""A page with a hundred thousand thumbnails: images appear wherever one scrolls, and the DOM stays
small.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import Page
from digit_runs import write_synthetic
from review_page import rows, state, wait_for
from served import served

N_IMAGES = 100_000

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCROLLED = """
new Promise((done) => {
  const grid = document.getElementById("grid"), end = performance.now() + 2000;
  const step = (now) => {
    grid.scrollTop += 90;
    if (now < end) requestAnimationFrame(step); else done(grid.scrollTop > 0);
  };
  requestAnimationFrame(step);
})
"""

IS_AS_THE_SERVER_SAYS = """
fetch("/api/columns").then((answer) => answer.arrayBuffer()).then((bytes) => {
  const { n, category, status } = shoal.store;
  const now = new Int32Array(bytes, 4 + 4 * n, n), decided = new Uint8Array(bytes, 4 + 16 * n, n);
  const isSame = category.every((id, row) => id === now[row]);
  return isSame && status.every((one, row) => one === decided[row]);
})
"""


def test_a_hundred_thousand_images(
    opened: Callable[..., AbstractContextManager[Page]], tmp_path: Path
) -> None:
    run = write_synthetic(tmp_path / "run", N_IMAGES, n_categories=200, n_dimensions=64)
    with served(run.path) as server, opened(server) as page:
        n_category = len(rows(page))
        page.key("x")
        wait_for(page, 1)
        page.key("c")
        wait_for(page, 2)
        assert (state(run.path).state.status == 1).sum() == n_category - 1
        page.click('[data-view="all"]')
        page.wait(f"shoal.grid.rows.length === {N_IMAGES}")
        assert page.run(SCROLLED)
        page.run("document.getElementById('grid').focus(), true")
        page.key("End")
        last = rows(page)[-1]
        page.wait(f"document.querySelector('#tile-{last} img.there')")
        assert page.run("document.querySelectorAll('.tile').length") < 500
        left = (
            "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)"
        )
        assert page.run(f"{left}(document.getElementById('grid'))") < 8
        for seq, key in enumerate(("f", "x", "u", "u", "U"), start=3):  # on all images at once
            page.key("a")
            page.key(key)
            wait_for(page, seq)
            assert page.run(IS_AS_THE_SERVER_SAYS)
        for kind in ("uncertain", "labels", "map"):
            page.click(f'[data-view="{kind}"]')
            page.wait(f"shoal.view.kind === '{kind}'")
        page.wait("document.querySelector('#panel canvas')")
        assert page.complaints() == []
