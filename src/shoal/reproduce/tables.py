"""Tables of the paper with our numbers in them, as Markdown, LaTeX, CSV and records.

All of these say what a reader must know: what the numbers were made with, what was chosen where the
paper, the released code and this package differ, and what is unusual about the cells.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.data.benchmarks import BENCHMARKS
from shoal.methods.registry import METHODS
from shoal.reproduce.cell_results import Result
from shoal.reproduce.experiments import COUNTS
from shoal.reproduce.method_words import words_of
from shoal.reproduce.paper import CLIP, MISPRINTS, PAPER
from shoal.reproduce.plan import SELECTIONS, Cell, Plan
from shoal.words import count, plural

COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": ("All", "Known", "Novel"),
    "recall": ("All", "Labeled", "Unlabeled"),
    "all": ("All",),
    "n_clusters": ("K", "Err %"),
    "classes": ("Known", "Novel"),
    "images": ("Images",),
}

TITLES = {
    "losses": "Losses",
    "head": "Head",
    "k_rule": "K",
    "snapshot": "Snapshot",
    "kmeans": "Semi-supervised k-means",
}
"""Choices in words, and how they are headed under a table."""

_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "%_&#${}"},
        **{"|": "$|$", "\\": "$\\backslash$", "~": "$\\sim$", "^": "\\^{}", "±": "$\\pm$"},
        **{"–": "--", "…": "\\ldots{}", "α": "$\\alpha$", "λ": "$\\lambda$", "δ": "$\\delta$"},
        **{"σ": "$\\sigma$", "τ": "$\\tau$", "→": "$\\to$", "<": "$<$", ">": "$>$"},
        **{"≤": "$\\le$", "≥": "$\\ge$", "²": "$^2$", "×": "$\\times$"},
    }
)
"""What has a meaning in LaTeX or is not in its fonts, as it is printed."""

Record = dict[str, str | float | None]
"""A number, and what it was made with, by name."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper with our numbers in it."""

    title: str
    datasets: list[str]
    columns: tuple[str, ...]
    """What is shown of each dataset."""
    rows: dict[str, list[str]]
    """The text of each number, dataset by dataset."""
    notes: list[str]
    """What a reader must know, in every form of the table."""
    records: list[Record]
    """A dictionary per number: ours, the paper's, and what either was made with."""


def build_table(plan: Plan, results: Mapping[str, Result], failures: Mapping[str, str]) -> Table:
    """Put the results of cells, by key, into their places; `failures` are by key as well.

    What is counted in a dataset has its name for a key.
    """
    experiment = plan.experiment
    columns = COLUMNS[experiment.measure]
    misprints = MISPRINTS.get(experiment.name, ())
    rows: dict[str, list[str]] = {}
    records: list[Record] = []
    remarks: list[str] = []
    choices: dict[str, dict[str, Record]] = {}
    for row in experiment.rows:
        rows[row.name] = []
        for dataset in plan.datasets:
            cells = plan.grid.get((row.name, dataset), ())
            keys = [cell.key for cell in cells]
            if experiment.measure in COUNTS:
                keys = [dataset]
            own = {key: results[key] for key in keys if key in results}
            said = remarks_of(row.name, dataset, cells, own, failures)
            remarks += said
            chosen: Record = dict.fromkeys([*TITLES, "epochs", "input_size"])
            if cells:
                chosen = choices_of(cells[0], [result.get("rule") for result in own.values()])
                choices.setdefault(row.name, {})[dataset] = chosen
            ours = [_values(experiment.measure, result) for result in own.values()]
            n_images = [result.get("images", 0) for result in own.values()]
            printed = PAPER[experiment.name].get(row.name, {}).get(dataset)
            for index, column in enumerate(columns):
                mean, spread = mean_and_spread([values[index] for values in ours])
                paper = printed[index] if printed else None
                rows[row.name].append(_text(mean, spread, paper, experiment.measure))
                record: Record = {
                    "table": experiment.name,
                    "row": row.name,
                    "dataset": dataset,
                    "column": column,
                    "ours": mean,
                    "spread": spread,
                    "n_seeds": len(own),
                    "paper": paper,
                    "encoder": plan.encoder,
                    "protocol": plan.options.protocol,
                    "images": max(n_images, default=0) or None,
                    "remarks": " ".join(said) or None,
                    "misprints": " ".join(misprints) or None,
                }
                records.append(record | chosen)
    if experiment.measure in COUNTS:
        notes = ["Ours: counted in the folders. In parentheses the paper's."]
    else:
        notes = [*_making_notes(plan), *choice_notes(choices), *misprints]
    return Table(
        title=_title(plan),
        datasets=[BENCHMARKS[dataset].title for dataset in plan.datasets],
        columns=columns,
        rows=rows,
        notes=[*notes, *unique(remarks)],
        records=records,
    )


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its notes."""
    titles = [f"{dataset} {column}" for dataset in table.datasets for column in table.columns]
    lines = [f"### {table.title}", "", f"| | {' | '.join(titles)} |"]
    lines.append("|---" * (len(titles) + 1) + "|")
    lines += [f"| {' | '.join([name, *texts])} |" for name, texts in table.rows.items()]
    lines.append("")
    lines += [f"- {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """The table for booktabs, its title above and its notes below: comments are not printed."""
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


def to_csv(records: Sequence[Record]) -> str:
    """A line per record, under a line of their keys."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def choices_of(cell: Cell, decided: Iterable[str | None] = ()) -> Record:
    """Say what a cell, and those that differ from it in their seed, choose.

    `decided` are the rules that K came from in the finished ones of them.
    """
    words = words_of(cell.method, cell.settings)
    head = words.head
    epochs = None
    if cell.trained is not None:
        epochs = cell.trained.training.epochs
        if cell.settings.encoder == CLIP:
            head += (
                ", on the 768 numbers of CLIP's class token "
                "(the paper's: the 512 after its projection)"
            )
    return {
        "losses": words.losses,
        "head": head,
        "k_rule": _k_rule(cell, words.number, decided),
        "snapshot": _snapshot(cell),
        "kmeans": words_of(cell.clustering, cell.clustering_settings).starts,
        "epochs": epochs,
        "input_size": cell.input_size,
    }


def choice_notes(choices: Mapping[str, Mapping[str, Record]]) -> list[str]:
    """'Head: paper.' for each choice in words of row -> dataset.

    Where they differ, rows are named: 'Head: none (Agglomerative); bottleneck (GCD | CMS).'
    """
    notes = []
    for name, title in TITLES.items():
        groups: dict[str, list[str]] = {}
        for row, datasets in choices.items():
            is_same = len({choice[name] for choice in datasets.values()}) == 1
            for dataset, choice in datasets.items():
                who = row if is_same else f"{row} on {BENCHMARKS[dataset].title}"
                groups.setdefault(str(choice[name]), []).append(who)
        groups.pop("", None)
        texts = list(groups)
        if len(groups) > 1:
            texts = [f"{text} ({' | '.join(unique(rows))})" for text, rows in groups.items()]
        if texts:
            notes.append(f"{title}: {'; '.join(texts)}.")
    return notes


def describe_making(plan: Plan, cells: Iterable[Cell], seeds: Sequence[int]) -> str:
    """'encoder dino-vitb16, images of 224 px, 25 epochs, training.batch_size 64, seeds 0, 1'."""
    sizes: set[str] = set()
    epochs: set[int] = set()
    for cell in cells:
        sizes.add("the encoder's own size" if cell.input_size is None else f"{cell.input_size} px")
        if cell.trained is not None:
            epochs.add(cell.trained.training.epochs)
    words = [f"encoder {plan.encoder}", f"images of {' or '.join(sorted(sizes))}"]
    if epochs:
        numbers = " or ".join(map(str, sorted(epochs)))
        words.append(f"{numbers} {plural(max(epochs), 'epoch')}")
    else:
        words.append("nothing trained")
    for name, value in plan.options.changes.items():
        if name != "training.epochs":
            words.append(f"{name} {value}")
    if seeds:
        words.append(f"{plural(len(seeds), 'seed')} {', '.join(map(str, seeds))}")
    else:
        words.append("nothing drawn")
    return ", ".join(words)


def remarks_of(
    row: str,
    dataset: str,
    cells: Sequence[Cell],
    results: Mapping[str, Result],
    failures: Mapping[str, str],
) -> list[str]:
    """Sentences about images, missing seeds, and trainings that failed or collapsed, by key."""
    title = BENCHMARKS[dataset].title
    found = results.values()
    texts = unique(f"{title}: {note}." for result in found for note in result.get("notes", ()))
    skipped = max((result.get("images_skipped", 0) for result in found), default=0)
    if skipped:
        verb = plural(skipped, "was")
        texts.append(
            f"{title}: {count(skipped, 'image')} could not be decoded and {verb} left out."
        )
    if 0 < len(results) < len(cells):
        texts.append(f"{row}, {title}: {len(results)} of {len(cells)} seeds only.")
    for cell in cells:
        who = f"{row}, {title}"
        if cell.seed is not None:
            who += f", seed {cell.seed}"
        collapse = results.get(cell.key, {}).get("collapse")
        if collapse and collapse["warning"]:
            texts.append(f"{who}: {collapse['warning']}.")
        if cell.key in failures:
            texts.append(f"{who}: left out, {failures[cell.key].rstrip('.')}.")
    return texts


def unique(texts: Iterable[str]) -> list[str]:
    """Each text once, in the order in which they come."""
    return list(dict.fromkeys(texts))


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean, None of no value, and the standard deviation, None of fewer than two."""
    if not values:
        return None, None
    if len(values) == 1:
        return values[0], None
    return statistics.fmean(values), statistics.stdev(values)


def _values(measure: str, result: Result) -> list[float]:
    """The numbers of a cell in the columns of a table."""
    if measure in COUNTS:
        return result["counts"][measure]
    if measure == "n_clusters":
        return [result["n_clusters"], result["n_clusters_error"]]
    scores = result["recall"] if measure == "recall" else result["accuracy"]
    return [scores[name.lower()] for name in COLUMNS[measure]]


def _text(mean: float | None, spread: float | None, paper: float | None, measure: str) -> str:
    """'52.6 ± 0.4 (68.2)'; a dash for ours where it was not run."""
    is_count = measure in (*COUNTS, "n_clusters")
    style = "g" if is_count else ".1f"
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


def _setups(plan: Plan) -> set[str]:
    return {row.setup for row in plan.options.rows_to_run(plan.experiment)}


def _title(plan: Plan) -> str:
    """The title, and the protocol if it is not the paper's."""
    experiment = plan.experiment
    protocol = plan.options.protocol
    title = f"Table {experiment.name}: {experiment.title}"
    if protocol == "paper" or experiment.measure in COUNTS:
        return title
    if _setups(plan) == {"unsupervised"}:
        return f"{title} (protocol '{protocol}')"
    return f"{title} (protocol '{protocol}': hidden labels chose snapshot and K)"


def _making_notes(plan: Plan) -> list[str]:
    """What ours and the paper's numbers were made with, and how snapshot and K were chosen."""
    options = plan.options
    setups = _setups(plan)
    if setups == {"unsupervised"}:
        chosen = (
            "no labels, so nothing to choose by: K given, the last snapshot, "
            "a fixed number of shifts"
        )
    else:
        chosen = SELECTIONS[options.protocol]
        if "inductive" in setups:
            chosen += ", 10 % of the images set aside for it"
        elif options.protocol == "paper":
            share = f"{100 * options.validation_share:g} %"
            chosen += f", {share} of the labels kept from the loss for it"
    made_with = describe_making(plan, plan.cells, plan.seeds)
    if len(plan.seeds) > 1:
        made_with += ", mean ± standard deviation"
    papers = plan.experiment.encoder
    if plan.encoder != papers:
        papers += ", another encoder"
    return [
        f"Ours: {made_with}; protocol '{options.protocol}', which says who chooses and not which "
        f"losses are taken ({chosen}).",
        f"In parentheses the paper's, with {papers}. – not run.",
    ]


def _k_rule(cell: Cell, own: str, decided: Iterable[str | None]) -> str:
    """Where K comes from; `own` is how the method finds it itself, if it does."""
    if cell.n_clusters == "given":
        return "given"
    if own:
        return own
    if cell.sees_hidden_labels:
        return "highest accuracy on known classes by HIDDEN labels"
    if cell.trained is not None and cell.trained.estimate_on == "validation":
        return f"{_rule(cell.settings.inference.rule, decided)} on labeled validation images"
    inference = cell.clustering_settings.inference
    text = f"{_rule(inference.rule, decided)} on all given labels"
    if cell.clustering in METHODS and METHODS[cell.clustering].shifts:
        text += f" after {count(inference.estimate_shifts, 'shift')}"
    return text


def _rule(asked: str, decided: Iterable[str | None]) -> str:
    """The rule asked for, and those that decided where labels were too few for it."""
    whose = f"Shoal's rule '{asked}'"
    if asked == "paper":
        whose = "the paper's rule"
    named = sorted({rule for rule in decided if rule})
    if named in ([], [asked]):
        return whose
    return f"{whose} (decided by {' and '.join(map(repr, named))})"


def _snapshot(cell: Cell) -> str:
    if cell.trained is None:
        return "none"
    if cell.setup == "unsupervised" or cell.trained.training.snapshot == "last":
        return "last epoch"
    labels = "labeled validation images"
    if cell.sees_hidden_labels:
        labels = "HIDDEN labels"
    with_k = "at the given K" if cell.selection == "given" else "over all K"
    return f"best epoch by {labels} {with_k}"
