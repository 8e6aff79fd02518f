"""CSV text as rows of cells, each with the line it begins on; and rows in which a quote may be
missing.

A text in quotes may hold line ends. Where its closing quote is missing, the next quote of the file
closes it, and the rows between become part of one cell: valid CSV, and their labels are gone.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence

from shoal.errors import DataError

LINE_END = re.compile(r"\r\n|\r|\n")

Row = Sequence[str]


def split_csv(text: str, delimiter: str, where: str) -> tuple[list[list[str]], list[range]]:
    """The rows of a text that are not blank, and the lines of each; a quote that nothing closes
    is refused."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    lines = []
    begins = 1
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(range(begins, reader.line_num + 1))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{where}, line {begins}: not valid CSV ({error}); close a text in quotes with "
            '", and write a quote inside of it as ""'
        ) from error
    return rows, lines


def refuse_swallowed_rows(
    row: Row, delimiter: str, is_row: Callable[[Row], bool], location: str
) -> None:
    """Refuse a row with a text in quotes of which a line `is_row`, by cells that lie in that
    text."""
    for cells in _lines_as_rows(row, delimiter):
        if len(cells) == len(row) and is_row(cells):
            raise DataError(
                f"{location}: a text in quotes spans lines here, and one of them looks like a row "
                "of its own; "
                "close the quote where the text ends, or write the text without line ends"
            )


def _lines_as_rows(row: Row, delimiter: str) -> Iterator[list[str]]:
    """The cells of each line of the cells that span lines, if no quotes were around them.

    The cells before and behind, which share the first and the last line, are the row's own: empty
    here.
    """
    for column, cell in enumerate(row):
        lines = LINE_END.split(cell)
        if len(lines) > 1:
            cells = [next(csv.reader([line], delimiter=delimiter), [""]) for line in lines]
            yield [""] * column + cells[0]
            yield from cells[1:-1]
            yield cells[-1] + [""] * (len(row) - column - 1)
