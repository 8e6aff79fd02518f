"""Exports for labeling tools: Label Studio, FiftyOne and readers of COCO."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from shoal.boxes import BOX_COLUMNS
from shoal.discovery.export.detections import BoxedImage, boxed_images
from shoal.discovery.export.export_job import ExportJob, find_overruled, predictions
from shoal.discovery.export.file_names import inside
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
    is_boxed = has_boxes(job.rows)
    result_of = _rectangle if is_boxed else _choice
    choices = [each.category for each in job.run.categories if each.size or not each.is_novel]
    names = dict.fromkeys(choices)  # an ordered set
    tasks = []
    for image in boxed_images(replace(job, rows=job.run.assignments)):
        path = image.path
        data = {"image": f"/data/local-files/?d={quote(folder + path)}", "path": path}
        if len(image.rows) == 1:
            data |= {name: getattr(image.rows[0], name) for name in REVIEW_COLUMNS}
        annotations = []
        found = []
        scores = []
        for row in image.rows:
            annotated = row.label_given
            predicted = (row.category, row.confidence)
            if row.status in DECIDED:
                annotated = row.category
                predicted = predicted_by_run.get(row.path, predicted)
            if row.path in overruled:
                annotated = row.category
            if annotated:
                annotations.append(result_of(image, row, annotated))
            if predicted[0] in names:  # a category that has lost its images is not a choice
                found.append(result_of(image, row, predicted[0]))
                scores.append(predicted[1])
        task: dict[str, object] = {"data": data}
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
    is_boxed = has_boxes(job.rows)
    labels: dict[str, object] = {}
    rows = []
    files = {}
    for number, image in enumerate(boxed_images(job)):
        name = f"{number:08d}"
        file = f"data/{name}{Path(image.path).suffix}"
        files[image.path] = file
        found: list[dict[str, object]] = []
        for row in image.rows:
            rows.append((file, row.path, *(getattr(row, column) for column in REVIEW_COLUMNS)))
            if not row.category:
                continue
            label: dict[str, object] = {"label": row.category, "confidence": row.confidence}
            if is_boxed:
                label["bounding_box"] = image.shares(row)
            found.append(label)
        labels[name] = found
        if not is_boxed:
            labels[name] = found[0] if found else None
    job.link(files)
    dataset = {"classes": None, "labels": labels}
    write_text(job.out / "labels.json", json.dumps(dataset, ensure_ascii=False, indent=1) + "\n")
    write_text(job.out / "paths.csv", csv_text(("file", "path", *REVIEW_COLUMNS), rows))


def _choice(_image: BoxedImage, _row: Assignment, category: str) -> _Result:
    """Return a category as Label Studio stores a choice."""
    return {
        "from_name": "category",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [category]},
    }


def _rectangle(image: BoxedImage, row: Assignment, category: str) -> _Result:
    """Return the category of a box as Label Studio stores a rectangle, in percent."""
    width, height = image.size
    sides = zip(BOX_COLUMNS, image.shares(row), strict=True)
    return {
        "from_name": "category",
        "to_name": "image",
        "type": "rectanglelabels",
        "original_width": width,
        "original_height": height,
        "value": {
            **{name: 100 * share for name, share in sides},
            "rotation": 0,
            "rectanglelabels": [category],
        },
    }
