"""Tables: our numbers put beside the paper's, mean and spread over seeds, and what is strange about their cells."""

import statistics
from collections.abc import Mapping
from typing import Any

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce.choices import choices_of
from shoal.reproduce.experiment import COUNTS, TableRow
from shoal.reproduce.paper import PAPER
from shoal.reproduce.plan import Plan
from shoal.reproduce.result_table import COLUMNS, ResultTable, TableEntry
from shoal.words import count, plural


def build_table(
    plan: Plan, results: Mapping[str, Mapping[str, Any]], failures: Mapping[str, str] | None = None
) -> ResultTable:
    """Put the results of cells, by key, into their places; `failures` says why some of them have none."""
    experiment = plan.experiment
    datasets = plan.datasets
    table = ResultTable(
        experiment=experiment,
        datasets=datasets,
        options=plan.options,
        seeds=plan.seeds,
        entries={},
        choices={},
        remarks={},
        images={},
    )
    for row, dataset in ((row, dataset) for row in experiment.rows for dataset in datasets):
        row_key = (row.name, dataset)
        keys = plan.keys(row, dataset)
        own_results = {key: results[key] for key in keys if key in results}
        if row_key in plan.grid:
            first = plan.grid[row_key][0]
            table.choices[row_key] = choices_of(
                first, [result.get("rule") for result in own_results.values()]
            )
        if keys:
            table.remarks[row_key] = tuple(
                remarks_of(row, dataset, keys, own_results, failures or {})
            )
        numbers = {result["images"] for result in own_results.values() if "images" in result}
        table.images.update(dict.fromkeys([row_key], max(numbers)) if numbers else {})
        paper = PAPER.get(experiment.name, {}).get(row.name, {}).get(dataset)
        table.entries[row_key] = _entries(experiment.measure, list(own_results.values()), paper)
    return table


def remarks_of(
    row: TableRow,
    dataset: str,
    keys: Mapping[str, int | None],
    own_results: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> list[str]:
    """Sentences about the cells of a row: images, seeds that are missing, trainings that failed or collapsed."""
    title = BENCHMARKS[dataset].title
    notes = dict.fromkeys(
        f"{title}: {note}." for result in own_results.values() for note in result.get("notes", ())
    )
    skipped = max((result.get("images_skipped", 0) for result in own_results.values()), default=0)
    texts = [
        *notes,
        *(
            [
                f"{title}: {count(skipped, 'image')} could not be decoded and {plural(skipped, 'was')} left out."
            ]
            if skipped
            else []
        ),
    ]
    if len(own_results) not in (0, len(keys)):
        texts.append(f"{row.name}, {title}: {len(own_results)} of {len(keys)} seeds only.")
    for key, seed in keys.items():
        who = f"{row.name}, {title}" + ("" if seed is None else f", seed {seed}")
        collapse = (own_results.get(key, {}).get("collapse") or {}).get("warning")
        texts += [f"{who}: {collapse}."] if collapse else []
        texts += [f"{who}: left out, {failures[key].rstrip('.')}."] if key in failures else []
    return texts


def _entries(
    measure: str, own_results: list[Mapping[str, Any]], paper: tuple[float | None, ...] | None
) -> tuple[TableEntry, ...]:
    columns = [_values(measure, result) for result in own_results]
    printed = paper or (None,) * len(COLUMNS[measure])
    return tuple(
        TableEntry(
            mean=statistics.fmean(ours) if ours else None,
            spread=statistics.stdev(ours) if len(ours) > 1 else None,
            n_seeds=len(ours),
            paper=theirs,
        )
        for ours, theirs in zip(
            [[c[i] for c in columns] for i in range(len(printed))], printed, strict=True
        )
    )


def _values(measure: str, result: Mapping[str, Any]) -> list[float]:
    if measure in COUNTS:
        return list(map(float, result[measure]))
    if measure == "n_clusters":
        return [float(result["n_clusters"]), result["n_clusters_error"]]
    return [
        result["recall" if measure == "recall" else "accuracy"][name.lower()]
        for name in COLUMNS[measure]
    ]
