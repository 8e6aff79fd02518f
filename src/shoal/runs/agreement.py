"""Whether the tables of a run agree: people edit one of them and not the other."""

from pathlib import Path

from shoal.errors import DataError
from shoal.runs.reading import damaged, read_array, read_text, split_table
from shoal.runs.rows import Category, read_rows

NO_CATEGORY = -1


def check_agreement(folder: Path) -> None:
    """Refuse a run whose tables contradict each other or its embeddings; what is missing or cannot be read is left.

    Whoever needs a part that is missing or damaged says so when it is read.
    """
    file = folder / "assignments.csv"
    if not file.is_file():
        return
    header, rows = split_table(read_text(file), file)
    if not {"path", "category_id", "category"} <= set(header):
        return
    path, number, name = (header.index(column) for column in ("path", "category_id", "category"))
    first: dict[str, int] = {}  # the line that names an image first
    named: dict[tuple[str, str], int] = {}  # the line that names a category first
    for line, cells in rows:
        if first.setdefault(cells[path], line) != line:
            raise damaged(file, f"{cells[path]!r} is an image of line {first[cells[path]]} too", line)
        named.setdefault((cells[number], cells[name]), line)
    if (folder / "categories.csv").is_file():
        _check_categories(folder, named)
    _check_n_rows(folder, len(rows))


def _check_categories(folder: Path, named: dict[tuple[str, str], int]) -> None:
    """Refuse ids that are not one for each category, known ones first, and images in others or under other names."""
    file, table, names, is_novel = folder / "assignments.csv", folder / "categories.csv", dict[int, str](), False
    for position, category in enumerate(read_rows(Category, table)):
        found = category.category_id
        if found < 0 or found in names or (is_novel and not category.is_novel):
            raise damaged(table, f"found id {found} at position {position}", position + 2)
        names[found], is_novel = category.category, category.is_novel
    for (number, name), line in named.items():
        if not _is_number(number) or int(number) == NO_CATEGORY:  # no number: whoever reads the row says so
            continue
        expected = names.get(int(number))
        if expected is None:
            raise damaged(file, f"found the category {number}, which categories.csv has not", line)
        if name != expected:
            raise damaged(file, f"the category {number} is {name!r}, in categories.csv {expected!r}", line)


def _check_n_rows(folder: Path, n_rows: int) -> None:
    try:
        shape = read_array(folder / "embeddings.npy").shape
    except DataError:  # missing or damaged: whoever needs them says so
        return
    if shape[:1] != (n_rows,):
        reason = f"found {n_rows:,} rows, but the shape of embeddings.npy is {shape}"
        raise damaged(folder / "assignments.csv", reason)


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
