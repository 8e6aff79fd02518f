"""Every kind of image is decoded to the same upright RGB square; every kind of broken file is
skipped with its reason."""

import sys

import numpy as np
import pytest
from PIL import Image, ImageOps

from shoal.data.pixels.decoding import Unreadable, decode_file, decode_image

RNG = np.random.default_rng(0)


def smooth(width, height):
    """Return an asymmetric image with smooth colors."""
    coarse = Image.fromarray(np.random.default_rng(1).integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def decoded(path, size):
    return np.frombuffer(decode_file(str(path), size), dtype=np.uint8).reshape(size, size, 3)


def far_apart(a, b):
    return int(np.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.parametrize("extent", [(100, 60), (60, 100), (64, 64), (40, 20), (8, 8)])
def test_the_square_is_that_of_resizing_the_whole_and_cropping(extent):
    """With the shorter side scaled to 30, the longer side exceeds it by an even number of pixels,
    so the crop begins at a whole pixel."""
    image = Image.fromarray(RNG.integers(0, 256, (extent[1], extent[0], 3), dtype=np.uint8))
    scale = 30 / min(extent)
    whole = image.resize(
        (round(extent[0] * scale), round(extent[1] * scale)), Image.Resampling.BICUBIC
    )
    left = (whole.width - 30) // 2
    top = (whole.height - 30) // 2
    expected = np.asarray(whole.crop((left, top, left + 30, top + 30)))
    assert far_apart(decode_image(image, 30), expected) <= 2  # rounding between the two passes


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied_once(tmp_path, suffix, orientation):
    image = smooth(60, 40)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"webp": {"lossless": True}, "jpg": {"quality": 95, "subsampling": 0}}
    image.save(tmp_path / f"a.{suffix}", exif=exif, **options.get(suffix, {}))
    tagged = smooth(60, 40)
    tagged.getexif()[0x0112] = orientation
    expected = decode_image(ImageOps.exif_transpose(tagged), 20)
    assert far_apart(decoded(tmp_path / f"a.{suffix}", 20), expected) <= (
        6 if suffix == "jpg" else 1
    )


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_lose_the_image(tmp_path):
    smooth(60, 40).save(tmp_path / "a.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff broken")
    assert decoded(tmp_path / "a.jpg", 20).shape == (20, 20, 3)


def test_a_large_jpeg_decoded_at_a_smaller_scale_looks_the_same(tmp_path):
    image = smooth(1600, 1200)
    image.save(tmp_path / "a.jpg", quality=95)
    difference = np.abs(
        decoded(tmp_path / "a.jpg", 100).astype(int) - decode_image(image, 100).astype(int)
    )
    assert difference.mean() < 1.0
    assert difference.max() <= 8


GREEN = (0, 200, 0)


@pytest.mark.parametrize(
    ("name", "mode", "value", "expected"),
    [
        ("gray.png", "L", 77, (77, 77, 77)),
        ("bilevel.png", "1", 1, (255, 255, 255)),
        ("rgb.bmp", "RGB", GREEN, GREEN),
        ("palette.gif", "P", 3, None),
        ("cmyk.tif", "CMYK", (255, 0, 255, 0), (0, 255, 0)),
        ("clear.png", "RGBA", (9, 9, 9, 0), (255, 255, 255)),
        ("half.png", "RGBA", (0, 0, 0, 128), (127, 127, 127)),
        ("gray-clear.png", "LA", (9, 0), (255, 255, 255)),
        ("deep.png", "I;16", 0x8000, (128, 128, 128)),
        ("deep.tif", "I;16", 0xFFFF, (255, 255, 255)),
        ("camera.png", "I;16", 0x0800, (128, 128, 128)),  # 12 bits in 16: no value above 4095
        ("int.tif", "I", 0x8000, (128, 128, 128)),
        ("unit.tif", "F", 0.5, (128, 128, 128)),
        ("float.tif", "F", 77.0, (77, 77, 77)),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, name, mode, value, expected):
    image = Image.new(mode, (12, 10), value)
    if mode == "P":
        image.putpalette([0, 0, 0] * 3 + list(GREEN))
        expected = GREEN
    image.save(tmp_path / name)
    assert far_apart(decoded(tmp_path / name, 8), np.full((8, 8, 3), expected)) <= 1


def test_transparent_palettes_are_laid_on_white(tmp_path):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.save(tmp_path / "a.png", transparency=0)
    np.testing.assert_array_equal(decoded(tmp_path / "a.png", 4), np.full((4, 4, 3), 255))


def test_the_first_frame_of_an_animation_is_taken(tmp_path):
    first = Image.new("RGB", (8, 8), (250, 0, 0))
    second = Image.new("RGB", (8, 8), (0, 0, 250))
    first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
    np.testing.assert_array_equal(decoded(tmp_path / "a.gif", 4), np.full((4, 4, 3), (250, 0, 0)))


def test_broken_files_give_their_reason(tmp_path, monkeypatch):
    def reason(file):
        with pytest.raises(Unreadable) as caught:
            decode_file(str(file), 8)
        return str(caught.value)

    (tmp_path / "zero.jpg").write_bytes(b"")
    assert reason(tmp_path / "zero.jpg").startswith("not an image in a known format")
    (tmp_path / "text.jpg").write_text("not an image")
    assert reason(tmp_path / "text.jpg").startswith("not an image in a known format (JPEG, PNG")
    assert reason(tmp_path / "gone.jpg") == "the file does not exist"
    (tmp_path / "script.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert reason(tmp_path / "script.jpg").startswith(
        "not an image in a known format"
    )  # never handed to Ghostscript
    smooth(64, 48).save(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    assert "truncated" in reason(tmp_path / "half.jpg").lower()
    smooth(64, 48).save(tmp_path / "whole.png")
    monkeypatch.setattr("shoal.data.pixels.decoding.MAX_PIXELS", 3000)
    assert reason(tmp_path / "whole.png").startswith("too large: 64 x 48 pixels")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_progressive_jpegs_count_whole_and_others_at_the_scale_they_are_decoded(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("shoal.data.pixels.decoding.MAX_PIXELS", 80 * 60)
    for name, progressive in (("plain.jpg", False), ("progressive.jpg", True)):
        smooth(640, 480).save(tmp_path / name, progressive=progressive)
    decode_file(str(tmp_path / "plain.jpg"), 8)
    with pytest.raises(Unreadable, match="640 x 480"):
        decode_file(str(tmp_path / "progressive.jpg"), 8)


def test_heic_is_decoded_where_its_package_is_installed_and_named_where_it_is_not(
    tmp_path, monkeypatch
):
    heif = pytest.importorskip("pillow_heif")
    image = smooth(64, 48)
    heif.from_pillow(image).save(tmp_path / "phone.HEIC", quality=95)
    assert far_apart(decoded(tmp_path / "phone.HEIC", 16), decode_image(image, 16)) < 25
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(Unreadable, match="pillow-heif"):
        decode_file(str(tmp_path / "phone.HEIC"), 16)
