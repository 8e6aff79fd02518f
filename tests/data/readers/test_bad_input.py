"""What goes wrong in folders and tables is refused with a clear message, or counted; nothing is lost in silence."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from shoal.data.readers import read_collection
from shoal.data.readers.tables import read_table
from shoal.errors import DataError, MissingError, UsageError

Make = Callable[[list[str]], Path]


def write(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return file


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^a{60}…: too long for the name of a file"):
        read_collection("a" * 5_000)
    with pytest.raises(
        DataError, match="nowhere: no such folder; give the folder that holds the images"
    ):
        read_collection(tmp_path / "nowhere")


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found a file, expected the folder"):
        read_collection(write(tmp_path / "photos.zip", "x"))
    with pytest.raises(UsageError, match="read_embeddings"):
        read_collection(write(tmp_path / "x.npy", "x"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no images .* no files at all"):
        read_collection(tmp_path)
    write(tmp_path / "a.mov", "x")
    with pytest.raises(
        DataError, match=r"no images .* 1 file with other suffixes ignored \(\.mov 1\)"
    ):
        read_collection(tmp_path)


def test_an_empty_labeled_folder_is_refused(make_images: Make, tmp_path: Path) -> None:
    root = make_images(["a.png"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no images"):
        read_collection(labeled=tmp_path / "empty", unlabeled=root)


def test_labels_for_files_that_are_not_there_are_counted(make_images: Make) -> None:
    root = make_images(["a.png"])
    table = write(root / "t.csv", "path,label\na.png,cat\ngone.png,dog\nalso gone.png,dog\n")
    found = read_collection(root, table, allow_missing=True)
    assert found.classes == ("cat",)
    assert (
        "2 rows name images that are not there (t.csv, line 3: gone.png; t.csv, line 4:"
        in found.describe()
    )


@pytest.mark.parametrize("n_absent", [1, 2, 3])
def test_a_table_of_which_many_rows_name_no_image_is_refused_unless_allowed(
    make_images: Make, n_absent: int
) -> None:
    """Of 43 rows two are less than one in twenty, three are more."""
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
        with pytest.raises(
            DataError, match=r"3 of 43 rows name images that are not there .*--allow-missing"
        ):
            read_collection(source, labels)
        assert len(read_collection(source, labels, allow_missing=True)) == 40


def test_a_quote_that_is_not_closed_is_refused_with_its_line_and_swallows_no_rows(
    make_images: Make,
) -> None:
    names = [f"{i:02d}.png" for i in range(20)]
    root = make_images(names)
    rows = [f'{name},"tawny, owl"' for name in names]
    whole = write(root / "t.csv", "\n".join(["path,label", *rows]) + "\n")
    assert read_collection(root, whole).n_labeled == 20
    for place, text in (
        (4, '03.png,"tawny'),
        (4, '03.png,"tawny, owl" or so'),
        (21, '19.png,"tawny, owl'),
    ):
        broken = [*rows[: place - 2], text, *rows[place - 1 :]]
        table = write(root / "t.csv", "\n".join(["path,label", *broken]) + "\n")
        with pytest.raises(
            DataError, match=rf"t\.csv, line {place}: a text in quotes is not closed"
        ):
            read_collection(root, table)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize(
    ("opened", "closed", "message"),
    [
        (
            (1, '{name},"daisy,'),
            (4, '{name},daffodil",'),
            "ends on line 7, and line 5 in it looks like a row",
        ),
        (
            (1, '"{name},daisy,'),
            (4, '{name}",daffodil,'),
            "a path in quotes begins here and ends on line 7; close",
        ),
        (
            (1, '{name},daisy,"wet'),
            (4, '{name},daffodil,dry"'),
            "ends on line 7, and line 5 in it looks like a row",
        ),
        (
            (1, '{name},daisy,"wet'),
            (2, '{name},daffodil,""dry"'),
            "ends on line 5, and line 5 in it looks like a row",
        ),
        (
            (1, '{name},daisy,"wet'),
            (4, '{name},daffodil",dry'),
            "found 4 cells, expected 3 .* a text in quotes spans",
        ),
    ],
)
def test_a_quote_that_the_quote_of_a_later_row_closes_swallows_no_rows(
    make_images: Make, name: str, opened: tuple[int, str], closed: tuple[int, str], message: str
) -> None:
    names = [f"{i:02d}.png" for i in range(8)]
    root = make_images(names)
    rows = [f"{image},daisy," for image in names]
    for place, text in (opened, closed):
        rows[place] = text.format(name=names[place])
    text = "\n".join(["path,label,note", 'extra.png,daisy,"in\rtwo lines"', *rows[1:]]) + "\n"
    table = write(root / name, text.replace(",", "\t") if name == "t.tsv" else text)
    with pytest.raises(DataError, match=rf"{name}, line {opened[0] + 3}: .*{message}"):
        read_collection(root, table, allow_missing=True)


def test_a_quote_that_is_not_closed_before_the_path_swallows_no_rows(make_images: Make) -> None:
    root = make_images(["a.png", "b.png"])
    table = write(root / "t.csv", 'note,path,label\n"wet,a.png,cat\ndry",b.png,dog\n')
    with pytest.raises(
        DataError, match=r"t.csv, line 2: .* ends on line 3, and line 2 in it looks like a row"
    ):
        read_collection(root, table)


def test_a_label_that_spans_lines_is_refused_with_the_line_of_its_quote(make_images: Make) -> None:
    root = make_images(["a.png", "b.png"])
    table = write(root / "t.csv", 'note,path,label\n"two\nlines",a.png,"cat\n"\n,b.png,dog\n')
    with pytest.raises(
        DataError,
        match=r"t.csv, line 3: a label in quotes begins here and ends on line 4; close the",
    ):
        read_collection(root, table)


def test_a_quote_in_the_header_that_is_not_closed_swallows_no_rows(make_images: Make) -> None:
    root = make_images(["a.png", "b.png"])
    table = write(root / "t.csv", 'path,label,"note\na.png,cat,\nb.png,dog,"\n')
    with pytest.raises(
        DataError,
        match=r"t.csv, line 1: a text in quotes begins here and ends on line 3, and line 2",
    ):
        read_collection(root, table)


def test_a_note_in_quotes_may_hold_line_ends_commas_and_names_of_images(make_images: Make) -> None:
    root = make_images(["a.png", "b.png"])
    note = "brown, white, small\nlike b.png\nb.png, too"
    for text in (
        f'path,"label",note\na.png,cat,"{note}"\nb.png,dog,\n',
        f'note,path,label\n"{note}",a.png,cat\n,b.png,dog\n',
    ):
        assert read_collection(root, write(root / "t.csv", text)).n_labeled == 2


def test_a_text_in_quotes_may_hold_line_ends_and_rows_keep_the_line_they_begin_on(
    make_images: Make,
) -> None:
    root = make_images(["a.png", "b.png"])
    table = write(root / "t.csv", 'path,label,note\na.png,cat,"two\nlines"\n\nb.png,cat\n')
    with pytest.raises(
        DataError, match=r"line 5: found 2 cells, expected 3 as in the header; end the row with ','"
    ):
        read_collection(root, table)
    write(table, 'path,label,note\na.png,cat,"two\nlines"\n\nb.png,cat,\n')
    assert read_collection(root, table).n_labeled == 2


def test_labels_for_no_file_at_all_are_refused(make_images: Make) -> None:
    root = make_images(["a.png"])
    with pytest.raises(
        DataError, match=r"none of its 1 paths is an image .*'img/a.png', an image there is 'a.png'"
    ):
        read_collection(root, write(root / "t.csv", "path,label\nimg/a.png,cat\n"))


def test_a_file_with_two_labels_is_refused(make_images: Make) -> None:
    root = make_images(["a.png"])
    table = write(root / "t.csv", "path,label\na.png,cat\n./a.png,dog\n")
    with pytest.raises(
        DataError, match=r"line 3: 'a.png' is labeled 'dog', but 'cat' in t.csv, line 2"
    ):
        read_collection(root, table)
    with pytest.raises(DataError, match=r"path 1: .*a.png' is labeled 'dog', but 'cat' in path 0"):
        read_collection([root / "a.png", root / "a.png"], ["cat", "dog"])


def test_duplicate_paths_are_counted_and_the_label_wins_over_none(make_images: Make) -> None:
    root = make_images(["a.png", "b.png"])
    table = write(root / "t.csv", "path,label\na.png,\na.png,cat\na.png,cat\na.png,\n")
    found = read_collection(root, table)
    assert found.n_labeled == 1
    assert "3 rows repeat an image" in found.describe()
    listed = read_collection([root / "a.png", root / "a.png"], [None, "cat"])
    assert listed.count() == "1 image, 1 labeled in 1 category, 0 unlabeled"
    assert "1 row repeats an image" in listed.describe()


def test_listed_files_that_are_not_there_are_counted(make_images: Make) -> None:
    root = make_images(["a.png"])
    found = read_collection([root / "a.png", root / "gone.png"])
    assert len(found) == 1
    assert "1 listed image is not there (path 1:" in found.describe()
    with pytest.raises(DataError, match="none of the 1 listed images is there"):
        read_collection([root / "gone.png"])


def test_a_table_without_a_label_column_is_refused(make_images: Make) -> None:
    root = make_images(["a.png"])
    table = write(root / "t.csv", "path,species\na.png,cat\n")
    with pytest.raises(
        DataError, match="no label column; found 'path', 'species', expected one of label, class"
    ):
        read_collection(root, table)
    assert read_collection(root, table, label_column="species").classes == ("cat",)
    with pytest.raises(DataError, match="no column 'kind' for the labels; found 'path', 'species'"):
        read_collection(root, table, label_column="kind")


def test_a_table_without_a_path_column_is_refused(make_images: Make) -> None:
    root = make_images(["a.png"])
    table = write(root / "t.csv", "photo,label\na.png,cat\n")
    with pytest.raises(DataError, match="no path column; found 'photo', 'label'"):
        read_collection(root, table)
    assert read_collection(root, table, path_column="photo").classes == ("cat",)


def test_a_table_that_is_not_utf8_is_refused_with_its_line(make_images: Make) -> None:
    root = make_images(["a.png"])
    table = write(root / "t.csv", "path,label\na.png,cat\nb.png,Bär\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"t.csv, line 3: not UTF-8 \(byte 0xe4\); save the table as UTF-8"
    ):
        read_collection(root, table)
    bom = write(root / "bom.csv", "\ufeffpath,label\r\na.png,Bär\r\n")
    assert read_collection(root, bom).classes == ("Bär",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "empty; expected a header"),
        ("t.csv", "path,label\n", "no rows"),
        (
            "t.csv",
            "path,label\na.png,Cat, domestic\n",
            "line 2: found 3 cells, expected 2 as in the header; put quotes",
        ),
        ("t.csv", "path,label,label\na.png,x,y\n", "appears twice"),
        ("t.csv", "path,label\n,cat\n", "line 2: found '' as the path"),
        ("t.csv", 'path,label\na.png,"' + "x" * 200_000, "line 2: a text in quotes is not closed"),
        ("t.csv", "path,label\na.png," + "x" * 200_000, "line 2: not valid CSV"),
        ("t.csv", "path,label\na.png\n", "line 2: found 1 cell, expected 2"),
        ("t.jsonl", '{"path": "a.png"\n', "line 1: not valid JSON"),
        ("t.jsonl", "[1]\n", "line 1: found '\\[1\\]', expected an object"),
        ("t.jsonl", "\n", "no rows"),
        ("t.parquet", "nonsense", "not a parquet file"),
        ("t.xlsx", "x", "found a .xlsx file, expected one of .csv, .tsv, .jsonl, .parquet"),
    ],
)
def test_a_broken_table_is_refused_with_its_place(
    make_images: Make, name: str, text: str, message: str
) -> None:
    root = make_images(["a.png"])
    with pytest.raises(DataError, match=message):
        read_collection(root, write(root / name, text))


def test_a_missing_table_is_refused(make_images: Make) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv: no such file"):
        read_collection(make_images(["a.png"]), "nowhere.csv")


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pd.DataFrame({"path": ["a"], "label": ["b"]}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"pip install 'shoal\[parquet\]'"):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "path", ["../secret.png", "x/../../secret.png", "/etc/passwd", "..\\secret.png"]
)
def test_paths_that_leave_the_root_are_refused(make_images: Make, path: str) -> None:
    root = make_images(["a.png", "../secret.png"])
    table = write(root / "t.csv", f"path,label\na.png,cat\n{path},dog\n")
    if path.startswith(
        "..\\"
    ):  # with backslashes it may also be a plain, odd file name: then it is merely not there
        assert "1 row names images that are not there" in read_collection(root, table).describe()
        return
    with pytest.raises(DataError, match=r"line 3: .* leads out of"):
        read_collection(root, table)


def test_a_table_as_the_source_may_not_leave_its_folder_either(make_images: Make) -> None:
    root = make_images(["a.png", "../secret.png"])
    with pytest.raises(DataError, match="leads out of"):
        read_collection(write(root / "t.csv", "path,label\n../secret.png,dog\n"))


def test_a_loop_of_links_ends_and_is_counted(make_images: Make) -> None:
    root = make_images(["cat/a.png", "dog/b.png"])
    (root / "cat" / "again").symlink_to(root, target_is_directory=True)
    (root / "dog" / "self").symlink_to(root / "dog", target_is_directory=True)
    (root / "loop.png").symlink_to(root / "loop.png")
    found = read_collection(root)
    assert found.names == ("cat/a.png", "dog/b.png")
    assert (
        "2 links to a folder that is read already, not followed: cat/again, dog/self"
        in found.describe()
    )
    assert "1 file left out, a dead link or no plain file: loop.png" in found.describe()


def test_links_out_of_the_folder_are_followed_unless_told_otherwise(
    make_images: Make, tmp_path: Path
) -> None:
    root = make_images(["cat/a.png", "../elsewhere/b.png"])
    (root / "dog").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert read_collection(root).names == ("cat/a.png", "dog/b.png")
    assert read_collection(root, follow_symlinks=False).names == ("cat/a.png",)


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_a_name_that_is_not_utf8_is_left_out_and_counted(make_images: Make) -> None:
    root = make_images(["a.png"])
    os.link(root / "a.png", root / "b\udcff.png")
    found = read_collection(root)
    assert found.names == ("a.png",)
    assert "1 file left out because the name is not UTF-8" in found.describe()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may open every folder")
def test_a_folder_that_may_not_be_opened_is_counted(make_images: Make) -> None:
    root = make_images(["a.png", "closed/b.png"])
    (root / "closed").chmod(0)
    try:
        assert "1 folder may not be opened: closed" in read_collection(root).describe()
    finally:
        (root / "closed").chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and links")
def test_what_is_named_like_an_image_and_is_none_is_counted_and_listed_with_the_reason(
    make_images: Make,
) -> None:
    root = make_images(["cat/a.png"])
    os.mkfifo(root / "cat" / "pipe.png")
    (root / "dead.png").symlink_to(root / "nowhere.png")
    os.link(root / "cat" / "a.png", root / "b\udcff.png")
    listed = (
        ("b\\udcff.png", "the name is not UTF-8"),
        ("cat/pipe.png", "no plain file (a pipe, a socket or a device)"),
        ("dead.png", "a link to nothing"),
    )
    found = read_collection(root)
    assert found.left_out == listed
    assert found.count() == "1 image, 1 labeled in 1 category, 0 unlabeled, 3 unreadable"
    two = read_collection(labeled=root, unlabeled=root / "cat")
    assert two.left_out == listed


def test_an_address_is_not_called_a_folder(make_images: Make) -> None:
    said = r"^s3://birds/all: is an address, expected a folder or file on this machine; download"
    with pytest.raises(DataError, match=said):
        read_collection(labeled=Path("s3://birds/all"), unlabeled=make_images(["a.png"]))
    with pytest.raises(
        DataError, match=r"^https://example.org/photos: found a nameless file, expected one of .csv"
    ):
        read_collection(make_images(["a.png"]), "https://example.org/photos")


def test_addresses_among_paths_of_this_machine_are_called_so(make_images: Make) -> None:
    root = make_images(["a.png"])
    address = "https://example.org/b.png"
    table = write(root / "t.csv", f"path,label\na.png,cat\n{address},dog\n")
    said = rf"t.csv, line 3: '{address}' is an address, but the images are those in {root}; .*the table alone"
    with pytest.raises(DataError, match=said):
        read_collection(root, table)
    with pytest.raises(
        DataError, match=rf"t.csv, line 3: '{address}' is an address, others lie on this machine"
    ):
        read_collection(table)


def test_all_images_labeled_and_none_labeled_are_both_readable(make_images: Make) -> None:
    root = make_images(["cat/a.png", "dog/b.png"])
    assert read_collection(root).count() == "2 images, 2 labeled in 2 categories, 0 unlabeled"
    assert read_collection(root / "cat").count() == "1 image, none labeled, 1 unlabeled"


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_to_a_folder_above_is_not_followed_and_one_to_elsewhere_is_told(
    tmp_path: Path,
) -> None:
    photos = tmp_path / "photos"
    elsewhere = tmp_path / "elsewhere"
    for folder in (photos, elsewhere):
        folder.mkdir()
        Image.new("RGB", (8, 8)).save(folder / "a.png")
    (photos / "up").symlink_to(tmp_path)
    (photos / "out").symlink_to(elsewhere)
    found = read_collection(photos)
    assert found.names == ("a.png", "out/a.png")
    assert any("not followed: up" in note for note in found.notes)
    assert any("outside this one followed: out" in note for note in found.notes)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "mapping", "list"])
@pytest.mark.parametrize(
    ("label", "reason"), [("two\nlines", "more than one line"), ("\ud800", "not UTF-8")]
)
def test_a_label_that_spans_lines_is_refused_wherever_it_stands(
    kind: str, label: str, reason: str, make_images: Make, tmp_path: Path
) -> None:
    if kind == "parquet" and label == "\ud800":
        pytest.skip("parquet holds no such text")
    images = make_images(["a.png", "b.png"])
    rows = {"a.png": "cat", "b.png": label}
    table = tmp_path / f"labels.{kind}"
    if kind == "jsonl":
        table.write_text(
            "\n".join(json.dumps({"path": path, "label": cell}) for path, cell in rows.items())
        )
    if kind == "parquet":
        pd.DataFrame({"path": [*rows], "label": [*rows.values()]}).to_parquet(table)
    where = {
        "jsonl": "labels.jsonl, line 2",
        "parquet": "labels.parquet, row 1",
        "mapping": "labels, entry 1",
    }
    given = {
        "mapping": (images, rows),
        "list": ([images / name for name in rows], [*rows.values()]),
    }
    with pytest.raises(
        DataError,
        match=rf"^{where.get(kind, 'label 1')}: labels: found .*, {reason}; give each image",
    ):
        read_collection(*given.get(kind, (images, table)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            '{"path": "b.png", "label": "cat", "label": "dog"}',
            "a name appears twice in 'path', 'label', 'label'",
        ),
        ('{"path": "b.png", "label": ' + "[" * 10_000, "recursion"),
        ('{"path": "b.png", "label": ' + "1" * 5_000 + "}", "limit"),
    ],
    ids=["twice", "deep", "digits"],
)
def test_a_line_of_json_that_cannot_be_read_is_named(
    line: str, reason: str, make_images: Make, tmp_path: Path
) -> None:
    table = write(tmp_path / "labels.jsonl", f'{{"path": "a.png", "label": "cat"}}\n{line}\n')
    with pytest.raises(DataError, match=rf"labels.jsonl, line 2: not valid JSON \(.*{reason}"):
        read_collection(make_images(["a.png", "b.png"]), table)
