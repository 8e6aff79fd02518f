"""The map: embeddings in two dimensions, by PCA or by t-SNE.

t-SNE is slow, so it is computed once, for a sample, and cached as map.npz in the run folder. N
images, n of them on the map.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # loads its modules when they are needed: the review page needs none at first

from shoal.arrays import Floats, Ints
from shoal.errors import DataError, NotInRun
from shoal.files import atomic_file
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import read_arrays

# Maximum number of images on a map by PCA; a sample of larger runs
PCA_IMAGES = 20_000

# Maximum number of images on a map by t-SNE
TSNE_IMAGES = 5_000

# Number of principal components given to t-SNE
TSNE_DIMENSIONS = 50

TSNE_STEPS = 1_000


@dataclass(frozen=True)
class MapLayout:
    """One map: the positions of some images."""

    method: str
    title: str
    rows: Ints  # (n,) rows of the images
    points: Floats  # (n, 2) their positions


def stratified(ids: Ints, n_rows: int) -> Ints:
    """Return about `n_rows` ascending rows, in proportion to the categories, at least one each."""
    if len(ids) <= n_rows:
        return np.arange(len(ids))
    rng = np.random.default_rng(0)
    chosen = []
    for category_id in np.unique(ids):
        rows = np.flatnonzero(ids == category_id)
        share = max(1, int(len(rows) * n_rows / len(ids)))
        chosen.append(rng.choice(rows, size=share, replace=False))
    return np.sort(np.concatenate(chosen))


def stages(run: ReviewedRun) -> dict[str, str]:
    """Return the arrays to show side by side, with titles: before and after training, else before
    and after the mean shift."""
    if run.metrics and run.has("frozen.npy"):  # without training the embeddings are the same
        return {"frozen": "Before training", "embeddings": "After training"}
    is_shifted = not run.has("shifts.json") or run.json("shifts")["chosen"] > 0
    if is_shifted and run.has("shifted.npy"):
        return {"embeddings": "Before the mean shift", "shifted": "After the mean shift"}
    return {"embeddings": "Embeddings"}


def pca_layouts(run: ReviewedRun) -> list[MapLayout]:
    """Return a map of each stage by its first two principal components."""
    titles = stages(run)
    rows = stratified(run.category_ids, PCA_IMAGES)
    maps = [principal_components(run.vectors(name)[rows], 2) for name in titles]
    return _layouts("PCA", titles, rows, maps)


def tsne_layouts(run: ReviewedRun) -> list[MapLayout]:
    """Return a map of each stage by t-SNE of a sample, from its first 50 principal components.

    Takes seconds for hundreds of images, a minute or more for thousands. Cached in map.npz.
    """
    titles = stages(run)
    if cached := cached_layouts(run):
        return cached
    rows = stratified(run.category_ids, TSNE_IMAGES)
    if len(rows) < 3:
        raise NotInRun(f"No t-SNE: it needs at least 3 images, the run has {len(rows)}.")
    maps = [tsne(principal_components(run.vectors(name)[rows], TSNE_DIMENSIONS)) for name in titles]
    layouts = _layouts("t-SNE", titles, rows, maps)
    points = {name: layout.points for name, layout in zip(titles, layouts, strict=True)}
    with atomic_file(run.path / "map.npz") as file:
        np.savez(file, allow_pickle=False, rows=rows, **points)
    return layouts


def cached_layouts(run: ReviewedRun) -> list[MapLayout]:
    """Return the maps in map.npz; empty if it is missing or does not fit the run."""
    try:
        cached = read_arrays(run.path / "map.npz")
    except DataError:
        return []  # a cache that cannot be read is computed again
    titles = stages(run)
    rows = cached.pop("rows", np.zeros(0, np.int64))
    has_points = all(points.shape == (len(rows), 2) for points in cached.values())
    has_images = bool(np.isin(rows, np.arange(len(run.assignments))).all())
    if cached.keys() != titles.keys() or not has_points or not has_images:
        return []
    return [MapLayout("t-SNE", title, rows, cached[name]) for name, title in titles.items()]


def principal_components(x: Floats, n_components: int) -> Floats:
    """Return (n, n_components) the first principal components of rows, each with its largest entry
    positive.

    Columns beyond the rank are zero.
    """
    mean = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    centered = np.asarray(x, np.float32) - mean  # (n, D)
    covariance = (centered.T @ centered).astype(np.float64)  # (D, D)
    d = len(covariance)
    wanted = (max(0, d - n_components), d - 1)  # computing all takes ten times as long
    axes = scipy.linalg.eigh(covariance, subset_by_index=wanted)[1][:, ::-1]  # (D, m)
    points = centered @ axes  # (n, m), m <= n_components
    is_negative = -points.min(axis=0, initial=0) > points.max(axis=0, initial=0)
    points = points * np.where(is_negative, -1.0, 1.0)
    return np.pad(points, ((0, 0), (0, n_components - points.shape[1])))


def aligned(points: Floats, target: Floats) -> Floats:
    """Rotate and reflect a map onto another one of the same images (orthogonal Procrustes)."""
    centered = points - points.mean(axis=0)
    rotation, _ = scipy.linalg.orthogonal_procrustes(centered, target - target.mean(axis=0))
    return centered @ rotation


def _layouts(
    method: str, titles: dict[str, str], rows: Ints, maps: list[Floats]
) -> list[MapLayout]:
    rotated = [maps[0], *(aligned(points, maps[0]) for points in maps[1:])]
    return [
        MapLayout(method, title, rows, points.astype(np.float32))
        for title, points in zip(titles.values(), rotated, strict=True)
    ]


def tsne(x: Floats) -> Floats:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(x) - 1) / 3)
    model = TSNE(perplexity=perplexity, max_iter=TSNE_STEPS, random_state=0)
    # One thread: reproducible, and on a busy machine several threads wait for each other.
    with threadpool_limits(1):
        return model.fit_transform(np.ascontiguousarray(x, np.float32))
