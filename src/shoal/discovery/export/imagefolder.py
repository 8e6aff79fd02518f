"""Exports that show the images themselves: a folder per category, and the Hugging Face
imagefolder."""

from collections.abc import Sequence

from shoal.data.readers.layouts import UNLABELED_FOLDERS
from shoal.discovery.export.export_job import Job
from shoal.discovery.export.file_names import fold, folder_names, original, put_all, shortened
from shoal.errors import DataError
from shoal.files import write_text
from shoal.runs import Assignment, csv_text

UNSORTED = "unlabeled"
"""The folder of images without a category, which `shoal discover` takes for what it is."""

DECIDED = ("status", "classified_by", "classified_at")
"""The columns that say what people decided."""


def to_imagefolder(job: Job) -> None:
    """A folder per category with its images, and export.csv, which says which file shows which
    image.

    Files keep their names; where two images of one category have the same, all of that category are
    named by their path, with %2F for its slashes.
    """
    members: dict[str, list[str]] = {}
    said = {row.path: decided(row) for row in job.rows}
    for row in job.rows:
        members.setdefault(row.category, []).append(row.path)
    taken = (
        "export.csv",
        job.out.name,
        *UNLABELED_FOLDERS,
    )  # in these a category would read as images without one
    folders = folder_names([*filter(None, members)], taken=taken) | {"": UNSORTED}
    rows = [
        (f"{folders[category]}/{name}", path, category, *said[path])
        for category, paths in members.items()
        for path, name in zip(paths, file_names(paths), strict=True)
    ]
    put_all([(original(job.images, path), file) for file, path, *_ in rows], job.out, job.linking)
    write_text(
        job.out / "export.csv", csv_text(("file", "path", "category", *DECIDED), sorted(rows))
    )


def to_hugging_face(job: Job) -> None:
    """The images under their own paths, and metadata.csv with their categories, as `datasets` reads
    it."""
    taken = [
        row.path
        for row in job.rows
        if fold(row.path.partition("/")[0]) in ("metadata.csv", fold(job.out.name))
    ]
    if taken:
        raise DataError(
            f"{taken[0]}: metadata.csv must lie where this folder would; export to imagefolder "
            "instead"
        )
    put_all([(original(job.images, row.path), row.path) for row in job.rows], job.out, job.linking)
    header = (
        "file_name",
        "label",
        "label_given",
        "is_novel",
        "confidence",
        "outlier_score",
        *DECIDED,
    )
    write_text(job.out / "metadata.csv", csv_text(header, [_metadata(row) for row in job.rows]))


def file_names(paths: Sequence[str]) -> list[str]:
    """A name for each image of one folder: its own, or its escaped path where own names are not
    unique."""
    own = [path.rsplit("/", 1)[-1] for path in paths]
    names = {name.casefold() for name in own}  # some file systems do not tell A from a
    if len(names) < len(own):
        own = [path.replace("%", "%25").replace("/", "%2F") for path in paths]
    return [shortened(name) for name in own]


def decided(row: Assignment) -> tuple[str, ...]:
    """What people decided about an image, who and when: the cells of `DECIDED`."""
    return row.status, row.classified_by, row.classified_at


def _metadata(row: Assignment) -> tuple[object, ...]:
    is_novel = str(row.is_novel).lower()
    scores = f"{row.confidence:.6f}", f"{row.outlier_score:.6f}"
    return row.path, row.category, row.label_given, is_novel, *scores, *decided(row)
