"""Ready embeddings in a scikit-learn pipeline: scale, reduce, discover; then predict on rows it has
not seen.

python examples/sklearn_pipeline.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline

import shoal


def main() -> None:
    x, truth = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    y = np.where(
        (truth < 5) & (rng.random(len(truth)) < 0.5), truth, -1
    )  # half of 0 to 4 are labeled, 5 to 9 never
    fitted = np.arange(len(x)) < 1500
    model = make_pipeline(PCA(32, random_state=0), shoal.MeanShiftClustering()).fit(
        x[fitted], y[fitted]
    )
    clustering = model[-1]
    print(f"{clustering.n_clusters_} clusters, {len(clustering.classes_) - 5} of them new")
    unlabeled = y[fitted] == -1
    print(
        shoal.gcd_accuracy(
            truth[fitted][unlabeled], clustering.labels_[unlabeled], truth[fitted][unlabeled] < 5
        )
    )
    later = model.predict(x[~fitted])
    print(f"{len(later)} rows that came later: {np.sum(later == -1)} possibly new")


if __name__ == "__main__":
    main()
