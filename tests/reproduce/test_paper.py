import pytest

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce import experiments
from shoal.reproduce.experiments import EXPERIMENTS, MISPRINTS, paper_numbers

PAPER = {name: paper_numbers(name, EXPERIMENTS[name].datasets) for name in experiments.PAPER}

# Our rows that the paper does not have
OWN = ("Agglomerative + IMS, K given", "Agglomerative + IMS, K estimated", "(0) frozen, IMS")


def test_all_tables_of_results_are_there():
    numbers = [str(number) for number in range(1, 18)]
    numbers = [number for number in numbers if number not in ("9", "10")]
    assert list(PAPER) == numbers
    assert list(EXPERIMENTS) == [*numbers, "iterations"]


@pytest.mark.parametrize("name", PAPER)
def test_rows_and_datasets_of_a_table_are_those_the_paper_prints(name):
    experiment = EXPERIMENTS[name]
    assert [row.name for row in experiment.rows if row.name not in OWN] == list(PAPER[name])
    assert (
        {dataset for row in PAPER[name].values() for dataset in row}
        <= set(experiment.datasets)
        <= set(BENCHMARKS)
    )


def test_all_lies_between_known_and_novel_but_for_the_misprint():
    """The accuracy on all images is a mean of those on known and novel ones; rounding may add 0.1.
    One printed row is not between them."""
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
