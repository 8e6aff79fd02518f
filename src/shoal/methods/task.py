"""What a method is given: images, some labels, and which of these the loss must not see.

N images.
"""

from dataclasses import dataclass

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.encoders.embed import ImageRows
from shoal.training.data import TrainingData
from shoal.training.tokens import TokenCache
from shoal.training.validation import Judge
from shoal.training.view_pool import ViewPool


@dataclass(frozen=True, kw_only=True)
class Task:
    """Images and the labels a user has; a hidden label has no way in but a `judge`."""

    pixels: ImageRows
    """(N, S, S, 3) uint8; a memory map will do."""
    labels: Ints
    """(N,) -1 for unlabeled."""
    validation: Ints | None = None
    """Rows whose labels are kept from the loss, to choose K and the snapshot."""
    trains_on_validation: bool = True
    """Whether the loss sees these images, unlabeled; False for a protocol in which they stand for unseen ones."""
    judge: Judge | None = None
    """Images of their own that choose K and the snapshot instead of the validation rows. For reproducing what released
    code did with test labels, and for nothing else."""
    n_clusters: int | None = None
    """K where it is known; None: estimated."""
    tokens: TokenCache | None = None
    """The trunk's tokens of these images, where an earlier run with the same encoder has left them."""
    pool: ViewPool | None = None
    """The same for a pool of views, of the same seed."""
    pool_labels: tuple[Ints, ...] = ()
    """Labels (N,) of other trainings that will use the pool which this one makes."""

    @property
    def is_labeled(self) -> Bools:
        """(N,) which images carry a label."""
        mask: Bools = self.labels != UNLABELED
        return mask

    @property
    def training_data(self) -> TrainingData:
        """What the training loop takes of it."""
        return TrainingData(
            pixels=self.pixels,
            labels=self.labels,
            validation=self.validation,
            trains_on_validation=self.trains_on_validation,
            judge=self.judge,
            tokens=self.tokens,
            pool=self.pool,
            pool_labels=self.pool_labels,
        )
