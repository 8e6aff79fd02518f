"""Scoring: a finished run against the truth. Nothing here reaches anything that chooses."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from shoal.clustering.matching import Accuracy, adjusted_rand, gcd_accuracy, normalized_mutual_info
from shoal.errors import DataError
from shoal.runs import Run


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

    def in_words(self) -> str:
        """The accuracy as the field prints it."""
        return (
            f"{self.accuracy} on {self.n_images:,} unlabeled images; "
            f"{self.n_clusters} categories found, {self.n_classes} true classes among them"
        )


def score_run(run: Run, truth: Mapping[str, str]) -> Score:
    """Score a run against true class names by image, matched once over all unlabeled images; written to accuracy.json.

    A class is known when the run was given labels of it. Images that the truth does not name are left out; none in
    common is an error.
    """
    rows = run.assignments
    known_names = {row.label_given for row in rows if row.label_given}
    scored = [row for row in rows if not row.label_given and row.path in truth]
    if not scored:
        raise DataError(
            f"truth: names none of the {sum(not row.label_given for row in rows):,} unlabeled images of {run.path}; "
            "give their paths as they stand in assignments.csv"
        )
    classes = sorted({truth[row.path] for row in scored})
    position = {name: i for i, name in enumerate(classes)}
    y_true = np.array([position[truth[row.path]] for row in scored])
    y_pred = np.array([row.category_id for row in scored])
    is_known = np.array([truth[row.path] in known_names for row in scored])
    score = Score(
        accuracy=gcd_accuracy(y_true, y_pred, is_known),
        nmi=normalized_mutual_info(y_true, y_pred),
        ari=adjusted_rand(y_true, y_pred),
        n_images=len(scored),
        n_classes=len(classes),
        n_clusters=run.n_clusters,
    )
    run.write_json("accuracy", score_to_dict(score))
    return score


def score_to_dict(score: Score) -> dict[str, object]:
    """The score as plain numbers, NaN as null."""
    plain = {**asdict(score.accuracy), **{k: v for k, v in asdict(score).items() if k != "accuracy"}}
    return {name: None if value != value else value for name, value in plain.items()}
