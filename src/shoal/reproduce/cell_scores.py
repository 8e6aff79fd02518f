"""Scoring: what hidden labels say about a cell. Nothing here goes back to a method."""

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.matching import gcd_accuracy, recall_at_k
from shoal.clustering.mean_shift import find_neighbors, shift
from shoal.clustering.neighbors import k_nearest
from shoal.encoders.embed import ImageRows
from shoal.methods.clusters import Representation
from shoal.methods.cms import learned_attention
from shoal.reproduce.clusterings import shifted_by
from shoal.reproduce.loaded_dataset import BenchmarkImages
from shoal.reproduce.plan import Cell

RECALL_AT = 8
N_ITERATIONS = 8
"""Shifts in the figure of iterations."""
N_QUERIES = 5
N_RETRIEVED = 10
THUMBNAIL = 64
"""Side of the images in the figure of retrieval."""
MAX_TSNE = 5000
"""Images in the figure of t-SNE, drawn at random where there are more."""


def score(clusters: Ints, images: BenchmarkImages, is_scored: Bools) -> dict[str, float]:
    """All / Known / Novel in percent over the images that are scored, with one matching."""
    accuracy = gcd_accuracy(
        images.truth[is_scored], clusters[is_scored], images.is_known[is_scored]
    )
    return {name: 100 * getattr(accuracy, name) for name in ("all", "known", "novel")}


def recall(embeddings: Tensor, images: BenchmarkImages) -> dict[str, float]:
    """Recall@8 in percent: every image is a query, all others are the bank; then of labeled and of unlabeled ones.

    That is how the paper's table divides them: its All is the mean of the other two weighted by their numbers.
    """
    near = _nearest(embeddings, RECALL_AT)

    def share(chosen: Bools) -> float:
        return recall_at_k(near[chosen], images.truth[chosen], images.truth)

    is_labeled = images.labels != UNLABELED
    groups = {
        "all": np.ones(len(near), dtype=bool),
        "labeled": is_labeled,
        "unlabeled": ~is_labeled,
    }
    return {name: 100 * share(chosen) for name, chosen in groups.items()}


def figure_material(
    cell: Cell,
    learned: Representation,
    images: BenchmarkImages,
    is_scored: Bools,
    device: torch.device,
) -> list[dict[str, Any]]:
    """What the figure of a cell is drawn from."""
    if cell.figure == "iterations":
        return iterations(cell, learned, images, is_scored, device)
    if cell.figure == "retrieval":
        return retrieval(cell, learned, images)
    return tsne(learned.embeddings, images)


def iterations(
    cell: Cell,
    learned: Representation,
    images: BenchmarkImages,
    is_scored: Bools,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Accuracy at the true K after 0, 1, 2 … shifts; the paper calls the first of them iteration 1."""
    rows = []
    for n_shifts in range(N_ITERATIONS + 1):
        discovery = shifted_by(n_shifts, learned, cell, images.n_classes, device)
        if (
            discovery.n_shifts < n_shifts
        ):  # any further one would leave fewer distinct images than classes
            break
        rows.append({"shifts": n_shifts} | score(discovery.clusters, images, is_scored))
    return rows


def retrieval(cell: Cell, learned: Representation, images: BenchmarkImages) -> list[dict[str, Any]]:
    """The nearest images of a few novel ones, by the embedding and by the embedding shifted once.

    Queries are those novel images whose neighbors change most to the better, then by row: the figure is an
    illustration, and says so.
    """
    points = learned.embeddings
    moves = cell.settings.inference.shift
    own = torch.arange(len(points), device=points.device)
    lists = find_neighbors(
        points, points, moves, exclude=own, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        moved = shift(points, points, lists, moves, attention=learned_attention(learned))
    count = min(N_RETRIEVED, len(points) - 1)
    before = k_nearest(points, points, count, exclude=own).indices.cpu().numpy()
    after = k_nearest(moved, points, count, exclude=own).indices.cpu().numpy()
    right_before, right_after = (
        images.truth[near] == images.truth[:, None] for near in (before, after)
    )
    gain = np.where(images.is_known, -np.inf, right_after.sum(axis=1) - right_before.sum(axis=1))
    queries = np.argsort(-gain, kind="stable")[:N_QUERIES]
    return [
        {
            "query": _thumbnail(images.pixels, int(row)),
            "initial": _shown(images.pixels, before[row], right_before[row]),
            "shifted": _shown(images.pixels, after[row], right_after[row]),
        }
        for row in queries
    ]


def tsne(embeddings: Tensor, images: BenchmarkImages) -> list[dict[str, Any]]:
    """The embeddings in the plane, with their true classes."""
    from sklearn.manifold import TSNE

    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(embeddings))[:MAX_TSNE])
    points = embeddings[torch.from_numpy(rows).to(embeddings.device)].float().cpu().numpy()
    perplexity = min(30.0, (len(rows) - 1) / 3)
    points_2d = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    classes = images.truth[rows]
    return [
        {"x": round(float(x), 3), "y": round(float(y), 3), "class": int(label)}
        for (x, y), label in zip(points_2d, classes, strict=True)
    ]


def _nearest(embeddings: Tensor, count: int) -> Ints:
    own = torch.arange(len(embeddings), device=embeddings.device)
    lists = k_nearest(embeddings, embeddings, min(count, len(own) - 1), exclude=own)
    near: Ints = lists.indices.cpu().numpy()
    return near


def _shown(pixels: ImageRows, rows: Ints, is_right: Bools) -> list[dict[str, Any]]:
    return [
        {"image": _thumbnail(pixels, int(row)), "right": bool(right)}
        for row, right in zip(rows, is_right, strict=True)
    ]


def _thumbnail(pixels: ImageRows, row: int) -> str:
    """An image as base64 JPEG."""
    array = pixels[row].cpu().numpy() if isinstance(pixels, Tensor) else np.asarray(pixels[row])
    buffer = io.BytesIO()
    Image.fromarray(array).resize((THUMBNAIL, THUMBNAIL)).save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()
