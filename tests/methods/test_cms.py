from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from method_runs import run_method
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.mean_shift import ShiftSettings
from shoal.encoders.vision import HeadSettings
from shoal.methods.cms import Cms, CmsSettings, LossSettings
from shoal.methods.registry import get_method
from shoal.training.model import Batch, Epoch, TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import contrast, supervise

CPU = torch.device("cpu")
cms = partial(run_method, "cms")
SHAPE = TaskShape(n_images=30, n_known=2, n_clusters=None)


SETTINGS = CmsSettings(
    head=HeadSettings(kind="bottleneck", width=32, dim=12, bottleneck=8),
    training=TrainSettings(epochs=3, batch_size=16, lr=0.005, max_gradient=10.0),
    loss=LossSettings(temperature=0.1, denominator="reference", detach_norm=True),
    inference=InferenceSettings(shift=ShiftSettings(n_neighbors=4)),
)


def test_five_colors_are_found_when_three_are_known(task, truth):
    # With this seed, seven combinations of rate, epochs, temperature and neighbors all got every
    # image right.
    settings = replace(SETTINGS, training=replace(SETTINGS.training, seed=3))
    found = cms(replace(task, n_clusters=5), settings)
    unlabeled = task.labels < 0
    accuracy = gcd_accuracy(truth[unlabeled], found.clusters[unlabeled], truth[unlabeled] < 3)
    assert accuracy.all > 0.9
    assert accuracy.novel > 0.85
    assert found.n_clusters == 5
    assert found.embeddings.shape == found.shifted.shape == (100, 12)
    assert found.linkage.shape == (99, 4)


def test_without_validation_images_the_number_is_estimated_on_the_final_tree(task):
    found = cms(replace(task, validation=None), SETTINGS)
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
    first, second = (cms(task, settings) for _ in range(2))
    assert np.array_equal(first.clusters, second.clusters)
    assert np.array_equal(first.embeddings, second.embeddings)


def test_a_class_that_validation_missed_still_counts(task):
    """Three classes are labeled, but the validation images contain two of them, so their estimate
    may be 2."""
    learned = get_method("cms").represent(task, SETTINGS, device=CPU)
    found = get_method("cms").cluster(replace(learned, n_clusters=2), task.labels, SETTINGS, None)
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


def slow_step(views, images, labels, rows, *, released):
    """Equations 5 to 8 row by row, with k = 2, α = 0.5, τ_u = 0.2, τ_s = 0.07, λ = 0.35; or the
    released code's variant."""
    shifted = []
    for view, own in zip(views, images, strict=True):
        closeness = (rows @ view.detach()).tolist()
        others = sorted(
            (j for j in range(len(rows)) if j != own), key=closeness.__getitem__, reverse=True
        )
        moved = 0.5 * view + 0.5 * sum(rows[j] for j in others[:2]) / 2
        shifted.append(moved / (moved.norm().detach() if released else moved.norm()))
    contrastive = contrast(torch.stack(shifted), 0.2, with_positive=not released)
    supervised = supervise(views, labels * 2, 0.07, with_positives=released)
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


def make_bank(tiny_encoder, rows, kind="images"):
    """Return a model with these rows in its bank, three neighbors and α = 0.5."""
    shift = ShiftSettings(n_neighbors=3, alpha=0.5)
    settings = replace(SETTINGS, inference=InferenceSettings(shift=shift), bank=kind)
    model = Cms(tiny_encoder("tiny"), settings, SHAPE)
    model.bank = rows
    return model


def random_rows(seed):
    return F.normalize(torch.randn(20, 10, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_neighbors_leave_out_the_views_own_image(tiny_encoder):
    rows = random_rows(0)
    views = random_rows(1)
    found = make_bank(tiny_encoder, rows).search(views, torch.arange(20)).indices
    similarity = (views @ rows.T).fill_diagonal_(-torch.inf)
    assert torch.equal(found, similarity.topk(3, dim=1).indices)


def test_a_bank_of_views_drops_the_nearest_row_whatever_it_is(tiny_encoder):
    rows = random_rows(0)
    views = F.normalize(rows + 0.1 * random_rows(1), dim=1)
    model = make_bank(tiny_encoder, torch.cat([rows, views]), kind="views")
    found = model.search(views, torch.arange(20)).indices
    assert torch.equal(found, (views @ model.bank.T).topk(4, dim=1).indices[:, 1:])
    assert (found == torch.arange(20)[:, None]).any(), (
        "the other view of an image may stay among its neighbors"
    )


def test_random_neighbors_are_shared_by_both_views_of_an_image_and_are_never_the_image_itself(
    tiny_encoder,
):
    """Section 5.3, with two views of each of four images, ordered as in a batch: view 1 of all
    images, then view 2."""
    generator = torch.Generator().manual_seed(0)
    views = F.normalize(torch.randn(8, 5, generator=generator), dim=1)
    images = torch.tensor([3, 7, 11, 29] * 2)
    shift = ShiftSettings(n_neighbors=4, retrieval="random")
    settings = replace(SETTINGS, inference=InferenceSettings(shift=shift))
    model = Cms(tiny_encoder("tiny"), settings, SHAPE)
    model.bank = F.normalize(torch.randn(30, 5, generator=generator), dim=1)
    batch = Batch(
        images=images,
        inputs=views,
        outputs={"embeddings": views},
        labels=torch.full((8,), -1),
        epoch=0,
        generator=generator,
    )
    first, second = (model.neighbors(batch) for _ in range(2))
    assert torch.equal(first.indices[:4], first.indices[4:])
    assert len({tuple(row) for row in first.indices[:4].tolist()}) == 4, "each image has its own"
    assert not torch.equal(first.indices, second.indices), "and others in the next step"
    assert not (first.indices == images[:, None]).any()
    assert torch.allclose(
        first.similarities.float(), (views[:, None] * model.bank[first.indices]).sum(dim=2)
    )
