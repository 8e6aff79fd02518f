from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch.nn import functional as F

from method_runs import run_method
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.tree import Tree
from shoal.encoders.vision import embed
from shoal.errors import TooFewDistinct
from shoal.methods import agglomerative as module
from shoal.methods.method import MethodSettings, Representation
from shoal.methods.registry import get_method

CPU = torch.device("cpu")
agglomerative = partial(run_method, "agglomerative")
represent = get_method("agglomerative").represent


def test_it_is_scipys_ward_of_the_frozen_features(task, tiny_encoder):
    found = agglomerative(replace(task, n_clusters=5), MethodSettings())
    features = embed(task.pixels, tiny_encoder("tiny")).double().numpy()
    expected = fcluster(linkage(features, "ward"), 5, "maxclust")
    assert matched_accuracy(expected, found.clusters) == 1


def test_the_number_of_clusters_is_estimated_on_all_labels(task, tiny_encoder):
    """K is what the rule estimates on scipy's tree with all labels, and differs without those of
    one class."""
    features = F.normalize(embed(task.pixels, tiny_encoder("tiny")).double(), dim=1).numpy()
    tree = Tree(linkage(features, "ward"))
    fewer = np.where(task.labels == 1, -1, task.labels)
    expected = [estimate_n_clusters(tree, labels).n_clusters for labels in (task.labels, fewer)]
    found = [
        agglomerative(replace(task, labels=labels), MethodSettings())
        for labels in (task.labels, fewer)
    ]
    assert [one.n_clusters for one in found] == expected
    assert [len(np.unique(one.clusters)) for one in found] == expected
    assert expected[0] != expected[1]


def test_hidden_labels_have_no_way_in(task, truth):
    """The method receives only the labels of labeled images; with K given, clusters do not depend
    even on these."""
    bare = replace(task, labels=np.full(100, -1), n_clusters=5)
    settings = MethodSettings()
    first = agglomerative(bare, settings)
    second = agglomerative(replace(task, n_clusters=5), settings)
    assert np.array_equal(first.clusters, second.clusters)


def test_copies_are_not_parted_by_their_place_in_the_file():
    """Six different rows, five copies each: copies share one of six clusters, and nine clusters are
    refused."""
    rows = torch.as_tensor(np.random.default_rng(0).normal(size=(6, 4))).repeat(5, 1)
    learned = Representation(embeddings=rows, embed=lambda pixels: rows)
    nobody = np.full(30, -1)
    found = module.cluster(learned, nobody, MethodSettings(), 6)
    assert found.clusters.tolist() == list(range(6)) * 5
    with pytest.raises(
        TooFewDistinct, match=r"n_clusters: found 9 with 6 distinct rows among 30 embeddings"
    ):
        module.cluster(learned, nobody, MethodSettings(), 9)
