"""Time reading and decoding boxes in images against single files with the same pixels.

Photographs are pasted below each other, five to an image, and written a second time as single
files, both as JPEG. Both collections are read and decoded in turn, several times.

    python benchmarks/boxes.py PHOTOS FOLDER --boxes 10000 --background 0
"""

import argparse
import csv
import resource
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from shoal.data.collection import Collection
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.data.readers.boxes import BoxOptions

PER_IMAGE = 5

# The longer side of photographs, and the width of canvases
SIDE = 300

PIXELS = 224
N_REPEATS = 3


def write_collections(photos: Path, folder: Path, n_boxes: int, background: int) -> None:
    """Write canvases with boxes.csv, and single files; canvases have rows of background."""
    sources = sorted(path for path in photos.rglob("*") if path.is_file())
    single = folder / "single"
    pasted = folder / "pasted"
    for place in (single, pasted):
        place.mkdir(parents=True)
    rows = []
    for first in range(0, n_boxes, PER_IMAGE):
        canvas = Image.new("RGB", (SIDE, PER_IMAGE * SIDE + background))
        name = f"{first:06d}.jpg"
        y = 0
        for at in range(first, first + PER_IMAGE):
            photo = Image.open(sources[at % len(sources)]).convert("RGB")
            photo.thumbnail((SIDE, SIDE))
            photo.save(single / f"{at:06d}.jpg", quality=90)
            canvas.paste(photo, (0, y))
            rows.append((name, 0, y, *photo.size))
            y += photo.height
        canvas.crop((0, 0, SIDE, y + background)).save(pasted / name, quality=90)
    with (folder / "boxes.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "x", "y", "width", "height"))
        writer.writerows(rows)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished workers so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(folder: Path, *, has_boxes: bool) -> tuple[float, float]:
    """Return the CPU seconds of reading the collection and of decoding it."""
    start = cpu_seconds()
    collection: Collection
    if has_boxes:
        options = BoxOptions(source=folder / "boxes.csv")
        collection = read_collection(folder / "pasted", boxes=options)
    else:
        collection = read_collection(folder / "single")
    read = cpu_seconds()
    with TemporaryDirectory(dir=folder) as cache:  # nothing is decoded already
        load_pixels(collection, PIXELS, cache=cache)
        return read - start, cpu_seconds() - read


def main() -> None:
    """Print a line per repeat and collection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--boxes", type=int, default=10_000)
    parser.add_argument("--background", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.folder.exists():
        write_collections(arguments.photos, arguments.folder, arguments.boxes, arguments.background)
    print("| items | reading, CPU s | decoding, CPU s |\n|---|---|---|")
    for _ in range(N_REPEATS):
        for kind in ("boxes", "files"):
            read, decode = measure(arguments.folder, has_boxes=kind == "boxes")
            print(f"| {kind} | {read:.1f} | {decode:.1f} |", flush=True)


if __name__ == "__main__":
    main()
