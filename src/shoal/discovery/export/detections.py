"""Exports for object detection: COCO and YOLO. A whole image is a box of its size."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import yaml

from shoal.boxes import Box, split_name
from shoal.data.pixels.decoding import Unreadable, image_size
from shoal.discovery.export.export_job import ExportJob
from shoal.discovery.export.file_names import original
from shoal.discovery.export.imagefolder import REVIEW_COLUMNS, to_yolo_folders
from shoal.errors import DataError
from shoal.files import make_folder, write_text
from shoal.runs import Assignment, has_boxes


@dataclass(frozen=True, eq=False)
class BoxedImage:
    """An image and the rows of its boxes, or its own row."""

    job: ExportJob
    path: str
    rows: list[Assignment]

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height; raise if the image cannot be read."""
        file = original(self.job.images, self.path)
        try:
            return image_size(str(file))
        except Unreadable as error:
            raise DataError(f"{file}: {error}") from error

    def box(self, row: Assignment) -> Box:
        """Return the box of a row."""
        return row.box or Box(0, 0, *self.size)

    def shares(self, row: Assignment) -> list[float]:
        """Return left, top, width and height of the box of a row as shares of the image."""
        return [side / whole for side, whole in zip(self.box(row), self.size * 2, strict=True)]


def boxed_images(job: ExportJob) -> Iterator[BoxedImage]:
    """Yield each image with its rows."""
    for path, rows in groupby(job.rows, lambda row: split_name(row.path)[0]):
        yield BoxedImage(job, path, list(rows))


def to_coco(job: ExportJob) -> None:
    """Write annotations.json in the format of COCO, with an annotation per row that has a category;
    file names are relative to the folder of the images.

    Ids start at 1, because 0 is the background for many readers.
    """
    images = []
    annotations: list[dict[str, object]] = []
    ids = {each.category: number for number, each in enumerate(job.categories, start=1)}
    for number, image in enumerate(boxed_images(job), start=1):
        width, height = image.size
        images.append({"id": number, "file_name": image.path, "width": width, "height": height})
        for row in image.rows:
            if not row.category:
                continue
            box = image.box(row)
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
    for image in boxed_images(job):
        files[image.path] = f"images/{image.path}"
        lines = []
        for row in image.rows:
            x, y, width, height = image.shares(row)
            numbers = (x + width / 2, y + height / 2, width, height)
            if row.category:
                lines.append(f"{ids[row.category]} {' '.join(f'{n:.8f}' for n in numbers)}\n")
        file = (job.out / "labels" / image.path).with_suffix(".txt")
        if file.exists():
            raise DataError(
                f"{image.path}: YOLO cannot tell it from another image of this name; rename one of "
                "them"
            )
        make_folder(file.parent)
        write_text(file, "".join(lines))
    job.link(files)
    content = {"train": "images", "val": "images", "names": {i: name for name, i in ids.items()}}
    write_text(job.out / "data.yaml", yaml.safe_dump(content, allow_unicode=True, sort_keys=False))
