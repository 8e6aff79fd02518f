"""Draw the figures of docs/concepts.md from a real run: `make figures`.

The run clusters the pixels of 1,000 handwritten digits, 0 to 4 known and half of them labeled.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from shoal.data.readers.embeddings import Embeddings
from shoal.discovery.results import cluster_embeddings
from shoal.report.figures import write_figures

TARGET = Path(__file__).parent / "images"
WANTED = ("map_pca", "shift_accuracy", "dendrogram", "n_clusters_curve")
N_DIGITS = 1_000
N_KNOWN = 5


def labeled_digits() -> Embeddings:
    """Return the first digits as rows of pixels, with half of those below 5 labeled."""
    found = load_digits()
    rng = np.random.default_rng(0)
    digits = found.target[:N_DIGITS]
    is_labeled = (digits < N_KNOWN) & (rng.random(N_DIGITS) < 0.5)
    return Embeddings(
        names=tuple(f"digit-{row:04d}" for row in range(N_DIGITS)),
        x=found.data[:N_DIGITS],
        labels=np.where(is_labeled, digits, -1),
        classes=tuple(map(str, range(N_KNOWN))),
        rows=np.arange(N_DIGITS),
    )


def main() -> None:
    """Cluster the digits, and copy the figures of the page to docs/images."""
    with tempfile.TemporaryDirectory() as folder:
        run = cluster_embeddings(labeled_digits(), Path(folder) / "run", device="cpu")
        write_figures(run, Path(folder) / "figures")
        for name in WANTED:
            shutil.copy(Path(folder) / "figures" / f"{name}.png", TARGET / f"{name}.png")


if __name__ == "__main__":
    main()
