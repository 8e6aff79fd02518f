"""A box enlarged in Chromium: the page shows its whole image, all boxes and their categories."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chromium import Page
from review_page import ask, pictured, text, wait_for
from served import served
from shoal.boxes import Box, box_name
from small_runs import write_small

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SVG = "document.querySelector('#dialog .picture svg')"
NAMES = f"[...{SVG}.querySelectorAll('text')].map((name) => name.textContent)"
PLACES = (
    f"[...{SVG}.querySelectorAll('rect')].map((one) => one.getBoundingClientRect())"
    ".map(({x, y}) => [x, y])"
)
IMAGE_BOX = "document.querySelector('#dialog .picture img').getBoundingClientRect()"
IMAGE = "document.querySelector('#dialog .picture img')"


def test_the_enlarged_view_shows_the_image_with_its_boxes(
    opened: Callable[..., AbstractContextManager[Page]], tmp_path: Path
) -> None:
    run = write_small(tmp_path / "run")
    boxes = [Box(10 + 100 * (n % 3), 5 + 75 * (n // 3 % 2), 80, 60) for n in range(12)]
    images = [f"{n // 6}.png" for n in range(12)]
    named = zip(run.assignments, images, boxes, strict=True)
    run.write_assignments([replace(row, path=box_name(*place)) for row, *place in named])
    rng = np.random.default_rng(0)
    for image in {*images}:
        pixels = rng.integers(0, 255, (160, 310, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / image)
    run.note(root=str(tmp_path))
    names = [row.category for row in run.assignments]
    with served(run.path) as server, opened(server) as page:
        page.run("shoal.grid.go(shoal.grid.rows.indexOf(1)), true")
        ask(page, "Enter")
        pictured(page)
        page.wait(SVG, 60)
        assert page.run(f"{IMAGE}.naturalWidth") == 310
        assert page.run(NAMES) == names[:6]
        assert page.run(f"{SVG}.querySelectorAll('rect.this').length") == 1
        others = ", ".join(name for row, name in enumerate(names[:6]) if row != 1)
        assert others in text(page, "#dialog dl")
        page.key("+")  # zoomed in, the picture is as large as its element
        left, top, width = page.run(f"(({{x, y, width}}) => [x, y, width])({IMAGE_BOX})")
        expected = [(left + box.x * width / 310, top + box.y * width / 310) for box in boxes[:6]]
        np.testing.assert_allclose(page.run(PLACES), expected, atol=2)
        page.key("x")
        wait_for(page, 1)
        page.wait(f"{SVG} && {NAMES}.includes('no category')", 60)
        assert page.complaints() == []
