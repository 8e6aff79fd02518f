from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.mean_shift import ShiftSettings
from shoal.encoders.head import HeadSettings
from shoal.encoders.vision import Encoder, InputFormat, Parts
from shoal.methods import cms as module
from shoal.methods.cms import CmsSettings, build, cms
from shoal.methods.method import Task
from shoal.training.losses import LossSettings
from shoal.training.trainer import TrainSettings

CPU = torch.device("cpu")
COLOURS = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [190, 190, 40], [40, 190, 190]])


class Mean(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


def tiny_encoder(name, *, n_tail_blocks=None, input_size=None):
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.ReLU(), nn.Conv2d(12, 16, 3)), nn.Sequential(nn.ReLU(), nn.Conv2d(16, 16, 3))]
    parts = Parts(
        stem=nn.Conv2d(3, 12, 3, stride=2), blocks=blocks, finish=Mean(), is_finish_trained=False, feature_dim=16
    )
    return Encoder(name, parts, InputFormat(size=14, mean=(0.5,) * 3, std=(0.25,) * 3), 1)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(module, "load_encoder", tiny_encoder)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture
def truth():
    return np.arange(100) % 5


@pytest.fixture
def task(truth):
    rng = np.random.default_rng(0)
    pixels = COLOURS[truth][:, None, None] + rng.integers(-50, 51, size=(100, 16, 16, 3))
    labels = np.where((truth < 3) & (rng.random(100) < 0.6), truth, -1)
    return Task(pixels=pixels.clip(0, 255).astype(np.uint8), labels=labels, validation=np.arange(0, 100, 3))


SETTINGS = CmsSettings(
    head=HeadSettings(width=32, dim=12, bottleneck=8),
    training=TrainSettings(epochs=3, batch_size=16, lr=0.01),
    inference=InferenceSettings(shift=ShiftSettings(n_neighbors=4)),
)


def test_five_colours_are_found_when_three_are_known(task, truth):
    found = cms(replace(task, n_clusters=5), SETTINGS, device=CPU)
    unlabeled = ~task.is_labeled
    accuracy = gcd_accuracy(truth[unlabeled], found.clusters[unlabeled], truth[unlabeled] < 3)
    assert accuracy.all > 0.9
    assert accuracy.novel > 0.9
    assert found.n_clusters == 5
    assert found.embeddings.shape == found.shifted.shape == (100, 12)
    assert found.linkage.shape == (99, 4)
    assert len(found.metrics) == 3


def test_the_number_of_clusters_is_the_one_of_the_best_snapshot(task):
    found = cms(task, SETTINGS, device=CPU)
    assert found.n_clusters == max(found.metrics[found.epoch - 1]["n_clusters"], 3)
    assert len(np.unique(found.clusters)) == found.n_clusters


def test_the_number_of_clusters_may_be_estimated_on_all_labels_instead(task):
    found = cms(task, replace(SETTINGS, estimate_on="collection"), device=CPU)
    again = infer(found.embeddings, task.labels, None, SETTINGS.inference)
    assert found.n_clusters == again.n_clusters
    assert np.array_equal(found.clusters, again.labels)


def test_without_validation_images_the_number_is_estimated_on_the_final_tree(task):
    found = cms(replace(task, validation=None), SETTINGS, device=CPU)
    assert found.epoch == 3
    assert found.n_clusters >= 3


def test_without_labels_the_method_runs_with_a_given_number(task):
    found = cms(replace(task, labels=np.full(100, -1), n_clusters=5), SETTINGS, device=CPU)
    assert found.n_clusters == 5
    assert all(row["loss_supervised"] == 0 for row in found.metrics)


@pytest.mark.parametrize(
    "changes",
    [
        {"head": HeadSettings(kind="bottleneck", width=32, dim=12, bottleneck=8)},
        {"inference": InferenceSettings(shift=ShiftSettings(n_neighbors=4, aggregation="attention"))},
        {"inference": InferenceSettings(shift=ShiftSettings(n_neighbors=4, retrieval="random"))},
        {"inference": InferenceSettings(shift=ShiftSettings(kernel="gaussian"))},
        {
            "loss": LossSettings(denominator="reference", detach_norm=True, supervised_input="shifted"),
            "training": TrainSettings(epochs=2, batch_size=16, lr=0.01, bank="views"),
        },
    ],
    ids=["bottleneck", "attention", "random", "gaussian", "reference"],
)
def test_every_variant_of_the_paper_and_of_its_code_runs_and_repeats(task, changes):
    settings = replace(SETTINGS, **changes)
    first, second = (cms(task, settings, device=CPU) for _ in range(2))
    assert np.array_equal(first.clusters, second.clusters)
    assert np.array_equal(first.embeddings, second.embeddings)


def test_a_class_that_validation_missed_still_counts(task):
    """All labeled images of class 2 are in training, so an estimate from validation may be as low as 2."""
    validation = np.array([row for row in task.validation if task.labels[row] != 2])
    found = cms(replace(task, validation=validation), SETTINGS, device=CPU)
    assert found.n_clusters >= 3


def test_killed_and_resumed_the_method_gives_the_same_clusters(task, tmp_path):
    expected = cms(task, SETTINGS, device=CPU)

    def die(done, total):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cms(task, SETTINGS, device=CPU, folder=tmp_path, progress=die)
    found = cms(task, SETTINGS, device=CPU, folder=tmp_path, resume=True)
    assert np.array_equal(found.clusters, expected.clusters)
    assert np.array_equal(found.shifted, expected.shifted)


def test_networks_depend_on_the_seed_alone():
    torch.manual_seed(5)
    first = build(SETTINGS)[1].state_dict()
    torch.manual_seed(6)
    second = build(SETTINGS)[1].state_dict()
    other = build(replace(SETTINGS, training=TrainSettings(seed=1)))[1].state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])
