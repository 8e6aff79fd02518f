"""Measure what a review gains by growing a category, and from a discovery that uses its decisions.

    shoal embed FOLDER --out FEATURES.npz          FOLDER holds a folder per class
    python benchmarks/partial_review.py FEATURES.npz … --seeds 0 1

Half of the classes are known, half of their images labeled, and K is the number of classes; the
curator knows the true classes. First table: for each novel class with at least 29 images, five
random images are moved to a new category. Precision is the share of the class among the first 24
candidates; collected is the number of its images moved in 20 actions, not counting the first five:

    mean          candidates by similarity to the mean of the category, and a binary search with yes
                  and no for the last twelve of a range; an action is a yes, a no, or the final move
    candidates    those of `shoal review`, in pages of 24; an action accepts or refuses one of them,
                  or all that remain on the page, and the next page uses these decisions

Second table: the curator goes through categories in random order, splits each if that pays off,
moves wrong images to the category of their class, and confirms the others. Accuracy is that of
images neither labeled nor reviewed, as reviewed and after `shoal discover --review --no-train`.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from accuracy import sample_labels
from curator import Curator, Curve, is_correct
from records import write_table
from review_actions import frozen_representation, frozen_run
from shoal.arrays import UNLABELED, Floats, Ints
from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.results import frozen_result
from shoal.discovery.reviewed.refinement import Refinement
from shoal.review import verbs
from shoal.review.actions import PREDICTED, Action, Group
from shoal.review.review import Review
from shoal.server.search import Search

N_CONFIRMED = 5
N_PAGE = 24
N_ACTIONS = 20
N_STEP = 12
SHARES = (0.25, 0.5, 0.75)


def by_mean(x: Floats, confirmed: Ints, labels: Ints) -> Ints:
    """Return the unlabeled rows by their similarity to the mean of the confirmed ones."""
    similarity = x @ x[confirmed].mean(axis=0)
    rows = np.setdiff1d(np.flatnonzero(labels == UNLABELED), confirmed)
    found: Ints = rows[np.argsort(-similarity[rows], kind="stable")]
    return found


def n_bisected(belongs: Ints) -> int:
    """Return how many candidates a binary search with yes and no accepts."""
    low = 0
    high = len(belongs) + 1
    step = N_STEP
    for _ in range(N_ACTIONS - 1):
        if high - low <= 1:
            break
        at = low + -(-(high - low) // 2)
        if high > len(belongs):
            at = min(low + step, len(belongs))
        if belongs[max(low, at - N_STEP) : at].all():
            low = at
            step = 2 * step
        else:
            high = at
    return int(belongs[:low].sum())


def collect(search: Search, category: int, truth: Ints, label: int) -> tuple[float, int]:
    """Decide about pages of candidates; return the precision of the first, and the members."""
    precision = None
    n_members = 0
    n_left = N_ACTIONS
    while True:
        page = np.array(search.candidates(category)["rows"][:N_PAGE], dtype=np.int64)
        belongs = truth[page] == label
        if precision is None:
            precision = float(belongs.mean())
        n_actions = 1 + min(int(belongs.sum()), int((~belongs).sum()))
        if not len(page) or n_actions > n_left:
            return precision, n_members + min(int(belongs.sum()), n_left)
        n_left -= n_actions
        n_members += int(belongs.sum())
        for kind, rows in (("assign", page[belongs]), ("refuse", page[~belongs])):
            if len(rows):
                group = Group(category=category, rows=rows)
                action = Action(kind=kind, category=category, groups=(group,))
                search.review.act(lambda _, action=action: action, by="curator")


def read_features(file: Path, seed: int) -> tuple[Collection, Floats, Ints]:
    """Return images with sampled labels, their unit embeddings, and their true classes."""
    stored = np.load(file)
    classes, truth = np.unique(stored["y"], return_inverse=True)
    x = stored["X"] / np.linalg.norm(stored["X"], axis=1, keepdims=True)
    known, labels = sample_labels(truth, 0.5, 0.5, seed)
    collection = Collection(
        names=tuple(stored["paths"].tolist()),
        labels=np.where(labels >= 0, np.searchsorted(known, labels), UNLABELED),
        classes=tuple(map(str, classes[known])),
        root=file.parent,
    )
    return collection, x, truth


def measure_growing(file: Path, seed: int) -> Floats:
    """Return (2, 2) precision and collected images of both rankings, averaged over classes."""
    collection, x, truth = read_features(file, seed)
    names = collection.names
    labels = collection.labels
    rng = np.random.default_rng(seed)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = frozen_run(Path(folder) / "run", collection, x, seed, int(truth.max()) + 1)
        search = Search(Review(run))
        for label in np.setdiff1d(truth, truth[labels != UNLABELED]):
            members = np.flatnonzero(truth == label)
            if len(members) < N_CONFIRMED + N_PAGE:
                continue
            confirmed = rng.choice(members, N_CONFIRMED, replace=False)
            before = truth[by_mean(x, confirmed, labels)] == label
            (run.path / "review.jsonl").unlink(missing_ok=True)
            search.review = Review(run)
            search.review.act(verbs.move, [names[row] for row in confirmed], "grown", by="curator")
            after = collect(search, search.review.state.next_id - 1, truth, int(label))
            found.append(((before[:N_PAGE].mean(), n_bisected(before)), after))
    return np.mean(found, axis=0)


def measure_refined(file: Path, seed: int) -> Iterator[tuple[float, float]]:
    """Yield the accuracies after each share of a review."""
    collection, x, truth = read_features(file, seed)
    settings = choose_settings(train=False, seed=seed)
    is_given = collection.labels >= 0
    with tempfile.TemporaryDirectory() as folder:
        run = frozen_run(Path(folder) / "run", collection, x, seed, int(truth.max()) + 1)
        curator = Curator(run, truth, is_given, Curve())
        numbers = np.random.default_rng(seed).permutation([*curator.state.categories]).tolist()
        for share in SHARES:
            while curator.is_decided[~is_given].mean() < share:
                review_category(curator, numbers.pop())
            rest = ~curator.is_decided & ~is_given
            refined = Refinement.open(run.path).collection(collection)
            result = frozen_result(frozen_representation(x), refined, settings)
            found = result.categories
            yield (
                100 * is_correct(truth, curator.categories)[rest].mean(),
                100 * is_correct(truth, found)[rest].mean(),
            )


def review_category(curator: Curator, number: int) -> None:
    """Split a category, move its wrong images, and confirm the others."""
    curator.split(number)
    curator.tidy_category(number, is_one_by_one=False)
    is_open = (curator.categories == number) & (curator.state.status == PREDICTED)
    if is_open.any():
        curator.review.act(verbs.decide, "confirm", number, None, by="curator")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    heads = ("precision, mean", "precision, candidates", "collected, mean", "collected, candidates")
    grown = [f"| collection | {' | '.join(heads)} |", "|---|---|---|---|---|"]
    refined = ["| collection | reviewed | as reviewed | refined |", "|---|---|---|---|"]
    for file in args.files:
        (mean, n_mean), (page, n_page) = np.mean(
            [measure_growing(file, seed) for seed in args.seeds], axis=0
        )
        grown.append(f"| {file.stem} | {mean:.3f} | {page:.3f} | {n_mean:.1f} | {n_page:.1f} |")
        found = np.mean([[*measure_refined(file, seed)] for seed in args.seeds], axis=0)
        for share, (before, after) in zip(SHARES, found, strict=True):
            refined.append(f"| {file.stem} | {share:.0%} | {before:.1f} % | {after:.1f} % |")
    write_table(grown, args.record)
    write_table(refined, args.record)


if __name__ == "__main__":
    main()
