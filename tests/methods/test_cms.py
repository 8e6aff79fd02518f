from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.mean_shift import ShiftSettings
from shoal.encoders.head import HeadSettings
from shoal.methods.cms import Bank, Cms, CmsSettings, LossSettings
from shoal.methods.registry import get_method
from shoal.training.model import Batch, Epoch, TaskShape
from shoal.training.train_settings import TrainSettings

CPU = torch.device("cpu")
cms = get_method("cms").run
SHAPE = TaskShape(n_images=30, n_known=2, n_clusters=None)


SETTINGS = CmsSettings(
    head=HeadSettings(kind="bottleneck", width=32, dim=12, bottleneck=8),
    training=TrainSettings(epochs=3, batch_size=16, lr=0.005, max_gradient=10.0),
    loss=LossSettings(temperature=0.1, denominator="reference", detach_norm=True),
    inference=InferenceSettings(shift=ShiftSettings(n_neighbors=4)),
)


def test_five_colors_are_found_when_three_are_known(task, truth):
    # Of this seed, seven settings of rate, epochs, temperature and neighbors all found every
    # image's color.
    settings = replace(SETTINGS, training=replace(SETTINGS.training, seed=3))
    found = cms(replace(task, n_clusters=5), settings, device=CPU)
    unlabeled = task.labels < 0
    accuracy = gcd_accuracy(truth[unlabeled], found.clusters[unlabeled], truth[unlabeled] < 3)
    assert accuracy.all > 0.9
    assert accuracy.novel > 0.85
    assert found.n_clusters == 5
    assert (
        found.embeddings.shape == found.shifted.shape == (100, 8)
    )  # compact: the rank of the bottleneck
    assert found.linkage.shape == (99, 4)
    assert len(found.metrics) == 3


def test_the_number_of_clusters_may_be_estimated_on_all_labels_instead(task):
    found = cms(task, replace(SETTINGS, estimate_on="collection"), device=CPU)
    again = infer(found.embeddings, task.labels, None, SETTINGS.inference)
    assert found.n_clusters == again.n_clusters
    assert np.array_equal(found.clusters, again.labels)


def test_without_validation_images_the_number_is_estimated_on_the_final_tree(task):
    found = cms(replace(task, validation=None), SETTINGS, device=CPU)
    assert found.epoch == 3
    assert (
        found.n_clusters
        == infer(found.embeddings, task.labels, None, SETTINGS.inference).n_clusters
        > 3
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"head": HeadSettings(kind="paper", width=32, dim=12)},
        {
            "inference": InferenceSettings(
                shift=ShiftSettings(n_neighbors=4, aggregation="attention")
            )
        },
        {"inference": InferenceSettings(shift=ShiftSettings(n_neighbors=4, retrieval="random"))},
        {"inference": InferenceSettings(shift=ShiftSettings(kernel="gaussian"))},
        {
            "loss": LossSettings(
                denominator="reference", detach_norm=True, supervised_input="shifted"
            ),
            "bank": "views",
        },
    ],
    ids=["head", "attention", "random", "gaussian", "reference"],
)
def test_every_variant_of_the_paper_and_of_its_code_runs_and_repeats(task, changes):
    settings = replace(SETTINGS, **changes)
    first, second = (cms(task, settings, device=CPU) for _ in range(2))
    assert np.array_equal(first.clusters, second.clusters)
    assert np.array_equal(first.embeddings, second.embeddings)


def test_a_class_that_validation_missed_still_counts(task):
    """Three classes are labeled, but an estimate from validation images of two of them may be 2."""
    learned = get_method("cms").represent(task, SETTINGS, device=CPU)
    found = get_method("cms").cluster(
        replace(learned, n_clusters=2), task.labels, SETTINGS, n_clusters=None, device=CPU
    )
    assert found.n_clusters == 3


def test_networks_depend_on_the_seed_alone():
    torch.manual_seed(5)
    build = get_method("cms").build
    first = build(SETTINGS, SHAPE).head.state_dict()
    torch.manual_seed(6)
    second = build(SETTINGS, SHAPE).head.state_dict()
    other = build(replace(SETTINGS, training=TrainSettings(seed=1)), SHAPE).head.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])


def make_model(loss, moves, bank, encoder):
    settings = replace(SETTINGS, loss=loss, inference=InferenceSettings(shift=moves))
    model = Cms(encoder("tiny"), settings, SHAPE)
    model.bank = bank
    return model


def slow_step(views, images, labels, rows, *, released):
    """Equations 5 to 8 row by row: k = 2, α = 0.5, τ_u = 0.2, τ_s = 0.07, λ = 0.35; or the released
    code's."""
    labels = labels * 2
    n_views = len(views)
    shifted = []
    for view, own in zip(views, images, strict=True):
        closeness = (rows @ view.detach()).tolist()
        others = sorted(
            (j for j in range(len(rows)) if j != own), key=closeness.__getitem__, reverse=True
        )
        moved = 0.5 * view + 0.5 * sum(rows[j] for j in others[:2]) / 2
        shifted.append(moved / (moved.norm().detach() if released else moved.norm()))
    contrastive = 0.0
    for i in range(n_views):
        other = (i + n_views // 2) % n_views
        below = [j for j in range(n_views) if j != i and not (released and j == other)]
        total = sum((shifted[i] @ shifted[j] / 0.2).exp() for j in below)
        contrastive = (
            contrastive - ((shifted[i] @ shifted[other] / 0.2).exp() / total).log() / n_views
        )
    supervised = 0.0
    known = [i for i in range(n_views) if labels[i] >= 0]
    for i in known:
        alike = [j for j in known if j != i and labels[j] == labels[i]]
        below = [j for j in known if j != i and (released or j not in alike)]
        total = sum((views[i] @ views[j] / 0.07).exp() for j in below)
        terms = [((views[i] @ views[j] / 0.07).exp() / total).log() for j in alike]
        supervised = supervised - sum(terms) / len(terms) / len(known)
    return 0.35 * supervised + 0.65 * contrastive


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("head", ["paper", "bottleneck"])
def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit, head, released):
    labels = [0, 1, 0, -1, -1, 1]
    settings = CmsSettings(
        head=HeadSettings(kind=head, width=16, dim=8, bottleneck=4),
        loss=LossSettings(
            temperature=0.2, denominator="reference" if released else "paper", detach_norm=released
        ),
        inference=InferenceSettings(shift=ShiftSettings(n_neighbors=2)),
    )
    torch.manual_seed(0)
    model = Cms(tiny_vit.encoder, settings, TaskShape(n_images=6, n_known=2, n_clusters=None))
    features = tiny_vit.features()
    rows = model.head(features[:6]).detach()  # the bank: the first view of each image
    begun = {"embed": lambda: rows, "embed_views": lambda: rows, "generator": torch.Generator()}
    model.begin_epoch(Epoch(number=0, labels=torch.tensor(labels), **begun))
    loss = model.loss(tiny_vit.batch(model, labels))["loss"]
    expected = slow_step(model.head(features), [*range(6)] * 2, labels, rows, released=released)
    tiny_vit.check(loss, expected)


def test_random_neighbors_are_shared_by_both_views_of_an_image_and_are_never_the_image_itself(
    tiny_encoder,
):
    """Section 5.3; four images, two views each, in the layout of a batch: view 1 of all, then view
    2."""
    generator = torch.Generator().manual_seed(0)
    views = F.normalize(torch.randn(8, 5, generator=generator), dim=1)
    bank = Bank(rows=F.normalize(torch.randn(30, 5, generator=generator), dim=1), basis=None)
    images = torch.tensor([3, 7, 11, 29] * 2)
    moves = ShiftSettings(n_neighbors=4, retrieval="random")
    batch = Batch(
        images=images,
        inputs=views,
        outputs={"embeddings": views},
        labels=torch.full((8,), -1),
        epoch=0,
        generator=generator,
    )
    model = make_model(LossSettings(), moves, bank, tiny_encoder)
    first, second = (model.neighbors(batch, bank) for _ in range(2))
    assert torch.equal(first.indices[:4], first.indices[4:])
    assert len({tuple(row) for row in first.indices[:4].tolist()}) == 4, "each image has its own"
    assert not torch.equal(first.indices, second.indices), "and others in the next step"
    assert not (first.indices == images[:, None]).any()
    assert torch.allclose(
        first.similarities.float(), (views[:, None] * bank.rows[first.indices]).sum(dim=2)
    )
