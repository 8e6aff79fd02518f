"""What comes of a review when the encoder, as it comes, is asked again: categories gone on from, or clusters made anew.

    python benchmarks/review_again.py FOLDER FEATURES.npz … --seeds 0 1 --record RECORD.md

Folders and features are those of `benchmarks/review_actions.py`, and so is the curator, who here makes a beginning:
merges, splits, grows, and confirms what is nearly pure. Counted are images that nobody has decided on and that came
without a label: which share is right as the review left them, and after each way of asking again, among all, and among
those in categories that were merged. Then the curator goes on from the answer that `shoal.refine` gives, to the end.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from answers import draw
from clustering import header, write
from curator import Curator, Curve, is_right
from review_actions import GOALS, frozen_run
from shoal.arrays import Floats, Ints
from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.discovery.answers import FROZEN, make_answer
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.first_answer import cluster_frozen
from shoal.discovery.reporter import Reporter
from shoal.discovery.reviewed.refinement import Refinement
from shoal.discovery.reviewed.reviewed_clusters import n_reviewed
from shoal.methods.clusters import Representation

HEADS = (
    "collection",
    "seed",
    "actions",
    "images",
    "as reviewed",
    "gone on from",
    "made anew",
    "made anew, same K",
)
ALL = "undecided"
MERGED = "undecided, in merged categories"
OTHERS = "undecided, in others"


def made_anew(collection: Collection, embeddings: Floats, settings: Any) -> Ints:
    """The categories (N,) of clusters that know of the review what labels and cannot-links say."""
    frozen = Representation(embeddings=torch.from_numpy(embeddings), embed=lambda _: torch.empty(0))
    found = make_answer(
        FROZEN, cluster_frozen(frozen, collection.labels, settings), collection, settings
    ).named
    return np.asarray(found.ids)[found.categories]


def measure(root: Path, features: Path, seed: int, folder: Path) -> str:
    """The rows of the table."""
    whole = read_collection(root)
    truth = np.array(whole.labels)
    settings = choose_settings(train=False, seed=seed)
    _, labels = draw(truth, 0.5, 0.5, seed)
    given = {
        n: whole.classes[c] if c >= 0 else None
        for n, c in zip(whole.names, labels.tolist(), strict=True)
    }
    images = read_collection(root, given)
    found = np.load(features)
    assert found["paths"].tolist() == list(images.names)
    x = np.ascontiguousarray(found["X"], dtype=np.float32)
    first = frozen_run(folder / "first", images, x, settings)
    curator = Curator(first, truth, labels >= 0, Curve())
    curator.did(0)
    curator.begin()
    refinement = Refinement.open(first.path)
    collection = refinement.collection(images)
    run = frozen_run(folder / "again", collection, x, settings)
    refinement.conclude(run, Reporter())
    again = Curator(run, truth, labels >= 0, curator.curve, curator.n)
    assert np.array_equal(again.is_told, curator.is_told)
    same = replace(settings, n_clusters=n_reviewed(collection))
    answers = [
        curator.categories,
        again.categories.copy(),
        *(made_anew(collection, x, how) for how in (settings, same)),
    ]
    again.did(1)  # the command
    again.finish()
    ends = [f"{again.curve.until(goal, 'right'):,}" for goal in GOALS]
    is_open = ~curator.is_told & (labels < 0)
    is_merged = np.isin(curator.categories, [*refinement.decisions.ended.values()])
    about = [root.name, str(seed), str(curator.n)]
    rows = [
        [*about, f"{count:,} {what}", *shares_right(truth, answers, rows), *ends]
        for what, rows in (
            (ALL, is_open),
            (MERGED, is_open & is_merged),
            (OTHERS, is_open & ~is_merged),
        )
        if (count := int(rows.sum()))
    ]
    numbers = [f"K {len(np.unique(one[one >= 0]))}" for one in answers]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [*rows, [*about, "categories", *numbers, *ends]]
    )


def shares_right(truth: Ints, answers: list[Ints], rows: Any) -> list[str]:
    """Which share of some rows each answer has right."""
    return [f"{100 * is_right(truth, one)[rows].mean():.1f} %" for one in answers]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", type=Path, nargs="+", help="folder and features, in pairs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    heads = [*HEADS, *(f"actions to {100 * goal:.0f} % right" for goal in GOALS)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for root, features in zip(*[iter(args.places)] * 2, strict=True):
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as folder:
                lines.append(measure(root, features, seed, Path(folder)))
            print(lines[-1], flush=True)
    write([*header(sys.argv), "\n".join(lines)], args.record)


if __name__ == "__main__":
    main()
