"""The images of one dataset, as they are passed to cells."""

from dataclasses import replace

import pytest
import torch

from shoal.data.pixels.loading import Pixels
from shoal.reproduce import loaded_dataset


def test_small_images_are_enlarged_to_what_the_encoder_crops_from(tmp_path):
    """CIFAR's 32 px would be four tokens of a ViT; like published methods, we enlarge to 256 px and
    crop 224."""
    images = loaded_dataset.LoadedDataset(
        "cifar100", tmp_path, device=torch.device("cpu"), input_size=224
    ).train
    assert tuple(images.pixels.shape[1:]) == (256, 256, 3)


def test_pixels_that_do_not_fit_stay_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.training.tokens.SHARE_OF_MEMORY", 0)
    images = loaded_dataset.LoadedDataset(
        "cub", tmp_path, device=torch.device("cpu"), input_size=14
    ).train
    assert isinstance(images.pixels, Pixels), "a copy in memory is what there is no room for"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "protocol"), [("1", "paper"), ("2", "reference")])
def test_what_is_found_does_not_depend_on_where_pixels_are(
    run, tmp_path, stand_in, monkeypatch, name, protocol
):
    options = replace(stand_in.options, protocol=protocol)
    expected = run(name, out=tmp_path / "in_memory", options=options)
    monkeypatch.setattr("shoal.training.tokens.SHARE_OF_MEMORY", 0)
    assert run(name, out=tmp_path / "in_cache", options=options).records == expected.records
