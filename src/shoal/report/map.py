"""The map: embeddings in two dimensions, by PCA at once and by t-SNE when asked.

t-SNE is slow, so it is drawn once, from a sample, and kept as map.npz in the run folder. N images,
n of them mapped.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from shoal.arrays import Floats, Ints
from shoal.errors import DataError
from shoal.files import atomic_file
from shoal.progress import Progress
from shoal.report.not_in_run import NotInRun
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import read_arrays

PCA_IMAGES = 20_000
"""Images drawn by PCA; a sample of this size where there are more."""
TSNE_IMAGES = 3_000
"""Images drawn by t-SNE."""
TSNE_DIMENSIONS = 50
"""Principal components that t-SNE starts from."""
TSNE_STEPS = 1_000
PERPLEXITY = 30.0

STAGES = {
    "frozen": "Before training",
    "embeddings": "After training",
    "shifted": "After moving together",
}


@dataclass(frozen=True, slots=True)
class MapLayout:
    """One map: where each of some images lies."""

    method: str
    stage: str
    """The array it was drawn from, a key of `STAGES`."""
    title: str
    rows: Ints
    """(n,) which images."""
    points: Floats
    """(n, 2) where they lie."""


def stratified(ids: Ints, n_rows: int) -> Ints:
    """Choose rows so that every category keeps its share and at least one image.

    Ascending, all of them if few. More categories than `n_rows` still get one each.
    """
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
    """Name the arrays to draw side by side: before and after training, else before and after the
    shift.
    """
    here = [name for name in STAGES if run.has(f"{name}.npy")]
    if not run.metrics and "frozen" in here:
        here.remove("frozen")  # nothing was trained: the embeddings are the same
    if run.has("shifts.json") and run.json("shifts")["chosen"] == 0 and "shifted" in here:
        here.remove("shifted")  # no shift was made
    titles = {name: STAGES[name] for name in here[:2]}
    if "frozen" not in here:
        titles["embeddings"] = "Before moving together" if "shifted" in here else "Embeddings"
    return titles


def pca_layouts(run: ReviewedRun, *, n_images: int = PCA_IMAGES) -> list[MapLayout]:
    """Map each stage by its first two principal components, turned to resemble each other."""
    titles = stages(run)
    rows = stratified(run.category_ids, n_images)
    maps = [principal_components(run.rows_of(name)[rows], 2) for name in titles]
    return _layouts("PCA", titles, rows, maps)


def tsne_layouts(
    run: ReviewedRun, *, n_images: int = TSNE_IMAGES, progress: Progress | None = None
) -> list[MapLayout]:
    """Map each stage by t-SNE of a sample, from its first 50 principal components.

    Seconds for hundreds of images, a minute or more for thousands. It is cached in the run's
    map.npz, and read from there when called again.
    """
    titles = stages(run)
    if kept := kept_layouts(run):
        return kept
    rows = stratified(run.category_ids, n_images)
    if len(rows) < 3:
        raise NotInRun(f"t-SNE is left out: it needs at least 3 images, the run holds {len(rows)}.")
    maps = []
    for at, name in enumerate(titles, start=1):
        maps.append(_tsne(principal_components(run.rows_of(name)[rows], TSNE_DIMENSIONS)))
        if progress:
            progress(at, len(titles))
    layouts = _layouts("t-SNE", titles, rows, maps)
    points = {layout.stage: layout.points for layout in layouts}
    with atomic_file(run.path / "map.npz") as file:
        np.savez(file, allow_pickle=False, rows=rows, **points)
    return layouts


def kept_layouts(run: ReviewedRun) -> list[MapLayout]:
    """The t-SNE in the run folder; empty where there is none that fits the run."""
    if not run.has("map.npz"):
        return []
    titles = stages(run)
    try:
        kept = read_arrays(run.path / "map.npz")
    except DataError:
        return []  # a cache that cannot be read is drawn anew
    rows = kept.pop("rows", np.zeros(0, np.int64))
    is_ours = rows.ndim == 1 and rows.dtype.kind == "i" and len(rows) > 0
    is_ours &= len(np.unique(rows)) == len(rows)
    is_ours &= bool(np.isin(rows, np.arange(len(run.assignments))).all())
    is_ours &= kept.keys() == titles.keys()
    for points in kept.values():
        is_ours &= points.shape == (len(rows), 2) and points.dtype.kind == "f"
        is_ours = is_ours and bool(np.isfinite(points).all())
    if not is_ours:
        return []
    return [MapLayout("t-SNE", name, title, rows, kept[name]) for name, title in titles.items()]


def principal_components(x: Floats, n_components: int) -> Floats:
    """Project rows onto their first principal components, (n, n_components), each with its largest
    entry positive.

    Columns beyond the rank are zero. A D x D covariance: 12 GFLOP for 20,000 rows of 768.
    """
    mean = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    centered = np.asarray(x, np.float32) - mean  # (n, D)
    covariance = (centered.T @ centered).astype(np.float64)  # (D, D)
    d = len(covariance)
    wanted = (max(0, d - n_components), d - 1)  # the largest few: all take ten times as long
    axes = scipy.linalg.eigh(covariance, subset_by_index=wanted)[1][:, ::-1]  # (D, m)
    points = centered @ axes  # (n, m), m <= n_components
    if len(points):
        largest = np.abs(points).argmax(axis=0)
        points = points * np.where(points[largest, np.arange(points.shape[1])] < 0, -1.0, 1.0)
    return np.pad(points, ((0, 0), (0, n_components - points.shape[1])))


def turned_like(points: Floats, model: Floats) -> Floats:
    """Rotate and mirror a map so that it resembles another of the same images (orthogonal
    Procrustes).
    """
    a = points - points.mean(axis=0)
    b = model - model.mean(axis=0)
    u, _, v = np.linalg.svd(a.T @ b)
    turned: Floats = a @ (u @ v)
    return turned


def _layouts(
    method: str, titles: dict[str, str], rows: Ints, maps: list[Floats]
) -> list[MapLayout]:
    turned = [maps[0], *(turned_like(points, maps[0]) for points in maps[1:])]
    titled = zip(titles.items(), turned, strict=True)
    return [
        MapLayout(method, name, title, rows, points.astype(np.float32))
        for (name, title), points in titled
    ]


def _tsne(x: Floats) -> Floats:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(PERPLEXITY, (len(x) - 1) / 3)
    model = TSNE(2, init="pca", perplexity=perplexity, max_iter=TSNE_STEPS, random_state=0)
    # One thread: the same map each time, and on a busy machine several wait for each other.
    with threadpool_limits(1):
        points: Floats = model.fit_transform(np.ascontiguousarray(x, np.float32))
    return points
