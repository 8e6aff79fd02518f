"""Discover the categories of a folder of images, some of them labeled in a table.

The images are handwritten digits, saved as files. Half of the digits 0 to 2 are labeled; 3 and 4
are novel.
    python examples/folder_with_csv.py
"""

import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

import shoal

FAST = {"input_size": 40, "pixel_size": 40, "train": False}  # a result in seconds


def write_photos(folder: Path) -> None:
    digits = load_digits(n_class=5)
    folder.mkdir()
    rows = ["path,label"]
    for i, (image, digit) in enumerate(zip(digits.images[:100], digits.target[:100], strict=True)):
        Image.fromarray((image * 15.9).astype("uint8")).save(folder / f"{i:03d}.png")
        if digit < 3 and i % 2 == 0:
            rows.append(f"{i:03d}.png,{digit}")
    (folder.parent / "labels.csv").write_text("\n".join(rows))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_photos(work / "photos")
        run = shoal.discover(work / "photos", labels=work / "labels.csv", out=work / "run", **FAST)
        print(f"{run.n_clusters} categories")
        for category in run.categories:
            kind = "novel" if category.is_novel else "known"
            images = f"{category.size:>3} images, such as {category.exemplars[:1]}"
            print(f"  {category.category:<10} {kind:<6} {images}")
        first = run.assignments[0]
        print(f"report: {run.report().name}, {first.path} -> {first.category}")


if __name__ == "__main__":
    main()
