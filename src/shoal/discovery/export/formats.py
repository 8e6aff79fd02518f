"""The export formats by name, and the function that exports a run: tables, TensorBoard's embedding
projector, the tree of categories; annotations for labeling tools and object detection (COCO, YOLO,
Label Studio and FiftyOne); and images, in a folder per category, as YOLO has it or not, or Hugging
Face's. In annotations a whole image is a box of its size."""

import contextlib
import csv
import io
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import yaml

from shoal.boxes import BOX_COLUMNS, Box, split_name
from shoal.data.pixels.decoding import Unreadable, image_size
from shoal.data.readers.folders import local_path
from shoal.data.readers.layouts import UNLABELED_FOLDERS
from shoal.data.readers.shards import is_stored_source
from shoal.discovery.export.export_job import (
    ExportJob,
    apply_labels,
    find_disagreeing,
    find_overruled,
    folder_names,
    inside,
    original,
    predictions,
    shortened,
)
from shoal.errors import DataError, UnknownName, UsageError
from shoal.files import AnyPath, atomic_file, make_folder, write_text
from shoal.report.figures import dendrogram, file_bytes
from shoal.report.rendering import categories_in_tree, category_tree
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Category, Run, csv_text, has_boxes, to_csv, write_csv

# The folder of images without a category; `shoal discover` reads it as unlabeled images
UNSORTED = "unlabeled"

# Every such image of a category is for validation in the layout of YOLO
VAL_EVERY = 5

# The columns with what people decided about an image
REVIEW_COLUMNS = ("status", "classified_by", "classified_at")

# The statuses of images whose category was decided by a person
DECIDED = ("confirmed", "moved")

# A tag in a note
TAG = re.compile(r"(?<!\S)#\S+")

# The start of what a spreadsheet reads as a formula
FORMULA = re.compile(r"\s*[-=+@]|[\t\r]")

# The folder in which an export is written; when complete, its content is moved out of it
DRAFT = ".export.tmp"

# Formats that link or open the images, which therefore must exist
LINKING = ("imagefolder", "hf", "fiftyone", "coco", "yolo")


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


def by_image(rows: Iterable[Assignment]) -> Iterator[tuple[str, list[Assignment]]]:
    """Yield the path of each image, and its row or the rows of its boxes."""
    for path, group in groupby(rows, lambda row: split_name(row.path)[0]):
        yield path, list(group)


def measure(job: ExportJob, path: str) -> tuple[int, int]:
    """Return width and height of an image; raise if it cannot be read."""
    file = original(job.images, path)
    try:
        return image_size(str(file))
    except Unreadable as error:
        raise DataError(f"{file}: {error}") from error


def box_of(row: Assignment, size: tuple[int, int]) -> Box:
    return row.box or Box(0, 0, *size)


def shares(row: Assignment, size: tuple[int, int]) -> list[float]:
    """Return left, top, width and height of the box of a row as shares of the image."""
    return [side / whole for side, whole in zip(box_of(row, size), size * 2, strict=True)]


def to_coco(job: ExportJob) -> None:
    """Write annotations.json in the format of COCO, with an annotation per row that has a category;
    file names are relative to the folder of the images.

    Ids start at 1, because 0 is the background for many readers.
    """
    images = []
    annotations: list[dict[str, object]] = []
    ids = {each.category: number for number, each in enumerate(job.categories, start=1)}
    for number, (path, rows) in enumerate(by_image(job.rows), start=1):
        size = measure(job, path)
        images.append({"id": number, "file_name": path, "width": size[0], "height": size[1]})
        for row in rows:
            if not row.category:
                continue
            box = box_of(row, size)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": ids[row.category],
                    "bbox": list(box),
                    "area": box.width * box.height,
                    "iscrowd": 0,
                    "segmentation": [],
                    "confidence": row.confidence,
                    **{name: getattr(row, name) for name in REVIEW_COLUMNS},
                }
            )
    categories = [{"id": number, "name": name} for name, number in ids.items()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    write_text(job.out / "annotations.json", json.dumps(content, indent=1) + "\n")


def to_yolo(job: ExportJob) -> None:
    """Write boxes as Ultralytics reads them for detection: images/ with links, labels/ with a text
    file per image, and data.yaml; without boxes, folders for classification.

    Boxes without a category are left out.
    """
    if not has_boxes(job.rows):
        to_yolo_folders(job)
        return
    ids = {each.category: number for number, each in enumerate(job.categories)}
    files = {}
    for path, rows in by_image(job.rows):
        files[path] = f"images/{path}"
        size = measure(job, path)
        lines = []
        for row in rows:
            x, y, width, height = shares(row, size)
            numbers = (x + width / 2, y + height / 2, width, height)
            if row.category:
                lines.append(f"{ids[row.category]} {' '.join(f'{n:.8f}' for n in numbers)}\n")
        file = (job.out / "labels" / path).with_suffix(".txt")
        if file.exists():
            raise DataError(f"{path}: another image has this name in YOLO; rename one of them")
        make_folder(file.parent)
        write_text(file, "".join(lines))
    job.link(files)
    content = {"train": "images", "val": "images", "names": {i: name for name, i in ids.items()}}
    write_text(job.out / "data.yaml", yaml.safe_dump(content, allow_unicode=True, sort_keys=False))


def to_label_studio(job: ExportJob) -> None:
    """Write tasks.json, with the run's prediction and a person's annotation for every image, and
    labels.xml, the labeling interface. Boxes are rectangles of their image; the score is their
    mean confidence.

    The annotation is the category that a person confirmed, moved or split the image into, else its
    label, unless a person rejected it.

    Label Studio serves files below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, but only those in a
    storage of the project, which cannot be that folder itself. So image paths start at the folder
    above the images.
    """
    folder = ""
    if job.root is not None:
        folder = f"{job.root.name}/"
        for row in job.run.assignments:
            inside(job.root, row.path)
    overruled = find_overruled(job.run)
    by_run = predictions(job.run)
    is_boxed = has_boxes(job.rows)
    choices = [each.category for each in job.run.categories if each.size or not each.is_novel]
    names = dict.fromkeys(choices)  # an ordered set
    tasks = []
    for path, rows in by_image(job.run.assignments):
        data = {"image": f"/data/local-files/?d={quote(folder + path)}", "path": path}
        if len(rows) == 1:
            data |= {name: getattr(rows[0], name) for name in REVIEW_COLUMNS}
        task: dict[str, object] = {"data": data}
        size = None
        if is_boxed:
            size = measure(job, path)
        annotations = []
        found = []
        scores = []
        for row in rows:
            annotated = row.label_given
            category = row.category
            confidence = row.confidence
            if row.status in DECIDED:
                category, confidence = by_run.get(row.path, (category, confidence))
            if row.status in DECIDED or row.path in overruled:
                annotated = row.category
            if annotated:
                annotations.append(_result(row, annotated, size))
            if category in names:  # a category that has lost its images is not a choice
                found.append(_result(row, category, size))
                scores.append(confidence)
        if annotations:
            task["annotations"] = [{"result": annotations}]
        if found:
            score = round(sum(scores) / len(scores), 6)
            task["predictions"] = [{"model_version": "shoal", "result": found, "score": score}]
        tasks.append(task)
    write_text(job.out / "tasks.json", json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
    control = "RectangleLabels" if is_boxed else "Choices"
    option = "Label" if is_boxed else "Choice"
    options = "\n".join(f"    <{option} value={quoteattr(name)}/>" for name in names)
    interface = (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <{control} name="category" toName="image">\n{options}\n  </{control}>\n</View>\n'
    )
    write_text(job.out / "labels.xml", interface)


def _result(row: Assignment, category: str, size: tuple[int, int] | None) -> dict[str, object]:
    """Return a category as Label Studio stores a choice, or that of a box as a rectangle in percent
    of the size of the image."""
    result: dict[str, object] = {
        "from_name": "category",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [category]},
    }
    if size is not None:
        sides = zip(BOX_COLUMNS, shares(row, size), strict=True)
        percent = {name: 100 * share for name, share in sides}
        result |= {
            "type": "rectanglelabels",
            "original_width": size[0],
            "original_height": size[1],
            "value": percent | {"rotation": 0, "rectanglelabels": [category]},
        }
    return result


def label_studio_steps(job: ExportJob) -> tuple[str, ...]:
    root = job.root or Path("/the/folder/of/the/images")
    return (
        "to see the images in Label Studio:",
        "  export LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true",
        f"  export LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={shlex.quote(str(root.parent))}",
        "  label-studio start",
        f"  in a new project, Labeling Setup, Custom template: paste {job.out / 'labels.xml'}",
        "  Settings, Cloud Storage, Add Source Storage, Local files: "
        f"absolute path {root}; add it, do not sync",
        f"  Import: {job.out / 'tasks.json'}",
    )


def to_fiftyone(job: ExportJob) -> None:
    """Write FiftyOne's image classification layout: data/, labels.json with confidences, and
    paths.csv, which maps files to images; its image detection layout if the run has boxes.

    Files are numbered, because FiftyOne identifies images by their name without its suffix.
    """
    is_boxed = has_boxes(job.rows)
    labels: dict[str, object] = {}
    rows = []
    files = {}
    for number, (path, boxes) in enumerate(by_image(job.rows)):
        name = f"{number:08d}"
        file = f"data/{name}{Path(path).suffix}"
        files[path] = file
        found: list[dict[str, object]] = []
        for row in boxes:
            rows.append((file, row.path, *(getattr(row, column) for column in REVIEW_COLUMNS)))
            if not row.category:
                continue
            label: dict[str, object] = {"label": row.category, "confidence": row.confidence}
            if is_boxed:
                label["bounding_box"] = shares(row, measure(job, path))
            found.append(label)
        labels[name] = found
        if not is_boxed:
            labels[name] = found[0] if found else None
    job.link(files)
    dataset = {"classes": None, "labels": labels}
    write_text(job.out / "labels.json", json.dumps(dataset, ensure_ascii=False, indent=1) + "\n")
    write_text(job.out / "paths.csv", csv_text(("file", "path", *REVIEW_COLUMNS), rows))


def to_tables(job: ExportJob) -> None:
    write_csv(Assignment, job.rows, job.out / "assignments.csv")
    write_csv(Category, job.categories, job.out / "categories.csv")


def to_spreadsheets(job: ExportJob) -> None:
    """Write the same tables with nothing that a spreadsheet reads as a formula."""
    tables = {
        "assignments": to_csv(Assignment, job.rows),
        "categories": to_csv(Category, job.categories),
    }
    for name, text in tables.items():
        rows = csv.reader(io.StringIO(text, newline=""))
        header, *escaped = [[_escape_formula(cell) for cell in row] for row in rows]
        # The byte order mark makes Excel read UTF-8.
        write_text(job.out / f"{name}.csv", f"\ufeff{csv_text(header, escaped)}")


def _escape_formula(cell: str) -> str:
    """Return a cell with an apostrophe in front if a spreadsheet would read it as a formula."""
    if not FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def to_projector(job: ExportJob) -> None:
    """Write vectors.tsv and metadata.tsv for projector.tensorflow.org and TensorBoard."""
    with atomic_file(job.out / "vectors.tsv") as file:
        # Line by line: a million rows as text would take gigabytes.
        for vector in job.run.embeddings():
            file.write(("\t".join(f"{x:.6g}" for x in vector) + "\n").encode())
    header = ("path", "category", "label_given", "is_novel", "confidence", *REVIEW_COLUMNS)
    rows = [header, *([getattr(row, name) for name in header] for row in job.rows)]
    # The format cannot escape tabs and line breaks, so they become spaces.
    lines = ["\t".join(" ".join(str(cell).split()) for cell in row) + "\n" for row in rows]
    write_text(job.out / "metadata.tsv", "".join(lines))


def to_newick(job: ExportJob) -> None:
    """Write tree.nwk, which programs for phylogenies read."""
    write_text(job.out / "tree.nwk", f"{category_tree(job.run).newick()}\n")


def to_dendrogram(job: ExportJob) -> None:
    figure = dendrogram(job.run)
    for kind in ("svg", "png"):
        with atomic_file(job.out / f"dendrogram.{kind}") as file:
            file.write(file_bytes(figure, kind))


FORMATS: dict[str, Callable[[ExportJob], None]] = {
    "imagefolder": to_imagefolder,
    "hf": to_hugging_face,
    "csv": to_tables,
    "spreadsheet": to_spreadsheets,
    "labelstudio": to_label_studio,
    "fiftyone": to_fiftyone,
    "coco": to_coco,
    "yolo": to_yolo,
    "projector": to_projector,
    "newick": to_newick,
    "dendrogram": to_dendrogram,
}


def write_notes(run: ReviewedRun, out: Path) -> None:
    """Write the notes of a review, if there are any, to notes.csv; path is empty for a category.

    Formulas are escaped, since people read this table in a spreadsheet.
    """
    if run.review is None:
        return
    state = run.review.state
    lines = [("", record.name, record.note) for record in state.categories.values()]
    for row, note in sorted(state.notes.items()):
        lines.append((state.paths[row], run.assignments[row].category, note))
    rows = [
        [*map(_escape_formula, line), " ".join(TAG.findall(line[-1]))] for line in lines if line[-1]
    ]
    if rows:
        write_text(out / "notes.csv", csv_text(("path", "category", "note", "tags"), rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The result of an export."""

    folder: Path
    # Labeled images that the run has put into another category
    n_disagreeing: int
    # A note on an incomplete review, and instructions for the other program, line by line
    notes: tuple[str, ...]


def export_run(
    run: Run,
    format_name: str,
    out: Path | str,
    *,
    images: AnyPath | None = None,
    copy: bool = False,
) -> Exported:
    """Export a run for another program into the empty or new folder `out`.

    Images are linked to where the run found them, or to `images` if they have moved; `copy` copies
    them. They are never moved or changed. A labeled image is exported with its label; Label Studio
    gets its category too.
    """
    if format_name not in FORMATS:
        raise UnknownName("format", format_name, FORMATS)
    target = Path(out)
    root = None
    where = str(images or run.provenance.get("root") or "")
    if images is not None or (where and not is_stored_source(where)):
        root = local_path(where)
    if target.is_dir() and {entry.name for entry in target.iterdir()} - {DRAFT}:
        raise UsageError(f"{target}: is not empty; choose an empty or new folder")
    if format_name in LINKING and root is not None:
        for folder in run.provenance.get("folders") or ():
            if target.resolve().is_relative_to((root / folder).resolve()):
                raise UsageError(
                    f"{target}: is inside {root / folder}, where the next `shoal discover` would "
                    "find every image twice; choose a folder outside it"
                )
    reviewed = ReviewedRun.of(run)
    disagreeing = find_disagreeing(reviewed)
    job = ExportJob(
        run=reviewed,
        rows=reviewed.assignments,
        categories=categories_in_tree(reviewed),
        root=root,
        out=target,
        copy=copy,
    )
    if disagreeing:
        job = apply_labels(job, disagreeing)
    with _draft(target) as draft:
        FORMATS[format_name](replace(job, out=draft))
        write_notes(reviewed, draft)
    notes: list[str] = []
    if reviewed.review is not None and reviewed.review.log.note:
        notes.append(reviewed.review.log.note)
    if format_name == "labelstudio":
        notes += label_studio_steps(job)
    return Exported(folder=target, n_disagreeing=len(disagreeing), notes=tuple(notes))


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yield a folder whose content is moved to `target` at the end, or removed after an error."""
    is_new = not target.exists()
    draft = target / DRAFT
    shutil.rmtree(draft, ignore_errors=True)  # of an export that was killed
    make_folder(target)  # first, so that an error names it and not the draft
    try:
        make_folder(draft)
        yield draft
        for entry in draft.iterdir():
            entry.rename(target / entry.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty
            if is_new:
                target.rmdir()
