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
