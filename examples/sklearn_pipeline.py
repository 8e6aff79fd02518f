"""Discover categories in a scikit-learn pipeline, then predict the categories of unseen rows.

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
    # Half of the digits 0 to 4 are labeled; 5 to 9 are novel.
    y = np.where((truth < 5) & (rng.random(len(truth)) < 0.5), truth, shoal.UNLABELED)
    is_fitted = np.arange(len(x)) < 1500
    model = make_pipeline(PCA(32, random_state=0), shoal.MeanShiftClustering())
    model.fit(x[is_fitted], y[is_fitted])
    clustering = model[-1]
    print(f"{clustering.n_clusters_} clusters, {len(clustering.classes_) - 5} of them novel")
    is_unlabeled = y[is_fitted] == shoal.UNLABELED
    hidden = truth[is_fitted][is_unlabeled]
    print(shoal.gcd_accuracy(hidden, clustering.labels_[is_unlabeled], hidden < 5))
    unseen = model.predict(x[~is_fitted])
    print(f"{len(unseen)} unseen rows, {np.sum(unseen == -1)} of them possibly new")


if __name__ == "__main__":
    main()
