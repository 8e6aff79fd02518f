"""Tables of the paper with our numbers in them, as Markdown and CSV.

Notes under a table list the encoder, seeds, changed settings and protocol of our numbers, misprints
of the paper, and remarks on images and training runs.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce.cell_results import COLUMNS, Result, numbers
from shoal.reproduce.paper import MISPRINTS, paper_numbers
from shoal.reproduce.plan import PROTOCOLS, Cell, Plan
from shoal.words import plural

Record = dict[str, str | float | None]
"""A number and how it was obtained, by name."""


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
            record: Record = {
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
            records.append(record)
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
    """Return sentences about failed and collapsed training runs."""
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
    """Return the title, followed by the protocol unless it is the paper's."""
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
