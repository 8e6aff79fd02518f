"""Images whose files are gone, in Chromium: a thumbnail that stands for one says so."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from PIL import Image

from chromium import Page
from review_page import ask, text
from served import served
from shoal.runs import Run

pytestmark = pytest.mark.browser

Opened = Callable[..., AbstractContextManager[Page]]


def test_a_file_that_is_gone_is_said_on_its_picture_and_no_other(
    opened: Opened, run: Path, tmp_path: Path
) -> None:
    for row in Run.open(run).assignments[:50]:
        file = tmp_path / "moved" / row.path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20)).save(file)
    with served(run, "--images", str(tmp_path / "moved")) as server, opened(server) as page:
        page.run("location.hash = 'view=similar&row=70', true")
        page.wait("shoal.grid.focused === 70")
        ask(page, "Enter")
        page.wait("document.querySelector('#dialog .why')")
        assert (
            text(page, "#dialog .why")
            == "Only a thumbnail: the original cannot be shown: the file is not there"
        )
        page.key("Escape")
        page.run("location.hash = 'view=similar&row=7', true")
        page.wait("shoal.grid.focused === 7")
        ask(page, "Enter")
        page.wait("document.querySelector('#dialog .original')")
        assert page.run("document.querySelector('#dialog .why')") is None
        assert [line for line in page.complaints() if "400 (Bad Request)" not in line] == []
