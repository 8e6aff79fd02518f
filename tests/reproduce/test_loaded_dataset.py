"""The images of one dataset, as they are passed to cells."""

from dataclasses import replace

import pytest
import torch

from shoal.data.pixels.loading import Pixels
from shoal.methods.registry import METHODS
from shoal.reproduce import loaded_dataset
from shoal.reproduce.experiments import get_experiment
from shoal.reproduce.plan import ReproduceOptions, make_cell

CLASSIFIERS = [name for name, method in METHODS.items() if method.needs_n_clusters]


def test_small_images_are_enlarged_to_what_the_encoder_crops_from(tmp_path):
    """CIFAR's 32 px would be four tokens of a ViT; like published methods, we enlarge to 256 px and
    crop 224."""
    images = loaded_dataset.LoadedDataset(
        "cifar100", tmp_path, device=torch.device("cpu"), input_size=224
    ).train
    assert tuple(images.pixels.shape[1:]) == (256, 256, 3)


def test_pixels_that_do_not_fit_stay_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.training.inputs.SHARE_OF_MEMORY", 0)
    images = loaded_dataset.LoadedDataset(
        "cub", tmp_path, device=torch.device("cpu"), input_size=14
    ).train
    assert isinstance(images.pixels, Pixels), "a copy in memory is what there is no room for"


@pytest.mark.parametrize("encoder", ["efficientnet-lite0", "dino-vitb16"])
@pytest.mark.parametrize("name", [*CLASSIFIERS, "gpc", "cms"])
def test_training_has_k_if_it_is_given_and_all_labels_if_none_is_used_otherwise(
    tmp_path, name, encoder
):
    """Encoders of two families, so with the default recipe and the one for CUB."""
    loaded = loaded_dataset.LoadedDataset(
        "cub", tmp_path, device=torch.device("cpu"), input_size=14
    )
    options = ReproduceOptions(encoder=encoder, input_size=14, methods=(name,))
    experiment = get_experiment("1", (name,))
    for row in options.rows_to_run(experiment):
        cell = make_cell(experiment, row, "cub", 0, options)
        task = loaded.task(cell, with_pool=False)
        has_k = name != "cms" and row.n_clusters == "given"
        assert task.n_clusters == (6 if has_k else None)
        trains_on_all = (task.training_labels == loaded.train.labels).all()
        assert trains_on_all == (name in CLASSIFIERS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "protocol"), [("1", "paper"), ("2", "reference")])
def test_what_is_found_does_not_depend_on_where_pixels_are(
    run, tmp_path, stand_in, monkeypatch, name, protocol
):
    options = replace(stand_in.options, protocol=protocol)
    expected = run(name, out=tmp_path / "in_memory", options=options)
    monkeypatch.setattr("shoal.training.inputs.SHARE_OF_MEMORY", 0)
    assert run(name, out=tmp_path / "in_cache", options=options).records == expected.records
