"""Score a finished run against the truth. Nothing computed here is used to choose anything."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shoal.arrays import Bools, Ints, digest_rows, nan_to_null
from shoal.clustering.matching import Accuracy, gcd_accuracy
from shoal.data.readers import read_labels
from shoal.data.readers.tables import is_frame
from shoal.errors import DataError, UsageError
from shoal.runs import Run, column, locked
from shoal.settings import Plain
from shoal.words import count, first_few


@dataclass(frozen=True, kw_only=True)
class Score:
    """The accuracy of a run on its unlabeled images."""

    accuracy: Accuracy
    n_images: int
    """Unlabeled images with a true class."""
    n_classes: int
    """True classes among them."""
    n_clusters: int
    """Categories that the run has found."""
    notes: tuple[str, ...] = ()
    """Possible mistakes in the truth."""

    def in_words(self) -> str:
        """Return All / Known / Novel accuracy and counts."""
        return (
            f"{self.accuracy} on {count(self.n_images, 'unlabeled image')} of "
            f"{count(self.n_classes, 'true class')}; {count(self.n_clusters, 'category')} found"
        )


def evaluate(
    run: Run, truth: Any, *, path_column: str | None = None, label_column: str | None = None
) -> Score:
    """Score a run against a table, a data frame, an npy or a mapping of true classes.

    The notes name rows of the truth that are not used.
    """
    if isinstance(truth, Mapping):
        return score_run(run, {str(path): str(name) for path, name in truth.items()})
    if not isinstance(truth, str | os.PathLike) and not is_frame(truth):
        kind = type(truth).__name__
        raise UsageError(
            f"truth: found {kind}, expected a table, a data frame, an npy or a mapping of paths"
        )
    names = list(column(run.assignments, "path"))
    classes, notes = read_labels(truth, names, path_column=path_column, label_column=label_column)
    score = score_run(run, classes)
    return replace(score, notes=(*notes, *score.notes))


def score_run(run: Run, truth: Mapping[str, str]) -> Score:
    """Score a run against true class names by image, and write the score to accuracy.json.

    Clusters are matched with classes once, over all unlabeled images. A class is known if the
    run was given labels of it. Images without a true class are left out; raise if none has
    one.
    """
    # Given labels have the names of the truth; a review may have renamed their categories.
    labels = list(column(Run(run.path).assignments, "label_given"))
    paths = list(column(run.assignments, "path"))
    categories = np.array(column(run.assignments, "category_id"), dtype=np.int64)
    scored = [i for i, path in enumerate(paths) if not labels[i] and path in truth]
    if not scored:
        raise DataError(
            f"truth: has a class for none of the {labels.count(''):,} unlabeled images of "
            f"{run.path}; give each path as in assignments.csv, with its class"
        )
    known = {label for label in labels if label}
    notes = []
    true_names = [truth[paths[i]] for i in scored]
    classes, y_true = np.unique(true_names, return_inverse=True)
    y_pred = categories[scored]
    if known and known.isdisjoint(true_names):
        notes.append(
            "no true class of the unlabeled images is a known category, so there is no Known "
            f"accuracy; are they spelled alike? true: {first_few(classes.tolist(), 5)}; known: "
            f"{first_few(sorted(known), 5)}"
        )
    score = Score(
        accuracy=_accuracy(y_true, y_pred, np.array([name in known for name in true_names])),
        n_images=len(scored),
        n_classes=len(classes),
        n_clusters=run.n_clusters,
        notes=tuple(notes),
    )
    # The checksum shows a report whether a review has changed the categories since.
    checksum = {"categories": digest_rows(categories)}
    with locked(run.path):
        Run(run.path).write_json("accuracy", score_to_dict(score) | checksum)
    return score


def _accuracy(y_true: Ints, y_pred: Ints, is_known: Bools) -> Accuracy:
    """Return `gcd_accuracy`, counting images without a category (rejected ones) as wrong."""
    has_category = y_pred >= 0
    accuracy = gcd_accuracy(y_true[has_category], y_pred[has_category], is_known[has_category])
    if has_category.all():
        return accuracy

    def with_rejected(share: float, group: Bools) -> float:
        """Return the share of correct images in the whole group."""
        if not group.any():
            return float("nan")
        return float(np.nan_to_num(share)) * int(group[has_category].sum()) / int(group.sum())

    return Accuracy(
        with_rejected(accuracy.all, np.ones_like(has_category)),
        with_rejected(accuracy.known, is_known),
        with_rejected(accuracy.novel, ~is_known),
    )


def score_to_dict(score: Score) -> Plain:
    """Return the score as plain numbers, with None for NaN."""
    plain = asdict(score)
    del plain["notes"]
    return nan_to_null(plain.pop("accuracy") | plain)
