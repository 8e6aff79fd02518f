"""Exports for labeling tools and object detection, COCO, YOLO, Label Studio and FiftyOne, and those
with the images: a folder per category, as YOLO has it or not, and Hugging Face's.

In annotations a whole image is a box of its size.
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import yaml

from shoal.boxes import BOX_COLUMNS, Box, split_name
from shoal.data.pixels.decoding import Unreadable, image_size
from shoal.data.readers.layouts import UNLABELED_FOLDERS
from shoal.discovery.export.export_job import (
    ExportJob,
    find_overruled,
    folder_names,
    inside,
    original,
    predictions,
    shortened,
)
from shoal.errors import DataError
from shoal.files import make_folder, write_text
from shoal.runs import Assignment, csv_text, has_boxes

# The folder of images without a category; `shoal discover` reads it as unlabeled images
UNSORTED = "unlabeled"

# Every such image of a category is for validation in the layout of YOLO
VAL_EVERY = 5

# The columns with what people decided about an image
REVIEW_COLUMNS = ("status", "classified_by", "classified_at")

# The statuses of images whose category was decided by a person
DECIDED = ("confirmed", "moved")


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
