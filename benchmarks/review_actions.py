"""Count the actions a curator needs until enough images are right, by way of working.

    shoal embed FOLDER --out FEATURES.npz          FOLDER holds a folder per class
    python benchmarks/review_actions.py FOLDER FEATURES.npz … --seeds 0 1 2 --plot PLOT.png
    python benchmarks/review_actions.py --train flowers102.zip cub200-train.zip:15 --device cuda

The curator is simulated (`curator.py` defines an action) and answers from the truth; half of the
classes are known, half of their images labeled. The ways of working:

    one image at a time    an action gives an image its class, the least certain first
    review                 the page of `shoal review`
    review and train       the same; after the first certain categories `shoal.refine` trains again

An image is right when its category is matched to its class, one to one, over all images; "checked"
when a person or a given label says so, too. Without --train the frozen encoder's features are used.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from answers import draw, unpack
from curator import Curator, Curve, share_right
from records import write_table
from shoal.arrays import Floats, Ints
from shoal.clustering.matching import match
from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.first_answer import answer_frozen
from shoal.discovery.run_folder import collection_checksum
from shoal.methods.clusters import Representation
from shoal.review.review import Review
from shoal.runs import Run

GOALS = (0.90, 0.95)
ONE = "one image at a time"
REVIEW = "review"
TRAIN = "review and train"
COLORS = {ONE: "#888888", REVIEW: "#0072b2", TRAIN: "#d55e00"}

Curves = dict[str, Curve]
"""A curve for each way of working."""

Results = dict[str, list[Curves]]
"""By collection, the curves of each seed."""


def frozen_run(out: Path, collection: Collection, embeddings: Floats, seed: int) -> Run:
    """Write what `shoal discover --no-train` writes, from embeddings that are there already."""
    settings = choose_settings(train=False, seed=seed)
    frozen = Representation(embeddings=torch.from_numpy(embeddings), embed=lambda _: torch.empty(0))
    answer = answer_frozen(frozen, collection, settings)
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
    answer.write(run, settings)
    run.finish()
    return run


def measure(root: Path, features: Path | None, seed: int, args: argparse.Namespace) -> Curves:
    """Return the curve of each way of working on one collection."""
    whole = read_collection(root)
    truth = np.array(whole.labels)
    _, labels = draw(truth, args.known, args.labeled, seed)
    given = {
        name: whole.classes[c] if c >= 0 else None
        for name, c in zip(whole.names, labels.tolist(), strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "first"
        if features is not None:
            images = read_collection(root, given)
            found = np.load(features)
            assert found["paths"].tolist() == list(images.names)
            x = np.ascontiguousarray(found["X"], dtype=np.float32)
            return review_only(frozen_run(out, images, x, seed), truth, labels >= 0)
        shoal.discover(root, given, out=out, seed=seed, device=args.device, verbose=False)
        curves = review_only(Run(out), truth, labels >= 0)
        (out / "review.jsonl").unlink()
        curator = Curator(Run(out), truth, labels >= 0, Curve())
        curator.did(0)
        curator.begin()
        again = Path(folder) / "again"
        shoal.refine(out, root, given, out=again, device=args.device, verbose=False)
        curator = Curator(Run(again), truth, labels >= 0, curator.curve, curator.n)
        curator.did(1)  # the command
        curator.finish()
        return curves | {TRAIN: curator.curve}


def review_only(first: Run, truth: Ints, is_given: Any) -> Curves:
    """Return the curves of the two ways that do not train on the way."""
    answer = Review(first).state
    confidence = np.asarray(answer.columns["confidence"])
    one_by_one = Curve()
    label_one_by_one(one_by_one, answer.category_ids, confidence, truth, is_given)
    curator = Curator(first, truth, is_given, Curve())
    curator.did(0)
    curator.finish()
    return {ONE: one_by_one, REVIEW: curator.curve}


def label_one_by_one(
    curve: Curve, categories: Ints, confidence: Floats, truth: Ints, is_given: Any
) -> None:
    """Give each unlabeled image its class, the least certain first.

    A class is the category that it was matched to, or a new one.
    """
    found = match(truth, categories)
    home = dict(zip(found.classes.tolist(), found.clusters.tolist(), strict=True))
    new = int(categories.max()) + 1 + truth
    now = categories.copy()
    order = [row for row in np.argsort(confidence, kind="stable").tolist() if not is_given[row]]
    for n, row in enumerate(order):
        if n % 10 == 0:
            curve.add(n, share_right(truth, now), (is_given.sum() + n) / len(truth))
        now[row] = home.get(int(truth[row]), int(new[row]))
    curve.add(len(order), share_right(truth, now), 1.0)


def table(results: Results) -> list[str]:
    """Actions to each goal, the mean of the seeds."""
    heads = [f"{100 * goal:.0f} % {what}" for what in ("right", "checked") for goal in GOALS]
    lines = [
        f"| collection | | at the start | {' | '.join(heads)} |",
        "|---" * (3 + len(heads)) + "|",
    ]
    for name, seeds in results.items():
        for way in seeds[0]:
            start = np.mean([100 * curves[way].right[0] for curves in seeds])
            cells = []
            for what in ("right", "checked"):
                for goal in GOALS:
                    cells.append(in_words([curves[way].until(goal, what) for curves in seeds]))
            lines.append(f"| {name} | {way} | {start:.1f} % right | {' | '.join(cells)} |")
    return lines


def in_words(needed: list[int | None]) -> str:
    """The mean with least and most; a dash where a seed did not reach the goal."""
    found = [n for n in needed if n is not None]
    if len(found) < len(needed):
        return "–"
    spread = f" ({min(found):,}–{max(found):,})" if len(found) > 1 else ""
    return f"{np.mean(found):,.0f}{spread}"


def draw_plot(results: Results, file: Path) -> None:
    """Plot the share of images that are right by actions, a line per seed."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(results), figsize=(4.6 * len(results), 3.4), sharey=True, squeeze=False
    )
    for axis, (name, seeds) in zip(axes[0], results.items(), strict=True):
        for at, curves in enumerate(seeds):
            for way, curve in curves.items():
                axis.plot(
                    curve.actions,
                    [100 * y for y in curve.right],
                    color=COLORS[way],
                    linewidth=1.2,
                    label=way if at == 0 else None,
                )
        for goal in GOALS:
            axis.axhline(100 * goal, color="#cccccc", linewidth=0.8, zorder=0)
        axis.set(title=name, xlabel="actions")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("images right, %")
    axes[0][-1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


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
    parser.add_argument("--plot", type=Path)
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
    if args.plot:
        draw_plot(results, args.plot)
    write_table(table(results), args.record)


if __name__ == "__main__":
    main()
