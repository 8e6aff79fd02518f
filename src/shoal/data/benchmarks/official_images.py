"""Every image of one part of a benchmark in its official order, each with its true class.

The labeled draw of the published splits is a draw of positions in this order, so the order is part
of the split. Only `benchmark.py` and `verification.py` see these; everybody else gets a
`Collection` without hidden labels.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.arrays import Ints
from shoal.data.collection import Images

Part = Literal["train", "test"]

ORDER_IS_LOST = (
    "the official order of the images is not kept in this layout: the labeled images are a draw "
    "of the published size, "
    "but other images than the published draw"
)


@dataclass(frozen=True, eq=False)
class OfficialImages:
    """N images in official order; files under `root`, or `images` in memory or in an archive."""

    names: tuple[str, ...]
    """Unique; for files the path relative to `root`."""
    class_ids: Ints
    """(N,) official class ids."""
    classes: tuple[str, ...]
    """Class names by official id."""
    layout: str
    root: Path | None = None
    images: Images | None = None
    absent: tuple[str, ...] = ()
    """What the official lists name and the disk does not hold, relative to `root`."""
    notes: tuple[str, ...] = ()


def listed_but_absent(root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The names that are no files under `root`; each folder is read once, however many files are
    asked for."""
    wanted: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        wanted.setdefault(folder, []).append(file)
    absent = []
    for folder, expected in wanted.items():
        path = root / folder
        present = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        absent += [
            f"{folder}/{file}" if folder else file for file in expected if file not in present
        ]
    return tuple(absent)
