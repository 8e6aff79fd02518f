"""Files that are not images are recognized by their first bytes."""

import numpy as np
import pytest
from PIL import Image

from shoal.data.pixels.loading import check_headers
from shoal.data.readers import read_collection


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(3):
        Image.fromarray(np.full((4, 4, 3), i, dtype=np.uint8)).save(
            tmp_path / "photos" / f"{i}.png"
        )
    return tmp_path / "photos"


def test_empty_and_foreign_files_are_found_with_the_reason_and_large_ones_left_to_decoding(
    folder,
):
    (folder / "a.jpg").write_bytes(b"")
    (folder / "b.jpg").write_bytes(b"no image")
    Image.new("1", (20_000, 20_000)).save(folder / "c.png")
    collection = read_collection(folder, False)
    (folder / "0.png").unlink()
    found = {image.name: image.reason for image in check_headers(collection, 8)}
    assert set(found) == {"0.png", "a.jpg", "b.jpg"}
    assert found["0.png"] == "the file does not exist"
    assert found["a.jpg"].startswith("not an image in a known format")
    assert found["b.jpg"].startswith("not an image in a known format")
