"""Exports for labeling tools: Label Studio, and FiftyOne."""

import json
import shlex
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from shoal.discovery.export.export_job import Job, choices, contradicted, found_by_run
from shoal.discovery.export.file_names import inside, original, put_all
from shoal.discovery.export.imagefolder import DECIDED, decided
from shoal.files import write_text
from shoal.runs import csv_text

DECIDED_ON = ("confirmed", "moved")
"""The statuses of images whose category is a person's word."""


def to_label_studio(job: Job) -> None:
    """tasks.json with what was found of every image as a prediction, and as an annotation what a
    person has said of it.

    That is the category they have confirmed, moved or split it into, else the label it came with
    unless they have rejected it. The prediction for an image that somebody decided on is what the
    run itself has found.

    Label Studio serves files below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, and of these only what
    lies in a storage of the project, which cannot be that folder itself. So images are named from
    the folder above theirs on. labels.xml is the labeling interface that goes with the tasks.
    """
    folder = ""
    if job.root is not None:
        folder = f"{job.root.name}/"
        for row in job.run.assignments:
            inside(job.root, row.path)
    overruled = contradicted(job.run)
    offered = choices(job.run)
    own = found_by_run(job.run)
    names = {category.category for category in offered}
    tasks = []
    for row in job.run.assignments:
        said = row.label_given
        predicted = (row.category, row.confidence)
        if row.status in DECIDED_ON:
            predicted = own.get(row.path, predicted)
        if row.status in DECIDED_ON or row.path in overruled:
            said = row.category
        who = dict(zip(DECIDED, decided(row), strict=True))
        url = f"/data/local-files/?d={quote(folder + row.path)}"
        task: dict[str, object] = {"data": {"image": url, "path": row.path, **who}}
        if said:
            task["annotations"] = [{"result": [_choice(said)]}]
        if predicted[0] in names:  # one that has lost its images is no choice
            score = round(predicted[1], 6)
            prediction = {"result": [_choice(predicted[0])], "score": score}
            task["predictions"] = [{"model_version": "shoal", **prediction}]
        tasks.append(task)
    write_text(job.out / "tasks.json", json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
    listed = "\n".join(
        f"    <Choice value={quoteattr(category.category)}/>" for category in offered
    )
    view = (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="category" toName="image">\n{listed}\n  </Choices>\n</View>\n'
    )
    write_text(job.out / "labels.xml", view)


def label_studio_steps(job: Job) -> tuple[str, ...]:
    """What to do to see the images in Label Studio, line by line."""
    root = job.root or Path("/the/folder/of/the/images")
    return (
        "to see the images in Label Studio, which serves local files only when told:",
        "  export LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true",
        f"  export LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={shlex.quote(str(root.parent))}",
        "  label-studio start",
        f"  in a new project, Labeling Setup, Custom template: paste {job.out / 'labels.xml'}",
        "  Settings, Cloud Storage, Add Source Storage, Local files: "
        f"absolute path {root}; add it, do not sync",
        f"  Import: {job.out / 'tasks.json'}",
    )


def to_fiftyone(job: Job) -> None:
    """FiftyOne's image classification layout: data/, labels.json with confidences, and paths.csv.

    That has the origin of each file and who decided on it. Files are numbered, because FiftyOne
    tells images apart by their name without its suffix.
    """
    labels: dict[str, dict[str, object] | None] = {}
    paths = []
    pairs = []
    for number, row in enumerate(job.rows):
        name = f"{number:08d}"
        file = f"data/{name}{Path(row.path).suffix}"
        pairs.append((original(job.images, row.path), file))
        labels[name] = None
        if row.category:
            labels[name] = {"label": row.category, "confidence": row.confidence}
        paths.append((file, row.path, *decided(row)))
    put_all(pairs, job.out, job.linking)
    dataset = {"classes": None, "labels": labels}
    write_text(job.out / "labels.json", json.dumps(dataset, ensure_ascii=False, indent=1) + "\n")
    write_text(job.out / "paths.csv", csv_text(("file", "path", *DECIDED), paths))


def _choice(category: str) -> dict[str, object]:
    """A category as Label Studio writes what was chosen."""
    choice: dict[str, object] = {"from_name": "category", "to_name": "image", "type": "choices"}
    return {**choice, "value": {"choices": [category]}}
