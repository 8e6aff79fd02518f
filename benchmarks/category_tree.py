"""Compare the tree of categories with groups of classes, such as the genera of CUB's species.

Dendrogram purity: over all pairs of categories of one group, the mean share of that group below
their lowest common node. A category belongs to the group of most of its images. The same tree with
permuted categories and a tree over the means of the true classes are measured beside it.

    python benchmarks/category_tree.py RUN --truth truth.csv --groups groups.csv

truth.csv has the columns path,label; groups.csv has class,group.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

import numpy as np

from shoal.clustering.category_tree import CategoryTree
from shoal.data.readers import read_labels
from shoal.report.tree_list import category_tree
from shoal.review.reviewed_run import ReviewedRun

N_PERMUTATIONS = 20


def purity(tree: CategoryTree, groups: list[str]) -> float:
    """Return the dendrogram purity of a tree whose leaves are in these groups (K,)."""
    below = [Counter([group]) for group in groups]
    total = 0.0
    n_pairs = 0
    for first, second in tree.linkage[:, :2].astype(int).tolist():
        both = below[first] + below[second]
        for group in below[first].keys() & below[second].keys():
            pairs = below[first][group] * below[second][group]
            total += pairs * both[group] / both.total()
            n_pairs += pairs
        below.append(both)
    return total / n_pairs


def main() -> None:
    """Print a line per tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--groups", type=Path, required=True)
    arguments = parser.parse_args()
    run = ReviewedRun.open(arguments.run)
    truth, _ = read_labels(arguments.truth, run.column("path"))
    with arguments.groups.open(encoding="utf-8", newline="") as file:
        group_of = {row["class"]: row["group"] for row in csv.DictReader(file)}
    classes = np.array([truth[path] for path in run.column("path")])
    names = sorted(set(classes.tolist()))
    rows_of = [np.flatnonzero(classes == name) for name in names]
    found = category_tree(run)
    trees = {"categories": found}
    trees["true classes"] = CategoryTree.of_members(names, rows_of, run.vectors("embeddings"))
    id_of = {row.category: row.category_id for row in run.categories}
    members = [run.members[id_of[name]] for name in found.names]
    largest = [Counter(classes[rows].tolist()).most_common(1)[0][0] for rows in members]
    groups = {"categories": [group_of[name] for name in largest]}
    groups["true classes"] = [group_of[name] for name in names]
    print(
        "| tree | leaves | groups | purity | purity with permuted leaves |\n|---|---|---|---|---|"
    )
    for kind, tree in trees.items():
        in_groups = groups[kind]
        permuted = [
            purity(tree, np.random.default_rng(seed).permutation(in_groups).tolist())
            for seed in range(N_PERMUTATIONS)
        ]
        sizes = f"{len(tree.names)} | {len(set(in_groups))}"
        print(f"| {kind} | {sizes} | {purity(tree, in_groups):.3f} | {np.mean(permuted):.3f} |")


if __name__ == "__main__":
    main()
