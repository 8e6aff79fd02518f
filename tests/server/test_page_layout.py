"""Where things stand on the page, in Chromium: nothing lies over what a person decides on."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from PIL import Image

from chromium import Page
from served import served
from small_runs import write_small

pytestmark = pytest.mark.browser

Opened = Callable[..., AbstractContextManager[Page]]


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
