"""What methods share, written again as loops: slow, and independent of the package. B images, two
views of each."""

import torch

from shoal.encoders.hub import import_transformers
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.training.model import Batch
from small_models import make_model


def tiny_vit():
    """A ViT of three random blocks, the last of them trained."""
    parts = split_model(make_model(import_transformers(), "vit"), 32)
    return Encoder("vit", parts, InputFormat(size=32, mean=(0.5,) * 3, std=(0.5,) * 3), 1)


def make_batch(model, labels, *, epoch=0, images=None):
    """Two views of random images in one process, through the model; `labels` (B,)."""
    generator = torch.Generator().manual_seed(5)
    views = torch.randn(2 * len(labels), 3, 32, 32, generator=generator)
    with torch.no_grad():
        tokens = model.encoder.run_trunk(views)
    images = torch.arange(len(labels)) if images is None else images
    return Batch(
        images=images.repeat(2),
        inputs=tokens,
        outputs=model(tokens),
        labels=labels.repeat(2),
        epoch=epoch,
        generator=generator,
    )


def gradients(model, loss):
    """Of everything that is trained, one after the other."""
    model.zero_grad()
    loss.backward()
    return torch.cat([value.grad.flatten() for value in model.trained_parameters()])


def contrast(views, temperature):
    """InfoNCE of rows i and i + B."""
    n_rows = len(views)
    total = 0.0
    for i in range(n_rows):
        others = [torch.dot(views[i], views[j]) / temperature for j in range(n_rows) if j != i]
        positive = torch.dot(views[i], views[(i + n_rows // 2) % n_rows]) / temperature
        total = total - (positive.exp() / sum(other.exp() for other in others)).log()
    return total / n_rows


def supervise(views, labels, temperature):
    """The supervised contrastive loss over labeled rows, every other labeled row in the
    denominator."""
    rows = [i for i in range(len(views)) if labels[i] >= 0]
    total = 0.0
    for i in rows:
        others = [j for j in rows if j != i]
        below = sum((torch.dot(views[i], views[j]) / temperature).exp() for j in others)
        same = [j for j in others if labels[j] == labels[i]]
        terms = [((torch.dot(views[i], views[j]) / temperature).exp() / below).log() for j in same]
        total = total - sum(terms) / len(terms)
    return total / len(rows)


def affinities(nodes, n_views, k):
    """(V, G) affinities of the first of G unit nodes with all, by their definition: k neighbors
    besides itself."""
    n_nodes = len(nodes)
    near = []
    for node in range(n_nodes):
        others = [other for other in range(n_nodes) if other != node]
        near.append(
            [node, *sorted(others, key=lambda other: -float(nodes[node] @ nodes[other]))[:k]]
        )
    counts = [
        [
            0.0 if i == j else float(sum(i in each and j in each for each in near))
            for j in range(n_nodes)
        ]
        for i in range(n_nodes)
    ]
    steps = [[value / max(sum(row), 1) for value in row] for row in counts]
    found = torch.eye(n_views, n_nodes)
    places = [(a, b) for a in range(n_nodes) for b in range(n_nodes)]
    for i in range(n_views):
        for j in range(n_nodes):
            found[i, j] += sum(steps[i][a] * steps[a][b] * steps[j][b] for a, b in places)
    return found
