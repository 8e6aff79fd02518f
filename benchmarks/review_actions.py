"""Count the actions that a curator needs until enough images are correct, by strategy.

    shoal embed FOLDER --out FEATURES.npz          FOLDER contains a folder per class
    python benchmarks/review_actions.py FOLDER FEATURES.npz … --seeds 0 1 2
    python benchmarks/review_actions.py --train flowers102.zip cub200-train.zip:15 --device cuda

The curator is simulated (`curator.py` defines an action) and knows the true classes; half of the
classes are known, half of their images labeled. The strategies:

    one image at a time    each action labels one image, the least certain first
    review                 the page of `shoal review`
    review and train       the same, but `shoal.refine` trains after the first few actions

An image is correct if its category is matched to its class, one to one, over all images. It is
checked if it is correct and labeled or decided. Without --train the frozen features are used.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from accuracy import sample_labels, unpack
from curator import Curator, Curve, share_correct
from records import write_table
from shoal.arrays import Floats, Ints
from shoal.clustering.matching import match
from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.results import frozen_result, write_result
from shoal.discovery.run_job import collection_checksum
from shoal.methods.method import Representation
from shoal.review.review import Review
from shoal.runs import Run

GOALS = (0.90, 0.95)
ONE = "one image at a time"
REVIEW = "review"
TRAIN = "review and train"

# A curve for each strategy
Curves = dict[str, Curve]

# By collection, the curves of each seed
Results = dict[str, list[Curves]]


def frozen_representation(embeddings: Floats) -> Representation:
    """Return stored embeddings as those of a frozen encoder."""
    return Representation(embeddings=torch.from_numpy(embeddings), embed=lambda _: torch.empty(0))


def frozen_run(
    out: Path,
    collection: Collection,
    embeddings: Floats,
    seed: int,
    n_clusters: int | None = None,
) -> Run:
    """Write the run of `shoal discover --no-train` from stored embeddings."""
    settings = choose_settings(train=False, seed=seed, n_clusters=n_clusters)
    result = frozen_result(frozen_representation(embeddings), collection, settings)
    run = Run.create(out)
    run.start(
        settings,
        seed=settings.seed,
        device="cpu",
        command="",
        root=str(collection.root),
        folders=[],
        fingerprint=collection_checksum(collection),
    )
    write_result(run, result, settings)
    run.finish()
    return run


def measure(root: Path, features: Path | None, seed: int, args: argparse.Namespace) -> Curves:
    """Return the curve of each strategy on one collection."""
    whole = read_collection(root)
    truth = np.array(whole.labels)
    _, labels = sample_labels(truth, args.known, args.labeled, seed)
    named = {
        name: whole.classes[label] if label >= 0 else None
        for name, label in zip(whole.names, labels.tolist(), strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "first"
        if features is not None:
            images = read_collection(root, named)
            found = np.load(features)
            assert found["paths"].tolist() == list(images.names)
            x = np.ascontiguousarray(found["X"], dtype=np.float32)
            return review_only(frozen_run(out, images, x, seed), truth, labels >= 0)
        shoal.discover(root, named, out=out, seed=seed, device=args.device, verbose=False)
        curves = review_only(Run(out), truth, labels >= 0)
        (out / "review.jsonl").unlink()
        curator = Curator(Run(out), truth, labels >= 0, Curve())
        curator.count_actions(0)
        curator.begin()
        refined = Path(folder) / "refined"
        shoal.refine(out, root, named, out=refined, device=args.device, verbose=False)
        curator = Curator(Run(refined), truth, labels >= 0, curator.curve, curator.n)
        curator.count_actions(1)  # the command that trains
        curator.finish()
        return curves | {TRAIN: curator.curve}


def review_only(run: Run, truth: Ints, is_given: Any) -> Curves:
    """Return the curves of the two strategies without training."""
    state = Review(run).state
    confidence = np.asarray(state.columns["confidence"])
    one_by_one = Curve()
    label_one_by_one(one_by_one, state.category_ids, confidence, truth, is_given)
    curator = Curator(run, truth, is_given, Curve())
    curator.count_actions(0)
    curator.finish()
    return {ONE: one_by_one, REVIEW: curator.curve}


def label_one_by_one(
    curve: Curve, categories: Ints, confidence: Floats, truth: Ints, is_given: Any
) -> None:
    """Label each unlabeled image, the least certain first.

    It moves to the category that is matched to its class, or to a new one.
    """
    matched, classes = match(truth, categories)
    category_of = dict(zip(classes.tolist(), matched.tolist(), strict=True))
    new = int(categories.max()) + 1 + truth
    now = categories.copy()
    order = [row for row in np.argsort(confidence, kind="stable").tolist() if not is_given[row]]
    for n, row in enumerate(order):
        if n % 10 == 0:
            curve.add(n, share_correct(truth, now), (is_given.sum() + n) / len(truth))
        now[row] = category_of.get(int(truth[row]), int(new[row]))
    curve.add(len(order), share_correct(truth, now), 1.0)


def table(results: Results) -> list[str]:
    """Return the number of actions to each goal, averaged over seeds."""
    heads = [f"{100 * goal:.0f} % {what}" for what in ("correct", "checked") for goal in GOALS]
    lines = [
        f"| collection | strategy | at the start | {' | '.join(heads)} |",
        "|---" * (3 + len(heads)) + "|",
    ]
    for name, seeds in results.items():
        for strategy in seeds[0]:
            start = np.mean([100 * curves[strategy].correct[0] for curves in seeds])
            cells = []
            for what in ("correct", "checked"):
                for goal in GOALS:
                    cells.append(in_words([curves[strategy].until(goal, what) for curves in seeds]))
            lines.append(f"| {name} | {strategy} | {start:.1f} % correct | {' | '.join(cells)} |")
    return lines


def in_words(needed: list[int | None]) -> str:
    """Return the mean, minimum and maximum; a dash if a seed did not reach the goal."""
    found = [n for n in needed if n is not None]
    if len(found) < len(needed):
        return "–"
    spread = f" ({min(found):,}–{max(found):,})" if len(found) > 1 else ""
    return f"{np.mean(found):,.0f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "places",
        nargs="+",
        help="folder and features, in pairs; with --train folders or archives alone",
    )
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--known", type=float, default=0.5)
    parser.add_argument("--labeled", type=float, default=0.5)
    parser.add_argument("--device")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    results: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        places = [
            unpack(place, Path(folder)) if ".zip" in place else Path(place) for place in args.places
        ]
        if args.train:
            pairs = [(root, None) for root in places]
        else:
            pairs = list(zip(places[::2], places[1::2], strict=True))
        for root, features in pairs:
            results[root.name] = [measure(root, features, seed, args) for seed in args.seeds]
    write_table(table(results), args.record)


if __name__ == "__main__":
    main()
