"""A table of the paper with our numbers in it, and how it is written: Markdown, LaTeX, CSV, a dictionary per number.

All of these say what a reader must know.
"""

import csv
import io
from dataclasses import asdict, dataclass, fields
from typing import Any

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce.choices import TITLES, Choices, describe_making, grouped
from shoal.reproduce.experiment import (
    COUNTS,
    SELECTIONS,
    Experiment,
    ReproduceOptions,
    TableRow,
    rows_to_run,
)
from shoal.reproduce.method_words import words_of
from shoal.reproduce.paper import MISPRINTS

COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": ("All", "Known", "Novel"),
    "recall": ("All", "Labeled", "Unlabeled"),
    "all": ("All",),
    "n_clusters": ("K", "Err %"),
    "classes": ("Known", "Novel"),
    "images": ("Images",),
}

_LATEX = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "%_&#${}"},
        **{
            "|": "$|$",
            "\\": "$\\backslash$",
            "~": "$\\sim$",
            "^": "\\^{}",
            "±": "$\\pm$",
            "–": "--",
            "…": "\\ldots{}",
        },
        **{
            "α": "$\\alpha$",
            "λ": "$\\lambda$",
            "δ": "$\\delta$",
            "σ": "$\\sigma$",
            "τ": "$\\tau$",
            "→": "$\\to$",
        },
        **{"<": "$<$", ">": "$>$", "≤": "$\\le$", "≥": "$\\ge$", "²": "$^2$", "×": "$\\times$"},
    }
)
"""What has a meaning in LaTeX or is not in its fonts, as it is printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
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
        ours = (
            "–"
            if self.mean is None
            else f"{round(self.mean, 1):g}"
            if is_plain
            else f"{self.mean:.1f}"
        )
        if self.spread is not None:
            ours += f" {plus_minus} {self.spread:.1f}"
        return ours if self.paper is None else f"{ours} ({self.paper:{paper_format}})"


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of the paper with our numbers in it."""

    experiment: Experiment
    datasets: tuple[str, ...]
    options: ReproduceOptions
    seeds: tuple[int, ...]
    entries: dict[tuple[str, str], tuple[TableEntry, ...]]
    """(row, dataset) -> an entry per column."""
    choices: dict[tuple[str, str], Choices]
    """(row, dataset) -> what was chosen, of the rows that are not quoted."""
    remarks: dict[tuple[str, str], tuple[str, ...]]
    """(row, dataset) -> what is strange about its cells, such as missing images, trainings that failed or collapsed."""
    images: dict[tuple[str, str], int]
    """(row, dataset) -> images of the training part, of the rows that were run."""

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
        title = f"Table {self.experiment.name}: {self.experiment.title}"
        if self.options.protocol == "paper" or self.experiment.measure in COUNTS:
            return title
        chose = "" if self._is_unsupervised else ": hidden labels chose snapshot and K"
        return f"{title} (protocol '{self.options.protocol}'{chose})"

    @property
    def notes(self) -> list[str]:
        """What a reader must know, in every form of the table."""
        if self.experiment.measure in COUNTS:
            return ["Ours: counted in the folders. In parentheses the paper's.", *self._remarks]
        titles = {name: BENCHMARKS[name].title for name in self.datasets}
        made_with = describe_making(
            self.encoder, self.options.changes, self.choices, titles, self.seeds
        )
        spread = ", mean ± standard deviation" if len(self.seeds) > 1 else ""
        return [
            f"Ours: {made_with}{spread}; protocol '{self.options.protocol}', which says who chooses and not which "
            f"losses are taken ({self._selection}).",
            f"{self._papers} – not run.",
            *self.choice_notes,
            *MISPRINTS.get(self.experiment.name, ()),
            *self._remarks,
        ]

    @property
    def _remarks(self) -> list[str]:
        return list(dict.fromkeys(text for texts in self.remarks.values() for text in texts))

    @property
    def _papers(self) -> str:
        other = "" if self.encoder == self.experiment.encoder else ", another encoder"
        return f"In parentheses the paper's, with {self.experiment.encoder}{other}."

    @property
    def choice_notes(self) -> list[str]:
        """Losses, head, K, snapshot and starts of k-means of our rows; of each dataset where these differ."""
        notes: dict[str, list[str]] = {}
        for dataset in self.datasets:
            own = {row: choice for (row, name), choice in self.choices.items() if name == dataset}
            for text in filter(None, (grouped(own, name) for name in TITLES)):
                notes.setdefault(f"{text}.", []).append(BENCHMARKS[dataset].title)
        return [
            text if len(on) == len(self.datasets) else f"{', '.join(on)}: {text}"
            for text, on in notes.items()
        ]

    @property
    def _setups(self) -> set[str]:
        return {row.setup for row in rows_to_run(self.experiment, self.options)}

    @property
    def _is_unsupervised(self) -> bool:
        """Whether there is nothing to choose by."""
        return self._setups == {"unsupervised"}

    @property
    def _selection(self) -> str:
        """How snapshot and K were chosen."""
        if self._is_unsupervised:
            return "no labels, so nothing to choose by: K given, the last snapshot, a fixed number of shifts"
        if self.options.protocol != "paper":
            methods = dict.fromkeys(
                row.methods[0] for row in rows_to_run(self.experiment, self.options)
            )
            return "; ".join(
                [
                    *(words_of(method).released for method in methods),
                    SELECTIONS[self.options.protocol],
                ]
            )
        if "inductive" in self._setups:  # as published
            return SELECTIONS["paper"] + ", 10 % of the images set aside for it"
        return (
            SELECTIONS["paper"]
            + f", {100 * self.options.validation_share:g} % of the labels kept from the loss for it"
        )


def to_texts(table: ResultTable) -> dict[str, str]:
    """The table in every form that is written, by the ending of its file."""
    return {".md": to_markdown(table), ".tex": to_latex(table), ".csv": to_csv(table)}


def to_markdown(table: ResultTable) -> str:
    """The table as Markdown, with its notes."""
    titles = [
        f"{BENCHMARKS[name].title} {column}" for name in table.datasets for column in table.columns
    ]
    lines = [
        f"### {table.header}",
        "",
        f"| | {' | '.join(titles)} |",
        "|---" * (len(titles) + 1) + "|",
    ]
    for row in table.experiment.rows:
        lines.append(f"| {row.name} | {' | '.join(_texts(table, row))} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes)]) + "\n"


def to_latex(table: ResultTable) -> str:
    """The table for booktabs, its title above and its notes below: comments are not printed, and these must be."""
    n_columns = len(table.columns)
    width = 1 + n_columns * len(table.datasets)

    def wide(text: str) -> str:
        return f"\\multicolumn{{{width}}}{{@{{}}p{{\\linewidth}}@{{}}}}{{{text}}} \\\\"

    groups = " & ".join(
        f"\\multicolumn{{{n_columns}}}{{c}}{{{BENCHMARKS[name].title}}}" for name in table.datasets
    )
    names = " & ".join(_escape(column) for _ in table.datasets for column in table.columns)
    lines = [
        f"\\begin{{tabular}}{{l{'c' * n_columns * len(table.datasets)}}}",
        wide(_escape(table.header)),
        "\\toprule",
        f" & {groups} \\\\",
        f" & {names} \\\\",
        "\\midrule",
    ]
    for row in table.experiment.rows:
        values = " & ".join(text.replace("–", "--") for text in _texts(table, row, "$\\pm$"))
        lines.append(f"{_escape(row.name)} & {values} \\\\")
    lines.append("\\bottomrule")
    lines += [wide(f"\\footnotesize {_escape(note)}") for note in table.notes]
    return "\n".join([*lines, "\\end{tabular}"]) + "\n"


def to_csv(table: ResultTable) -> str:
    """A line per number; its columns are the keys of `to_records`."""
    buffer = io.StringIO()
    records = to_records(table)
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(records[0])
    for record in records:
        writer.writerow(["" if value is None else value for value in record.values()])
    return buffer.getvalue()


def to_records(table: ResultTable) -> list[dict[str, Any]]:
    """A dictionary per number: ours, the paper's, and what either was made with."""
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
            "images": table.images.get((row, dataset)),
            "remarks": " ".join(table.remarks.get((row, dataset), ())) or None,
            "misprints": " ".join(MISPRINTS.get(table.experiment.name, ())) or None,
            **(asdict(table.choices[row, dataset]) if (row, dataset) in table.choices else nothing),
        }
        for (row, dataset), entries in table.entries.items()
        for column, entry in zip(table.columns, entries, strict=True)
    ]


def _texts(table: ResultTable, row: TableRow, plus_minus: str = "±") -> list[str]:
    style = (
        "g" if table.experiment.measure in (*COUNTS, "n_clusters") else ".1f"
    )  # whole numbers, or shares
    entries = [entry for dataset in table.datasets for entry in table.entries[row.name, dataset]]
    return [entry.text(plus_minus=plus_minus, paper_format=style) for entry in entries]


def _escape(text: str) -> str:
    return text.translate(_LATEX)
