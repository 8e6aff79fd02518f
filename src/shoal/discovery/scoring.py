"""Scoring a finished run against the truth. Nothing here reaches anything that chooses."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from shoal.arrays import Bools, Ints, nan_to_null
from shoal.checksums import digest_rows
from shoal.clustering.matching import Accuracy, gcd_accuracy
from shoal.errors import DataError
from shoal.runs import Run, column, locked
from shoal.words import count, first_few


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How a run compares with the truth, on its unlabeled images."""

    accuracy: Accuracy
    nmi: float
    ari: float
    n_images: int
    """Unlabeled images with a true class."""
    n_classes: int
    """True classes among them."""
    n_clusters: int
    """Categories the run found in all."""
    notes: tuple[str, ...] = ()
    """What about the truth may be a mistake, a sentence each."""

    def in_words(self) -> str:
        """The accuracy as the field prints it."""
        return (
            f"{self.accuracy} on {count(self.n_images, 'unlabeled image')}; "
            f"{count(self.n_clusters, 'category')} found, "
            f"{count(self.n_classes, 'true class')} among them"
        )


def score_run(run: Run, truth: Mapping[str, str]) -> Score:
    """Score a run against true class names by image, and write the score to accuracy.json.

    Clusters are matched with classes once, over all unlabeled images. A class is known when the run
    was given labels of it. Images that the truth does not name are left out; none in common is an
    error.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    # The labels that were given, whatever a review calls them now: the truth does not know of it.
    given = list(column(Run(run.path).assignments, "label_given"))
    paths = list(column(run.assignments, "path"))
    categories = np.array(column(run.assignments, "category_id"), dtype=np.int64)
    scored = [i for i, path in enumerate(paths) if not given[i] and path in truth]
    if paths and all(given):
        raise DataError(
            f"{run.path}: all of its {len(paths):,} images were labeled, so nothing can be scored; "
            "evaluate a run that was given labels of some of the images"
        )
    if not scored:
        raise DataError(
            f"truth: has a class for none of the {given.count(''):,} unlabeled images of "
            f"{run.path}; give their paths as they stand in assignments.csv, and a class each"
        )
    known = {label for label in given if label}
    true_names = [truth[paths[i]] for i in scored]
    classes, y_true = np.unique(true_names, return_inverse=True)
    y_pred = categories[scored]
    # Each rejected image is in a category of its own.
    is_rejected = y_pred < 0
    apart = np.where(is_rejected, categories.max() + np.cumsum(is_rejected), y_pred)
    score = Score(
        accuracy=_accuracy(y_true, y_pred, np.array([name in known for name in true_names])),
        nmi=float(normalized_mutual_info_score(y_true, apart)),
        ari=float(adjusted_rand_score(y_true, apart)),
        n_images=len(scored),
        n_classes=len(classes),
        n_clusters=run.n_clusters,
        notes=tuple(_doubts(paths, given, truth, set(true_names))),
    )
    # A review may change the categories later, which their checksum tells.
    of = {"categories": digest_rows(categories)}
    with locked(run.path):
        Run(run.path).write_json("accuracy", score_to_dict(score) | of)
    return score


def _accuracy(y_true: Ints, y_pred: Ints, is_known: Bools) -> Accuracy:
    """As `gcd_accuracy`; an image that a person has rejected is matched with nothing: wrong."""
    has = y_pred >= 0
    found = gcd_accuracy(y_true[has], y_pred[has], is_known[has])
    if has.all():
        return found

    def of_all(share: float, among: Bools) -> float:
        if not among.any():
            return float("nan")
        return float(np.nan_to_num(share)) * int(among[has].sum()) / int(among.sum())

    return Accuracy(
        of_all(found.all, np.ones_like(has)),
        of_all(found.known, is_known),
        of_all(found.novel, ~is_known),
    )


def _doubts(
    paths: Sequence[str], given: Sequence[str], truth: Mapping[str, str], classes: set[str]
) -> list[str]:
    """Sentences about names that do not fit together, and make known classes count as novel."""
    doubts = []
    other = [i for i, name in enumerate(given) if name and truth.get(paths[i], name) != name]
    if other:
        path = paths[other[0]]
        doubts.append(
            "the truth names another class than the run was given for "
            f"{count(len(other), 'labeled image')}, such as {path}: {truth[path]!r}, given "
            f"{given[other[0]]!r}"
        )
    known = {name for name in given if name}
    if known and not known & classes:
        doubts.append(
            "no true class of the unlabeled images is a known category, so there is no Known "
            f"accuracy; are they spelled alike? true: {first_few(sorted(classes), 5)}; known: "
            f"{first_few(sorted(known), 5)}"
        )
    return doubts


def score_to_dict(score: Score) -> dict[str, object]:
    """The score as plain numbers, NaN as null."""
    plain = asdict(score)
    del plain["notes"]
    values: dict[str, object] = nan_to_null(plain.pop("accuracy") | plain)
    return values
