"""A label of ten thousand characters, in Chromium, takes as much space as a short one."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import Page
from review_page import ask, go_to, text, wait_for
from served import served

pytestmark = pytest.mark.browser

LONG = "x" * 10_000


def test_a_long_name_is_clamped_and_whole_on_hover(
    opened: Callable[..., AbstractContextManager[Page]], run: Path
) -> None:
    for table in (run / "assignments.csv", run / "categories.csv"):
        table.write_text(re.sub(r"\bone\b", LONG, table.read_text()))
    with served(run) as server, opened(server) as page:
        page.run("document.getElementById('find').value = 'xx', true")
        page.run("document.getElementById('find').dispatchEvent(new Event('input')), true")
        go_to(page, LONG[:79] + "…")
        assert text(page, "#name") == LONG
        assert page.run("document.getElementById('name').title") == LONG
        assert page.run("document.querySelector('.category bdi').title") == LONG
        assert page.run("document.getElementById('grid').clientHeight > innerHeight / 2")
        assert not page.run("document.body.scrollWidth > innerWidth")
        page.key("f")
        wait_for(page, 1)
        assert page.run("document.getElementById('notification').offsetHeight < innerHeight / 3")
        for key in "mrjs":
            ask(page, key)
            page.settle()
            assert page.run("document.getElementById('dialog-title').offsetHeight < 200")
            assert not page.run(
                "(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)"
                "(document.getElementById('dialog'))"
            )
            page.key("Escape")
            page.wait("!document.getElementById('dialog').open")
        page.click("#history")
        assert len(text(page, ".history li")) < 300
        assert page.complaints() == []
