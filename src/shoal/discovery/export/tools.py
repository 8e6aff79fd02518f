"""Exports for labeling tools: Label Studio, FiftyOne and readers of COCO."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from shoal.boxes import BOX_COLUMNS
from shoal.discovery.export.detections import BoxedImage, boxed_images
from shoal.discovery.export.export_job import ExportJob, choices, find_overruled, predictions
from shoal.discovery.export.file_names import inside, link_images, original
from shoal.discovery.export.imagefolder import REVIEW_COLUMNS
from shoal.files import write_text
from shoal.runs import Assignment, csv_text, has_boxes

_Result = dict[str, object]
"""A result of Label Studio: a choice or a rectangle."""

DECIDED = ("confirmed", "moved")
"""The statuses of images whose category was decided by a person."""


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
    predicted_by_run = predictions(job.run)
    # A dictionary is an ordered set of names.
    names = {category.category: None for category in choices(job.run)}

    def annotation_of(row: Assignment) -> str:
        if row.status in DECIDED or row.path in overruled:
            return row.category
        return row.label_given

    def prediction_of(row: Assignment) -> tuple[str, float]:
        if row.status in DECIDED and row.path in predicted_by_run:
            return predicted_by_run[row.path]
        return row.category, row.confidence

    def task_of(
        path: str, rows: Sequence[Assignment], results: Callable[[Assignment, str], _Result]
    ) -> dict[str, object]:
        data = {"image": f"/data/local-files/?d={quote(folder + path)}", "path": path}
        if len(rows) == 1:
            data |= {name: getattr(rows[0], name) for name in REVIEW_COLUMNS}
        task: dict[str, object] = {"data": data}
        annotations = [(row, annotation_of(row)) for row in rows]
        annotated = [results(row, name) for row, name in annotations if name]
        if annotated:
            task["annotations"] = [{"result": annotated}]
        # A category that has lost its images is not a choice.
        found = [(row, *prediction_of(row)) for row in rows]
        found = [each for each in found if each[1] in names]
        if found:
            result = [results(row, name) for row, name, _ in found]
            score = sum(confidence for *_, confidence in found) / len(found)
            prediction = {"result": result, "score": round(score, 6)}
            task["predictions"] = [{"model_version": "shoal", **prediction}]
        return task

    if has_boxes(job.rows):
        images = boxed_images(replace(job, rows=job.run.assignments))
        tasks = [task_of(image.path, image.rows, partial(_rectangle, image)) for image in images]
        tags = ("RectangleLabels", "Label")
    else:
        tasks = [task_of(row.path, [row], _choice) for row in job.run.assignments]
        tags = ("Choices", "Choice")
    write_text(job.out / "tasks.json", json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
    items = "\n".join(f"    <{tags[1]} value={quoteattr(name)}/>" for name in names)
    interface = (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <{tags[0]} name="category" toName="image">\n{items}\n  </{tags[0]}>\n</View>\n'
    )
    write_text(job.out / "labels.xml", interface)


def label_studio_steps(job: ExportJob) -> tuple[str, ...]:
    """Return the steps to see the images in Label Studio, line by line."""
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
    if has_boxes(job.rows):
        _to_fiftyone_detections(job)
        return
    labels: dict[str, object] = {}
    rows = []
    pairs = []
    for number, row in enumerate(job.rows):
        name = f"{number:08d}"
        file = f"data/{name}{Path(row.path).suffix}"
        pairs.append((original(job.images, row.path), file))
        labels[name] = None
        if row.category:
            labels[name] = {"label": row.category, "confidence": row.confidence}
        rows.append((file, row.path, *(getattr(row, column) for column in REVIEW_COLUMNS)))
    link_images(pairs, job.out, copy=job.copy)
    _write_fiftyone(job, labels, rows)


def _to_fiftyone_detections(job: ExportJob) -> None:
    labels: dict[str, object] = {}
    rows = []
    pairs = []
    for number, image in enumerate(boxed_images(job)):
        name = f"{number:08d}"
        file = f"data/{name}{Path(image.path).suffix}"
        pairs.append((original(job.images, image.path), file))
        labels[name] = [
            {
                "label": row.category,
                "bounding_box": image.shares(row),
                "confidence": row.confidence,
            }
            for row in image.rows
            if row.category
        ]
        for row in image.rows:
            rows.append((file, row.path, *(getattr(row, column) for column in REVIEW_COLUMNS)))
    link_images(pairs, job.out, copy=job.copy)
    _write_fiftyone(job, labels, rows)


def _write_fiftyone(
    job: ExportJob, labels: dict[str, object], rows: Sequence[Sequence[object]]
) -> None:
    dataset = {"classes": None, "labels": labels}
    write_text(job.out / "labels.json", json.dumps(dataset, ensure_ascii=False, indent=1) + "\n")
    write_text(job.out / "paths.csv", csv_text(("file", "path", *REVIEW_COLUMNS), rows))


def _choice(_row: Assignment, category: str) -> _Result:
    """Return a category as Label Studio stores a choice."""
    return {
        "from_name": "category",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [category]},
    }


def _rectangle(image: BoxedImage, row: Assignment, category: str) -> _Result:
    """Return the category of a box as Label Studio stores a rectangle, in percent."""
    sides = zip(BOX_COLUMNS, image.shares(row), strict=True)
    return {
        "from_name": "category",
        "to_name": "image",
        "type": "rectanglelabels",
        "original_width": image.width,
        "original_height": image.height,
        "value": {
            **{name: 100 * share for name, share in sides},
            "rotation": 0,
            "rectanglelabels": [category],
        },
    }
