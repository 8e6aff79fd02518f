"""Pictures sent by the server: thumbnails from the run, and originals from the collection."""

import io
import json
import struct
from pathlib import Path

import pytest
from PIL import Image

from served import served
from shoal.runs import Run
from shoal.server.page_data import Originals
from small_runs import write_small


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_small(tmp_path / "run")


def jpeg(row: int, *, exif: int | None = None) -> bytes:
    image = Image.new("RGB", (40, 20), (10 * row, 0, 0))
    tags = Image.Exif()
    if exif is not None:
        tags[0x0112] = exif
    file = io.BytesIO()
    image.save(file, "JPEG", exif=tags)
    return file.getvalue()


def test_thumbnails_come_many_at_once(run: Run) -> None:
    pictures = [jpeg(row) for row in range(12)]
    run.write_thumbnails(pictures)
    with served(run.path) as server:
        body = server.ask("/thumbnails?rows=3,11")[1]
        n, first, second = struct.unpack("<III", body[:12])
        assert (n, first, second) == (2, len(pictures[3]), len(pictures[11]))
        assert body[12:] == pictures[3] + pictures[11]


def test_a_picture_that_failed_is_not_kept_by_the_browser(run: Run, tmp_path: Path) -> None:
    (tmp_path / "00.png").write_bytes(jpeg(0))
    run.note(root=str(tmp_path))
    with served(run.path) as server:
        asked = [
            server.ask(f"/thumbnails?sharp=1&rows={rows}")[2]["cache-control"]
            for rows in ("0", "0,1")
        ]
        (tmp_path / "01.png").write_bytes(jpeg(1))
        asked.append(server.ask("/thumbnails?sharp=1&rows=0,1")[2]["cache-control"])
    forever = "private, max-age=31536000, immutable"
    assert asked == [forever, "no-store", forever]


@pytest.mark.parametrize(("asked", "side"), [(1, 224), (320, 320), (100_000, 640)])
def test_sharper_pictures_have_the_pixels_that_the_page_asks_for(
    run: Run, tmp_path: Path, asked: int, side: int
) -> None:
    Image.new("RGB", (800, 400)).save(tmp_path / "00.png")
    Image.new("RGB", (40, 20)).save(tmp_path / "01.png")
    run.note(root=str(tmp_path))
    with served(run.path) as server:
        body = server.ask(f"/thumbnails?sharp={asked}&rows=0,1")[1]
        n, first, _ = struct.unpack("<III", body[:12])
        found = [
            Image.open(io.BytesIO(part)).size
            for part in (body[12 : 12 + first], body[12 + first :])
        ]
        assert (n, found) == (2, [(side, side // 2), (40, 20)])
        assert server.ask("/thumbnails?sharp=x&rows=0")[0] == 400


def test_an_original_is_upright_and_never_lies_outside(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    (root / "00.png").write_bytes(jpeg(0, exif=6))
    (tmp_path / "secret.png").write_bytes(jpeg(9))
    (root / "01.png").write_text("not an image")
    run.note(root=str(root))
    rows = run.assignments
    run.write_assignments(
        [
            *rows[:2],
            *(_moved(row, path) for row, path in zip(rows[2:5], OUTSIDE, strict=True)),
            *rows[5:],
        ]
    )
    with served(run.path) as server:
        status, body, headers = server.ask("/image/0")
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        assert Image.open(io.BytesIO(body)).size == (20, 40)
        assert json.loads(server.ask("/image/1")[1])["error"].startswith(
            "the original cannot be shown: not an image in"
        )
        for row in (2, 3, 4):
            assert json.loads(server.ask(f"/image/{row}")[1]) == {
                "error": "the path leads out of the collection"
            }
        answer = {"error": "the original cannot be shown: the file does not exist"}
        assert (server.ask("/image/5")[0], json.loads(server.ask("/image/5")[1])) == (400, answer)
    assert not Originals(run, []).missing


OUTSIDE = ("../secret.png", "/etc/passwd", "a/../../secret.png")


def _moved(row: object, path: str) -> object:
    from dataclasses import replace

    return replace(row, path=path)  # type: ignore[type-var]
