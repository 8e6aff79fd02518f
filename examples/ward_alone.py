"""Cluster by Ward's method, with an estimator and with a linkage matrix in SciPy's format.

python examples/ward_alone.py
"""

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

import shoal


def main() -> None:
    x, truth = load_digits(return_X_y=True)
    labels = shoal.WardClustering(n_clusters=10).fit_predict(x)
    print(f"10 clusters, adjusted Rand index {adjusted_rand_score(truth, labels):.3f}")
    ours = shoal.ward_linkage(x[:500])
    expected = linkage(x[:500], "ward")
    print(f"heights equal SciPy's: {np.allclose(ours[:, 2], expected[:, 2])}")
    agreement = adjusted_rand_score(
        fcluster(ours, 10, "maxclust"), fcluster(expected, 10, "maxclust")
    )
    print(f"10 clusters equal SciPy's: {agreement == 1.0}")


if __name__ == "__main__":
    main()
