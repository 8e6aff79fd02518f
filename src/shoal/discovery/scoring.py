"""Scoring: a finished run against the truth. Nothing here reaches anything that chooses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from shoal.arrays import Bools, Ints, nan_to_null
from shoal.checksums import digest_rows
from shoal.clustering.matching import Accuracy, gcd_accuracy
from shoal.errors import DataError
from shoal.runs import Assignment, Run, RunView, column, locked
from shoal.words import count, first_few

MAX_NAMED = 5
"""How many names a note lists."""


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
            f"{count(self.n_clusters, 'category')} found, {count(self.n_classes, 'true class')} among them"
        )


def score_run(run: RunView, truth: Mapping[str, str]) -> Score:
    """Score a run against true class names by image, matched once over all unlabeled images; written to accuracy.json.

    A class is known when the run was given labels of it. Images that the truth does not name are left out; none in
    common is an error.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    rows = run.assignments
    # By the names that were given, whatever a review calls them now: the truth does not know of it.
    known_names = {label for label in column(RunView(run.path).assignments, "label_given") if label}
    paths, given, numbers = (column(rows, name) for name in ("path", "label_given", "category_id"))
    scored = [row for row, path in enumerate(paths) if not given[row] and path in truth]
    if len(rows) and all(given):
        raise DataError(
            f"{run.path}: all of its {len(rows):,} images were labeled, so nothing is unlabeled and nothing can be "
            "scored; evaluate a run that was given labels of some of the images"
        )
    if not scored:
        raise DataError(
            f"truth: has a class for none of the {sum(not label for label in given):,} unlabeled images of "
            f"{run.path}; give their paths as they stand in assignments.csv, and a class each"
        )
    classes = sorted({truth[paths[row]] for row in scored})
    position = {name: i for i, name in enumerate(classes)}
    y_true = np.array([position[truth[paths[row]]] for row in scored])
    y_pred = np.asarray(numbers)[scored]
    is_known = np.array([truth[paths[row]] in known_names for row in scored])
    score = Score(
        accuracy=_accuracy(y_true, y_pred, is_known),
        nmi=float(normalized_mutual_info_score(y_true, _apart(y_pred))),
        ari=float(adjusted_rand_score(y_true, _apart(y_pred))),
        n_images=len(scored),
        n_classes=len(classes),
        n_clusters=run.n_clusters,
        notes=tuple(_doubts(RunView(run.path).assignments, truth, known_names, set(classes))),
    )
    of = {
        "categories": digest_rows(np.array(numbers, dtype=np.int64))
    }  # a review may change them later
    with locked(run.path):
        Run(run.path).write_json("accuracy", score_to_dict(score) | of)
    return score


def _accuracy(y_true: Ints, y_pred: Ints, is_known: Bools) -> Accuracy:
    """As `gcd_accuracy`; an image without a category, which a person has rejected, is matched with nothing: wrong."""
    has = y_pred >= 0
    if has.all():
        return gcd_accuracy(y_true, y_pred, is_known)
    of_present = (
        gcd_accuracy(y_true[has], y_pred[has], is_known[has])
        if has.any()
        else Accuracy(0.0, 0.0, 0.0)
    )

    def of_all(share: float, among: Bools) -> float:
        n_left = int(among[has].sum())
        return share * n_left / int(among.sum()) if n_left else 0.0 if among.any() else float("nan")

    everyone = np.ones(len(y_true), dtype=bool)
    return Accuracy(
        of_all(of_present.all, everyone),
        of_all(of_present.known, is_known),
        of_all(of_present.novel, ~is_known),
    )


def _apart(categories: Ints) -> Ints:
    """Each image without a category in one of its own."""
    none = np.flatnonzero(categories < 0)
    renumbered = categories.copy()
    renumbered[none] = max(0, int(categories.max(initial=0))) + 1 + np.arange(len(none))
    return renumbered


def _doubts(
    rows: Sequence[Assignment], truth: Mapping[str, str], known: set[str], classes: set[str]
) -> Iterator[str]:
    """Sentences about names that do not fit together, which would make known classes count as novel ones."""
    other = [
        row
        for row in rows
        if row.label_given and truth.get(row.path, row.label_given) != row.label_given
    ]
    if other:
        first = other[0]
        images = count(len(other), "labeled image")
        yield (
            f"the truth names another class than the run was given for {images}, such as {first.path}: "
            f"{truth[first.path]!r}, given {first.label_given!r}"
        )
    if known and not known & classes:
        yield (
            f"no true class of the unlabeled images is a known category, so there is no Known accuracy; are they "
            f"spelled alike? true: {_some(classes)}; known: {_some(known)}"
        )


def _some(names: set[str]) -> str:
    return first_few(sorted(names), MAX_NAMED)


def score_to_dict(score: Score) -> dict[str, object]:
    """The score as plain numbers, NaN as null."""
    plain = {
        **asdict(score.accuracy),
        **{k: v for k, v in asdict(score).items() if k not in ("accuracy", "notes")},
    }
    values: dict[str, object] = nan_to_null(plain)
    return values
