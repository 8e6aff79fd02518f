"""What lies in one shard."""

from dataclasses import dataclass, field
from typing import NamedTuple

AGAIN = "; copy or make it again"
"""What to do with a damaged shard."""

Reasons = list[tuple[str, str]]
"""Paths, each with the reason why it is left out."""


class ShardImage(NamedTuple):
    """One image."""

    name: str
    start: int
    """Its first byte in a tar shard, its row in a parquet shard."""
    n_bytes: int
    label: object
    """A text or a number, as it stands in the shard; None where there is none."""


@dataclass
class ShardIndex:
    """The images of one shard in its order, and what of it cannot be read."""

    images: list[ShardImage] = field(default_factory=list)
    left_out: Reasons = field(default_factory=list)
    """Images that cannot be taken."""
    damage: list[str] = field(default_factory=list)
    """What is lost of the shard; it is refused, or said where --allow-missing goes on."""
    bad_labels: Reasons = field(default_factory=list)
    """Where a label stands that cannot be read; its image counts as unlabeled."""
    n_doubled: int = 0
    """Members that come a second time under the same name."""
    has_labels: bool = False
    """Whether the shard says anything of labels."""
    column: str | None = None
    """The column of images, in a parquet shard."""
    has_names: bool = True
    """Whether images have names of their own, not the number of their row."""
