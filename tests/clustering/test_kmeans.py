import pytest
import torch

from shoal.clustering import kmeans as module
from shoal.clustering.kmeans import semi_supervised_kmeans
from shoal.errors import UsageError


def run(points, labels, n_clusters, seed=0, n_init=10):
    generator = torch.Generator().manual_seed(seed)
    return semi_supervised_kmeans(points, labels, n_clusters, generator=generator, n_init=n_init)


@pytest.fixture
def clouds():
    """Five clouds of 20 points; every other point of the first two is labeled. Points, labels,
    truth."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(5).repeat_interleave(20)
    points = 6 * torch.eye(5, 8)[truth] + 0.3 * torch.randn(100, 8, generator=generator)
    labels = torch.where((truth < 2) & (torch.arange(100) % 2 == 0), truth, -1)
    return points, labels, truth


def test_clouds_are_found_and_known_ones_keep_their_number(
    clouds,
):
    points, labels, truth = clouds
    found = run(points, labels, 5).labels
    assert torch.equal(found[truth < 2], truth[truth < 2])
    novel = found[40:].reshape(3, 20)
    assert sorted(novel[:, 0].tolist()) == [2, 3, 4]
    assert (novel == novel[:, :1]).all()


def slow_kmeans(points, labels, centers):
    """Iterate Lloyd's steps from the given centers, point by point, until no assignment changes."""
    rows = points.double()
    assigned = []
    while True:
        nearest = [int(((row - centers) ** 2).sum(dim=1).argmin()) for row in rows]
        found = [
            given if given >= 0 else near
            for given, near in zip(labels.tolist(), nearest, strict=True)
        ]
        if found == assigned:
            return assigned, centers
        assigned = found
        members = [
            torch.tensor([c == cluster for c in assigned]) for cluster in range(len(centers))
        ]
        centers = torch.stack([rows[chosen].mean(dim=0) for chosen in members])


@pytest.mark.parametrize("seed", range(3))
def test_a_run_is_lloyds_steps_to_their_end(seed, monkeypatch):
    """Splitting one long cloud into seven clusters takes many steps from any initial centers."""
    points = torch.randn(150, 2, generator=torch.Generator().manual_seed(seed))
    labels = torch.full((150,), -1)
    labels[:10] = torch.arange(10) % 2
    generator = torch.Generator().manual_seed(seed)
    first = module._first_centers(points, labels, 7, generator)
    expected, centers = slow_kmeans(points, labels, first)
    monkeypatch.setattr(module, "TOLERANCE", 1e-20)
    found = run(points, labels, 7, seed, n_init=1)
    assert found.labels.tolist() == expected
    torch.testing.assert_close(found.centers, centers)


def test_a_labeled_point_keeps_its_class_even_among_another():
    """On a line: 0, 1 labeled a; 10, 11 labeled b; an outlier at 10.5 labeled a. The unlabeled 9
    joins b; the outlier does not.

    Means: a = (0 + 1 + 10.5)/3 = 3.83; b with 9 = 10. Inertia: a 14.69 + 8.03 + 44.44, b 0 + 1 + 1.
    """
    points = torch.tensor([[0.0], [1.0], [10.5], [10.0], [11.0], [9.0]])
    labels = torch.tensor([0, 0, 0, 1, 1, -1])
    found = run(points, labels, 2)
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.centers[:, 0].tolist() == pytest.approx([23 / 6, 10.0])
    assert found.inertia == pytest.approx(14.694 + 8.028 + 44.444 + 2, abs=1e-2)


@pytest.mark.parametrize("labels", [[-1] * 10, [0, *[-1] * 8, 1]])
def test_duplicates_leave_no_cluster_empty(labels):
    """Ten points at two places and four clusters: copies are moved to the empty clusters, which
    leaves the inertia at zero."""
    points = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat_interleave(5, dim=0)
    found = run(points, torch.tensor(labels), 4)
    assert found.labels.unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(found.centers[found.labels], points.double())
    assert found.inertia == 0.0
    assert (found.labels[0], found.labels[9]) == (0, 1) or labels[0] < 0


def test_blocks_change_nothing(clouds, monkeypatch):
    points, labels, _ = clouds
    whole = run(points, labels, 7)
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", 8 * 8 * 13)
    parts = run(points, labels, 7)
    assert torch.equal(parts.labels, whole.labels)
    assert torch.equal(parts.centers, whole.centers)


@pytest.mark.parametrize("n_clusters", [0, 1, 83])
def test_k_lies_between_known_classes_and_points(clouds, n_clusters):
    points, labels, _ = clouds
    with pytest.raises(UsageError):
        run(points, labels, n_clusters)


@pytest.mark.gpu
def test_gpu_finds_the_same_clouds(clouds):
    points, labels, _ = clouds
    assert torch.equal(
        run(points.cuda(), labels.cuda(), 5).labels.cpu(), run(points, labels, 5).labels
    )
