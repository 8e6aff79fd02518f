"""Ward's tree alone: the same as SciPy's, as an estimator and as a linkage that SciPy's own
functions take.

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
    scipys = linkage(x[:500], "ward")
    print(f"heights as SciPy's: {np.allclose(ours[:, 2], scipys[:, 2])}")
    same = adjusted_rand_score(fcluster(ours, 10, "maxclust"), fcluster(scipys, 10, "maxclust"))
    print(f"the cut at 10 as SciPy's: {same == 1.0}")


if __name__ == "__main__":
    main()
