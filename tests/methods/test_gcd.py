from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from torch.nn import functional as F

from shoal.clustering.inference import InferenceSettings
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.encoders.embed import embed
from shoal.encoders.head import HeadSettings
from shoal.errors import UsageError
from shoal.methods.clusters import Representation
from shoal.methods.gcd import Gcd, GcdSettings, cluster, search_by_kmeans
from shoal.methods.registry import get_method
from shoal.training.losses import GcdLossSettings
from shoal.training.model import Batch, TaskShape
from shoal.training.tokens import cache_tokens
from shoal.training.train_settings import TrainSettings
from slow_steps import contrast, supervise

CPU = torch.device("cpu")
gcd = get_method("gcd").run
represent = get_method("gcd").represent
SETTINGS = GcdSettings(
    head=HeadSettings(width=32, dim=12),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
    n_init=3,
)


def test_five_colors_are_found_when_three_are_known(task, truth):
    found = gcd(replace(task, n_clusters=5), SETTINGS, device=CPU)
    unlabeled = task.labels < 0
    accuracy = gcd_accuracy(truth[unlabeled], found.clusters[unlabeled], truth[unlabeled] < 3)
    assert accuracy.all > 0.9
    assert accuracy.novel > 0.9
    assert found.n_clusters == 5
    assert len(found.metrics) == 2


def test_images_are_clustered_by_the_encoders_features_and_the_head_is_discarded(
    task, tiny_encoder
):
    learned = represent(task, SETTINGS, device=CPU)
    assert learned.embeddings.shape == (100, 16)  # the features; the head has 12 outputs
    torch.testing.assert_close(learned.embed(task.pixels), learned.embeddings, atol=2e-3, rtol=0)
    untrained = embed(task.pixels, tiny_encoder("tiny"))
    assert not torch.allclose(learned.embeddings, untrained, atol=2e-3)


def test_labeled_images_keep_their_class(task):
    found = gcd(replace(task, n_clusters=5), SETTINGS, device=CPU)
    assert np.array_equal(found.clusters[task.labels >= 0], task.labels[task.labels >= 0])


def test_a_class_without_labels_leaves_no_gap(task):
    """Labels 0 and 2 alone are two known classes; k-means starts from two means, not from a mean of
    nothing."""
    labels = np.where(task.labels == 1, -1, task.labels)
    found = gcd(replace(task, labels=labels, n_clusters=5), SETTINGS, device=CPU)
    assert set(found.clusters[labels == 0]) == {0}
    assert set(found.clusters[labels == 2]) == {1}


def test_the_number_of_clusters_comes_from_the_validation_images_or_from_all_labels(task):
    learned = replace(represent(task, SETTINGS, device=CPU), n_clusters=9)
    tree = Tree(linkage(F.normalize(learned.embeddings.double(), dim=1).numpy(), "ward"))
    fewer = np.where(task.labels == 1, -1, task.labels)
    expected = [estimate_n_clusters(tree, labels).n_clusters for labels in (task.labels, fewer)]
    for labels, on_all in zip((task.labels, fewer), expected, strict=True):
        found = cluster(learned, labels, SETTINGS, n_clusters=None, device=CPU)
        assert found.n_clusters == 9
        other = replace(SETTINGS, estimate_on="collection")
        assert cluster(learned, labels, other, n_clusters=None, device=CPU).n_clusters == on_all
    assert len({*expected, 9}) == 3


def test_without_labels_it_is_plain_k_means(task):
    found = gcd(
        replace(task, labels=np.full(100, -1), validation=None, n_clusters=5), SETTINGS, device=CPU
    )
    assert len(np.unique(found.clusters)) == 5


def test_tokens_left_by_another_run_change_nothing(task, tiny_encoder):
    expected = represent(task, SETTINGS, device=CPU)
    tokens = cache_tokens(task.pixels, tiny_encoder("tiny"), batch_size=32)
    found = represent(replace(task, tokens=tokens), SETTINGS, device=CPU)
    assert torch.equal(found.embeddings, expected.embeddings)


def test_killed_and_resumed_the_method_gives_the_same_clusters(task, tmp_path):
    expected = gcd(task, SETTINGS, device=CPU)

    calls = []

    def die(*counts):
        calls.append(counts)
        if len(calls) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gcd(task, SETTINGS, device=CPU, folder=tmp_path, progress=die)
    found = gcd(task, SETTINGS, device=CPU, folder=tmp_path, resume=True)
    assert np.array_equal(found.clusters, expected.clusters)


def test_the_loss_is_the_weighted_sum_of_two_losses_written_out(tiny_encoder):
    """Two images, both labeled with class 0: the four rows are all positives of each other in the
    supervised loss."""
    views = F.normalize(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    batch = Batch(
        images=torch.tensor([0, 1, 0, 1]),
        inputs=views,
        outputs={"projections": views},
        labels=torch.zeros(4, dtype=torch.long),
        epoch=0,
        generator=torch.Generator(),
    )
    loss = GcdLossSettings(temperature=1.0, denominator="reference")
    settings = GcdSettings(loss=loss, head=HeadSettings(width=16, dim=8))
    found = Gcd(
        tiny_encoder("tiny"), settings, TaskShape(n_images=2, n_known=1, n_clusters=None)
    ).loss(batch)
    contrastive = supervised = 0.0
    for i in range(4):
        others = [j for j in range(4) if j != i]
        for temperature, positives in ((1.0, [(i + 2) % 4]), (0.07, others)):
            log_sum = torch.logsumexp(
                torch.stack([views[i] @ views[j] / temperature for j in others]), dim=0
            )
            terms = [log_sum - views[i] @ views[j] / temperature for j in positives]
            value = float(sum(terms)) / len(terms) / 4
            if temperature == 1.0:
                contrastive += value
            else:
                supervised += value
    assert float(found["loss_contrastive"]) == pytest.approx(contrastive, rel=1e-5)
    assert float(found["loss_supervised"]) == pytest.approx(supervised, rel=1e-5)
    assert float(found["loss"]) == pytest.approx(0.35 * supervised + 0.65 * contrastive, rel=1e-5)


def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    labels = [0, 1, 0, -1, -1, 1]
    settings = GcdSettings(head=HeadSettings(width=16, dim=8))
    torch.manual_seed(0)
    model = Gcd(tiny_vit.encoder, settings, TaskShape(n_images=6, n_known=2, n_clusters=None))
    loss = model.loss(tiny_vit.batch(model, labels))["loss"]
    views = model.head(tiny_vit.features())
    tiny_vit.check(loss, 0.65 * contrast(views, 1.0) + 0.35 * supervise(views, labels * 2, 0.07))


def test_fewer_clusters_than_known_classes_are_refused(task):
    learned = Representation(
        embeddings=torch.eye(100, 16) + 0.01, embed=lambda pixels: torch.empty(0)
    )
    with pytest.raises(UsageError, match="n_clusters: found 2 with 3 known classes"):
        cluster(learned, task.labels, SETTINGS, n_clusters=2, device=CPU)
    with pytest.raises(UsageError, match="n_init"):
        GcdSettings(n_init=0)


def test_the_number_of_clusters_is_searched_on_the_encoders_features_as_they_came(
    task, tiny_encoder, monkeypatch
):
    searching = replace(
        SETTINGS, search_n_clusters=True, inference=InferenceSettings(max_clusters=20)
    )
    learned = represent(task, searching, device=CPU)
    frozen = embed(task.pixels, tiny_encoder("tiny"))
    torch.testing.assert_close(learned.embed_frozen(), frozen)
    expected = search_by_kmeans(unit_points(frozen), task.labels, searching)
    found = cluster(
        replace(learned, n_clusters=17), task.labels, searching, n_clusters=None, device=CPU
    )
    assert found.n_clusters == expected != 17
    assert found.counted_by
    given = cluster(learned, task.labels, searching, n_clusters=7, device=CPU)
    assert (given.n_clusters, given.counted_by) == (7, "")


def test_frozen_features_are_their_own():
    rows = torch.eye(4)
    assert Representation(embeddings=rows, embed=lambda pixels: rows).embed_frozen() is rows
