"""A classifier initialized at images: a case computed by hand, and more outputs than images with
features of one sign."""

import pytest
import torch
from torch.nn import functional as F

from shoal.methods.classifier import CosineClassifier


def directions(classifier):
    return F.normalize(classifier.weight.detach(), dim=1)


def test_known_outputs_start_at_the_mean_of_their_class_and_others_at_unlabeled_images():
    rows = F.normalize(
        torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]), dim=1
    )
    labels = torch.tensor([0, 0, 1, -1, -1, -1])
    torch.manual_seed(0)
    classifier = CosineClassifier(3, 4)
    length = classifier.weight.detach().norm(dim=1).mean()
    classifier.start_at_images(rows, labels, 2, torch.Generator().manual_seed(1))
    found = directions(classifier)
    torch.testing.assert_close(found[0], F.normalize(rows[0] + rows[1], dim=0))
    torch.testing.assert_close(found[1], rows[2])
    taken = [int((rows[3:] @ row).argmax()) for row in found[2:]]
    assert len(set(taken)) == 2
    torch.testing.assert_close(found[2:], rows[3:][taken])
    torch.testing.assert_close(classifier.weight.detach().norm(dim=1), length.expand(4))


@pytest.mark.parametrize("n_unlabeled", [0, 1, 3])
def test_with_fewer_unlabeled_images_than_outputs_the_other_outputs_stay_random(n_unlabeled):
    rows = F.normalize(
        torch.rand(2 + n_unlabeled, 4, generator=torch.Generator().manual_seed(0)), dim=1
    )
    labels = torch.tensor([0, 1] + [-1] * n_unlabeled)
    classifier = CosineClassifier(4, 9)
    before = classifier.weight.detach().clone()
    classifier.start_at_images(rows, labels, 2, torch.Generator().manual_seed(1))
    torch.testing.assert_close(directions(classifier)[:2], rows[:2])
    n_set = 2 + n_unlabeled
    taken = [int((rows[2:] @ row).argmax()) for row in directions(classifier)[2:n_set]]
    assert sorted(taken) == list(range(n_unlabeled))
    torch.testing.assert_close(classifier.weight.detach()[n_set:], before[n_set:])
