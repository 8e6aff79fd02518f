"""Assign new images to the categories of a finished run; outliers are possibly new.

The images are handwritten digits, saved as files. Half of the digits 0 to 4 are labeled; 5 to 9 are
novel.
    python examples/assign_new_images.py
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import shoal


def write_images(images, folder: Path) -> Path:
    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i:03d}.png")
    return folder


def main() -> None:
    digits = load_digits()
    images = (digits.images * 15.9).astype("uint8")
    labels = [
        str(digit) if digit < 5 and i % 2 == 0 else None
        for i, digit in enumerate(digits.target[:300])
    ]
    noise = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run = shoal.discover(
            images[:300],
            labels=labels,
            out=work / "run",
            train=False,
            input_size=40,
            pixel_size=40,
            verbose=False,
        )
        assigner = run.assigner()  # loads the model once for all calls
        for first in (300, 350):
            rows, _unreadable = assigner.assign(
                write_images(images[first : first + 50], work / f"from-{first}")
            )
            counts = Counter(row.category or "possibly new" for row in rows)
            print(f"images {first} to {first + 49}: {dict(counts.most_common(4))}")
        rows, _unreadable = assigner.assign(write_images(noise, work / "noise"))
        scores = [round(row.outlier_score, 2) for row in rows]
        print(f"noise: outlier scores {scores}, threshold {assigner.threshold:.2f}")


if __name__ == "__main__":
    main()
