"""Steps that methods share, reimplemented as loops: slow, and independent of the package. B images
with two views each."""

import math

import numpy as np
import torch


def contrast(views, temperature, *, with_positive=True):
    """InfoNCE of rows i and i + B, as in equation 6 of CMS."""
    n_rows = len(views)
    total = 0.0
    for i in range(n_rows):
        partner = (i + n_rows // 2) % n_rows
        others = [j for j in range(n_rows) if j != i and (with_positive or j != partner)]
        below = sum((torch.dot(views[i], views[j]) / temperature).exp() for j in others)
        total = total - ((torch.dot(views[i], views[partner]) / temperature).exp() / below).log()
    return total / n_rows


def supervise(views, labels, temperature, *, with_positives=True):
    """The supervised contrastive loss over labeled rows, as in equation 7 of CMS; with or without
    positives in the denominator."""
    rows = [i for i in range(len(views)) if labels[i] >= 0]
    total = 0.0
    for i in rows:
        others = [j for j in rows if j != i and (with_positives or labels[j] != labels[i])]
        below = sum((torch.dot(views[i], views[j]) / temperature).exp() for j in others)
        same = [j for j in rows if j != i and labels[j] == labels[i]]
        terms = [((torch.dot(views[i], views[j]) / temperature).exp() / below).log() for j in same]
        total = total - sum(terms) / len(terms)
    return total / len(rows)


def simgcd_loss(scores, labels, contrastive, supervised, epoch):
    """SimGCD's loss from its contrastive losses, with λ = 0.35, ε = 2 and 30 epochs of warm-up."""
    n = len(scores)
    sharp = np.linspace(0.07, 0.04, 30)[min(epoch, 29)]  # 0.04 from the thirtieth epoch on
    probabilities = [torch.softmax(row / 0.1, dim=0) for row in scores]
    distillation = 0.0
    for i in range(n):
        target = torch.softmax(scores[(i + n // 2) % n].detach() / sharp, dim=0)
        products = (target[k] * probabilities[i][k].log() for k in range(len(target)))
        distillation = distillation - sum(products) / n
    mean = sum(probabilities) / n
    mean_entropy = math.log(len(mean)) + sum(p * p.log() for p in mean)
    labeled = [i for i in range(n) if labels[i] >= 0]
    classification = -sum(probabilities[i][labels[i]].log() for i in labeled) / len(labeled)
    unsupervised = distillation + 2 * mean_entropy + contrastive
    return 0.65 * unsupervised + 0.35 * (classification + supervised)


def affinities(nodes, n_views, k):
    """(V, G) affinities of the first V of G unit nodes with all G, by definition: k neighbors
    excluding itself."""
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
