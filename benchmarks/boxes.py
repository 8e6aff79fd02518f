"""Time reading and decoding boxes in images against single files with the same pixels.

Photographs are pasted onto canvases, five to an image, and written a second time as single files,
both as JPEG. Both collections are read and decoded in turn, several times.

    python benchmarks/boxes.py PHOTOS FOLDER --boxes 10000
"""

import argparse
import csv
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from shoal.data.collection import Collection
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.data.readers.boxes import BoxOptions

PER_IMAGE = 5
SIDE = 300
"""Photographs are cropped to this size; a canvas has three columns and two rows."""

PIXELS = 224
N_REPEATS = 3


def write_collections(photos: Path, folder: Path, n_boxes: int) -> None:
    """Write canvases with boxes.csv, and single files."""
    sources = sorted(path for path in photos.rglob("*") if path.is_file())
    single = folder / "single"
    pasted = folder / "pasted"
    for place in (single, pasted):
        place.mkdir(parents=True)
    rows = []
    for first in range(0, n_boxes, PER_IMAGE):
        canvas = Image.new("RGB", (3 * SIDE, 2 * SIDE))
        name = f"{first:06d}.jpg"
        for at in range(PER_IMAGE):
            photo = Image.open(sources[(first + at) % len(sources)]).convert("RGB")
            photo.thumbnail((SIDE, SIDE))
            photo.save(single / f"{first + at:06d}.jpg", quality=90)
            x = at % 3 * SIDE
            y = at // 3 * SIDE
            canvas.paste(photo, (x, y))
            rows.append((name, x, y, *photo.size))
        canvas.save(pasted / name, quality=90)
    with (folder / "boxes.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "x", "y", "width", "height"))
        writer.writerows(rows)


def measure(folder: Path, *, has_boxes: bool) -> tuple[float, float]:
    """Return the seconds of reading the collection and of decoding it."""
    start = time.perf_counter()
    collection: Collection
    if has_boxes:
        options = BoxOptions(source=folder / "boxes.csv")
        collection = read_collection(folder / "pasted", boxes=options)
    else:
        collection = read_collection(folder / "single")
    read = time.perf_counter()
    with TemporaryDirectory(dir=folder) as cache:  # nothing is decoded already
        load_pixels(collection, PIXELS, cache=cache)
        return read - start, time.perf_counter() - read


def main() -> None:
    """Print a line per repeat and collection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--boxes", type=int, default=10_000)
    arguments = parser.parse_args()
    if not arguments.folder.exists():
        write_collections(arguments.photos, arguments.folder, arguments.boxes)
    print("| items | reading, s | decoding, s |\n|---|---|---|")
    for _ in range(N_REPEATS):
        for kind in ("boxes", "files"):
            read, decode = measure(arguments.folder, has_boxes=kind == "boxes")
            print(f"| {kind} | {read:.1f} | {decode:.1f} |", flush=True)


if __name__ == "__main__":
    main()
