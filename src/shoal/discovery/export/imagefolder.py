"""Exports with the images: a folder per category, as YOLO has it or not, and Hugging Face's."""

from collections import Counter
from collections.abc import Mapping, Sequence

from shoal.boxes import split_name
from shoal.data.readers.layouts import UNLABELED_FOLDERS
from shoal.discovery.export.export_job import ExportJob, folder_names, shortened
from shoal.files import write_text
from shoal.runs import Assignment, csv_text

# The folder of images without a category; `shoal discover` reads it as unlabeled images
UNSORTED = "unlabeled"

# Every such image of a category is for validation in the layout of YOLO
VAL_EVERY = 5

# The columns with what people decided about an image
REVIEW_COLUMNS = ("status", "classified_by", "classified_at")


def to_imagefolder(job: ExportJob) -> None:
    """Write a folder of images per category, and export.csv, which maps files to images.

    Files keep their names; if two images of a category have the same name, all files of that
    category are named by their path, with %2F for its slashes.
    """
    _link_folders(job, job.rows, _files_by_path(job))


def to_yolo_folders(job: ExportJob) -> None:
    """Write train/ and val/, each with a folder of images per category, as Ultralytics reads them
    for classification, and export.csv, which maps files to images.

    Every fifth image of a category is in val/. Images without a category are left out.
    """
    rows = [row for row in job.rows if row.category]
    files = _files_by_path(job)
    n_seen: Counter[str] = Counter()
    split = {}
    for row in rows:
        n_seen[row.category] += 1
        part = "train" if n_seen[row.category] % VAL_EVERY else "val"
        split[row.path] = f"{part}/{files[row.path]}"
    _link_folders(job, rows, split)


def _files_by_path(job: ExportJob) -> dict[str, str]:
    """Return the file of each image in the folder of its category."""
    paths_by_category: dict[str, list[str]] = {}
    for row in job.rows:
        paths_by_category.setdefault(row.category, []).append(row.path)
    # A category in one of these folders would be read as unlabeled.
    taken = ("export.csv", *UNLABELED_FOLDERS)
    folders = folder_names(filter(None, paths_by_category), taken=taken) | {"": UNSORTED}
    return {
        path: f"{folders[category]}/{name}"
        for category, paths in paths_by_category.items()
        for path, name in zip(paths, file_names(paths), strict=True)
    }


def _link_folders(
    job: ExportJob, assignments: Sequence[Assignment], files: Mapping[str, str]
) -> None:
    """Link images to their files, and write export.csv."""
    job.link(files)
    columns = ("path", "category", *REVIEW_COLUMNS)
    rows = [(files[row.path], *(getattr(row, name) for name in columns)) for row in assignments]
    write_text(job.out / "export.csv", csv_text(("file", *columns), sorted(rows)))


def to_hugging_face(job: ExportJob) -> None:
    """Write the images under their paths, and metadata.csv, as `datasets` reads it."""
    job.link({row.path: _as_file(row.path) for row in job.rows})
    header = ("file_name", "label", "label_given", "is_novel", "confidence", "outlier_score")
    rows = [
        (
            _as_file(row.path),
            row.category,
            row.label_given,
            str(row.is_novel).lower(),
            f"{row.confidence:.6f}",
            f"{row.outlier_score:.6f}",
            *(getattr(row, name) for name in REVIEW_COLUMNS),
        )
        for row in job.rows
    ]
    write_text(job.out / "metadata.csv", csv_text((*header, *REVIEW_COLUMNS), rows))


def file_names(paths: Sequence[str]) -> list[str]:
    """Return a file name for each image of a folder: its file name, or its escaped path if these
    are not unique on a case-insensitive file system."""
    files = [_as_file(path) for path in paths]
    names = [file.rsplit("/", 1)[-1] for file in files]
    if len({name.casefold() for name in names}) < len(names):
        names = [file.replace("/", "%2F") for file in files]
    return [shortened(name) for name in names]


def _as_file(path: str) -> str:
    if split_name(path)[1] is None:
        return path
    return f"{path}.png"
