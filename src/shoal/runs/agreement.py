"""Whether the tables of a run agree: people edit one of them and not the other."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal.errors import DataError
from shoal.runs.assignment_table import TABLE, read_assignment_columns, table_files
from shoal.runs.rows import Category, read_rows
from shoal.runs.run_files import damaged, read_array, read_text, split_table, table_columns

NO_CATEGORY = -1


def check_agreement(folder: Path) -> None:
    """Refuse a run whose tables contradict each other or its embeddings; what is missing or cannot be read is left.

    Whoever needs a part that is missing or damaged says so when it is read.
    """
    file = table_files(folder)[0]
    if file.name != TABLE:
        table = read_assignment_columns(folder)
        check_columns(folder, table["path"], table["category_id"].tolist(), table["category"])
        return
    if not file.is_file():
        return
    header, columns = table_columns(read_text(file), file)
    if not {"path", "category_id", "category"} <= set(header):
        return
    paths, numbers, names = (
        columns[header.index(column)] for column in ("path", "category_id", "category")
    )
    check_columns(folder, paths, numbers, names)


def check_columns(
    folder: Path, paths: Sequence[str], numbers: Sequence[str | int], names: Sequence[str]
) -> None:
    """The same for whoever has read the columns of assignments.csv: images, ids and names of their categories."""
    file = table_files(folder)[0]
    if len(set(paths)) < len(paths):
        path = next(path for path, n in Counter(paths).items() if n > 1)
        if file.name != TABLE:
            first, second, *_ = (row for row, name in enumerate(paths) if name == path)
            raise damaged(
                file, f"{path!r} is the image of rows {first:,} and {second:,} of the run"
            )
        first, second, *_ = _lines(file, path=path)
        raise damaged(file, f"{path!r} is an image of line {first} too", second)
    if (folder / "categories.csv").is_file():
        _check_categories(folder, dict.fromkeys(zip(numbers, names, strict=True)))
    _check_n_rows(folder, len(paths))


def _lines(file: Path, **wanted: str) -> list[int]:
    """The lines of the rows that have these values; parts in parquet have none."""
    if file.name != TABLE:
        return []
    header, rows = split_table(read_text(file), file)
    at = {header.index(column): value for column, value in wanted.items()}
    return [
        line for line, cells in rows if all(cells[column] == value for column, value in at.items())
    ]


def _check_categories(folder: Path, named: Iterable[tuple[str | int, str]]) -> None:
    """Refuse ids that are not one for each category, known ones first, and images in others or under other names."""
    file = table_files(folder)[0]
    table = folder / "categories.csv"
    names = dict[int, str]()
    is_novel = False
    for position, category in enumerate(read_rows(Category, table)):
        category_id = category.category_id
        if category_id < 0 or category_id in names or (is_novel and not category.is_novel):
            raise damaged(table, f"found id {category_id} at position {position}", position + 2)
        names[category_id] = category.category
        is_novel = category.is_novel
    for number, name in named:
        if (
            not _is_number(str(number)) or int(number) == NO_CATEGORY
        ):  # no number: whoever reads the row says so
            continue
        expected = names.get(int(number))
        if name == expected:
            continue
        line = next(iter(_lines(file, category_id=str(number), category=name)), None)
        if expected is None:
            raise damaged(file, f"found the category {number}, which categories.csv has not", line)
        raise damaged(
            file, f"the category {number} is {name!r}, in categories.csv {expected!r}", line
        )


def _check_n_rows(folder: Path, n_rows: int) -> None:
    try:
        shape = read_array(folder / "embeddings.npy").shape
    except DataError:  # missing or damaged: whoever needs them says so
        return
    if shape[:1] != (n_rows,):
        reason = f"found {n_rows:,} rows, but the shape of embeddings.npy is {shape}"
        raise damaged(table_files(folder)[0], reason)


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
