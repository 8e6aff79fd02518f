from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.inference import InferenceSettings
from shoal.encoders.vision import HeadSettings
from shoal.methods.dccl import Dccl, DcclSettings, choose_resolution, find_concepts
from shoal.methods.method import Representation
from shoal.methods.registry import get_method
from shoal.training.model import Epoch, TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import contrast, supervise
from small_points import groups

CPU = torch.device("cpu")
METHOD = get_method("dccl")
SETTINGS = DcclSettings(
    head=HeadSettings(width=16, dim=8),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
    n_init=3,
    n_neighbors=5,
    min_similarity=0.5,
    concept_ramp=1.0,
)
LABELS = [0, -1, 1, -1, -1, 0]
CONCEPTS = torch.tensor([2, 0, -1, 1, 1, 0])


def make_model(tiny_vit, **changes):
    torch.manual_seed(0)
    return Dccl(
        tiny_vit.encoder,
        replace(SETTINGS, **changes),
        TaskShape(n_images=6, n_known=2, n_clusters=None),
    )


def with_concepts(model):
    model.concepts = CONCEPTS
    drawn = torch.randn(3, model.encoder.feature_dim, generator=torch.Generator().manual_seed(2))
    model.centers = F.normalize(drawn, dim=1)
    return model


def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    training = TrainSettings(epochs=3, batch_size=16, lr=0.01)
    model = with_concepts(make_model(tiny_vit, training=training))
    found = model.loss(tiny_vit.batch(model, LABELS, epoch=1))
    features = tiny_vit.features()
    views = model.head(features)
    concept = 0.0
    n_rows = 0
    for row, of in zip(features, CONCEPTS.repeat(2).tolist(), strict=True):
        if of >= 0:
            cosines = [torch.dot(row / row.norm(), center) / 0.05 for center in model.centers]
            concept = concept - (cosines[of].exp() / sum(cosine.exp() for cosine in cosines)).log()
            n_rows += 1
    concept = concept / n_rows
    assert n_rows == 10
    expected = 0.65 * contrast(views, 1.0) + 0.35 * supervise(views, LABELS * 2, 0.07)
    expected = expected + np.linspace(0.04, 0.4, 3)[1] * concept
    assert found["loss_concept"].item() == pytest.approx(concept.item(), rel=1e-4)
    tiny_vit.check(found["loss"], expected)


def test_centers_follow_the_mean_of_their_views_and_others_stay(tiny_vit):
    model = with_concepts(make_model(tiny_vit))
    before = model.centers.clone()
    images = torch.tensor([0, 3, 4, 2, 2, 0]).repeat(2)
    batch = replace(tiny_vit.batch(model, LABELS), images=images)
    with torch.no_grad():
        model.after_step(batch)
        features = F.normalize(tiny_vit.features(), dim=1)
        concepts = [2, 1, 1, -1, -1, 2] * 2
        for number in range(3):
            own = [i for i, of in enumerate(concepts) if of == number]
            expected = before[number]
            if own:
                moved = 0.1 * before[number] + 0.9 * sum(features[i] for i in own) / len(own)
                expected = moved / moved.norm()
            torch.testing.assert_close(model.centers[number], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.centers[0], before[0])


def test_concepts_and_centers_are_renewed_before_an_epoch_and_the_first_chooses_how_fine_they_are(
    tiny_vit,
):
    """Four groups of ten images; two groups are half labeled."""
    truth = np.repeat(np.arange(4), 10)
    noise = torch.randn(40, 32, generator=torch.Generator().manual_seed(0))
    points = F.normalize(torch.eye(32)[truth] + 0.05 * noise, dim=1)
    labels = torch.from_numpy(np.where((truth < 2) & (np.arange(40) % 2 == 0), truth, -1))
    model = make_model(tiny_vit, resolutions=(1e-9, 1.0), min_similarity=-1.0, n_neighbors=12)

    def begin(number):
        arguments = {"labels": labels, "embed_views": None, "generator": torch.Generator()}
        return model.begin_epoch(Epoch(number=number, embed=lambda: points, **arguments))

    row = begin(0)
    assert row == {"n_concepts": 4.0, "share_in_concepts": 1.0}
    assert float(model.resolution) == 1.0, "with 1e-9 all that is linked is one concept"
    assert np.array_equal(model.concepts.numpy(), truth)
    expected = torch.stack(
        [F.normalize(points[truth == each].mean(dim=0), dim=0) for each in range(4)]
    )
    torch.testing.assert_close(model.centers, expected)
    assert "resolution" in model.saved_tensors(), "a resumed run goes on with it"
    model.resolution.fill_(1e-9)
    assert begin(1)["n_concepts"] == 1.0


def test_the_resolution_is_chosen_without_what_labels_say_about_links():
    """Two linked groups. At resolution 1e-9 only labels separate them; at 1.0 they separate without
    labels."""
    truth = np.repeat(np.arange(2), 10)
    nobody = np.full(20, -1)
    noise = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    points = F.normalize(torch.eye(8)[truth] + 0.1 + 0.02 * noise, dim=1)
    settings = replace(SETTINGS, resolutions=(1e-9, 1.0), n_neighbors=19, min_similarity=0.0)
    assert np.array_equal(find_concepts(points, truth, 1e-9, settings), truth)
    assert find_concepts(points, nobody, 1e-9, settings).max() == 0
    assert np.array_equal(find_concepts(points, nobody, 1.0, settings), truth)
    assert choose_resolution(points, truth, settings) == 1.0
    assert choose_resolution(points, nobody, replace(settings, resolutions=(3.0, 1.0))) == 3.0


def test_the_number_of_clusters_is_that_of_communities():
    points, _, labels = groups(size=12)
    learned = Representation(embeddings=points, embed=lambda pixels: points, n_clusters=17)
    found = METHOD.cluster(learned, labels, SETTINGS, None)
    assert found.n_clusters == 6 == len(np.unique(found.clusters))
    assert found.n_clusters_source
    assert METHOD.cluster(learned, labels, SETTINGS, 9).n_clusters == 9
    changes = [
        ({"inference": InferenceSettings(max_clusters=5)}, 5),
        ({"min_members": 50}, 3),  # never below the number of known classes
        ({"search_n_clusters": False}, 17),
    ]
    for change, expected in changes:
        settings = replace(SETTINGS, **change)
        found = METHOD.cluster(learned, labels, settings, None)
        assert found.n_clusters == expected
