"""Exports for object detection: COCO and YOLO. A whole image is a box of its size."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

import yaml

from shoal.boxes import Box, split_name
from shoal.data.pixels.decoding import Unreadable, image_size
from shoal.discovery.export.export_job import ExportJob
from shoal.discovery.export.file_names import link_images, original
from shoal.discovery.export.imagefolder import REVIEW_COLUMNS, to_yolo_folders
from shoal.errors import DataError
from shoal.files import make_folder, write_text
from shoal.runs import Assignment, has_boxes


@dataclass(frozen=True)
class BoxedImage:
    """An image and the rows of its boxes."""

    path: str
    width: int
    height: int
    rows: list[Assignment]

    def box(self, row: Assignment) -> Box:
        """Return the box of a row."""
        return row.box or Box(0, 0, self.width, self.height)

    def shares(self, row: Assignment) -> tuple[float, float, float, float]:
        """Return left, top, width and height of the box of a row as shares of the image."""
        box = self.box(row)
        return (
            box.x / self.width,
            box.y / self.height,
            box.width / self.width,
            box.height / self.height,
        )


def boxed_images(job: ExportJob) -> Iterator[BoxedImage]:
    """Yield each image with its size and rows; raise if it cannot be read."""
    for path, rows in groupby(job.rows, lambda row: split_name(row.path)[0]):
        file = original(job.images, path)
        try:
            width, height = image_size(str(file))
        except Unreadable as error:
            raise DataError(f"{file}: {error}") from error
        yield BoxedImage(path, width, height, list(rows))


def to_coco(job: ExportJob) -> None:
    """Write annotations.json in the format of COCO, with an annotation per row that has a category;
    file names are relative to the folder of the images.

    Ids start at 1, because 0 is the background for many readers.
    """
    images = []
    annotations: list[dict[str, object]] = []
    ids = {each.category: number for number, each in enumerate(job.categories, start=1)}
    for number, image in enumerate(boxed_images(job), start=1):
        size = {"width": image.width, "height": image.height}
        images.append({"id": number, "file_name": image.path, **size})
        for row in image.rows:
            if not row.category:
                continue
            box = image.box(row)
            annotation: dict[str, object] = {
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
            annotations.append(annotation)
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
    pairs = []
    written: dict[str, str] = {}
    for image in boxed_images(job):
        pairs.append((original(job.images, image.path), f"images/{image.path}"))
        lines = []
        for row in image.rows:
            x, y, width, height = image.shares(row)
            numbers = (x + width / 2, y + height / 2, width, height)
            if row.category:
                lines.append(f"{ids[row.category]} {' '.join(f'{n:.8f}' for n in numbers)}\n")
        name = f"labels/{PurePosixPath(image.path).with_suffix('.txt')}"
        if name in written:
            raise DataError(
                f"{image.path}: YOLO cannot tell it from {written[name]}; rename one of the images"
            )
        written[name] = image.path
        make_folder((job.out / name).parent)
        write_text(job.out / name, "".join(lines))
    link_images(pairs, job.out, copy=job.copy)
    content = {"train": "images", "val": "images", "names": {i: name for name, i in ids.items()}}
    write_text(job.out / "data.yaml", yaml.safe_dump(content, allow_unicode=True, sort_keys=False))
