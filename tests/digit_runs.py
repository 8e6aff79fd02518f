"""Realistic runs: the handwritten digits of scikit-learn clustered with Ward linkage, and smaller
ones."""

import io
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.cluster.hierarchy import fcluster, ward
from sklearn.datasets import load_digits

from shoal.clustering.calibration import calibrate
from shoal.clustering.categories import other_neighbors
from shoal.clustering.matching import gcd_accuracy, match, matched_accuracy
from shoal.runs import Assignment, Category, Run
from small_runs import append_metrics, write_estimates

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
N_KNOWN = 6


@dataclass(frozen=True)
class Settings:
    epochs: int = 8


def picture(pixels: np.ndarray, kind: str = "WEBP") -> bytes:
    """An 8 x 8 digit as a 64 px image."""
    small = Image.fromarray((255 - pixels.reshape(8, 8) * 15.9).astype(np.uint8))
    image = small.resize((64, 64), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.convert("RGB").save(file, kind, quality=80, method=0)  # the fastest method of WebP
    return file.getvalue()


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def shift(x: np.ndarray, n_shifts: int, k: int = 8, alpha: float = 0.5) -> np.ndarray:
    """Mean shift, implemented naively."""
    for _ in range(n_shifts):
        likeness = x @ x.T
        np.fill_diagonal(likeness, -np.inf)
        nearest = np.argpartition(-likeness, k, axis=1)[:, :k]
        x = unit((1 - alpha) * x + alpha * x[nearest].mean(axis=1))
    return x


def describe(
    paths: list[str], x: np.ndarray, clusters: np.ndarray, given: list[str]
) -> tuple[list[Assignment], list[Category]]:
    """Name clusters after the labels matched to them, and compute how well each image fits."""
    labeled = np.array([bool(label) for label in given])
    names: dict[int, str] = {}
    if labeled.any():
        matched, classes = match(np.array(given)[labeled], clusters[labeled])
        names = {int(c): str(name) for c, name in zip(matched, classes, strict=True)}
    ids = sorted(set(clusters.tolist()), key=lambda c: (c not in names, c))
    for at, c in enumerate(c for c in ids if c not in names):
        names[c] = f"novel-{at + 1:03d}"
    is_novel = [names[c].startswith("novel-") for c in ids]
    means = unit(np.stack([x[clusters == c].mean(axis=0) for c in ids]))
    likeness = x @ means.T
    shares = np.exp(40 * likeness) / np.exp(40 * likeness).sum(axis=1, keepdims=True)
    position = np.array([ids.index(c) for c in clusters])
    order = np.argsort(-likeness, axis=1)
    known = [at for at in range(len(ids)) if not is_novel[at]]
    rows = []
    for row, at in enumerate(position):
        near = max(known, key=lambda j: likeness[row, j]) if known else None
        second = next((int(j) for j in order[row] if j != at), None)
        rows.append(
            Assignment(
                path=paths[row],
                label_given=given[row],
                category_id=int(at),
                category=names[ids[at]],
                is_novel=is_novel[at],
                confidence=float(shares[row, at]),
                outlier_score=float(1 - likeness[row, at]),
                nearest_known=names[ids[near]] if near is not None else "",
                nearest_known_similarity=float(likeness[row, near])
                if near is not None
                else float("nan"),
                second_category=names[ids[second]] if second is not None else "",
            )
        )
    categories = []
    for at, c in enumerate(ids):
        mine = np.flatnonzero(position == at)
        others = [j for j in known if j != at]
        near = max(others, key=lambda j: float(means[at] @ means[j])) if others else None
        categories.append(
            Category(
                category_id=at,
                category=names[c],
                is_novel=is_novel[at],
                size=len(mine),
                n_labeled=int(labeled[mine].sum()),
                confidence=float(shares[mine, at].mean()),
                nearest_known=names[ids[near]] if near is not None else "",
                nearest_known_similarity=float(means[at] @ means[near])
                if near is not None
                else float("nan"),
                exemplars=tuple(paths[row] for row in mine[np.argsort(-likeness[mine, at])][:5]),
            )
        )
    return rows, categories


def calibration_of(
    rows: list[Assignment], categories: list[Category], x: np.ndarray
) -> dict[str, object]:
    """Return the calibration of confidence, based on agreement among eight neighbors."""
    ids = {category.category: category.category_id for category in categories}
    found = np.array([ids[row.category] for row in rows])
    given = np.array([ids.get(row.label_given, -1) for row in rows])
    near = other_neighbors(torch.from_numpy(x), 8).indices.numpy()
    share = (found[near] == found[:, None]).mean(axis=1)
    sizes = {
        "n_categories": len(categories),
        "n_known": sum(not category.is_novel for category in categories),
    }
    return calibrate(found, given, share, near, x, **sizes).to_dict()


def write_digits(path: Path, n_images: int = 1797) -> Run:
    """Write a complete run: 10 classes of digits; 6 are known, and half of their images labeled."""
    written = load_digits()
    pictures = written.images[:n_images]
    truth = written.target[:n_images]
    frozen = unit(pictures.reshape(-1, 64))
    within = np.stack([frozen[truth == c].mean(axis=0) for c in range(10)])[truth]
    trained = unit(0.85 * frozen + 0.15 * within)  # each image moves toward its class mean
    rng = np.random.default_rng(0)
    given = [NAMES[c] if c < N_KNOWN and rng.random() < 0.5 else "" for c in truth]
    for row in np.flatnonzero([label == "three" for label in given])[:5]:
        given[row] = "five"  # label errors that a report should find
    labeled = np.array([bool(label) for label in given])
    paths = [f"digits/{row // 100:02d}/scan_{row:04d}.png" for row in range(len(truth))]
    shifts = [trained]
    for _ in range(4):
        shifts.append(shift(shifts[-1], 1))
    trees = [ward(x) for x in shifts]
    accuracies = [
        matched_accuracy(np.array(given)[labeled], fcluster(tree, 10, "maxclust")[labeled])
        for tree in trees
    ]
    chosen = 1 + int(np.argmax(accuracies[1:]))  # at least one shift, for the figures
    shifted = shifts[chosen]
    tree = trees[chosen]
    numbers = list(range(4, 31))
    curve = [
        matched_accuracy(np.array(given)[labeled], fcluster(tree, k, "maxclust")[labeled])
        for k in numbers
    ]
    n_clusters = max(
        k for k, accuracy in zip(numbers, curve, strict=True) if accuracy >= max(curve) - 0.05
    )
    clusters = fcluster(tree, n_clusters, "maxclust")
    rows, categories = describe(paths, shifted, clusters, given)
    run = Run.create(path)
    run.start(
        Settings(),
        seed=7,
        device="cpu (2 threads)",
        command="shoal discover digits --labels labels.csv",
        encoder="pixels",
        root="/data/digits",
        n_images=len(rows),
        n_labeled=int(labeled.sum()),
        n_unreadable=1,
    )
    arrays = {"frozen": frozen, "embeddings": trained, "shifted": shifted, "tree": tree}
    for name, array in arrays.items():
        run.write_array(name, array)
    run.write_assignments(rows)
    run.write_categories(categories)
    run.write_json("calibration", calibration_of(rows, categories, shifted))
    run.write_json(
        "estimate",
        {
            "n_clusters": n_clusters,
            "rule": "the most clusters within 5 points of the best",
            "is_given": False,
            "interval": [n_clusters - 2, n_clusters + 3],
            "curve": {"n_clusters": numbers, "accuracy": curve},
        },
    )
    run.write_json(
        "shifts", {"accuracies": accuracies, "chosen": chosen, "n_neighbors": 8, "alpha": 0.5}
    )
    unlabeled = ~labeled
    found = gcd_accuracy(truth[unlabeled], clusters[unlabeled], truth[unlabeled] < N_KNOWN)
    counts = {"n_images": int(unlabeled.sum()), "n_classes": 10}
    run.write_json("accuracy", asdict(found) | counts)
    for epoch in range(1, 9):
        append_metrics(
            run,
            {
                "epoch": epoch,
                "loss": 4 / epoch + 1,
                "loss_supervised": 3 / epoch + 0.6,
                "loss_shifted": 5 / epoch + 1.2,
                "lr": 0.05 * (1 + np.cos(np.pi * epoch / 8)),
                "n_clusters": n_clusters + max(6 - epoch, 0),
                "validation_accuracy": 0.9 - 0.4 / epoch - 0.02 * (epoch > 6),
                "is_best": epoch <= 6,
                "seconds": 2.0,
            },
        )
    run.write_thumbnails(picture(image) for image in pictures)
    run.note(seconds=125.0)
    run.finish()
    return run


def write_plain(
    path: Path, rows: list[Assignment], categories: list[Category] | None = None
) -> Run:
    """Write a run with the required files only; derive the categories from `rows` if not given."""
    run = Run.create(path)
    run.start(Settings(), seed=0, device="cpu", command="shoal cluster")
    run.write_assignments(rows)
    if categories is None:
        ids = sorted({row.category_id for row in rows} - {-1})
        categories = [_counted([row for row in rows if row.category_id == id_]) for id_ in ids]
    run.write_categories(sorted(categories, key=lambda category: category.is_novel))
    run.write_array("embeddings", np.ones((len(rows), 2), np.float32))
    write_estimates(run, len(categories))
    run.finish()
    return run


def _counted(rows: list[Assignment]) -> Category:
    return Category(
        category_id=rows[0].category_id,
        category=rows[0].category,
        is_novel=rows[0].is_novel,
        size=len(rows),
        n_labeled=sum(bool(row.label_given) for row in rows),
        confidence=float(np.mean([row.confidence for row in rows])),
        nearest_known=rows[0].nearest_known,
        nearest_known_similarity=rows[0].nearest_known_similarity,
    )


HOSTILE = (
    "<script>alert(1)</script>.png",
    "\"><img src=x onerror='alert(2)'>.png",
    "line\nbreak\tand tab.png",
    "</script><script>alert(3)</script>.png",
    "צילום ‮gnp.exe‬ عربى.png",
    "a\x01control\x7f.png",
    "${alert(4)} {{ 7*7 }} $\\frac{1}{2}$ & &amp;.png",
    "日本語 🐟.png",
)


def write_hostile(path: Path) -> Run:
    """Write a run whose images, labels and categories have names used in attacks; 8 categories of 6
    images."""
    rng = np.random.default_rng(0)
    rows = []
    vectors = []
    for at, name in enumerate(HOSTILE):
        for i in range(6):
            is_novel = at >= 4
            label = "" if is_novel or i > 2 else HOSTILE[(at + (i == 2)) % 4]
            rows.append(
                Assignment(
                    path=f"{i}/{name}",
                    label_given=label,
                    category_id=at,
                    category=name,
                    is_novel=is_novel,
                    confidence=0.4 + 0.1 * i,
                    outlier_score=0.6 - 0.1 * i,
                    nearest_known=HOSTILE[0],
                    nearest_known_similarity=0.5,
                    second_category=HOSTILE[(at + 1) % 8],
                )
            )
            vectors.append(np.eye(8)[at] + 0.3 * rng.normal(size=8))
    run = write_plain(path, rows)
    run.write_array("embeddings", unit(np.array(vectors)))
    run.write_array("shifted", shift(unit(np.array(vectors)), 1, k=3))
    run.write_array("tree", ward(shift(unit(np.array(vectors)), 1, k=3)))
    run.write_thumbnails(picture(rng.random(64) * 16, "PNG") for _ in rows)
    run.note(encoder=HOSTILE[0], root=HOSTILE[1])
    run.finish()
    return run


def write_synthetic(path: Path, n_images: int, n_categories: int, n_dimensions: int = 256) -> Run:
    """Write a large run whose thumbnails are noise, which compresses worse than photographs."""
    rng = np.random.default_rng(0)
    ids = np.sort(rng.integers(0, n_categories, n_images))
    centers = rng.normal(size=(n_categories, n_dimensions))
    x = unit(centers[ids] + 1.5 * rng.normal(size=(n_images, n_dimensions)))
    names = [
        f"species {c:03d}" if c < n_categories // 2 else f"novel-{c:03d}"
        for c in range(n_categories)
    ]
    rows = [
        Assignment(
            path=f"camera {row % 17}/2026/DSC_{row:06d}.jpg",
            label_given=names[c] if c < n_categories // 2 and row % 3 == 0 else "",
            category_id=int(c),
            category=names[c],
            is_novel=bool(c >= n_categories // 2),
            confidence=float(rng.random()),
            outlier_score=float(rng.random()),
            nearest_known=names[0],
            nearest_known_similarity=float(rng.random()),
            second_category=names[(c + 1) % n_categories],
        )
        for row, c in enumerate(ids)
    ]
    run = write_plain(path, rows)
    run.write_array("frozen", unit(x + 0.05 * rng.normal(size=x.shape)))
    run.write_array("embeddings", x)
    run.write_array("shifted", x)
    noise = [picture_of_noise(rng) for _ in range(200)]
    run.write_thumbnails(noise[row % 200] for row in range(n_images))
    return run


def picture_of_noise(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    coarse = Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8))
    coarse.resize((96, 96), Image.Resampling.BICUBIC).save(file, "WEBP", quality=80)
    return file.getvalue()
