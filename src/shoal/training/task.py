"""What a run trains on: images, the labels a user has, and which of these the loss must not see.

N images, n of them for training.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_labels
from shoal.checksums import digest_rows
from shoal.data.pixels import Pixels
from shoal.encoders.embed import ImageRows
from shoal.errors import DataError
from shoal.training.tokens import TokenCache
from shoal.training.validation import Judge
from shoal.training.view_pool import ViewPool


@dataclass(frozen=True, kw_only=True)
class Task:
    """The images, the labels a user has (-1 elsewhere), and which images are set aside to choose K
    and the snapshot."""

    pixels: ImageRows
    labels: Ints
    validation: Ints | None = None
    """Rows whose labels the loss does not see; None: the last snapshot is kept and no K is
    estimated."""
    trains_on_validation: bool = True
    """Whether these images are trained on as unlabeled ones are; else the loss does not see them at
    all."""
    judge: Judge | None = None
    """Images that choose K and the snapshot instead of the validation rows; the loss does not see
    them."""
    n_clusters: int | None = None
    """K where it is known; None: estimated."""
    tokens: TokenCache | None = None
    """The trunk's tokens of these images, where an earlier run has left them; None: computed."""
    pool: ViewPool | None = None
    """The same for the pool of views, where the settings ask for one."""

    def __post_init__(self) -> None:
        as_labels(self.labels, len(self.pixels), name="labels")
        rows = self.validation
        if rows is None:
            return
        has_repeats = len(np.unique(rows)) < len(rows)
        if has_repeats or not np.isin(rows, np.arange(len(self.labels))).all():
            raise DataError(
                f"validation: expected different rows in 0..{len(self.labels) - 1}; check the split"
            )

    @property
    def training(self) -> Ints:
        """The rows the loss sees."""
        rows = np.arange(len(self.labels))
        if self.validation is None or self.trains_on_validation:
            return rows
        return np.setdiff1d(rows, self.validation)

    @property
    def training_labels(self) -> Ints:
        """The labels of these rows that the loss sees, -1 elsewhere."""
        labels = self.labels.copy()
        if self.validation is not None:
            labels[self.validation] = UNLABELED
        return labels[self.training]

    def identity(self) -> dict[str, object]:
        """What must be the same for a run on it to be resumed."""
        if isinstance(self.pixels, Pixels):
            images = self.pixels.checksum
        else:
            images = digest_rows(self.pixels)
        return {
            "images": images,
            "labels": digest_rows(self.labels),
            "validation": None if self.validation is None else digest_rows(self.validation),
            "trains_on_validation": self.trains_on_validation,
            "judge": None if self.judge is None else digest_rows(self.judge.pixels),
        }
