"""The embedded data: real handwritten digits that ship with scikit-learn, so that a first run
needs no download."""

import numpy as np

from shoal.data.collection import Collection, Truth
from shoal.data.splits import known_novel_split

N_KNOWN_DIGITS = 5
LABELED_SHARE = 0.5


def digits(seed: int = 0) -> tuple[Collection, Truth]:
    """1,797 digits of 8 x 8 pixels: 0 to 4 are known and half of them labeled, 5 to 9 are novel.

    The seed chooses which known digits are labeled. Names say nothing about the class.
    """
    from sklearn.datasets import (
        load_digits,
    )  # a second of import that readers of files need not pay

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8), 0..16 -> 0..255
    true_labels = bunch.target.astype(np.int64)
    names = tuple(f"digit-{i:04d}" for i in range(len(images)))
    classes = tuple(str(digit) for digit in range(10))
    collection = Collection(
        names,
        known_novel_split(true_labels, range(N_KNOWN_DIGITS), LABELED_SHARE, seed=seed),
        classes[:N_KNOWN_DIGITS],
        images=images,
        layout="the embedded handwritten digits of scikit-learn",
    )
    return collection, Truth(names, true_labels, classes, N_KNOWN_DIGITS)
