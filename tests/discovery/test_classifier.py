"""Runs of a method with a classifier, and new images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from photo_runs import run_on
from shoal.data.readers import read_collection
from shoal.discovery.api import load
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.methods.classifier import cluster_by_classifier
from shoal.methods.method import Representation
from shoal.methods.registry import load_recipe
from shoal.training.model import TaskShape

pytestmark = pytest.mark.usefixtures("one_thread")


def learned(predicted: list[int], n_known: int) -> Representation:
    """Return the representation of a classifier with `n_known` classes; its embeddings do not
    matter."""
    model = torch.nn.Module()
    model.shape = TaskShape(n_images=len(predicted), n_known=n_known, n_clusters=4)
    rows = torch.nn.functional.normalize(torch.arange(2.0 * len(predicted)).reshape(-1, 2) + 1)
    return Representation(
        embeddings=rows, embed=lambda pixels: rows, model=model, predicted=np.array(predicted)
    )


def test_with_must_links_labeled_images_are_in_the_cluster_of_their_class() -> None:
    """Classes 3 and 7 are outputs 0 and 1; a classifier that was not trained on both is not
    changed."""
    settings = load_recipe(method="uno")
    bound = replace(settings, inference=replace(settings.inference, must_link=True))
    labels = np.array([3, 7, -1, -1])
    predicted = [2, 1, 0, 2]
    found = cluster_by_classifier(learned(predicted, 2), labels, bound, None)
    assert found.clusters.tolist() == [0, 1, 0, 2]
    assert found.unlinked is not None
    assert found.unlinked.tolist() == predicted
    for other, chosen in ((learned(predicted, 2), settings), (learned(predicted, 1), bound)):
        assert cluster_by_classifier(other, labels, chosen, None).clusters.tolist() == predicted


def test_labels_are_kept_and_new_images_follow_the_images_of_their_output(
    photos, settings, tmp_path: Path
) -> None:
    """After one epoch with a tiny learning rate, the classifier contradicts most labels."""
    cms = settings.method_settings
    training = replace(cms.training, epochs=1, lr=1e-9)
    chosen = replace(
        load_recipe(method="uno"), encoder=cms.encoder, input_size=cms.input_size, training=training
    )
    wanted = DiscoverySettings(
        train=True,
        method="uno",
        method_settings=chosen,
        n_clusters=5,
        pixel_size=16,
        hidden_share=0.0,
    )
    run = run_on(photos, tmp_path / "run", wanted)
    labeled = [row for row in run.assignments if row.label_given]
    assert labeled
    assert [row.category for row in labeled] == [row.label_given for row in labeled]
    later, skipped = (
        load(run.path).assigner(device="cpu").assign_images(read_collection(photos.folder))
    )
    assert not skipped
    free = {row.path: row.category for row in run.assignments if not row.label_given}
    sure = [row for row in later if row.path in free and row.category]
    assert sure
    assert np.mean([row.category == free[row.path] for row in sure]) > 0.9
