"""Tables of the paper with our numbers in them, as Markdown, LaTeX, CSV and records.

All of these say what a reader must know: what the numbers were made with, what was chosen where the
paper, the released code and this package differ, and what is unusual about the cells.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from shoal.data.benchmarks import BENCHMARKS
from shoal.methods.registry import get_method
from shoal.reproduce.cell_results import Result
from shoal.reproduce.experiments import COUNTS, ONE_STEP, TableRow
from shoal.reproduce.method_words import words_of
from shoal.reproduce.paper import CLIP, MISPRINTS, PAPER
from shoal.reproduce.plan import SELECTIONS, Cell, Plan, rows_to_run
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
        "%": "\\%",
        "_": "\\_",
        "&": "\\&",
        "#": "\\#",
        "$": "\\$",
        "{": "\\{",
        "}": "\\}",
        "|": "$|$",
        "\\": "$\\backslash$",
        "~": "$\\sim$",
        "^": "\\^{}",
        "±": "$\\pm$",
        "–": "--",
        "…": "\\ldots{}",
        "α": "$\\alpha$",
        "λ": "$\\lambda$",
        "δ": "$\\delta$",
        "σ": "$\\sigma$",
        "τ": "$\\tau$",
        "→": "$\\to$",
        "<": "$<$",
        ">": "$>$",
        "≤": "$\\le$",
        "≥": "$\\ge$",
        "²": "$^2$",
        "×": "$\\times$",
    }
)
"""What has a meaning in LaTeX or is not in its fonts, as it is printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """Choices that a number depends on, in a few words each, and two numbers."""

    losses: str
    head: str
    k_rule: str
    """Where K comes from."""
    snapshot: str
    """Which epoch's networks are kept."""
    kmeans: str
    """How often semi-supervised k-means starts; empty where there is none."""
    epochs: int | None
    """Epochs of training; None where nothing is trained."""
    input_size: int | None
    """Side of the images; None: what an encoder that is not in the catalog was made for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """One number: ours over seeds, and the paper's."""

    mean: float | None
    """None where no cell has been run."""
    spread: float | None
    """The standard deviation over seeds; None for a single one."""
    n_seeds: int
    paper: float | None

    def text(self, *, is_count: bool = False) -> str:
        """'52.6 ± 0.4 (68.2)'; a dash for ours where it was not run."""
        style = "g" if is_count else ".1f"
        text = "–"
        if self.mean is not None:
            mean = round(self.mean, 1) if is_count else self.mean
            text = f"{mean:{style}}"
        if self.spread is not None:
            text += f" ± {self.spread:.1f}"
        if self.paper is not None:
            text += f" ({self.paper:{style}})"
        return text


@dataclass(frozen=True, kw_only=True)
class TablePlace:
    """One row of a table on one dataset."""

    entries: tuple[TableEntry, ...]
    """One per column."""
    choices: Choices | None
    """None for a row that is only quoted."""
    remarks: list[str]
    """Such as missing images, trainings that failed or collapsed."""
    images: int | None
    """Images of the training part; None where nothing was run."""


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of the paper with our numbers in it."""

    plan: Plan
    places: dict[tuple[str, str], TablePlace]
    """By row and dataset."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What is shown of each dataset."""
        return COLUMNS[self.plan.experiment.measure]

    @property
    def choices(self) -> dict[str, dict[str, Choices]]:
        """Dataset -> row -> what was chosen, for the rows that are not quoted."""
        choices: dict[str, dict[str, Choices]] = {}
        for (row, dataset), place in self.places.items():
            if place.choices is not None:
                choices.setdefault(dataset, {})[row] = place.choices
        return choices

    @property
    def header(self) -> str:
        """The title, and the protocol if it is not the paper's."""
        experiment = self.plan.experiment
        protocol = self.plan.options.protocol
        title = f"Table {experiment.name}: {experiment.title}"
        if protocol == "paper" or experiment.measure in COUNTS:
            return title
        if _setups(self.plan) == {"unsupervised"}:
            return f"{title} (protocol '{protocol}')"
        return f"{title} (protocol '{protocol}': hidden labels chose snapshot and K)"

    @property
    def notes(self) -> list[str]:
        """What a reader must know, in every form of the table."""
        plan = self.plan
        experiment = plan.experiment
        remarks = unique(text for place in self.places.values() for text in place.remarks)
        if experiment.measure in COUNTS:
            return ["Ours: counted in the folders. In parentheses the paper's.", *remarks]
        made_with = describe_making(plan, self.choices, plan.seeds)
        if len(plan.seeds) > 1:
            made_with += ", mean ± standard deviation"
        papers = experiment.encoder
        if plan.encoder != papers:
            papers += ", another encoder"
        return [
            f"Ours: {made_with}; protocol '{plan.options.protocol}', which says who "
            f"chooses and not which losses are taken ({_selection(plan)}).",
            f"In parentheses the paper's, with {papers}. – not run.",
            *choice_notes(self.choices),
            *MISPRINTS.get(experiment.name, ()),
            *remarks,
        ]


def build_table(
    plan: Plan, results: Mapping[str, Result], failures: Mapping[str, str]
) -> ResultTable:
    """Put the results of cells, by key, into their places; `failures` are by key as well."""
    experiment = plan.experiment
    places = {}
    for row in experiment.rows:
        for dataset in plan.datasets:
            keys = plan.keys(row, dataset)
            own = {key: results[key] for key in keys if key in results}
            cells = plan.grid.get((row.name, dataset), ())
            choices = None
            if cells:
                rules = filter(None, (result.get("rule") for result in own.values()))
                choices = choices_of(cells[0], rules)
            numbers = [result.get("images") for result in own.values()]
            paper = PAPER.get(experiment.name, {}).get(row.name, {}).get(dataset)
            places[row.name, dataset] = TablePlace(
                entries=_entries(experiment.measure, list(own.values()), paper),
                choices=choices,
                remarks=remarks_of(row, dataset, keys, own, failures),
                images=max((n for n in numbers if isinstance(n, int)), default=None),
            )
    return ResultTable(plan=plan, places=places)


def to_markdown(table: ResultTable) -> str:
    """The table as Markdown, with its notes."""
    titles = [
        f"{BENCHMARKS[dataset].title} {column}"
        for dataset in table.plan.datasets
        for column in table.columns
    ]
    lines = [f"### {table.header}", "", f"| | {' | '.join(titles)} |"]
    lines.append("|---" * (len(titles) + 1) + "|")
    for row in table.plan.experiment.rows:
        lines.append(f"| {row.name} | {' | '.join(_texts(table, row))} |")
    lines.append("")
    lines += [f"- {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def to_latex(table: ResultTable) -> str:
    """The table for booktabs, its title above and its notes below: comments are not printed."""
    datasets = table.plan.datasets
    n_columns = len(table.columns)
    n_numbers = n_columns * len(datasets)

    def wide(text: str) -> str:
        return f"\\multicolumn{{{1 + n_numbers}}}{{@{{}}p{{\\linewidth}}@{{}}}}{{{text}}} \\\\"

    groups = [
        f"\\multicolumn{{{n_columns}}}{{c}}{{{BENCHMARKS[dataset].title}}}" for dataset in datasets
    ]
    names = [_escape(column) for column in table.columns] * len(datasets)
    lines = [
        f"\\begin{{tabular}}{{l{'c' * n_numbers}}}",
        wide(_escape(table.header)),
        "\\toprule",
        f" & {' & '.join(groups)} \\\\",
        f" & {' & '.join(names)} \\\\",
        "\\midrule",
    ]
    for row in table.plan.experiment.rows:
        texts = map(_escape, [row.name, *_texts(table, row)])
        lines.append(f"{' & '.join(texts)} \\\\")
    lines.append("\\bottomrule")
    lines += [wide(f"\\footnotesize {_escape(note)}") for note in table.notes]
    lines.append("\\end{tabular}\n")
    return "\n".join(lines)


def to_records(table: ResultTable) -> list[dict[str, Any]]:
    """A dictionary per number: ours, the paper's, and what either was made with."""
    plan = table.plan
    misprints = " ".join(MISPRINTS.get(plan.experiment.name, ())) or None
    records = []
    for (row, dataset), place in table.places.items():
        choices: dict[str, Any] = dict.fromkeys(field.name for field in fields(Choices))
        if place.choices is not None:
            choices = asdict(place.choices)
        for column, entry in zip(table.columns, place.entries, strict=True):
            record = {
                "table": plan.experiment.name,
                "row": row,
                "dataset": dataset,
                "column": column,
                "ours": entry.mean,
                "spread": entry.spread,
                "n_seeds": entry.n_seeds,
                "paper": entry.paper,
                "encoder": plan.encoder,
                "protocol": plan.options.protocol,
                "images": place.images,
                "remarks": " ".join(place.remarks) or None,
                "misprints": misprints,
            }
            records.append(record | choices)
    return records


def to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """A line per record, under a line of their keys; empty where there is none."""
    if not records:
        return ""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def choices_of(cell: Cell, decided: Iterable[str] = ()) -> Choices:
    """Say what a cell, and those that differ from it in their seed, choose.

    `decided` are the rules that K came from in the finished ones of them.
    """
    kmeans = ""
    if cell.clustering != ONE_STEP:
        kmeans = words_of(cell.clustering).starts(cell.clustering_settings)
    head = words_of(cell.method).head(cell.settings)
    if cell.trained is not None and cell.settings.encoder == CLIP:
        head += (
            ", on the 768 numbers of CLIP's class token (the paper's: the 512 after its projection)"
        )
    return Choices(
        losses=words_of(cell.method).losses(cell.settings),
        head=head,
        k_rule=_k_rule(cell, decided),
        snapshot=_snapshot(cell),
        kmeans=kmeans,
        epochs=None if cell.trained is None else cell.trained.training.epochs,
        input_size=cell.input_size,
    )


def choice_notes(choices: Mapping[str, Mapping[str, Choices]]) -> list[str]:
    """'Head: paper.' for each choice in words of dataset -> row; datasets are named if they differ.

    Where rows differ, these are named: 'Head: none (Agglomerative); bottleneck (GCD | CMS).'
    """
    notes: dict[str, list[str]] = {}
    for dataset, rows in choices.items():
        for name, title in TITLES.items():
            groups: dict[str, list[str]] = {}
            for row, choice in rows.items():
                groups.setdefault(getattr(choice, name), []).append(row)
            groups.pop("", None)
            texts = list(groups)
            if len(groups) > 1:
                texts = [f"{text} ({' | '.join(of_rows)})" for text, of_rows in groups.items()]
            if texts:
                note = f"{title}: {'; '.join(texts)}."
                notes.setdefault(note, []).append(BENCHMARKS[dataset].title)
    named = []
    for note, on in notes.items():
        if len(on) < len(choices):
            note = f"{', '.join(on)}: {note}"
        named.append(note)
    return named


def describe_making(
    plan: Plan, choices: Mapping[str, Mapping[str, Choices]], seeds: Sequence[int]
) -> str:
    """'encoder dino-vitb16, images of 224 px, 25 epochs, training.batch_size 64, seeds 0, 1'.

    `choices` are by dataset and row; datasets are named where they differ.
    """
    sizes: dict[str, list[str]] = {}
    lengths: dict[str, list[str]] = {}
    for dataset, rows in choices.items():
        title = BENCHMARKS[dataset].title
        pixels = sorted({_pixels(choice.input_size) for choice in rows.values()})
        sizes.setdefault(" or ".join(pixels), []).append(title)
        epochs = {choice.epochs for choice in rows.values() if choice.epochs is not None}
        lengths.setdefault(_count_epochs(sorted(epochs)), []).append(title)
    words = [f"encoder {plan.encoder}"]
    for groups in (sizes, lengths):
        for text, on in groups.items():
            if len(groups) > 1:
                text += f" on {' and '.join(on)}"
            words.append(text)
    for name, value in plan.options.changes.items():
        if name != "training.epochs":
            words.append(f"{name} {value}")
    if seeds:
        words.append(f"{plural(len(seeds), 'seed')} {', '.join(map(str, seeds))}")
    else:
        words.append("nothing drawn")
    return ", ".join(words)


def remarks_of(
    row: TableRow,
    dataset: str,
    keys: Mapping[str, int | None],
    own_results: Mapping[str, Result],
    failures: Mapping[str, str],
) -> list[str]:
    """Sentences about images, missing seeds, and trainings that failed or collapsed."""
    title = BENCHMARKS[dataset].title
    results = own_results.values()
    texts = unique(f"{title}: {note}." for result in results for note in result.get("notes", ()))
    skipped = max((result.get("images_skipped", 0) for result in results), default=0)
    if skipped:
        images = count(skipped, "image")
        verb = plural(skipped, "was")
        texts.append(f"{title}: {images} could not be decoded and {verb} left out.")
    if len(own_results) not in (0, len(keys)):
        texts.append(f"{row.name}, {title}: {len(own_results)} of {len(keys)} seeds only.")
    for key, seed in keys.items():
        who = f"{row.name}, {title}"
        if seed is not None:
            who += f", seed {seed}"
        collapse = own_results.get(key, {}).get("collapse")
        if collapse and collapse["warning"]:
            texts.append(f"{who}: {collapse['warning']}.")
        if key in failures:
            texts.append(f"{who}: left out, {failures[key].rstrip('.')}.")
    return texts


def unique(texts: Iterable[str]) -> list[str]:
    """Each text once, in the order in which they come."""
    return list(dict.fromkeys(texts))


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean, None of no value, and the standard deviation, None of fewer than two."""
    mean = statistics.fmean(values) if values else None
    spread = statistics.stdev(values) if len(values) > 1 else None
    return mean, spread


def _entries(
    measure: str, results: Sequence[Result], paper: tuple[float | None, ...] | None
) -> tuple[TableEntry, ...]:
    columns = COLUMNS[measure]
    printed = paper or (None,) * len(columns)
    numbers = [_values(measure, result) for result in results]
    entries = []
    for index, theirs in enumerate(printed):
        ours = [values[index] for values in numbers]
        mean, spread = mean_and_spread(ours)
        entries.append(TableEntry(mean=mean, spread=spread, n_seeds=len(ours), paper=theirs))
    return tuple(entries)


def _values(measure: str, result: Result) -> list[float]:
    """The numbers of a cell in the columns of a table."""
    if measure in COUNTS:
        return [float(value) for value in result[measure]]
    if measure == "n_clusters":
        return [float(result["n_clusters"]), result["n_clusters_error"]]
    scores = result["recall" if measure == "recall" else "accuracy"]
    return [scores[name.lower()] for name in COLUMNS[measure]]


def _texts(table: ResultTable, row: TableRow) -> list[str]:
    is_count = table.plan.experiment.measure in (*COUNTS, "n_clusters")
    return [
        entry.text(is_count=is_count)
        for dataset in table.plan.datasets
        for entry in table.places[row.name, dataset].entries
    ]


def _escape(text: str) -> str:
    return text.translate(_LATEX)


def _setups(plan: Plan) -> set[str]:
    return {row.setup for row in rows_to_run(plan.experiment, plan.options)}


def _selection(plan: Plan) -> str:
    """How snapshot and K were chosen."""
    setups = _setups(plan)
    options = plan.options
    if setups == {"unsupervised"}:
        return (
            "no labels, so nothing to choose by: K given, the last snapshot, "
            "a fixed number of shifts"
        )
    if options.protocol != "paper":
        methods = unique(row.methods[0] for row in rows_to_run(plan.experiment, options))
        released = [words_of(method).released for method in methods]
        return "; ".join([*released, SELECTIONS[options.protocol]])
    if "inductive" in setups:
        return f"{SELECTIONS['paper']}, 10 % of the images set aside for it"
    share = f"{100 * options.validation_share:g} %"
    return f"{SELECTIONS['paper']}, {share} of the labels kept from the loss for it"


def _pixels(size: int | None) -> str:
    return "images of the encoder's own size" if size is None else f"images of {size} px"


def _count_epochs(numbers: Sequence[int]) -> str:
    """'1 epoch', '25 epochs', '8 or 25 epochs'."""
    if not numbers:
        return "nothing trained"
    return f"{' or '.join(map(str, numbers))} {plural(numbers[-1], 'epoch')}"


def _k_rule(cell: Cell, decided: Iterable[str]) -> str:
    if cell.n_clusters == "given":
        return "given"
    own = words_of(cell.method).number(cell.settings)
    if own:
        return own
    if cell.sees_hidden_labels:
        return "highest accuracy on known classes by HIDDEN labels"
    if cell.trained is not None and cell.trained.estimate_on == "validation":
        text = f"{_rule(cell.settings.inference.rule, decided)} on labeled validation images"
        if words_of(cell.method).number_remark:
            text += f", {words_of(cell.method).number_remark}"
        return text
    inference = cell.clustering_settings.inference
    text = f"{_rule(inference.rule, decided)} on all given labels"
    if cell.clustering != ONE_STEP and get_method(cell.clustering).shifts:
        text += f" after {count(inference.estimate_shifts, 'shift')}"
    return text


def _rule(asked: str, decided: Iterable[str]) -> str:
    """The rule asked for, and those that decided where labels were too few for it."""
    whose = "the paper's rule" if asked == "paper" else f"Shoal's rule '{asked}'"
    named = sorted(set(decided))
    if named in ([], [asked]):
        return whose
    return f"{whose} (decided by {' and '.join(map(repr, named))})"


def _snapshot(cell: Cell) -> str:
    if cell.trained is None:
        return "none"
    if cell.setup == "unsupervised" or cell.trained.training.snapshot == "last":
        return "last epoch"
    labels = "HIDDEN labels" if cell.sees_hidden_labels else "labeled validation images"
    with_k = "at the given K" if cell.selection == "given" else "over all K"
    return f"best epoch by {labels} {with_k}"
