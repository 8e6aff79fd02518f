"""Scores of a cell, by hidden labels that no method sees, in one JSON file, and tables of the paper
with our numbers in them, as Markdown and CSV.

Notes under a table list the encoder, seeds, changed settings and protocol of our numbers, misprints
of the paper, and remarks on images and training runs.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

import shoal
from shoal.arrays import UNLABELED, digest_names, nan_to_null
from shoal.clustering.matching import recall_at_k
from shoal.clustering.neighbors import k_nearest
from shoal.data.benchmarks import BENCHMARKS
from shoal.device import describe_device
from shoal.errors import DataError, count, plural
from shoal.methods.method import Representation
from shoal.reproduce.experiments import MISPRINTS, paper_numbers
from shoal.reproduce.loaded_dataset import BenchmarkImages
from shoal.reproduce.plan import PROTOCOLS, Cell, Plan
from shoal.settings import Plain, to_dict
from shoal.training.validation import collapse_statistics, describe_collapse

RECALL_AT = 8

COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": ("All", "Known", "Novel"),
    "recall": ("All", "Labeled", "Unlabeled"),
    "all": ("All",),
    "n_clusters": ("K", "Err %"),
}


# The content of a cell's file: numbers in percent, and what they were computed from
Result = Plain


def recall(embeddings: Tensor, images: BenchmarkImages) -> dict[str, float]:
    """Return Recall@8 in percent for all, for labeled and for unlabeled queries.

    The paper's table is split the same way: its All is the mean of the other two, weighted by their
    numbers of images.
    """
    same_row = torch.arange(len(embeddings), device=embeddings.device)
    n_neighbors = min(RECALL_AT, len(embeddings) - 1)
    near = k_nearest(embeddings, embeddings, n_neighbors, exclude=same_row).indices.cpu().numpy()
    is_labeled = images.labels != UNLABELED
    queries = {"all": slice(None), "labeled": is_labeled, "unlabeled": ~is_labeled}
    return {
        name: 100 * recall_at_k(near[rows], images.truth[rows], images.truth)
        for name, rows in queries.items()
    }


def describe(
    cell: Cell, learned: Representation, images: BenchmarkImages, device: torch.device
) -> Result:
    """Return what was run, on which images, with the validation of the snapshot."""
    collection = images.benchmark.collection
    notes = list(collection.notes)
    if skipped := len(collection) - len(images.labels):
        notes.append(f"{count(skipped, 'image')} could not be decoded")
    return {
        "cell": to_dict(cell),
        "hidden_labels_chose": cell.sees_hidden_labels,
        "epoch": learned.epoch,
        "epochs": len(learned.metrics),
        "validation": nan_to_null([row["validation_accuracy"] for row in learned.metrics]),
        "collapse": _collapse(learned),
        "images": len(images.labels),
        "split_sha256": images.benchmark.split.sha256,
        "names_sha256": digest_names(collection.names, collection.labels),
        "notes": notes,
        "device": describe_device(device),
        "torch": torch.__version__,
        "shoal": shoal.__version__,
    }


def read_result(file: Path) -> Result:
    """Read a cell's file; refuse one that lacks what a table needs."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        for measure in COLUMNS:
            math.fsum(numbers(measure, content))  # raises for anything but numbers
        for name in ("images", "notes", "collapse"):
            content[name]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{file}: is not the result of a cell ({error!r}); delete it to run the cell again"
        ) from error
    return content


def numbers(measure: str, result: Result) -> list[float]:
    if measure == "n_clusters":
        return [result["n_clusters"], result["n_clusters_error"]]
    scores = result["recall"] if measure == "recall" else result["accuracy"]
    return [scores[name.lower()] for name in COLUMNS[measure]]


def _collapse(learned: Representation) -> Plain | None:
    """Return the collapse statistics of the snapshot, with a warning if it has collapsed."""
    if learned.epoch == 0:
        return None
    statistics = collapse_statistics(learned.embeddings)
    return {
        "mean_cosine": statistics["bank_cosine"],
        "rank": statistics["bank_rank"],
        "warning": describe_collapse(statistics),
    }


# A number and how it was obtained, by name
Record = dict[str, str | float | None]


def build_table(
    plan: Plan, results: Mapping[str, Result], failures: Mapping[str, str]
) -> tuple[str, list[Record]]:
    """Return a table as Markdown, and its numbers, from results and failures by cell key."""
    experiment = plan.experiment
    columns = COLUMNS[experiment.measure]
    papers = paper_numbers(experiment.name, experiment.datasets)
    rows = {row.name: [row.name] for row in experiment.rows}
    records: list[Record] = []
    remarks: list[str] = []
    for row, dataset in product(rows, plan.datasets):
        cells = plan.grid.get((row, dataset), ())
        found = [results[cell.key] for cell in cells if cell.key in results]
        title = BENCHMARKS[dataset].title
        cell_remarks = [f"{title}: {note}." for result in found[:1] for note in result["notes"]]
        cell_remarks += find_remarks(f"{row}, {title}", cells, results, failures)
        remarks += cell_remarks
        ours = [numbers(experiment.measure, result) for result in found]
        printed = papers.get(row, {}).get(dataset, [None] * len(columns))
        for column, paper, *values in zip(columns, printed, *ours, strict=True):
            mean = statistics.fmean(values) if values else None
            spread = statistics.stdev(values) if len(values) > 1 else None
            rows[row].append(_text(mean, spread, paper, experiment.measure))
            records.append(
                {
                    "table": experiment.name,
                    "row": row,
                    "dataset": dataset,
                    "column": column,
                    "ours": mean,
                    "spread": spread,
                    "n_seeds": len(found),
                    "paper": paper,
                    "encoder": plan.encoder,
                    "protocol": plan.options.protocol,
                    "images": max((each["images"] for each in found), default=None),
                    "remarks": " ".join(cell_remarks) or None,
                }
            )
    titles = [BENCHMARKS[dataset].title for dataset in plan.datasets]
    header = ["", *map(" ".join, product(titles, columns))]
    misprints = MISPRINTS.get(experiment.name, ())
    notes = [*_plan_notes(plan), *misprints, *dict.fromkeys(remarks)]
    lines = [f"### {_title(plan)}", "", _line(header), "|---" * len(header) + "|"]
    lines += map(_line, rows.values())
    lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n", records


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def find_remarks(
    name: str,
    cells: Sequence[Cell],
    results: Mapping[str, Result],
    failures: Mapping[str, str],
) -> list[str]:
    remarks = []
    for cell in cells:
        start = name
        if cell.trained is not None:
            start += f", seed {cell.trained.training.seed}"
        if cell.key in failures:
            remarks.append(f"{start}: failed, {failures[cell.key].rstrip('.')}.")
        collapse = results[cell.key]["collapse"] if cell.key in results else None
        if collapse and collapse["warning"]:
            remarks.append(f"{start}: {collapse['warning']}.")
    return remarks


def _text(mean: float | None, spread: float | None, paper: float | None, measure: str) -> str:
    """Return text such as '52.6 ± 0.4 (68.2)', with a dash for a cell that was not run."""
    style = "g" if measure == "n_clusters" else ".1f"
    text = "–"
    if mean is not None:
        text = f"{round(mean, 1):{style}}"
    if spread is not None:
        text += f" ± {spread:.1f}"
    if paper is not None:
        text += f" ({paper:{style}})"
    return text


def _title(plan: Plan) -> str:
    title = plan.experiment.title
    if plan.experiment.name.isdecimal():
        title = f"Table {plan.experiment.name}: {title}"
    if plan.options.protocol != "paper":
        title += f" (protocol: {plan.options.protocol})"
    if any(cell.sees_hidden_labels for cell in plan.cells):
        title += ", selection by hidden labels"
    return title


def _plan_notes(plan: Plan) -> list[str]:
    """Describe how our numbers were obtained, and how snapshot and K were chosen."""
    protocol = plan.options.protocol
    setup = [f"encoder {plan.encoder}"]
    setup += [f"{name}={value}" for name, value in plan.options.changes.items()]
    setup.append(f"{plural(len(plan.seeds), 'seed')} {', '.join(map(str, plan.seeds))}")
    if len(plan.seeds) > 1:
        setup.append("mean ± standard deviation")
    selection = PROTOCOLS[protocol]
    if {cell.setup for cell in plan.cells} == {"unsupervised"}:
        selection = "no labels to choose by: K given, last snapshot, fixed number of shifts"
    elif share := max((cell.validation_share for cell in plan.cells), default=0):
        selection += f"; {share:.0%} of the images are held out for methods that choose by them"
    return [
        f"Ours: {', '.join(setup)}.",
        f"Protocol '{protocol}': {selection}.",
        f"In parentheses: the paper's numbers, with {plan.experiment.encoder}. –: not run.",
    ]
