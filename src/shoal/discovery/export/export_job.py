"""The content of an export, labels and categories reconciled, and its files: categories as folder
names, and links to images.
"""

import hashlib
import os
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from shoal.boxes import split_file
from shoal.data.pixels.decoding import MAX_PIXELS, Unreadable, decode_whole
from shoal.errors import DataError, ShoalError, UsageError
from shoal.files import make_folder, writing
from shoal.review.reviewed_run import Decisions, ReviewedRun, current_names
from shoal.runs import NO_CATEGORY, Assignment, Category

# Characters that are escaped in file names
ESCAPED = re.compile(
    r'[/<>:"\\|?*\x00-\x1f]'  # Linux, macOS or Windows does not allow it
    r"|^\."  # hidden
    r"|[. ]\Z"  # dropped by Windows
    r"|^(?=(?:con|prn|aux|nul|(?:com|lpt)[1-9¹²³]) *(?:\.|\Z))[a-z]",  # reserved on Windows
    re.IGNORECASE,
)

# Length limit of a file name on common file systems
MAX_BYTES = 255


def folder_names(categories: Iterable[str], *, taken: Iterable[str] = ()) -> dict[str, str]:
    """Return a folder name for each category, all different on a case-insensitive file system.

    Characters that a file system forbids or hides are written as %XX. Names that are too long are
    cut, and these and names that are `taken`, or used by another category, end with a digest.
    """
    names: dict[str, str] = {}
    used = {fold(name) for name in taken}
    for category in sorted(set(categories)):
        name = shortened(ESCAPED.sub(_escape, category))
        if fold(name) in used:
            name = shortened(name, category)
        used.add(fold(name))
        names[category] = name
    return names


def fold(name: str) -> str:
    """Return a name as a case-insensitive file system compares it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def shortened(name: str, digested: str = "") -> str:
    """Return a name of at most `MAX_BYTES`: a longer one is cut, and ends with a digest of the
    whole name and its suffix; with `digested`, any name ends with a digest of that."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= MAX_BYTES and not digested:
        return name
    digest = hashlib.sha256((digested or name).encode("utf-8", "surrogateescape")).hexdigest()
    end = f"~{digest[:12]}{PurePosixPath(name).suffix[:16]}"
    n_left = MAX_BYTES - len(end.encode("utf-8", "surrogateescape"))
    return encoded[:n_left].decode("utf-8", "ignore") + end


def _escape(found: re.Match[str]) -> str:
    return f"%{found[0].encode('utf-8', 'surrogateescape').hex('%').upper()}"


def inside(root: Path, path: str) -> Path:
    """Return the file of an image; refuse a path that leads out of `root`."""
    file = Path(os.path.normpath(root / path))
    if not file.is_relative_to(root) or file == root:
        raise DataError(
            f"{path!r}: leads out of {root}, the folder of the run's images; was assignments.csv "
            "edited?"
        )
    return file


def original(root: Path, path: str) -> Path:
    """Return the path of an image or of a box; refuse one outside of `root`, or that does not
    exist."""
    file = inside(root, path)
    if not Path(split_file(str(file))[0]).is_file():
        raise DataError(f"{file}: the image does not exist; give the folder of images as --images")
    return file


def link_image(source: Path, target: Path, *, copy: bool = False) -> None:
    """Link an image under a new name, or copy it; nothing is overwritten.

    A link is symbolic, or hard, or a copy: the first that the file system allows. A box is cut out
    and written as PNG.
    """
    make_folder(target.parent)
    with writing(target):
        if os.path.lexists(target):
            raise ShoalError(
                f"{target}: exists already, as the name of another image; export to imagefolder"
            )
        if split_file(str(source))[1] is not None:
            try:
                crop = decode_whole(str(source), MAX_PIXELS)
            except Unreadable as error:
                raise DataError(f"{source}: {error}") from error
            crop.save(target, "PNG")
        elif copy or not _link(source, target):
            shutil.copyfile(source, target)


def _link(source: Path, target: Path) -> bool:
    """Make a link, and return whether the file system allows it."""
    for make_link in (os.symlink, os.link):
        try:
            make_link(source, target)
        except OSError:
            continue
        return True
    return False


@dataclass(frozen=True, eq=False, kw_only=True)
class ExportJob:
    """A run to be exported."""

    run: ReviewedRun
    # The rows of the run, with the labels that are exported as their categories
    rows: Sequence[Assignment]
    # The categories of the run, with their sizes in `rows`
    categories: Sequence[Category]
    root: Path | None
    out: Path
    copy: bool = False

    @property
    def images(self) -> Path:
        """The folder of the images, for formats that need it."""
        if self.root is None:
            raise UsageError(
                "the images of the run are not local files, so they cannot be linked; give a "
                "folder of the images with --images, or export to csv, labelstudio or projector"
            )
        return self.root

    def link(self, files: Mapping[str, str]) -> None:
        """Link or copy images, given by path, to files of the export."""
        for path, file in files.items():
            link_image(original(self.images, path), self.out / file, copy=self.copy)


def find_disagreeing(run: ReviewedRun) -> list[Assignment]:
    """Return the images whose category differs from their label, except by a review decision."""
    overruled = find_overruled(run)
    return [
        row
        for row in run.assignments
        if row.label_given not in ("", row.category) and row.path not in overruled
    ]


def find_overruled(run: ReviewedRun) -> frozenset[str]:
    """Return the images whose label is overruled by a decision of the review.

    This includes images that a split separated from the category of their label, although they
    keep that label in the next discovery.
    """
    if run.review is None:
        return frozenset()
    decisions = Decisions(run.review.state)
    by_run = {NO_CATEGORY, *decisions.called.values()}
    split_off = {
        path
        for path in decisions.given
        if decisions.categories.get(path, NO_CATEGORY) not in by_run
    }
    return decisions.contradicted | split_off


def predictions(run: ReviewedRun) -> dict[str, tuple[str, float]]:
    """Return the category, by its current name, and confidence that the run predicted for each
    image; empty without a review."""
    if run.review is None:
        return {}
    state = run.review.state
    names = current_names(state)
    rows = zip(state.paths, state.columns["category"], state.columns["confidence"], strict=True)
    return {
        path: (names.get(category, category), float(confidence))
        for path, category, confidence in rows
    }


def apply_labels(job: ExportJob, disagreeing: Sequence[Assignment]) -> ExportJob:
    """Return the job with the labels of disagreeing images in place of their categories."""
    ids = {category.category: category.category_id for category in job.categories}
    paths = {row.path for row in disagreeing}
    rows = list(job.rows)
    for index, row in enumerate(rows):
        if row.path in paths:
            label = row.label_given
            rows[index] = replace(row, category=label, category_id=ids[label], is_novel=False)
    sizes = Counter(row.category_id for row in rows)
    n_labeled = Counter(row.category_id for row in rows if row.label_given)
    categories = [
        replace(each, size=sizes[each.category_id], n_labeled=n_labeled[each.category_id])
        for each in job.categories
    ]
    return replace(job, rows=rows, categories=categories)
