"""Tables: ours beside the paper's, mean and spread over seeds, as Markdown, LaTeX and CSV."""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce.choices import RELEASED, TITLES, Choices, choices_of, grouped, images_and_epochs
from shoal.reproduce.experiment import SELECTIONS, Experiment, Options, Row, make_cell
from shoal.reproduce.paper import MISPRINTS, PAPER

COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": ("All", "Known", "Novel"),
    "recall": ("All", "Labeled", "Unlabeled"),
    "all": ("All",),
    "n_clusters": ("K", "Err %"),
}


_WARNING = "Ours: the released code's protocol, in which hidden labels choose snapshot and K."
"""What a printed table of the protocol 'reference' must say."""


_LATEX = str.maketrans(
    {**{mark: f"\\{mark}" for mark in "%_&#${}"}, "|": "$|$", "\\": "$\\backslash$", "~": "$\\sim$", "^": "\\^{}"}
)
"""What has a meaning in LaTeX, as it is printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One number: ours over seeds, and the paper's."""

    mean: float | None
    """None where no cell has been run."""
    spread: float | None
    """The standard deviation over seeds; None for a single one."""
    n_seeds: int
    paper: float | None

    def text(self, *, plus_minus: str = "±", paper_format: str = ".1f") -> str:
        """'52.6 ± 0.4 (68.2)'; a dash for ours where it was not run."""
        is_plain = paper_format == "g"
        ours = "–" if self.mean is None else f"{round(self.mean, 1):g}" if is_plain else f"{self.mean:.1f}"
        if self.spread is not None:
            ours += f" {plus_minus} {self.spread:.1f}"
        return ours if self.paper is None else f"{ours} ({self.paper:{paper_format}})"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper with our numbers in it."""

    experiment: Experiment
    datasets: tuple[str, ...]
    options: Options
    seeds: tuple[int, ...]
    entries: dict[tuple[str, str], tuple[Entry, ...]]
    """(row, dataset) -> an entry per column."""
    choices: dict[tuple[str, str], Choices]
    """(row, dataset) -> what was chosen, of the rows that are not quoted."""
    remarks: tuple[str, ...] = ()
    """What the readers of the datasets had to say, such as that images are missing."""

    @property
    def encoder(self) -> str:
        """The encoder of our numbers."""
        return self.options.encoder or self.experiment.encoder

    @property
    def columns(self) -> tuple[str, ...]:
        """What is shown of each dataset."""
        return COLUMNS[self.experiment.measure]

    @property
    def header(self) -> str:
        """The title, and under which protocol the numbers were made, where hidden labels took part."""
        protocol = "" if self.options.protocol == "paper" else f" (protocol '{self.options.protocol}')"
        return f"Table {self.experiment.name}: {self.experiment.title}{protocol}"

    @property
    def notes(self) -> list[str]:
        """What a reader must know."""
        return [
            f"{self._made_with}, mean ± standard deviation; protocol '{self.options.protocol}' ({self._selection}).",
            f"{self._papers} – not run.",
            *self.choice_notes,
            *MISPRINTS.get(self.experiment.name, ()),
            *self.remarks,
        ]

    @property
    def printed_notes(self) -> list[str]:
        """Those that a printed table, too, must have."""
        warning = [] if self.options.protocol == "paper" else [_WARNING]
        first = f"{self._made_with}; protocol '{self.options.protocol}'. {self._papers}"
        return [first, *self.choice_notes, *warning]

    @property
    def _made_with(self) -> str:
        """The encoder, images, epochs, changed settings and seeds of our numbers."""
        seeds, titles = ", ".join(map(str, self.seeds)), {name: BENCHMARKS[name].title for name in self.datasets}
        others = {name: value for name, value in self.options.changes.items() if name != "training.epochs"}
        changed = "".join(f", {name} {value}" for name, value in others.items())
        return f"Ours: encoder {self.encoder}, {images_and_epochs(self.choices, titles)}{changed}, seeds {seeds}"

    @property
    def _papers(self) -> str:
        other = "" if self.encoder == self.experiment.encoder else ", another encoder"
        return f"In parentheses the paper's, with {self.experiment.encoder}{other}."

    @property
    def choice_notes(self) -> list[str]:
        """Losses, head, K, snapshot and starts of k-means of our rows; of each dataset where these differ."""
        notes: dict[str, list[str]] = {}
        for dataset in self.datasets:
            own = {row: found for (row, name), found in self.choices.items() if name == dataset}
            for text in filter(None, (grouped(own, name) for name in TITLES)):
                notes.setdefault(f"{text}.", []).append(BENCHMARKS[dataset].title)
        return [text if len(on) == len(self.datasets) else f"{', '.join(on)}: {text}" for text, on in notes.items()]

    @property
    def _selection(self) -> str:
        """How snapshot and K were chosen."""
        setups = {row.setup for row in self.experiment.rows if row.method is not None}
        if setups == {"unsupervised"}:
            return "no labels, so nothing to choose by: K given, the last snapshot, a fixed number of shifts"
        if self.options.protocol != "paper":
            methods = dict.fromkeys(row.method for row in self.experiment.rows if row.method is not None)
            return "; ".join([*(RELEASED[method] for method in methods), SELECTIONS[self.options.protocol]])
        if "inductive" in setups:  # as published
            return SELECTIONS["paper"] + ", 10 % of the images set aside for it"
        return (
            SELECTIONS["paper"] + f", {100 * self.options.validation_share:g} % of the labels kept from the loss for it"
        )


def build_table(
    experiment: Experiment,
    datasets: Iterable[str],
    seeds: Iterable[int],
    options: Options,
    results: Mapping[str, Mapping[str, Any]],
) -> Table:
    """Put the results of cells, by key, into their places."""
    chosen, seeds = tuple(datasets), tuple(seeds)
    entries, choices = {}, {}
    remarks: dict[str, None] = {}
    for row in experiment.rows:
        for dataset in chosen:
            keys = _keys(experiment, row, dataset, seeds, options)
            found = [results[key] for key in keys if key in results]
            if row.method is not None:
                cell = make_cell(experiment, row, dataset, seeds[0], options)
                choices[row.name, dataset] = choices_of(cell, [result.get("rule") for result in found])
            paper = PAPER.get(experiment.name, {}).get(row.name, {}).get(dataset)
            entries[row.name, dataset] = _entries(experiment.measure, found, paper)
            remarks |= dict.fromkeys([*_few_seeds(row, dataset, len(found), len(keys)), *_remarks(dataset, found)])
    return Table(
        experiment=experiment,
        datasets=chosen,
        options=options,
        seeds=seeds,
        entries=entries,
        choices=choices,
        remarks=tuple(remarks),
    )


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its notes."""
    titles = [f"{BENCHMARKS[name].title} {column}" for name in table.datasets for column in table.columns]
    lines = [f"### {table.header}", "", f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for row in table.experiment.rows:
        lines.append(f"| {row.name} | {' | '.join(_texts(table, row))} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes)]) + "\n"


def to_latex(table: Table) -> str:
    """The table for booktabs; ours, and the paper's in parentheses."""
    n_columns = len(table.columns)
    groups = " & ".join(f"\\multicolumn{{{n_columns}}}{{c}}{{{BENCHMARKS[name].title}}}" for name in table.datasets)
    names = " & ".join(_escape(column) for _ in table.datasets for column in table.columns)
    lines = [
        *(f"% {note}" for note in table.notes),
        f"\\begin{{tabular}}{{l{'c' * n_columns * len(table.datasets)}}}",
        "\\toprule",
        f" & {groups} \\\\",
        f" & {names} \\\\",
        "\\midrule",
    ]
    for row in table.experiment.rows:
        values = " & ".join(text.replace("–", "--") for text in _texts(table, row, "$\\pm$"))
        lines.append(f"{_escape(row.name)} & {values} \\\\")
    lines.append("\\bottomrule")
    width = 1 + n_columns * len(table.datasets)
    wide = f"\\multicolumn{{{width}}}{{p{{\\linewidth}}}}"
    # Comments are not printed, and these must be.
    lines += [f"{wide}{{\\footnotesize {_escape(text)}}} \\\\" for text in table.printed_notes]
    return "\n".join([*lines, "\\end{tabular}"]) + "\n"


def to_csv(table: Table) -> str:
    """A line per number: table, row, dataset, column, ours, spread, seeds, the paper's, encoder, protocol, choices."""
    buffer, records = io.StringIO(), to_records(table)
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(records[0])
    for record in records:
        writer.writerow(["" if value is None else value for value in record.values()])
    return buffer.getvalue()


def to_records(table: Table) -> list[dict[str, Any]]:
    """A dictionary per number."""
    nothing = dict.fromkeys(field.name for field in fields(Choices))
    return [
        {
            "table": table.experiment.name,
            "row": row,
            "dataset": dataset,
            "column": column,
            "ours": entry.mean,
            "spread": entry.spread,
            "n_seeds": entry.n_seeds,
            "paper": entry.paper,
            "encoder": table.encoder,
            "protocol": table.options.protocol,
            **(asdict(table.choices[row, dataset]) if (row, dataset) in table.choices else nothing),
        }
        for (row, dataset), entries in table.entries.items()
        for column, entry in zip(table.columns, entries, strict=True)
    ]


def _keys(experiment: Experiment, row: Row, dataset: str, seeds: tuple[int, ...], options: Options) -> list[str]:
    """The cells of a row, one per seed; one in all where the method draws nothing."""
    if row.method is None:
        return []
    return list(dict.fromkeys(make_cell(experiment, row, dataset, seed, options).key for seed in seeds))


def _few_seeds(row: Row, dataset: str, n_found: int, n_wanted: int) -> list[str]:
    if n_found in (0, n_wanted):
        return []
    return [f"{row.name}, {BENCHMARKS[dataset].title}: {n_found} of {n_wanted} seeds only."]


def _remarks(dataset: str, found: list[Mapping[str, Any]]) -> list[str]:
    title = BENCHMARKS[dataset].title
    notes = [note for result in found for note in result.get("notes", ())]
    skipped = max((result.get("images_skipped", 0) for result in found), default=0)
    notes += [f"{skipped:,} image(s) could not be decoded and were left out"] if skipped else []
    return [f"{title}: {note}." for note in notes]


def _entries(measure: str, found: list[Mapping[str, Any]], paper: tuple[float | None, ...] | None) -> tuple[Entry, ...]:
    columns = [_values(measure, result) for result in found]
    printed = paper or (None,) * len(COLUMNS[measure])
    return tuple(
        Entry(
            mean=statistics.fmean(ours) if ours else None,
            spread=statistics.stdev(ours) if len(ours) > 1 else None,
            n_seeds=len(ours),
            paper=theirs,
        )
        for ours, theirs in zip([[c[i] for c in columns] for i in range(len(printed))], printed, strict=True)
    )


def _values(measure: str, result: Mapping[str, Any]) -> list[float]:
    if measure == "n_clusters":
        return [float(result["n_clusters"]), result["n_clusters_error"]]
    return [result["recall" if measure == "recall" else "accuracy"][name.lower()] for name in COLUMNS[measure]]


def _texts(table: Table, row: Row, plus_minus: str = "±") -> list[str]:
    style = "g" if table.experiment.measure == "n_clusters" else ".1f"  # K is a whole number
    entries = [entry for dataset in table.datasets for entry in table.entries[row.name, dataset]]
    return [entry.text(plus_minus=plus_minus, paper_format=style) for entry in entries]


def _escape(text: str) -> str:
    return text.translate(_LATEX)
