"""Photographs of the demo, as single files and pasted onto larger images."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from shoal.boxes import Box, box_name
from shoal.discovery.api import PHOTOS, demo_table

CANVAS = (720, 480)

# Distance between the places of photographs, which are smaller
STEP = (240, 240)


@dataclass(frozen=True)
class Pasted:
    """A photograph in both forms."""

    # The name of the single file
    file: str
    # The image that it was pasted onto
    image: str
    box: Box
    truth: str
    # None if unlabeled
    label: str | None

    @property
    def item(self) -> str:
        return box_name(self.image, self.box)


def paste_photos(single: Path, pasted: Path, n_photos: int, *, seed: int = 0) -> list[Pasted]:
    """Write photographs of the first categories as single files, and three to six to an image."""
    rng = np.random.default_rng(seed)
    truth = demo_table("truth.csv")
    classes = sorted(set(truth.values()))[:5]
    labels = demo_table("labels.csv")
    files = [file for file, label in truth.items() if label in classes][:n_photos]
    for folder in (single, pasted):
        folder.mkdir(parents=True)
    found = []
    while len(found) < len(files):
        image = f"{len(found):03d}.png"
        canvas = Image.new("RGB", CANVAS, "gray")
        places = rng.permutation(6)[: rng.integers(3, 7)].tolist()
        for place, file in zip(places, files[len(found) :], strict=False):
            photo = Image.open(PHOTOS / file).convert("RGB")
            x = place % 3 * STEP[0] + int(rng.integers(20))
            y = place // 3 * STEP[1] + int(rng.integers(20))
            canvas.paste(photo, (x, y))
            photo.save(single / f"{file}.png")
            box = Box(x, y, *photo.size)
            found.append(Pasted(f"{file}.png", image, box, truth[file], labels.get(file)))
        canvas.save(pasted / image)
    return found


def write_coco(file: Path, pasted: list[Pasted]) -> Path:
    """Write COCO's JSON; unlabeled boxes have no category."""
    images = sorted({each.image for each in pasted})
    names = sorted({each.label for each in pasted if each.label is not None})
    width, height = CANVAS
    annotations = []
    for number, each in enumerate(pasted, start=1):
        annotation = {"id": number, "image_id": images.index(each.image), "bbox": list(each.box)}
        if each.label is not None:
            annotation["category_id"] = names.index(each.label) + 1
        annotations.append(annotation)
    content = {
        "images": [
            {"id": i, "file_name": name, "width": width, "height": height}
            for i, name in enumerate(images)
        ],
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(names, start=1)],
    }
    file.write_text(json.dumps(content))
    return file


def write_megadetector(file: Path, pasted: list[Pasted]) -> Path:
    """Write MegaDetector's JSON, with a box of low confidence per image."""
    width, height = CANVAS
    images = []
    for name in sorted({each.image for each in pasted}):
        detections = [{"category": "1", "conf": 0.01, "bbox": [0.0, 0.0, 0.1, 0.1]}]
        for box in (each.box for each in pasted if each.image == name):
            shares = [box.x / width, box.y / height, box.width / width, box.height / height]
            detections.append({"category": "1", "conf": 0.9, "bbox": shares})
        images.append({"file": name, "detections": detections})
    categories = {"1": "animal", "2": "person", "3": "vehicle"}
    content = {"info": {}, "detection_categories": categories, "images": images}
    file.write_text(json.dumps(content))
    return file
