"""What a method is given: images, some labels, and which of these the loss must not see."""

from dataclasses import dataclass

from shoal.training.data import TrainingData


@dataclass(frozen=True, kw_only=True)
class Task(TrainingData):
    """Images (N, S, S, 3) and the labels (N,) a user has; a hidden label has no way in but a `judge`."""

    n_clusters: int | None = None
    """K where it is known; None: estimated."""
