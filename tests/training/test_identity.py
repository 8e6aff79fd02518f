import numpy as np
import pytest
import torch

from shoal.training.identity import digest_rows, identify_encoder


def test_other_weights_under_the_same_name_are_another_encoder(toy):
    """The trunk's; the tail's own come from the checkpoint."""
    first, second, trained = toy.encoder(), toy.encoder(), toy.encoder()
    assert identify_encoder(first) == identify_encoder(second)
    with torch.no_grad():
        second.trunk[0].weight.add_(1e-3)
        trained.tail[0][1].weight.add_(1)
    assert identify_encoder(first)["weights"] != identify_encoder(second)["weights"]
    assert identify_encoder(first) == identify_encoder(trained)


def test_rows_are_told_apart_by_shape_and_content_whatever_holds_them(toy):
    pixels = toy.data().pixels
    assert digest_rows(pixels) == digest_rows(torch.from_numpy(pixels))
    assert digest_rows(pixels) != digest_rows(255 - pixels)
    assert digest_rows(pixels) != digest_rows(pixels[:-1])


@pytest.mark.parametrize("row", [0, 1, 550, 998, 999])
def test_one_pixel_of_any_image_makes_them_other_images(row):
    """A thousand images, of which no sample looks at every one."""
    pixels = np.zeros((1000, 2, 2, 3), dtype=np.uint8)
    changed = pixels.copy()
    changed[row, 1, 1, 2] = 1
    assert digest_rows(pixels) != digest_rows(changed)


def test_a_fingerprint_does_not_depend_on_the_size_of_a_block_nor_on_what_holds_the_rows(toy, tmp_path, monkeypatch):
    pixels = toy.data().pixels
    whole = digest_rows(pixels)
    np.save(tmp_path / "pixels.npy", pixels)
    monkeypatch.setattr(
        "shoal.training.identity.BLOCK_NUMBERS", 5 * pixels[0].size
    )  # 48 images: the last block is short
    assert digest_rows(pixels) == whole
    assert digest_rows(np.load(tmp_path / "pixels.npy", mmap_mode="r")) == whole
    assert digest_rows(np.asfortranarray(pixels)) == whole
    assert digest_rows(torch.from_numpy(pixels)) == whole
