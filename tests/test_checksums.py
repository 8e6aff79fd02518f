"""Checksums are equal for the same names and rows in any container, and differ for anything
else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.arrays import digest_names, digest_rows

PIXELS = np.random.default_rng(0).integers(0, 256, size=(48, 4, 4, 3), dtype=np.uint8)


def test_names_and_labels_are_told_apart() -> None:
    labels = np.array([0, 1, -1])
    first = digest_names(["a", "b", "c"], labels)
    assert digest_names(("a", "b", "c"), labels.copy()) == first
    assert digest_names(["a", "b", "d"], labels) != first
    assert digest_names(["a", "b", "c"], labels[::-1].copy()) != first


def test_rows_are_told_apart_by_shape() -> None:
    assert digest_rows(PIXELS) != digest_rows(PIXELS[:-1])


@pytest.mark.parametrize("row", [0, 1, 550, 998, 999])
def test_one_pixel_of_any_image_makes_them_other_images(row: int) -> None:
    """The checksum reads all of a thousand images, not a sample of them."""
    pixels = np.zeros((1000, 2, 2, 3), dtype=np.uint8)
    changed = pixels.copy()
    changed[row, 1, 1, 2] = 1
    assert digest_rows(pixels) != digest_rows(changed)


def test_a_checksum_does_not_depend_on_the_size_of_a_block_nor_on_what_holds_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = PIXELS
    whole = digest_rows(pixels)
    np.save(tmp_path / "pixels.npy", pixels)
    # 48 images in blocks of five: the last block is shorter.
    monkeypatch.setattr("shoal.arrays.BLOCK_NUMBERS", 5 * pixels[0].size)
    assert digest_rows(pixels) == whole
    assert digest_rows(np.load(tmp_path / "pixels.npy", mmap_mode="r")) == whole
    assert digest_rows(np.asfortranarray(pixels)) == whole
    assert digest_rows(torch.from_numpy(pixels)) == whole
