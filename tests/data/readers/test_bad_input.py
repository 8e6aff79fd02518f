"""Errors in folders and tables are reported with file and line, or counted."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from shoal.data.readers import read_collection
from shoal.data.readers.tables import read_table
from shoal.errors import DataError, MissingError

Make = Callable[[list[str]], Path]


def write(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return file


def refused(place: str) -> "pytest.RaisesExc[DataError]":
    """Expect an error that names the file, the line or the path of the wrong data."""
    return pytest.raises(DataError, match=re.escape(place))


def test_a_folder_that_is_none_is_refused(make_images: Make, tmp_path: Path) -> None:
    with refused("nowhere"):
        read_collection(tmp_path / "nowhere")
    with refused("photos.zip"):
        read_collection(write(tmp_path / "photos.zip", "x"))
    with refused("for embeddings"):
        read_collection(write(tmp_path / "x.npy", "x"))
    (tmp_path / "empty").mkdir()
    with refused("empty"):
        read_collection(tmp_path / "empty")
    with refused("empty"):
        read_collection(labeled=tmp_path / "empty", unlabeled=make_images(["a.png"]))
    write(tmp_path / "empty" / "a.mov", "x")
    with refused("a.mov"):
        read_collection(tmp_path / "empty")


@pytest.mark.parametrize("n_absent", [1, 2, 3])
def test_a_table_of_which_many_rows_name_no_image_is_refused_unless_allowed(
    make_images: Make, n_absent: int
) -> None:
    """One row in twenty may lack its image: two of 43 rows are fewer than that, three are more."""
    names = [f"{i:02d}.png" for i in range(43 - n_absent)]
    root = make_images(names)
    rows = [f"{name},cat" for name in names] + [f"gone-{i}.png,dog" for i in range(n_absent)]
    table = write(root / "t.csv", "\n".join(["path,label", *rows]))
    frame = pd.read_csv(table).assign(
        path=lambda found: [str(root / name) for name in found["path"]]
    )
    for source, labels in (
        (root, table),
        (table, None),
        (frame, None),
        (list(frame["path"]), None),
    ):
        if n_absent < 3:
            assert len(read_collection(source, labels)) == 43 - n_absent
            continue
        with refused("3 of 43"):
            read_collection(source, labels)
        found = read_collection(source, labels, allow_missing=True)
        assert len(found) == 40
        assert "gone-0.png" in found.describe()


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        ((1, '{name},"daisy,'), (4, '{name},daffodil",')),
        ((1, '"{name},daisy,'), (4, '{name}",daffodil,')),
        ((1, '{name},daisy,"wet'), (4, '{name},daffodil,dry"')),
        ((1, '{name},daisy,"wet'), (2, '{name},daffodil,""dry"')),
        ((1, '{name},daisy,"wet'), (4, '{name},daffodil",dry')),
    ],
)
def test_a_quote_that_the_quote_of_a_later_row_closes_swallows_no_rows(
    make_images: Make, name: str, opened: tuple[int, str], closed: tuple[int, str]
) -> None:
    names = [f"{i:02d}.png" for i in range(8)]
    root = make_images(names)
    rows = [f"{image},daisy," for image in names]
    for place, text in (opened, closed):
        rows[place] = text.format(name=names[place])
    text = "\n".join(["path,label,note", 'extra.png,daisy,"in\rtwo lines"', *rows[1:]]) + "\n"
    table = write(root / name, text.replace(",", "\t") if name == "t.tsv" else text)
    with refused(f"{name}, line {opened[0] + 3}:"):
        read_collection(root, table, allow_missing=True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('note,path,label\n"wet,a.png,cat\ndry",b.png,dog\n', 2),
        ('note,path,label\n"two\nlines",a.png,"cat\n"\n,b.png,dog\n', 2),
        ('path,label,"note\na.png,cat,\nb.png,dog,"\n', 1),
    ],
    ids=["before the path", "in the label", "in the header"],
)
def test_a_quote_that_is_not_closed_is_refused_wherever_it_stands(
    make_images: Make, text: str, line: int
) -> None:
    root = make_images(["a.png", "b.png"])
    with refused(f"t.csv, line {line}:"):
        read_collection(root, write(root / "t.csv", text))


def test_a_text_in_quotes_may_hold_line_ends_and_commas(make_images: Make) -> None:
    root = make_images(["a.png", "b.png"])
    note = "brown, white, small\nlike the next one\nor so, too"
    for text in (
        f'path,"label",note\na.png,cat,"{note}"\nb.png,dog,\n',
        f'note,path,label\n"{note}",a.png,cat\n,b.png,dog\n',
        'path,label,note\na.png,cat,"two\nlines"\n\nb.png,cat,\n',
    ):
        assert read_collection(root, write(root / "t.csv", text)).n_labeled == 2
    with refused("t.csv, line 5:"):
        text = 'path,label,note\na.png,cat,"two\nlines"\n\nb.png,cat\n'
        read_collection(root, write(root / "t.csv", text))


def test_labels_for_no_file_at_all_are_refused(make_images: Make) -> None:
    root = make_images(["a.png"])
    with refused("t.csv, line 2: img/a.png, but images are named like 'a.png'"):
        read_collection(root, write(root / "t.csv", "path,label\nimg/a.png,cat\n"))
    with refused("gone.png"):
        read_collection([root / "gone.png"])


def test_a_file_with_two_labels_is_refused_with_both_places(make_images: Make) -> None:
    root = make_images(["a.png"])
    table = write(root / "t.csv", "path,label\na.png,cat\n./a.png,dog\n")
    with pytest.raises(DataError, match=r"t.csv, line 3: ./a.png .* t.csv, line 2"):
        read_collection(root, table)
    with pytest.raises(DataError, match=r"path 1: .*a.png .* path 0"):
        read_collection([root / "a.png", root / "a.png"], ["cat", "dog"])


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("t.csv", "", "t.csv: no rows"),
        ("t.csv", "path,label\n", "t.csv: no rows"),
        ("t.csv", "path,label\na.png,Cat, domestic\n", "line 2: found 3 cells, expected 2"),
        ("t.csv", "path,label\na.png\n", "line 2: found 1 cell, expected 2"),
        ("t.csv", "path,label,label\na.png,x,y\n", "'path', 'label', 'label'"),
        ("t.csv", "path,label\n,cat\n", "line 2: found ''"),
        ("t.csv", 'path,label\na.png,"' + "x" * 200_000, "line 2:"),
        ("t.csv", "path,label\na.png," + "x" * 200_000, "line 2:"),
        ("t.csv", "path,label\na.png,cat\nb.png,Bär\n".encode("latin-1"), "line 3: not UTF-8"),
        ("t.jsonl", '{"path": "a.png"\n', "line 1: found"),
        ("t.jsonl", "[1]\n", "line 1: found '[1]'"),
        ("t.jsonl", "\n", "t.jsonl: no rows"),
        ("t.jsonl", '{"path": "a.png"}\n{"label": ' + "[" * 10_000, "line 2: found"),
        ("t.jsonl", '{"path": "a.png"}\n{"label": ' + "1" * 5_000, "line 2: found"),
        ("t.parquet", "nonsense", "t.parquet:"),
        ("t.ods", "x", "t.ods: not an existing table"),
    ],
    ids=range(16),
)
def test_a_broken_table_is_refused_with_its_place(
    make_images: Make, name: str, text: str | bytes, place: str
) -> None:
    root = make_images(["a.png"])
    with refused(place):
        read_collection(root, write(root / name, text))


def test_a_byte_order_mark_is_no_part_of_the_header(make_images: Make) -> None:
    root = make_images(["a.png"])
    bom = write(root / "bom.csv", "\ufeffpath,label\r\na.png,Bär\r\n")
    assert read_collection(root, bom).classes == ("Bär",)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pd.DataFrame({"path": ["a"], "label": ["b"]}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingError):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("path", ["../secret.png", "x/../../secret.png", "/etc/passwd"])
def test_paths_that_leave_the_root_are_refused(make_images: Make, path: str) -> None:
    root = make_images(["a.png", "../secret.png"])
    table = write(root / "t.csv", f"path,label\na.png,cat\n{path},dog\n")
    with refused("t.csv, line 3:"):
        read_collection(root, table)
    if not path.startswith("/"):  # a table given alone may list images of any folder
        with refused("t.csv, line 3:"):
            read_collection(table)


def test_links_that_loop_lead_up_or_elsewhere_are_counted(
    make_images: Make, tmp_path: Path
) -> None:
    root = make_images(["cat/a.png", "dog/b.png", "../elsewhere/c.png"])
    (root / "cat" / "again").symlink_to(root, target_is_directory=True)
    (root / "dog" / "self").symlink_to(root / "dog", target_is_directory=True)
    (root / "up").symlink_to(tmp_path)
    (root / "out").symlink_to(tmp_path / "elsewhere")
    found = read_collection(root)
    assert found.names == ("cat/a.png", "dog/b.png", "out/c.png")
    assert any("not followed (3): cat/again, dog/self, up" in note for note in found.notes)


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and links, and names that are bytes")
def test_what_is_named_like_an_image_and_is_none_is_listed_with_the_reason(
    make_images: Make,
) -> None:
    root = make_images(["cat/a.png"])
    os.mkfifo(root / "cat" / "pipe.png")
    (root / "dead.png").symlink_to(root / "nowhere.png")
    (root / "loop.png").symlink_to(root / "loop.png")
    os.link(root / "cat" / "a.png", root / "b\udcff.png")
    found = read_collection(root)
    names = list(found.left_out)
    assert names == ["b\\udcff.png", "cat/pipe.png", "dead.png", "loop.png"]
    assert len(set(found.left_out.values())) == 2
    assert found.count() == "1 image, 1 labeled in 1 category, 0 unlabeled, 4 unreadable"
    assert read_collection(labeled=root, unlabeled=root / "cat").left_out == found.left_out


def test_addresses_and_paths_of_this_machine_are_told_apart(make_images: Make) -> None:
    root = make_images(["a.png"])
    with refused("s3://birds/all: is an address"):
        read_collection(labeled=Path("s3://birds/all"), unlabeled=root)
    with refused("https://example.org/photos: not an existing table"):
        read_collection(root, "https://example.org/photos")
    address = "https://example.org/b.png"
    table = write(root / "t.csv", f"path,label\na.png,cat\n{address},dog\n")
    with refused(f"t.csv, line 3: '{address}'"):
        read_collection(root, table)
    assert any(f"t.csv, line 3: {address}" in note for note in read_collection(table).notes)


@pytest.mark.parametrize("label", ["two\nlines", "\ud800", ["a", "b"]])
def test_a_label_that_is_none_is_refused_wherever_it_stands(
    label: object, make_images: Make, tmp_path: Path
) -> None:
    images = make_images(["a.png", "b.png"])
    rows = {"a.png": "cat", "b.png": label}
    lines = [json.dumps({"path": path, "label": cell}) for path, cell in rows.items()]
    table = write(tmp_path / "labels.jsonl", "\n".join(lines))
    for source, labels, place in (
        (images, table, "labels.jsonl, line 2:"),
        (images, rows, "the mapping, entry 1:"),
        ([images / name for name in rows], [*rows.values()], "the list, path 1:"),
    ):
        with refused(place):
            read_collection(source, labels)
