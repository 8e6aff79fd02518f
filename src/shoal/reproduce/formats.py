"""Tables as text: Markdown, LaTeX, CSV, and a dictionary per number. All of them say what a reader must know."""

import csv
import io
from dataclasses import asdict, fields
from typing import Any

from shoal.data.benchmarks import BENCHMARKS
from shoal.reproduce.choices import Choices
from shoal.reproduce.experiment import Row
from shoal.reproduce.paper import MISPRINTS
from shoal.reproduce.tables import ResultTable

_LATEX = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "%_&#${}"},
        **{"|": "$|$", "\\": "$\\backslash$", "~": "$\\sim$", "^": "\\^{}", "±": "$\\pm$", "–": "--", "…": "\\ldots{}"},
        **{"α": "$\\alpha$", "λ": "$\\lambda$", "δ": "$\\delta$", "σ": "$\\sigma$", "τ": "$\\tau$", "→": "$\\to$"},
        **{"<": "$<$", ">": "$>$", "≤": "$\\le$", "≥": "$\\ge$", "²": "$^2$", "×": "$\\times$"},
    }
)
"""What has a meaning in LaTeX or is not in its fonts, as it is printed."""


def to_markdown(table: ResultTable) -> str:
    """The table as Markdown, with its notes."""
    titles = [f"{BENCHMARKS[name].title} {column}" for name in table.datasets for column in table.columns]
    lines = [f"### {table.header}", "", f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for row in table.experiment.rows:
        lines.append(f"| {row.name} | {' | '.join(_texts(table, row))} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes)]) + "\n"


def to_latex(table: ResultTable) -> str:
    """The table for booktabs, its title above and its notes below: comments are not printed, and these must be."""
    n_columns = len(table.columns)
    width = 1 + n_columns * len(table.datasets)

    def wide(text: str) -> str:
        return f"\\multicolumn{{{width}}}{{@{{}}p{{\\linewidth}}@{{}}}}{{{text}}} \\\\"

    groups = " & ".join(f"\\multicolumn{{{n_columns}}}{{c}}{{{BENCHMARKS[name].title}}}" for name in table.datasets)
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
    buffer, records = io.StringIO(), to_records(table)
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


def _texts(table: ResultTable, row: Row, plus_minus: str = "±") -> list[str]:
    is_whole = table.experiment.is_count or table.experiment.measure == "n_clusters"
    style = "g" if is_whole else ".1f"
    entries = [entry for dataset in table.datasets for entry in table.entries[row.name, dataset]]
    return [entry.text(plus_minus=plus_minus, paper_format=style) for entry in entries]


def _escape(text: str) -> str:
    return text.translate(_LATEX)
