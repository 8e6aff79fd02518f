"""Thumbnails in the order of the images."""

import io

import numpy as np
from PIL import Image

from shoal.data.collection import Collection
from shoal.data.pixels.loading import load_pixels
from shoal.discovery.run_job import THUMBNAIL_SIDE as SIDE
from shoal.discovery.run_job import make_thumbnails

COLORS = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250]], dtype=np.uint8)


def collection(side: int) -> Collection:
    images = np.broadcast_to(COLORS[:, None, None], (3, side, side, 3)).copy()
    return Collection(("a", "b", "c"), np.full(3, -1), (), images=images)


def test_each_image_has_a_thumbnail() -> None:
    for side in (SIDE // 2, 4 * SIDE):
        pictures = [
            Image.open(io.BytesIO(one))
            for one in make_thumbnails(load_pixels(collection(side), side))
        ]
        assert [picture.size for picture in pictures] == [(min(side, SIDE),) * 2] * 3
        for picture, color in zip(pictures, COLORS, strict=True):
            assert picture.format == "WEBP"
            assert np.abs(np.asarray(picture.convert("RGB")).mean(axis=(0, 1)) - color).max() < 12
