"""Labels held back in folds: whether the others say what they are, and how many labels there are for each class.

N images, k neighbors, K categories; M of J judged images are held back.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.arrays import UNLABELED, Bools, Floats, Ints
from shoal.clustering.matching import match

N_FOLDS = 5
NEAR_UNKNOWN = 0.5
"""How often classes without labels are among an image's neighbors, beside other known classes, by their numbers."""
PRIOR_MEMBERS = 8.0
"""How many images the mean of all known categories counts for in each of them."""


def estimate_label_rate(
    labels: Ints, neighbors: Ints, judged: Ints, digests: NDArray[np.str_]
) -> float:
    """The share of the images of known classes that are labeled, from the neighbors (N, k) of labeled images.

    Of these, a share a is labeled alike, b otherwise. Were classes without labels as often neighbors of an image as
    other known ones are, by their number, the rate would be a / (1 - b N / L), with L of N images labeled; were they
    never, it would be a + b. They are taken to be half as often. Of copies, equal `digests` (N,), any may be the
    neighbor: each counts by its share, so that their order does not matter.
    """
    n = len(labels)
    n_labeled = int((labels != UNLABELED).sum())
    _, copies, sizes = np.unique(digests, return_inverse=True, return_counts=True)  # (N,) and (G,)
    # (M, k) and (M, 1)
    near = copies[neighbors[judged]]
    own = copies[judged][:, None]
    others = sizes[near] - (near == own)
    same = (_count_pairs(copies, labels, near, labels[judged][:, None]) - (near == own)) / others
    unlabeled = _count_pairs(copies, labels, near, np.full((1, 1), UNLABELED)) / others
    alike, otherwise = (math.fsum(each.flat) / each.size for each in (same, 1 - same - unlabeled))
    rest = 1 - NEAR_UNKNOWN * otherwise * n / n_labeled
    rate = (alike + (1 - NEAR_UNKNOWN) * otherwise) / rest if rest > 0 else 1.0
    return float(np.clip(rate, n_labeled / n, 1.0))


def _count_pairs(groups: Ints, labels: Ints, group: Ints, label: Ints) -> Ints:
    """How many images of a group (M, k) have a label, one per row (M, 1)."""
    width = int(labels.max()) + 2
    pairs, counts = np.unique(groups * width + labels + 1, return_counts=True)
    wanted = group * width + label + 1
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    n_pairs: Ints = np.where(pairs[at] == wanted, counts[at], 0)
    return n_pairs


class Folds:
    """Labels held back, fold by fold, and what the others say of them."""

    def __init__(
        self, categories: Ints, labels: Ints, judged: Ints, digests: NDArray[np.str_]
    ) -> None:
        self.categories = categories
        self.labels = labels
        self.judged = judged
        self.classes, at = np.unique(labels[judged], return_inverse=True)
        given = np.array([(labels == one).sum() for one in self.classes])
        self.stands_for = (given / np.bincount(at))[
            at
        ]  # (J,) labels that each judged one stands for
        self.class_fold = (np.random.default_rng(0).permutation(len(self.classes)) % N_FOLDS)[
            at
        ]  # (J,)
        self.image_fold = _image_folds(at, digests[judged].tolist())  # (J,)

    def passes(self) -> Iterator[tuple[Ints, Floats, Bools, Bools]]:
        """Each fold's images held back, whether they are right, of hidden classes, and in matched categories."""
        for fold in range(N_FOLDS):
            is_hidden = self.class_fold == fold
            held = is_hidden | (self.image_fold == fold)
            at = self.judged[held]
            matched = self._matched(held, is_hidden)
            yield (
                at,
                (matched == self.labels[at]).astype(float),
                is_hidden[held],
                matched != UNLABELED,
            )

    def _matched(self, held: Bools, is_hidden: Bools) -> Ints:
        """The class of the category of each held image, by the other labels; -1 where it has none."""
        rest = self.labels.copy()
        rest[np.isin(rest, np.unique(self.labels[self.judged[is_hidden]]))] = UNLABELED
        rest[self.judged[held]] = UNLABELED
        left = rest != UNLABELED
        class_of = np.full(int(self.categories.max()) + 1, UNLABELED)
        if left.any():
            matching = match(rest[left], self.categories[left])
            class_of[matching.clusters.astype(np.int64)] = matching.classes
        return class_of[self.categories[self.judged[held]]]

    def own_class_share(self, at: Ints, rate: float) -> Floats:
        """(M,) which share of its category is of an image's own class: its labeled ones, by the rate of labels."""
        n_classes = int(self.labels.max()) + 1
        n = int(self.categories.max()) + 1
        counts = np.zeros((n, n_classes))
        np.add.at(counts, (self.categories[self.judged], self.labels[self.judged]), self.stands_for)
        own = np.zeros(len(self.labels))
        own[self.judged] = self.stands_for
        sizes = np.bincount(self.categories, minlength=n)[self.categories[at]]
        alike = counts[self.categories[at], self.labels[at]] - own[at]
        return alike / rate / np.maximum(sizes - 1, 1)  # may pass 1 by chance; the curve does not

    def known_shares(self, n_categories: int, rate: float) -> Floats:
        """(K,) which share of a category's unlabeled images is of its class: as many per labeled one as elsewhere."""
        n_right = np.zeros(n_categories)
        nobody = np.zeros(len(self.judged), dtype=bool)
        for fold in range(N_FOLDS):
            held = self.image_fold == fold
            at = self.judged[held]
            is_right = self._matched(held, nobody) == self.labels[at]
            np.add.at(n_right, self.categories[at][is_right], self.stands_for[held][is_right])
        unlabeled = np.bincount(self.categories[self.labels == UNLABELED], minlength=n_categories)
        expected = n_right * (1 - rate) / rate
        is_seen = np.bincount(self.categories[self.judged], minlength=n_categories) > 0
        pooled = float(np.clip(expected[is_seen].sum() / max(1, unlabeled[is_seen].sum()), 0, 1))
        shares = (expected + PRIOR_MEMBERS * pooled) / (unlabeled + PRIOR_MEMBERS)
        return np.clip(np.where(is_seen, shares, pooled), 0, 1)


def _image_folds(classes: Ints, digests: Sequence[str]) -> Ints:
    """(J,) folds that share each class evenly, by the digest of each row."""
    folds = np.zeros(len(digests), dtype=np.int64)
    for one in np.unique(classes):
        members = sorted(np.flatnonzero(classes == one).tolist(), key=digests.__getitem__)
        folds[members] = (np.arange(len(members)) + one) % N_FOLDS
    return folds
