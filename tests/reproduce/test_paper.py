import pytest

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce.experiments import EXPERIMENTS, FIGURES
from shoal.reproduce.paper import MISPRINTS, PAPER

OWN = ("Agglomerative + IMS, K given", "Agglomerative + IMS, K estimated", "(0) frozen, IMS")
"""Rows of ours that the paper does not have."""

TABLES = [name for name, experiment in EXPERIMENTS.items() if experiment.measure not in FIGURES]


def test_all_seventeen_tables_and_three_figures_are_there():
    assert TABLES == list(PAPER) == [str(number) for number in range(1, 18)]
    assert [name for name in EXPERIMENTS if name not in TABLES] == [
        "iterations",
        "retrieval",
        "tsne",
    ]


@pytest.mark.parametrize("name", TABLES)
def test_rows_and_datasets_of_a_table_are_those_the_paper_prints(name):
    experiment = EXPERIMENTS[name]
    assert [row.name for row in experiment.rows if row.name not in OWN] == list(PAPER[name])
    assert (
        {dataset for row in PAPER[name].values() for dataset in row}
        <= set(experiment.datasets)
        <= set(BENCHMARKS)
    )


def test_all_lies_between_known_and_novel_but_for_the_misprint():
    """A mean of two groups lies between them; rounding may add 0.1. One printed row does not."""
    wrong = [
        (table, row, dataset)
        for table, rows in PAPER.items()
        for row, datasets in rows.items()
        for dataset, values in datasets.items()
        if len(values) == 3 and not min(values[1:]) - 0.1 <= values[0] <= max(values[1:]) + 0.1
    ]
    assert wrong == [("6", "random, mean", "imagenet100")]
    assert "6" in MISPRINTS


KNOWN = {
    "cifar100": 20_000 / 30_000,
    "imagenet100": 31_900 / 95_300,
    "cub": 1_499 / 4_496,
    "cars": 2_024 / 6_120,
}
"""The share of known classes among the unlabeled images."""


def misfits(table, shares, within):
    """Printed numbers whose first is not the mean of the other two."""
    return [
        (row, dataset)
        for row, datasets in PAPER[table].items()
        for dataset, (first, second, third) in datasets.items()
        if dataset in shares
        and abs(shares[dataset] * second + (1 - shares[dataset]) * third - first) > within
    ]


def test_all_is_the_mean_over_unlabeled_images_but_for_the_noted_rows():
    """Shares of known images are rounded, and so are the numbers: half a point is allowed."""
    found = {
        table: misfits(table, KNOWN, 0.45)
        for table in ("1", "4", "5", "6", "11", "12", "13", "14", "15")
    }
    assert {row.split(",")[0] for row, _ in found.pop("1")} == {"DCCL", "GPC"}
    assert found.pop("6") == [("random, mean", "imagenet100")]
    assert found.pop("11") == [("z", "cub")]
    assert not any(found.values())
    assert {"1", "6", "11"} <= MISPRINTS.keys()


def test_what_is_printed_more_than_once_is_the_same_everywhere():
    """The full method stands in eight tables; with the columns of table 12 put right all agree."""
    main = PAPER["1"]["CMS, K given"]
    same = {
        "4": "(5) CMS, IMS",
        "5": "kNN",
        "6": "kNN, mean",
        "11": "v",
        "12": "8",
        "13": "0.5",
        "14": "0.35",
    }
    for table, row in same.items():
        for dataset, values in PAPER[table][row].items():
            assert values == main[dataset], (table, dataset)


@pytest.mark.parametrize("table", ["3", "17"])
def test_errors_of_k_are_what_they_say_but_for_the_noted_misprints(table):
    wrong = [
        (row, dataset)
        for row, datasets in PAPER[table].items()
        for dataset, (n_clusters, error) in datasets.items()
        if abs(
            100 * abs(n_clusters - BENCHMARKS[dataset].n_classes) / BENCHMARKS[dataset].n_classes
            - error
        )
        > 0.3
    ]
    assert wrong == ([("DCCL", "cub"), ("DCCL", "cars"), ("GPC", "cars")] if table == "3" else [])


def test_the_counts_are_those_of_the_benchmarks():
    for dataset, facts in BENCHMARKS.items():
        if dataset != "cifar10":
            assert PAPER["9"]["Classes"][dataset] == (
                facts.n_known,
                facts.n_classes - facts.n_known,
            )
            assert PAPER["10"]["Images"][dataset] == (facts.n_images,)
