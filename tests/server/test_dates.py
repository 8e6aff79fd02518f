"""Images in the order of their dates: that of the photograph, or else that of the file."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

import pytest
from PIL import ExifTags, Image

from chromium import Page
from review_page import change, rows, seen, text
from served import served
from shoal.boxes import Box, box_name
from shoal.runs import Run
from shoal.server.page_data import Originals
from small_runs import write_small

MODIFIED = datetime(2026, 5, 3, 12, 0, 0)


def write_photo(file: Path, taken: str = "") -> None:
    """Write a photo that was taken at some time, or not known when; the file is of `MODIFIED`."""
    exif = Image.Exif()
    if taken:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
    Image.new("RGB", (40, 20)).save(file, "JPEG", exif=exif)
    os.utime(file, (MODIFIED.timestamp(), MODIFIED.timestamp()))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of twelve images, five of which are files: two with the date of the photograph."""
    run = write_small(tmp_path / "run")
    for row in (0, 3, 4):
        write_photo(tmp_path / f"{row:02d}.png")
    write_photo(tmp_path / "01.png", "2026:05:04 07:05:31")
    write_photo(tmp_path / "05.png", "2025:12:31 23:59:59")
    run.note(root=str(tmp_path))
    return run


def test_a_date_is_of_the_photograph_or_else_of_the_file(run: Run, tmp_path: Path) -> None:
    write_photo(tmp_path / "wrong.jpg", "0000:00:00 00:00:00")
    (tmp_path / "text.jpg").write_text("not an image")
    os.utime(tmp_path / "text.jpg", (MODIFIED.timestamp(), MODIFIED.timestamp()))
    box = box_name("01.png", Box(1, 2, 3, 4))
    paths = [
        "01.png",
        box,
        "00.png",
        "wrong.jpg",
        "text.jpg",
        "missing.png",
        "../run/embeddings.npy",
    ]
    taken = "2026-05-04 07:05:31"
    modified = str(MODIFIED)
    expected = [taken, taken, modified, modified, modified, "", ""]
    assert Originals(run, paths).dates == expected
    stored = write_small(tmp_path / "stored")
    stored.note(root="s3://photos")
    assert Originals(stored, paths).dates == [""] * len(paths)


@pytest.mark.browser
def test_images_in_the_order_of_their_dates(
    opened: Callable[..., AbstractContextManager[Page]], run: Run
) -> None:
    captions = "[...document.querySelectorAll('.tile .caption')].map((one) => one.textContent)"
    with served(run.path) as server, opened(server) as page:
        page.click('[data-view="all"]')
        page.wait("shoal.view.kind === 'all'")
        change(page, "order", "oldest")
        page.wait("shoal.view.order === 'oldest'")
        assert rows(page) == [5, 0, 3, 4, 1, 2, 6, 7, 8, 9, 10, 11]
        assert text(page, "#count") == "12 images, 0 decided, 7 without a date"
        assert "2026-05-04 07:05gull" in page.run(captions)
        seen(page)
        page.key("o")
        page.wait("shoal.view.order === 'newest'")
        assert rows(page) == [1, 4, 3, 0, 5, 2, 6, 7, 8, 9, 10, 11]
        page.wait(
            "document.querySelector('#details dl')?.textContent.includes('2026-05-04 07:05:31')"
        )
        page.open_again()
        page.wait("document.body?.dataset.ready")
        assert rows(page)[0] == 1
        assert text(page, "#order option:checked") == "Newest first"
        page.click('[data-view="uncertain"]')  # a list with an order of its own
        page.wait("shoal.view.kind === 'uncertain'")
        assert page.run("document.getElementById('order').hidden")
