"""Agglomerative clustering of frozen features: Ward's tree, cut at K.

The training-free baseline of the CMS paper's Table 1. Labels only estimate K.
"""

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.mean_shift import check_distinct, unit_tree
from shoal.clustering.sums import unit_points
from shoal.methods.method import Discovery, Method, MethodSettings, Representation, to_numpy


def cluster(
    learned: Representation,
    labels: Ints,
    settings: MethodSettings,
    n_clusters: int | None,
) -> Discovery:
    """Cut Ward's tree at K.

    Of `settings.inference`, only `rule`, `min_clusters` and `max_clusters` are used.
    """
    tree = unit_tree(unit_points(learned.embeddings))
    estimate = None
    if n_clusters is None:
        estimate = settings.inference.estimate(tree, labels)
        n_clusters = estimate.n_clusters
    check_distinct(tree, n_clusters)
    clusters = tree.cut(n_clusters)
    is_labeled = labels != UNLABELED
    return Discovery(
        clusters=clusters,
        n_clusters=n_clusters,
        embeddings=to_numpy(learned.embeddings),
        linkage=tree.linkage,
        accuracies=(matched_accuracy(labels[is_labeled], clusters[is_labeled]),),
        estimate=estimate,
    )


METHOD = Method(
    settings=MethodSettings,
    title="Agglomerative",
    cluster=cluster,
    protocols={"shoal": {"inference.estimate_shifts": 0}},  # nothing is shifted
)
