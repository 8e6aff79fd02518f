import copy
import math

import pytest
import torch
from torch.nn import functional as F

from method_runs import run_method
from shoal.methods.uno import Uno, UnoSettings, sinkhorn
from shoal.training.model import TaskShape
from shoal.training.train_settings import TrainSettings

CPU = torch.device("cpu")
LABELS = [0, 1, 0, -1, -1, -1]
SHAPE = TaskShape(n_images=6, n_known=2, n_clusters=4)
SMALL = {"width": 32, "dim": 16, "n_heads": 2}


@pytest.mark.slow
def test_colors_are_found_where_the_frozen_encoder_sees_their_light(
    dim_task, score, frozen_accuracy
):
    training = TrainSettings(epochs=15, batch_size=25, lr=0.1, max_gradient=1.0, snapshot="last")
    found = run_method("uno", dim_task[0], UnoSettings(training=training, **SMALL))
    assert score(found.clusters).all > frozen_accuracy.all + 0.08
    assert found.n_clusters == 5


def slow_sinkhorn(cosines, epsilon, n_rounds):
    """Compute the Sinkhorn assignment of rows entry by entry."""
    n_rows = len(cosines)
    n_columns = len(cosines[0])
    shares = [[math.exp(float(value) / epsilon) for value in row] for row in cosines]
    for _ in range(n_rounds):
        for column in range(n_columns):
            total = sum(shares[row][column] for row in range(n_rows))
            for row in range(n_rows):
                shares[row][column] /= total
        for row in range(n_rows):
            total = sum(shares[row])
            shares[row] = [value / total for value in shares[row]]
    return shares


def test_sinkhorn_is_that_of_a_slow_loop_and_rows_that_do_not_count_give_nothing():
    cosines = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    is_counted = torch.tensor([True, False, True, True, False])
    found = sinkhorn(cosines, is_counted, 0.2, 3)
    torch.testing.assert_close(
        found[is_counted], torch.tensor(slow_sinkhorn(cosines[is_counted].tolist(), 0.2, 3))
    )
    assert not found[~is_counted].any()
    assert not sinkhorn(cosines, torch.zeros(5, dtype=torch.bool), 0.2, 3).any()


def slow_head(feature, heads, number):
    """Return the cosines of a unit feature with the prototypes of one head."""
    hidden = heads.hidden[number].T @ feature
    hidden = (hidden - hidden.mean()) / (hidden.var(unbiased=False) + 1e-5).sqrt()
    row = heads.out[number].T @ hidden.clamp_min(0)
    return [
        (row / row.norm()) @ (prototype / prototype.norm())
        for prototype in heads.prototypes[number]
    ]


def slow_losses(features, known, heads, settings):
    """Compute the loss of each head from features (2B, C), row by row."""
    n_images = len(features) // 2
    losses = []
    for number in range(settings.n_heads):
        cosines = []
        for feature in features:
            own = feature / feature.norm()
            cosines.append(
                torch.stack(
                    [own @ (row / row.norm()) for row in known] + slow_head(own, heads, number)
                )
            )
        unlabeled = [image for image in range(n_images) if LABELS[image] < 0]
        total = 0.0
        for view in (0, 1):
            other = [cosines[n_images * (1 - view) + image].detach() for image in unlabeled]
            shares = slow_sinkhorn(
                [row.tolist() for row in other], settings.epsilon, settings.n_rounds
            )
            for image in range(n_images):
                logits = cosines[n_images * view + image] / settings.temperature
                log_shares = logits - logits.exp().sum().log()
                if LABELS[image] >= 0:
                    total = total - log_shares[LABELS[image]]
                else:
                    target = shares[unlabeled.index(image)]
                    total = total - sum(
                        share * value for share, value in zip(target, log_shares, strict=True)
                    )
        losses.append(total / (2 * n_images))
    return losses


def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    torch.manual_seed(0)
    settings = UnoSettings(**SMALL)
    model = Uno(tiny_vit.encoder, settings, SHAPE)
    loss = model.loss(tiny_vit.batch(model, LABELS))["loss"]
    known = model.known.weight.detach().clone().requires_grad_()
    features = tiny_vit.features()
    copies = copy.deepcopy((model.heads, model.finer_heads))
    coarse, fine = (slow_losses(features, known, heads, settings) for heads in copies)
    tiny_vit.check(loss, (sum(coarse) + sum(fine)) / 4)
    ours = [model.known.weight, *model.heads.parameters(), *model.finer_heads.parameters()]
    theirs = [known, *copies[0].parameters(), *copies[1].parameters()]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(model.head_losses, torch.stack(coarse).detach())


def test_the_head_with_the_lowest_loss_of_the_epoch_answers(tiny_encoder):
    torch.manual_seed(0)
    model = Uno(tiny_encoder("tiny"), UnoSettings(**SMALL), SHAPE)
    rows = F.normalize(torch.randn(50, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    answers = []
    for losses in ([1.0, 2.0], [2.0, 1.0]):
        model.head_losses.copy_(torch.tensor(losses))
        answers.append(model.predict(rows))
    assert not torch.equal(*answers)
    for number, answer in enumerate(answers):
        for row, found in zip(rows, answer, strict=True):
            known = [row @ F.normalize(each, dim=0) for each in model.known.weight]
            assert int(torch.stack(known + slow_head(row, model.heads, number)).argmax()) == int(
                found
            )


@pytest.mark.parametrize(("n_known", "n_clusters"), [(0, 3), (2, 2)])
def test_without_known_or_without_novel_classes_it_trains(tiny_vit, n_known, n_clusters):
    model = Uno(
        tiny_vit.encoder,
        UnoSettings(**SMALL),
        TaskShape(n_images=6, n_known=n_known, n_clusters=n_clusters),
    )
    labels = [-1] * 6 if n_known == 0 else [0, 1, 0, 1, 1, -1]
    loss = model.loss(tiny_vit.batch(model, labels))["loss"]
    loss.backward()
    assert torch.isfinite(loss)
