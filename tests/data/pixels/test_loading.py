"""The pixel cache: incremental, and valid after any interruption of a writer."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.data.pixels.decoding import decode_file, decode_image
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.errors import ShoalError

Make = Callable[[list[str]], Path]
SIZE = 8


class Steps:
    """Records the calls of `progress`."""

    def __init__(self):
        self.seen: list[tuple[int, int]] = []

    def __call__(self, done, total):
        self.seen.append((done, total))

    @property
    def n_decoded(self):
        return self.seen[-1][0] - self.seen[0][0]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def reference(root, names, size=SIZE):
    rows = [np.frombuffer(decode_file(str(root / name), size), dtype=np.uint8) for name in names]
    return np.stack(rows).reshape(-1, size, size, 3)


def test_the_cache_holds_what_decoding_one_by_one_gives(make_images, cache):
    collection = read_collection(make_images([f"{i:03d}.png" for i in range(40)]))
    expected = reference(collection.root, collection.names)
    for n_workers in (2, 1):  # the second call decodes nothing
        steps = Steps()
        pixels = load_pixels(collection, SIZE, cache=cache, n_workers=n_workers, progress=steps)
        np.testing.assert_array_equal(pixels[:], expected)
        assert (len(pixels), pixels.shape[1], pixels.names) == (40, SIZE, collection.names)
        np.testing.assert_array_equal(pixels.index, np.arange(40))
        assert steps.seen[-1] == (40, 40)
        assert steps.n_decoded == (40 if n_workers == 2 else 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts mapped pages")
@pytest.mark.usefixtures("decoded_in_threads")
def test_unloaded_pixels_take_no_memory_until_they_are_read_again(make_images, cache):
    def mapped_kb():
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssFile:")[2].split()[0])

    pixels = load_pixels(read_collection(make_images(["1.png", "2.png"])), 1024, cache=cache)
    read = pixels[:]
    before = mapped_kb()
    pixels.unload()
    assert before - mapped_kb() > 4000
    np.testing.assert_array_equal(pixels[:], read)


@pytest.mark.usefixtures("decoded_in_threads")
def test_only_new_and_changed_files_are_decoded(make_images, cache):
    names = [f"{i}.png" for i in (1, 3, 5, 7)]
    root = make_images(names)
    load_pixels(read_collection(root), SIZE, cache=cache)
    Image.new("RGB", (9, 9), (1, 2, 3)).save(root / "3.png")  # changed
    Image.new("RGB", (9, 9), (4, 5, 6)).save(root / "2.png")  # new, and not last in sorted order
    (root / "7.png").unlink()
    steps = Steps()
    collection = read_collection(root)
    pixels = load_pixels(collection, SIZE, cache=cache, progress=steps)
    assert steps.seen[0] == (2, 4)
    assert pixels.names == ("1.png", "2.png", "3.png", "5.png")
    np.testing.assert_array_equal(pixels[:], reference(root, pixels.names))


@pytest.mark.usefixtures("decoded_in_threads")
def test_rows_of_an_open_reader_never_change(make_images, cache):
    root = make_images([f"{i}.png" for i in range(4)])
    reader = load_pixels(read_collection(root), SIZE, cache=cache)
    before = reader[:]
    for i in range(4):
        Image.new("RGB", (9, 9), (i, i, i)).save(root / f"{i}.png")
    changed = load_pixels(read_collection(root), SIZE, cache=cache)
    np.testing.assert_array_equal(reader[:], before)
    np.testing.assert_array_equal(changed[:], reference(root, changed.names))


@pytest.mark.usefixtures("decoded_in_threads")
def test_broken_files_are_skipped_and_ids_do_not_shift(make_images, cache):
    root = make_images([f"{i}.png" for i in range(6)])
    (root / "1.png").write_bytes(b"")
    (root / "3.png").write_text("text")
    (root / "4.png").write_bytes((root / "4.png").read_bytes()[:60])
    collection = read_collection(root)
    (root / "5.png").unlink()
    for _ in range(2):
        pixels = load_pixels(collection, SIZE, cache=cache)
        assert pixels.names == ("0.png", "2.png")
        np.testing.assert_array_equal(pixels.index, [0, 2])
        np.testing.assert_array_equal(pixels[:], reference(root, ("0.png", "2.png")))
        assert list(pixels.skipped) == ["1.png", "3.png", "4.png", "5.png"]
        assert pixels.skipped["5.png"] == "the file does not exist"
    Image.new("RGB", (9, 9)).save(root / "3.png")
    assert load_pixels(collection, SIZE, cache=cache).names == ("0.png", "2.png", "3.png")


@pytest.mark.parametrize("damage", ["cut rows", "no rows", "cut index", "foreign index"])
@pytest.mark.usefixtures("decoded_in_threads")
def test_a_damaged_cache_is_not_believed(make_images, cache, damage):
    collection = read_collection(make_images([f"{i}.png" for i in range(4)]))
    expected = load_pixels(collection, SIZE, cache=cache)[:]
    (rows,) = cache.rglob("rows-*.u8")
    (index,) = cache.rglob("index.json")
    if damage == "cut rows":
        os.truncate(rows, rows.stat().st_size - 1)
    elif damage == "no rows":
        rows.unlink()
    elif damage == "cut index":
        os.truncate(index, index.stat().st_size // 2)
    else:
        index.write_text(json.dumps({"names": 3}))
    np.testing.assert_array_equal(load_pixels(collection, SIZE, cache=cache)[:], expected)


def test_a_cache_that_cannot_be_written_is_explained(make_images, tmp_path):
    (tmp_path / "file").write_text("in the way")
    collection = read_collection(make_images(["a.png"]))
    with pytest.raises(ShoalError, match="SHOAL_CACHE"):
        load_pixels(collection, SIZE, cache=tmp_path / "file")


# In memory


def test_images_in_memory_are_scaled_and_nothing_is_kept(cache):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    collection = read_collection(images)
    steps = Steps()
    pixels = load_pixels(collection, 16, cache=cache, progress=steps)
    expected = decode_image(Image.fromarray(collection.images[5]), 16)
    np.testing.assert_array_equal(pixels[5], expected)
    assert (len(pixels), steps.seen[-1]) == (20, (20, 20))
    assert not cache.exists()


def test_an_image_in_memory_that_cannot_be_read_is_skipped(tmp_path, cache):
    Image.new("RGB", (64, 64)).save(tmp_path / "a.bmp")
    (tmp_path / "a.bmp").write_bytes((tmp_path / "a.bmp").read_bytes()[:500])
    with Image.open(tmp_path / "a.bmp") as lazy:
        pixels = load_pixels(read_collection([Image.new("L", (4, 4)), lazy]), SIZE, cache=cache)
    assert pixels.names == ("image-000000",)
    assert list(pixels.skipped) == ["image-000001"]
    assert "truncated" in pixels.skipped["image-000001"]


@pytest.mark.parametrize(
    "items",
    [
        np.zeros((2, 3, 5, 7), dtype=np.uint8),
        np.zeros((2, 4, 4, 3), dtype=np.float32),
        np.zeros((2, 0, 4), dtype=np.uint8),
        [1, "a.png"],
    ],
)
def test_what_is_no_image_in_memory_is_skipped(items, cache):
    pixels = load_pixels(read_collection(items), SIZE, cache=cache)
    assert not len(pixels)
    assert len(pixels.skipped) == len(items)
