"""Read boxes from a detector or an annotator; each becomes an item in place of its image.

Formats are MegaDetector's JSON, COCO's JSON, tables and YOLO's text files.
"""

import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

import yaml

from shoal.arrays import is_missing
from shoal.boxes import BOX_COLUMNS, Box, box_name, split_name
from shoal.data.pixels.decoding import Unreadable, image_size
from shoal.data.readers.folders import Listing
from shoal.data.readers.tables import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    Row,
    Table,
    class_names,
    image_finder,
    label_images,
    pick_column,
    read_table,
    read_text,
    require_column,
)
from shoal.data.storage import N_REQUESTS, Place, absolute, reading
from shoal.errors import DataError, UsageError, count, first_few

CONFIDENCE_COLUMNS = ("confidence", "conf", "score")

# The default of `min_confidence` for MegaDetector's files that name no typical threshold: the
# default of its own command
TYPICAL_CONFIDENCE = 0.2

# A table whose values are all smaller has relative boxes: fractions of the width and height
RELATIVE_BELOW = 2.0

YOLO_NAMES = ("data.yaml", "classes.txt")

MEGADETECTOR = 'detection: {"file": …, "detections": [{"conf": …, "bbox": [x, y, width, height]}]}'
COCO = 'box: {"image_id": …, "category_id": …, "bbox": [x, y, width, height]} with known ids'
YOLO = (
    "expected 'class x y width height': a named class, then the center and the size of a box as "
    "fractions of the image; polygons are not read"
)


@dataclass(frozen=True, kw_only=True)
class BoxOptions:
    """Boxes that become items, and options for them."""

    # A JSON file of MegaDetector or COCO, a table or data frame, a folder of YOLO's text files, or
    # None
    source: object = None
    # Boxes with a lower confidence are left out. None: MegaDetector's typical threshold, else 0.
    min_confidence: float | None = None
    # Fraction of its width and height by which a box is widened on each side
    margin: float = 0.0
    # Whether images without a box are items
    whole_images: bool = False

    def __post_init__(self) -> None:
        others = (self.min_confidence, self.margin, self.whole_images)
        if self.source is None and others != (None, 0.0, False):
            raise UsageError("min_confidence, margin and whole_images: only with boxes")
        if not 0 <= self.margin < math.inf:
            raise UsageError(f"margin: found {self.margin}, expected 0 or more, such as 0.1")
        if not 0 <= (self.min_confidence or 0) <= 1:
            raise UsageError(
                f"min_confidence: found {self.min_confidence}, expected a number from 0 to 1"
            )


NO_BOXES = BoxOptions()


class FoundBox(NamedTuple):
    """A box as a file describes it."""

    path: object
    # The left upper corner, the width and the height
    sides: Sequence[float]
    # Its place in the file, for messages
    location: str
    label: object
    confidence: float | None
    # The width and height that the file states for the image
    image_size: tuple[object, object] | None = None
    # Whether sides are shares of the width and height of the image
    is_relative: bool = False
    # What MegaDetector has found, such as an animal; not a label
    kind: str = ""


def add_boxes(listing: Listing, options: BoxOptions, *, allow_missing: bool) -> None:
    """Replace images by boxes, if these are given, and labels by those of boxes if any has one.

    Boxes that are empty, outside their image or in an unreadable image are left out. Raise for an
    invalid box, a box with two labels and, unless `allow_missing`, many boxes in missing images.
    """
    if options.source is None:
        return
    refuse_boxes(options, has_files=listing.stored is None)
    folder = None
    if isinstance(options.source, str | os.PathLike):
        folder = absolute(options.source).parent
    boxes = _read_source(options, listing)
    find = image_finder(listing.names, listing.root, folder)
    images = [find(box.path, box.location) for box in boxes]
    sizes = _read_sizes(sorted({image for image in images if image is not None}), listing.root)
    names = class_names([box.label for box in boxes], lambda i: boxes[i].location)
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for box, image, label in zip(boxes, images, names, strict=True):
        item = None
        if image is not None:
            try:
                item = box_name(image, _clip(box, sizes[image], options.margin))
            except Unreadable as error:
                values = ",".join(f"{value:g}" for value in box.sides)
                skipped[f"{image}#xywh={values}"] = f"{error} ({box.location})"
                continue
        rows.append((f"{box.location}: {item or box.path}", item, label))
    labels, notes = label_images(rows, allow_missing=allow_missing)
    listing.notes += notes
    if skipped:
        reasons = first_few([f"{name}: {reason}" for name, reason in skipped.items()], 3, "; ")
        listing.notes.append(f"{count(len(skipped), 'box')} skipped ({reasons})")
        listing.left_out |= skipped
    if not labels:
        raise DataError(
            f"boxes: found none in the images of {listing.root}; "
            f"{'; '.join(listing.notes) or 'are the paths of the boxes relative to that folder?'}"
        )
    boxed = {split_name(name)[0] for name in labels}
    without = [name for name in listing.names if name not in boxed]
    listing.notes.append(f"{count(len(labels), 'box')} in {count(len(boxed), 'image')}")
    kinds = Counter(box.kind for box in boxes if box.kind)
    if kinds:
        counts = ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common())
        listing.notes.append(f"detections, not used as labels: {counts}")
    listing.images = listing.names
    listing.names = sorted(labels)
    if options.whole_images:
        listing.names = sorted([*labels, *without])
    elif without:
        n_without = count(len(without), "image")
        listing.notes.append(
            f"{n_without} without a box: left out; --whole-images adds such images"
        )
    if any(labels.values()):
        listing.labels = labels


def refuse_boxes(options: BoxOptions, *, has_files: bool) -> None:
    if options.source is not None and not has_files:
        raise UsageError("boxes: found images that are not local files; give a local folder")


def _read_sizes(
    images: Sequence[str], root: object
) -> Mapping[str | None, tuple[int, int] | Unreadable]:
    """Return the width and height of each upright image, or why it cannot be read."""

    def read(name: str) -> tuple[int, int] | Unreadable:
        try:
            return image_size(f"{root}/{name}")
        except Unreadable as error:
            return error

    with warnings.catch_warnings(), ThreadPoolExecutor(N_REQUESTS) as threads:
        warnings.simplefilter("ignore")  # Pillow warns of large images
        return dict(zip(images, threads.map(read, images), strict=True))


def _clip(box: FoundBox, size: tuple[int, int] | Unreadable, margin: float) -> Box:
    """Return a widened box in pixels, inside the image; raise `Unreadable` if nothing is left, or
    if the image is not one of the size that the file states."""
    if isinstance(size, Unreadable):
        raise size
    if box.image_size not in (None, size):
        raise Unreadable(f"the image, turned upright, has the size {size}, not {box.image_size}")
    edges = []
    for start, length, limit in zip(box.sides[:2], box.sides[2:], size, strict=True):
        scale = limit if box.is_relative else 1
        # Clipped before rounding, because the ends of a huge box may be infinite.
        first = round(min(max((start - margin * length) * scale, 0), limit))
        last = round(min(max((start + (1 + margin) * length) * scale, 0), limit))
        if length <= 0 or first == last:
            raise Unreadable("the box is empty, outside the image, or smaller than a pixel")
        edges.append((first, last - first))
    (x, width), (y, height) = edges
    return Box(x, y, width, height)


def _found(
    path: object,
    sides: Iterable[object],
    location: str,
    label: object = None,
    confidence: object = None,
) -> FoundBox:
    x, y, width, height = (_number(side, location) for side in sides)
    certainty = None
    if not is_missing(confidence) and confidence != "":
        certainty = _number(confidence, location)
    return FoundBox(path, (x, y, width, height), location, label, certainty)


def _number(cell: object, location: str) -> float:
    value = math.nan
    with suppress(TypeError, ValueError):
        value = float(cell)  # type: ignore[arg-type]
    if not math.isfinite(value):
        raise DataError(f"{location}: found {str(cell)[:40]!r} in a box, expected a number")
    return value


def _read_source(options: BoxOptions, listing: Listing) -> list[FoundBox]:
    """Read boxes in any format, without those of a lower confidence."""
    source = options.source
    least = options.min_confidence or 0.0
    if not isinstance(source, str | os.PathLike):
        boxes = _read_columns(read_table(source))
    elif Path(source).is_dir():
        boxes = [*_read_yolo(Path(source), listing)]
    elif absolute(source).suffix.lower() == ".json":
        boxes, typical = _read_json(absolute(source))
        if options.min_confidence is None:
            least = typical
    else:
        boxes = _read_columns(read_table(source))
    if options.min_confidence is not None and all(box.confidence is None for box in boxes):
        raise UsageError("min_confidence: the boxes have no confidence; leave it out")
    kept = [box for box in boxes if box.confidence is None or box.confidence >= least]
    if len(kept) < len(boxes):
        n_unsure = count(len(boxes) - len(kept), "box")
        listing.notes.append(f"{n_unsure} with a confidence below {least:g}: left out")
    return kept


def _read_columns(table: Table) -> list[FoundBox]:
    accepted = (PATH_COLUMNS, *((name,) for name in BOX_COLUMNS))
    required = [table.columns[require_column(table, names, None, names[0])] for names in accepted]
    no_cells = [None] * len(table)
    labels, confidences = (
        table.columns.get(pick_column(table.columns, names, None, table.where) or "", no_cells)
        for names in (LABEL_COLUMNS, CONFIDENCE_COLUMNS)
    )
    boxes = [
        _found(path, sides, table.location(i), labels[i], confidences[i])
        for i, (path, *sides) in enumerate(zip(*required, strict=True))
    ]
    is_relative = all(max(box.sides) < RELATIVE_BELOW for box in boxes)
    return [box._replace(is_relative=is_relative) for box in boxes]


def _read_json(path: Place) -> tuple[list[FoundBox], float]:
    """Read a JSON file of MegaDetector or COCO; return its boxes, and the default minimum
    confidence."""
    text = read_text(path)
    with reading(path, "JSON file of MegaDetector or COCO"):
        content = json.loads(text)
        if "annotations" in content:
            return [*_coco(path.name, content)], 0.0
        metadata = (content.get("info") or {}).get("detector_metadata") or {}
        typical = float(metadata.get("typical_detection_threshold", TYPICAL_CONFIDENCE))
        return [*_megadetector(path.name, content)], typical


def _megadetector(file: str, content: Mapping[str, Any]) -> Iterator[FoundBox]:
    """Yield the boxes of MegaDetector; its categories (animal, person, vehicle) are not labels."""
    kinds = {key: str(name) for key, name in (content.get("detection_categories") or {}).items()}
    for number, image in enumerate(content["images"]):
        location = f"{file}, image {number}"
        with reading(PurePath(location), MEGADETECTOR):
            for box in image.get("detections") or ():  # None: the image could not be read
                found = _found(image["file"], box["bbox"], location, None, box["conf"])
                kind = kinds.get(box.get("category"), "")
                yield found._replace(is_relative=True, kind=kind)


def _coco(file: str, content: Mapping[str, Any]) -> Iterator[FoundBox]:
    """Yield the boxes of COCO's annotations; their categories are labels."""
    images = {image["id"]: image for image in content["images"]}
    names = {each["id"]: each["name"] for each in content.get("categories") or ()}
    names[None] = None  # an annotation without a category is unlabeled
    for number, box in enumerate(content["annotations"]):
        location = f"{file}, annotation {number}"
        with reading(PurePath(location), COCO):
            image = images[box["image_id"]]
            label = names[box.get("category_id")]
            found = _found(image["file_name"], box["bbox"], location, label, box.get("score"))
            if image.get("width") and image.get("height"):
                found = found._replace(image_size=(image["width"], image["height"]))
            yield found


def _read_yolo(folder: Path, listing: Listing) -> Iterator[FoundBox]:
    """Read the boxes of each image that has a text file: a.txt for a.jpg, or labels/a.txt for
    images/a.jpg."""
    classes = _yolo_names(folder)
    files = {
        file.relative_to(folder).with_suffix("").as_posix()
        for file in folder.rglob("*.txt")
        if file.name != "classes.txt"
    }
    used = set[str]()
    for image in listing.names:
        stem = PurePosixPath(image).with_suffix("").as_posix()
        # The last folder named 'images' becomes 'labels', as in YOLO.
        beside = re.sub("^(.*/)?images/", r"\1labels/", stem)
        name = next((name for name in (stem, beside, f"labels/{stem}") if name in files), None)
        if name is None:
            continue
        used.add(name)
        for number, line in enumerate(read_text(folder / f"{name}.txt").split("\n"), start=1):
            cells = line.split()
            location = f"{name}.txt, line {number}"
            if not cells:
                continue
            if len(cells) not in (5, 6) or (classes and cells[0] not in classes):
                raise DataError(f"{location}: found {line!r:.60}, {YOLO}")
            label = classes.get(cells[0], cells[0])
            confidence = next(iter(cells[5:]), None)
            found = _found(f"{listing.root}/{image}", cells[1:5], location, label, confidence)
            x, y, width, height = found.sides
            sides = (x - width / 2, y - height / 2, width, height)
            yield found._replace(sides=sides, is_relative=True)
    unused = sorted(files - used)
    if unused:
        listing.notes.append(
            f"{count(len(unused), 'text file')} without an image: {first_few(unused)}"
        )


def _yolo_names(folder: Path) -> dict[str, str]:
    """Return the name of each class id from data.yaml or classes.txt; empty without them."""
    places = (folder, folder / "labels", folder.parent)
    candidates = [place / name for name in YOLO_NAMES for place in places]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        return {}
    with reading(file, "file with 'names', a list of the classes"):
        text = read_text(file)
        names: Any = text.split("\n")
        if file.suffix == ".yaml":
            names = yaml.safe_load(text)["names"]
        if not isinstance(names, dict):
            names = dict(enumerate(names))
        return {str(number): str(name).strip() for number, name in names.items()}
