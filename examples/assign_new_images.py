"""Images that come later: put them into the categories of a finished run, or hear that they may be new.

python examples/assign_new_images.py
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import shoal
from shoal.data.digits import digits
from shoal.data.readers import read_collection


def main() -> None:
    collection, truth = digits()
    images, names = np.asarray(collection.images), np.array([*truth.classes, "unlabeled"])
    labels = names[collection.labels]  # -1 is the last of them
    with tempfile.TemporaryDirectory() as folder:
        run = shoal.discover(
            images[:300], labels=list(labels[:300]), out=Path(folder) / "run", train=False, input_size=40, pixel_size=40
        )
        assigner = run.assigner(device="cpu")  # loads the model once; call it as often as images come
        for first in (300, 350):
            rows, _unreadable = assigner.assign_images(read_collection(images[first : first + 50]))
            counts = Counter(row.category or "possibly new" for row in rows)
            print(f"images {first} to {first + 49}: {dict(counts.most_common(4))}")
        noise = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
        rows, _unreadable = assigner.assign_images(read_collection(noise))
        print(
            f"noise: outlier scores {[round(row.outlier_score, 2) for row in rows]}, threshold {assigner.threshold:.2f}"
        )


if __name__ == "__main__":
    main()
