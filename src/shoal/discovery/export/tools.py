"""Exports for labeling tools: Label Studio, and FiftyOne."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from shoal.discovery.export.imagefolder import table
from shoal.discovery.export.names import Linking, original, put
from shoal.files import write_text
from shoal.runs import Assignment, Run


def to_label_studio(run: Run, root: Path, out: Path, linking: Linking) -> None:
    """tasks.json with a category for every image, a given label as an annotation and any other as a prediction.

    Images are named by their path below the folder that Label Studio serves (LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT),
    which is the folder of the run's images. labels.xml is the labeling interface that goes with the tasks.
    """
    tasks = [_task(row) for row in run.assignments]
    write_text(out / "tasks.json", json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
    choices = "\n".join(f"    <Choice value={quoteattr(category.category)}/>" for category in run.categories)
    view = (
        f'  <Image name="image" value="$image"/>\n  <Choices name="category" toName="image">\n{choices}\n  </Choices>'
    )
    write_text(out / "labels.xml", f"<View>\n{view}\n</View>\n")


def to_fiftyone(run: Run, root: Path, out: Path, linking: Linking) -> None:
    """FiftyOne's image classification layout: data/, labels.json with confidences, and paths.csv for their origin.

    Files are numbered, because FiftyOne tells images apart by their name without its suffix.
    """
    labels, paths = {}, []
    for number, row in enumerate(run.assignments):
        name = f"{number:08d}"
        file = f"data/{name}{Path(row.path).suffix}"
        put(original(root, row.path), out / file, linking)
        labels[name] = {"label": row.category, "confidence": row.confidence}
        paths.append((file, row.path))
    found = {"classes": None, "labels": labels}
    write_text(out / "labels.json", json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    write_text(out / "paths.csv", table(("file", "path"), paths))


def _task(row: Assignment) -> dict[str, Any]:
    choice = {"from_name": "category", "to_name": "image", "type": "choices"}
    task: dict[str, Any] = {"data": {"image": f"/data/local-files/?d={quote(row.path)}", "path": row.path}}
    if row.label_given:
        task["annotations"] = [{"result": [{**choice, "value": {"choices": [row.label_given]}}]}]
    predicted = {"result": [{**choice, "value": {"choices": [row.category]}}], "score": round(row.confidence, 6)}
    task["predictions"] = [{"model_version": "shoal", **predicted}]
    return task
