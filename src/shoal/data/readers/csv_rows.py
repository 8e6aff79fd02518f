"""CSV text as rows of cells, each with the line it begins on; and rows that span lines, because a quote may be missing.

A text in quotes may hold line ends. Where its closing quote is missing, the next quote of the file closes it, and the
rows between become part of one cell: valid CSV, and their labels are gone.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from shoal.errors import DataError

LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class SpanningRow:
    """A row of which a cell holds line ends."""

    line: int
    """The line it begins on."""
    cells: tuple[str, ...]
    delimiter: str

    def quotes(self) -> list[tuple[int, int]]:
        """The lines on which each cell begins and ends."""
        ends = [
            *accumulate((len(LINE_END.findall(cell)) for cell in self.cells), initial=self.line)
        ]
        return [*pairwise(ends)]


@dataclass(frozen=True, slots=True)
class CsvRows:
    """The rows of a CSV text that are not blank, the header among them."""

    cells: list[list[str]]
    lines: list[int]
    """The line on which each begins."""
    spanning: tuple[SpanningRow, ...]


def split_csv(text: str, delimiter: str, where: str) -> CsvRows:
    """Split a text into rows; a quote that nothing closes is refused."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    cells = []
    lines = list[int]()
    spanning = []
    begins = 1
    try:
        for row in reader:
            if row:
                cells.append(row)
                lines.append(begins)
            if reader.line_num > begins:
                spanning.append(SpanningRow(begins, tuple(row), delimiter))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{where}, line {begins}: {_why_no_csv(str(error), text, begins, reader.line_num)}"
        ) from error
    return CsvRows(cells, lines, tuple(spanning))


def refuse_spanning_cells(rows: Sequence[SpanningRow], column: int, what: str, where: str) -> None:
    """Refuse a path or label that holds a line end."""
    for row in rows:
        if LINE_END.search(row.cells[column]):
            begins, ends = row.quotes()[column]
            raise DataError(
                f"{where}, line {begins}: a {what} in quotes begins here and ends on line {ends}; close the quote on "
                "the line where it opens, no name of an image and no label may span lines"
            )


def refuse_swallowed_rows(
    rows: Sequence[SpanningRow], is_row: Callable[[Sequence[str]], bool], where: str
) -> None:
    """Refuse a text in quotes of which a line `is_row`, by cells that lie in that text; others are given as empty."""
    for row in rows:
        for column, (begins, ends) in enumerate(row.quotes()):
            for number, cells in enumerate(_lines_as_rows(row, column), start=begins):
                if len(cells) == len(row.cells) and is_row(cells):
                    raise DataError(
                        f"{where}, line {begins}: a text in quotes begins here and ends on line {ends}, and line "
                        f"{number} in it looks like a row of its own; close the quote where the text ends, or write "
                        "the text without line ends"
                    )


def _lines_as_rows(row: SpanningRow, column: int) -> list[list[str]]:
    """The cells of each line of a cell that spans lines, if the quotes around it were not there.

    The cells before and behind it, which share its first and its last line, are its row's own: empty here.
    """
    lines = LINE_END.split(row.cells[column])
    if len(lines) == 1:
        return []
    cells = [_split_line(line, row.delimiter) for line in lines]
    before = column
    behind = len(row.cells) - column - 1
    return [[""] * before + cells[0], *cells[1:-1], cells[-1] + [""] * behind]


def _split_line(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [""])


def _why_no_csv(error: str, text: str, begins: int, ends: int) -> str:
    if '"' in "".join(io.StringIO(text, newline="").readlines()[begins - 1 : ends]):
        return (
            'a text in quotes is not closed, or goes on behind its closing quote; close it with ", and write a '
            'quote inside of it as ""'
        )
    return f"not valid CSV ({error}); export the table again"
