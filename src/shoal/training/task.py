"""The task of a training run: images, the user's labels, and which of these the loss must not see.

Shapes: N images, n of them for training.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import UNLABELED, Ints, digest_rows
from shoal.data.pixels.loading import Pixels
from shoal.encoders.vision import ImageRows
from shoal.settings import Plain
from shoal.training.tokens import TokenCache, ViewPool
from shoal.training.validation import ValidationSet


@dataclass(frozen=True, kw_only=True)
class Task:
    """Images, the labels a user has (-1 elsewhere), and the validation images."""

    pixels: ImageRows
    labels: Ints
    # Rows whose labels the loss does not see: they choose the snapshot and K. None: the last
    # snapshot is used, and no K is estimated.
    validation: Ints | None = None
    # Whether these images are trained on without their labels; else the loss does not see them
    trains_on_validation: bool = True
    # Other images that choose the snapshot and K instead of the validation rows
    validation_set: ValidationSet | None = None
    n_clusters: int | None = None
    tokens: TokenCache | None = None
    # The pool of views, if it is cached and the settings ask for one
    pool: ViewPool | None = None

    @property
    def training(self) -> Ints:
        """The rows that are trained on, (n,)."""
        rows = np.arange(len(self.labels))
        if self.validation is None or self.trains_on_validation:
            return rows
        return np.setdiff1d(rows, self.validation)

    @property
    def visible_labels(self) -> Ints:
        """The labels (N,) that the loss may see, -1 elsewhere."""
        labels = self.labels.copy()
        if self.validation is not None:
            labels[self.validation] = UNLABELED
        return labels

    @property
    def training_labels(self) -> Ints:
        """Those of the training rows, (n,)."""
        return self.visible_labels[self.training]

    def identity(self) -> Plain:
        """Return what must be the same for a training run to be resumed."""
        images = (
            self.pixels.checksum if isinstance(self.pixels, Pixels) else digest_rows(self.pixels)
        )
        validation = None if self.validation is None else digest_rows(self.validation)
        other = None if self.validation_set is None else digest_rows(self.validation_set.pixels)
        return {
            "images": images,
            "labels": digest_rows(self.labels),
            "validation": validation,
            "trains_on_validation": self.trains_on_validation,
            "validation_set": other,
        }
