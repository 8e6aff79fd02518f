import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.encoders.vision import HeadSettings
from shoal.errors import UsageError
from shoal.methods.promptcal import (
    BorderPrompt,
    PromptCal,
    PromptCalSettings,
    TokenPrompts,
    calibrate,
)
from shoal.training.losses import ContrastSettings
from shoal.training.model import Epoch, TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import affinities as slow_graph
from slow_steps import contrast as slow_contrast
from slow_steps import supervise as slow_supervise

CPU = torch.device("cpu")
LABELS = [0, 1, 0, -1, -1, -1]
SHAPE = TaskShape(n_images=6, n_known=2, n_clusters=None)
SMALL = {
    "head": HeadSettings(kind="mlp", width=16, dim=8),
    "loss": ContrastSettings(temperature=0.5, supervised_temperature=0.3),
    "memory_size": 16,
    "n_neighbors": 3,
    "quantile": 0.5,
    "n_negatives": 16,
    "affinity_temperature": 0.3,
    "affinity_epochs": 4,
    "n_init": 2,
}


def settings(training=None, n_first=1, **changes):
    """Return settings with small networks and a first stage of `n_first` epochs."""
    training = training or TrainSettings()
    stages = {"training": training, "first_stage": n_first / training.epochs}
    return PromptCalSettings(**SMALL | stages | changes)


def begin(model, number):
    model.begin_epoch(
        Epoch(
            number=number,
            labels=torch.tensor(LABELS),
            embed=lambda: torch.empty(0),
            embed_views=lambda: torch.empty(0),
            generator=torch.Generator(),
        )
    )


def slow_features(tiny_vit, prompts):
    """Return the features (12, D) of the views and those of their prompts, run block by block
    through the library's model."""
    tokens = tiny_vit.whole.embeddings(tiny_vit.views)  # (12, T, C)
    for layer, own in zip(tiny_vit.layers, prompts, strict=True):
        given = torch.cat([tokens[:, :1], own.repeat(len(tokens), 1, 1), tokens[:, 1:]], dim=1)
        out = layer(given)
        out = out[0] if isinstance(out, tuple) else out
        read = out[:, 1:3]
        tokens = torch.cat([out[:, :1], out[:, 1 + len(own) :]], dim=1)
    return tiny_vit.whole.layernorm(tokens[:, 0]), tiny_vit.whole.layernorm(read).mean(dim=1)


def slow_contrast_of_positives(views, nodes, positives, negatives, temperature):
    """Return the contrastive loss of views against nodes: the mean, over views with positives, of
    -log of the softmax share of each positive among positives and negatives."""
    total = 0.0
    n_rows = 0
    for view, ours, theirs in zip(views, positives, negatives, strict=True):
        if ours:
            below = sum((view @ nodes[j] / temperature).exp() for j in [*ours, *theirs])
            total = total - sum(
                ((view @ nodes[j] / temperature).exp() / below).log() for j in ours
            ) / len(ours)
            n_rows += 1
    return total / n_rows


def check_prompts(model, prompts):
    assert float(prompts.grad.abs().max()) > 0
    torch.testing.assert_close(model.prompts.tokens.grad, prompts.grad, rtol=1e-3, atol=1e-5)


def test_a_step_of_the_first_stage_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    torch.manual_seed(0)
    model = PromptCal(tiny_vit.encoder, settings(), SHAPE)
    loss = model.loss(tiny_vit.batch(model, LABELS, epoch=0))["loss"]
    prompts = model.prompts.tokens.detach().clone().requires_grad_()
    expected = 0.0
    names = ("head", "prompt_head")
    for weight, name, rows in zip((1, 0.35), names, slow_features(tiny_vit, prompts), strict=True):
        views = F.normalize(model.heads[name].layers(rows), dim=1)
        expected = expected + weight * 0.65 * slow_contrast(views, 0.5)
        expected = expected + weight * 0.35 * slow_supervise(views, LABELS * 2, 0.3)
    tiny_vit.check(loss, expected)
    check_prompts(model, prompts)


def move_teacher(tiny_vit, model):
    """Move the teacher's weights away from the student's; return its features and those of its
    prompts, computed slowly."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for part in (model.teacher["tail"][0], model.teacher["prompts"], model.teacher["heads"]):
            for value in part.parameters():
                value.add_(
                    0.3 * torch.randn(value.shape, generator=generator) * value.std(unbiased=False)
                )
        whole = copy.deepcopy(tiny_vit)
        for ours, theirs in zip(
            whole.layers[-1].parameters(), model.teacher["tail"][0].parameters(), strict=True
        ):
            ours.copy_(theirs)
        return slow_features(whole, model.teacher["prompts"].tokens)


def sampled_rows(n_rows, n_sampled):
    """Return the rows of the memory that a step samples as negatives."""
    return set(
        torch.randperm(n_rows, generator=torch.Generator().manual_seed(9))[:n_sampled].tolist()
    )


def slow_positives(found, labels, limit):
    """Return, for each of 12 views, the nodes that are positives: those above the limit, or if both
    are labeled, those of its class; and the views of its own image."""
    positives = []
    for i in range(12):
        mine = []
        for j in range(len(labels)):
            is_one = float(found[i, j]) >= limit - 1e-7
            if labels[i] >= 0 and labels[j] >= 0:
                is_one = labels[i] == labels[j]
            mine += [j] if is_one or (j < 12 and i % 6 == j % 6) else []
        positives.append(mine)
    return positives


def test_a_step_of_the_second_stage_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    """The memory has 16 places, six of them filled. Ten places are sampled, which include some of
    the filled ones but not all."""
    torch.manual_seed(0)
    model = PromptCal(tiny_vit.encoder, settings(n_negatives=10), SHAPE)
    begin(model, 1)
    teacher_features = move_teacher(tiny_vit, model)
    generator = torch.Generator().manual_seed(3)
    stored_labels = [0, 1, -1, -1, 0, -1]
    memory = {
        kind: F.normalize(torch.randn(6, 32, generator=generator), dim=1)
        for kind in ("", "prompt_")
    }
    for kind, rows in memory.items():
        model.get_buffer(f"{kind}memory")[:6] = rows
    model.memory_labels[:6] = torch.tensor(stored_labels)
    model.n_remembered.fill_(6)
    others = [*range(12), *(12 + row for row in range(6) if row in sampled_rows(16, 10))]
    assert 12 < len(others) < 18
    loss = model.loss(tiny_vit.batch(model, LABELS, epoch=2))["loss"]
    prompts = model.prompts.tokens.detach().clone().requires_grad_()
    expected = 0.0
    share = 0.6 / 4
    labels = [*LABELS, *LABELS, *stored_labels]
    by_kind = zip(
        ("", "prompt_"), (1, 0.35), slow_features(tiny_vit, prompts), teacher_features, strict=True
    )
    for kind, weight, rows, their_rows in by_kind:
        views = F.normalize(model.heads[f"{kind}head"].layers(rows), dim=1)
        targets = F.normalize(
            model.teacher["heads"][f"{kind}head"].layers(their_rows), dim=1
        ).detach()
        assert float((views @ targets.T).diagonal().min().detach()) < 0.99, (
            "the teacher is another network"
        )
        known = [i for i in range(12) if labels[i] >= 0]
        same = [
            [j for j in known if labels[j] == labels[i]] if i in known else [] for i in range(12)
        ]
        other = [
            [j for j in known if labels[j] != labels[i]] if i in known else [] for i in range(12)
        ]
        supervised = slow_contrast_of_positives(views, targets, same, other, 0.3)
        features = F.normalize(rows, dim=1)
        nodes = torch.cat([F.normalize(their_rows, dim=1), memory[kind]])
        found = slow_graph(nodes, 12, 3)
        above = sorted(float(value) for value in found.flatten() if value > found.mean())
        positives = slow_positives(found, labels, float(np.quantile(above, 0.5)))
        negatives = [[j for j in others if j not in mine] for mine in positives]
        affinity = slow_contrast_of_positives(features, nodes, positives, negatives, 0.3)
        unsupervised = (1 - share) * slow_contrast(views, 0.5) + share * affinity
        expected = expected + weight * (0.35 * supervised + 0.65 * unsupervised)
    tiny_vit.check(loss, expected)
    check_prompts(model, prompts)


def test_labels_decide_pairs_of_labeled_views():
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    labels = torch.tensor([0, 1, -1, 0, -1, -1])
    found = group[:, None] == group[None, :]
    calibrated = calibrate(found, labels, labels)
    assert calibrated[0].tolist() == [True, False, True, True, False, False]
    assert torch.equal(calibrated[2], found[2])


def test_the_teacher_is_the_average_in_closed_form_and_the_memory_a_ring(tiny_vit):
    torch.manual_seed(0)
    model = PromptCal(tiny_vit.encoder, settings(momentum=0.9), SHAPE)
    with torch.no_grad():
        model.prompts.tokens.add_(1)  # stands for what the first stage learned
    begin(model, 1)
    first = model.prompts.tokens.detach().clone()
    seen = []
    stored_labels = []
    assert torch.equal(model.teacher["prompts"].tokens, first)
    for step in range(4):
        batch = tiny_vit.batch(model, LABELS, epoch=1)
        model.loss(batch)
        with torch.no_grad():
            model.prompts.tokens.add_(step + 1)
            model.after_step(batch)
        seen.append(model.prompts.tokens.detach().clone())
        stored_labels.append(model.teacher_outputs["features"][:6].clone())
    expected = 0.9**4 * first + sum(
        0.1 * 0.9 ** (3 - step) * value for step, value in enumerate(seen)
    )
    torch.testing.assert_close(model.teacher["prompts"].tokens, expected)
    assert int(model.n_remembered) == 24
    rows = torch.cat(stored_labels)  # 24 rows written into 16 places
    assert torch.equal(model.memory, torch.cat([rows[16:], rows[8:16]]))
    assert model.memory_labels.tolist() == ([*LABELS] * 4)[16:] + ([*LABELS] * 4)[8:16]


def test_an_encoder_without_tokens_learns_a_border_that_is_nothing_at_first(tiny_encoder, tiny_vit):
    encoder = tiny_encoder("tiny")
    model = PromptCal(encoder, settings(border=2), SHAPE)
    assert isinstance(model.prompts, BorderPrompt)
    assert isinstance(PromptCal(tiny_vit.encoder, settings(), SHAPE).prompts, TokenPrompts)
    images = torch.randn(3, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.represent(images), encoder(images))
    with torch.no_grad():
        model.prompts.border.fill_(1)
    edge = torch.ones(14, 14)
    edge[2:-2, 2:-2] = 0
    torch.testing.assert_close(model.represent(images), encoder(images + edge))


def test_more_neighbors_than_views_are_refused_before_any_work(tiny_vit):
    chosen = settings(n_neighbors=8, training=TrainSettings(batch_size=4))
    with pytest.raises(UsageError, match="n_neighbors: found 8 with 8 views in a batch"):
        PromptCal(tiny_vit.encoder, chosen, SHAPE).check()
    PromptCal(tiny_vit.encoder, replace(chosen, n_neighbors=7), SHAPE).check()
