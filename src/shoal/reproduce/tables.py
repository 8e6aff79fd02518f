"""Tables of the paper with our numbers in them, as Markdown, LaTeX and CSV.

Markdown and LaTeX have the same notes: the settings of our numbers, where K and the snapshot come
from, misprints of the paper, and remarks on images and training runs. In the CSV, columns say how
each number was obtained.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter

from shoal.data.benchmarks import BENCHMARKS
from shoal.methods.method import MethodSettings
from shoal.reproduce.cell_results import COLUMNS, Result, numbers
from shoal.reproduce.paper import MISPRINTS, paper_numbers
from shoal.reproduce.plan import PROTOCOLS, Cell, Plan
from shoal.words import count, plural

REPORTED_SETTINGS = (
    "loss.denominator",
    "loss.detach_norm",
    "loss.supervised_input",
    "bank",
    "head.kind",
    "n_init",
)
"""Settings in which the paper, its released code and the default recipes differ."""

CHOICES = {"settings": "Settings", "k_rule": "K", "snapshot": "Snapshot"}
"""Columns of the CSV that also appear as notes under a table, and their titles in these notes."""

_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "%_&#${}"},
        **{"|": "$|$", "\\": "$\\backslash$", "~": "$\\sim$", "^": "\\^{}", "±": "$\\pm$"},
        **{"–": "--", "…": "\\ldots{}", "α": "$\\alpha$", "λ": "$\\lambda$"},
        **{"<": "$<$", ">": "$>$", "×": "$\\times$"},
    }
)
"""LaTeX for characters that have a special meaning there or are missing in its fonts."""

Record = dict[str, str | float | None]
"""A number and how it was obtained, by name."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper with our numbers in it."""

    title: str
    datasets: list[str]
    columns: tuple[str, ...]
    """The columns of each dataset."""
    rows: dict[str, list[str]]
    """Row -> the text of each number, dataset by dataset."""
    notes: list[str]
    records: list[Record]
    """A dictionary per number: ours, the paper's, and how they were obtained."""


def build_table(plan: Plan, results: Mapping[str, Result], failures: Mapping[str, str]) -> Table:
    """Return a table of results, and of failures, by cell key."""
    experiment = plan.experiment
    columns = COLUMNS[experiment.measure]
    papers = paper_numbers(experiment.name, experiment.datasets)
    misprints = MISPRINTS.get(experiment.name, ())
    rows: dict[str, list[str]] = {row.name: [] for row in experiment.rows}
    records: list[Record] = []
    remarks: list[str] = []
    choices: dict[str, Record] = {}
    for row, dataset in product(experiment.rows, plan.datasets):
        cells = plan.grid.get((row.name, dataset), ())
        found = {cell.key: results[cell.key] for cell in cells if cell.key in results}
        cell_remarks = find_remarks(row.name, dataset, cells, found, failures)
        remarks += cell_remarks
        choice = dict.fromkeys((*CHOICES, "epochs", "input_size"))
        if cells:
            choice = describe_choices(cells[0], found.values())
            choices.setdefault(row.name, choice)
        ours = [numbers(experiment.measure, result) for result in found.values()]
        printed = papers.get(row.name, {}).get(dataset, [None] * len(columns))
        for column, paper, *values in zip(columns, printed, *ours, strict=True):
            mean, spread = mean_and_spread(values)
            rows[row.name].append(_text(mean, spread, paper, experiment.measure))
            record: Record = {
                "table": experiment.name,
                "row": row.name,
                "dataset": dataset,
                "column": column,
                "ours": mean,
                "spread": spread,
                "n_seeds": len(found),
                "paper": paper,
                "encoder": plan.encoder,
                "protocol": plan.options.protocol,
                "images": max((each["images"] for each in found.values()), default=None),
                "remarks": " ".join(cell_remarks) or None,
                "misprints": " ".join(misprints) or None,
            }
            records.append(record | choice)
    notes = [*_plan_notes(plan), *choice_notes(choices), *misprints]
    return Table(
        title=_title(plan),
        datasets=[BENCHMARKS[dataset].title for dataset in plan.datasets],
        columns=columns,
        rows=rows,
        notes=[*notes, *unique(remarks)],
        records=records,
    )


def to_markdown(table: Table) -> str:
    """Return the table as Markdown, with its notes."""
    titles = [f"{dataset} {column}" for dataset in table.datasets for column in table.columns]
    lines = [f"### {table.title}", "", f"| | {' | '.join(titles)} |"]
    lines.append("|---" * (len(titles) + 1) + "|")
    lines += [f"| {' | '.join([name, *texts])} |" for name, texts in table.rows.items()]
    lines.append("")
    lines += [f"- {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """Return the table as LaTeX for booktabs, with its title above and its notes below."""
    n_columns = len(table.columns)
    n_numbers = n_columns * len(table.datasets)

    def line(cells: Iterable[str]) -> str:
        return f"{' & '.join(cells)} \\\\"

    def wide(text: str) -> str:
        return f"\\multicolumn{{{1 + n_numbers}}}{{@{{}}p{{\\linewidth}}@{{}}}}{{{text}}} \\\\"

    groups = [f"\\multicolumn{{{n_columns}}}{{c}}{{{dataset}}}" for dataset in table.datasets]
    names = [_escape(column) for column in table.columns] * len(table.datasets)
    lines = [
        f"\\begin{{tabular}}{{l{'c' * n_numbers}}}",
        wide(_escape(table.title)),
        "\\toprule",
        line(["", *groups]),
        line(["", *names]),
        "\\midrule",
        *(line(map(_escape, [name, *texts])) for name, texts in table.rows.items()),
        "\\bottomrule",
        *(wide(f"\\footnotesize {_escape(note)}") for note in table.notes),
        "\\end{tabular}\n",
    ]
    return "\n".join(lines)


def describe_choices(cell: Cell, results: Iterable[Result] = ()) -> Record:
    """Describe a cell: its settings, where K comes from, and which snapshot is used."""
    reported = []
    for name in REPORTED_SETTINGS:
        values = [_setting(each, name) for each in (cell.settings, cell.clustering_settings)]
        found = [value for value in values if value is not None]
        if found:
            reported.append(f"{name}={found[0]}")
    epochs = None
    if cell.trained is not None:
        epochs = cell.trained.training.epochs
    sources = {result["n_clusters_source"] for result in results}
    return {
        "settings": ", ".join(reported),
        "k_rule": " or ".join(sorted(sources)),
        "snapshot": _snapshot(cell),
        "epochs": epochs,
        "input_size": cell.input_size,
    }


def choice_notes(choices: Mapping[str, Record]) -> list[str]:
    """Return a note per choice, such as 'Snapshot: none (Agglomerative); last epoch (GCD | CMS).'

    Rows are named only if they differ.
    """
    notes = []
    for name, title in CHOICES.items():
        chosen = {row: str(choice[name]) for row, choice in choices.items() if choice[name]}
        texts = unique(chosen.values())
        if len(texts) > 1:
            texts = [
                f"{text} ({' | '.join(row for row in chosen if chosen[row] == text)})"
                for text in texts
            ]
        if texts:
            notes.append(f"{title}: {'; '.join(texts)}.")
    return notes


def find_remarks(
    row: str,
    dataset: str,
    cells: Sequence[Cell],
    results: Mapping[str, Result],
    failures: Mapping[str, str],
) -> list[str]:
    """Return sentences about skipped images, missing seeds, and failed or collapsed trainings."""
    title = BENCHMARKS[dataset].title
    found = results.values()
    remarks = unique(f"{title}: {note}." for result in found for note in result["notes"])
    n_skipped = max((result["images_skipped"] for result in found), default=0)
    if n_skipped:
        remarks.append(f"{title}: {count(n_skipped, 'image')} could not be decoded.")
    for cell in cells:
        name = f"{row}, {title}"
        if cell.trained is not None:
            name += f", seed {cell.trained.training.seed}"
        collapse = results[cell.key]["collapse"] if cell.key in results else None
        if collapse and collapse["warning"]:
            remarks.append(f"{name}: {collapse['warning']}.")
        if cell.key in failures:
            remarks.append(f"{name}: failed, {failures[cell.key].rstrip('.')}.")
    return remarks


def unique(texts: Iterable[str]) -> list[str]:
    """Return each text once, in order."""
    return list(dict.fromkeys(texts))


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the standard deviation; None for too few values."""
    if not values:
        return None, None
    if len(values) == 1:
        return values[0], None
    return statistics.fmean(values), statistics.stdev(values)


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


def _escape(text: str) -> str:
    return text.translate(_LATEX)


def _setting(settings: MethodSettings, name: str) -> object:
    """Return a setting by its dotted name; None if there is none."""
    try:
        return attrgetter(name)(settings)
    except AttributeError:
        return None


def _title(plan: Plan) -> str:
    """Return the title, followed by the protocol unless it is the paper's."""
    title = plan.experiment.title
    if plan.experiment.name.isdecimal():
        title = f"Table {plan.experiment.name}: {title}"
    protocol = plan.options.protocol
    if protocol == "paper":
        return title
    if any(cell.sees_hidden_labels for cell in plan.cells):
        protocol = f"{protocol}, selection by hidden labels"
    return f"{title} (protocol: {protocol})"


def _plan_notes(plan: Plan) -> list[str]:
    """Describe how our numbers were obtained, and how snapshot and K were chosen."""
    sizes = unique(str(cell.input_size or "default") for cell in plan.cells)
    trained = [cell.trained for cell in plan.cells if cell.trained is not None]
    epochs = unique(str(settings.training.epochs) for settings in trained)
    setup = [f"encoder {plan.encoder}", f"images of {' or '.join(sizes)} px"]
    if epochs:
        setup.append(f"{' or '.join(epochs)} epochs")
    changes = plan.options.changes
    setup += [f"{name}={changes[name]}" for name in changes if name != "training.epochs"]
    setup.append(f"{plural(len(plan.seeds), 'seed')} {', '.join(map(str, plan.seeds))}")
    if len(plan.seeds) > 1:
        setup.append("mean ± standard deviation")
    protocol = plan.options.protocol
    setups = {row.setup for row in plan.options.rows_to_run(plan.experiment)}
    if setups == {"unsupervised"}:
        selection = "no labels to choose by: K given, last snapshot, fixed number of shifts"
    else:
        selection = PROTOCOLS[protocol]
        share = max((cell.validation_share for cell in plan.cells), default=0)
        if share:
            selection += f"; {share:.0%} of the images are held out to choose snapshot and K"
            selection += ", if the method needs to choose them"
    return [
        f"Ours: {', '.join(setup)}.",
        f"Protocol '{protocol}': {selection}.",
        f"In parentheses: the paper's numbers, with {plan.experiment.encoder}. –: not run.",
    ]


def _snapshot(cell: Cell) -> str:
    """Describe which snapshot of a training run is used."""
    if cell.trained is None:
        return "none"
    if cell.setup == "unsupervised" or cell.trained.training.snapshot == "last":
        return "last epoch"
    labels = "labeled validation images"
    if cell.sees_hidden_labels:
        labels = "HIDDEN labels"
    at_k = "at the given K" if cell.selection == "given" else "over all K"
    return f"best epoch by {labels} {at_k}"
