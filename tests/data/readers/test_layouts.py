"""Every layout of images and labels is recognized and described, and never shifts a class id."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.data.readers import read_collection
from shoal.errors import DataError, MissingError, UsageError
from stores import labels_by_name

Make = Callable[[list[str]], Path]


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode("utf-8"))
    return file


# Folder and table


@pytest.mark.parametrize(
    "path_column", ["file_name", "path", "filepath", "filename", "image", "img_file_name"]
)
@pytest.mark.parametrize(
    "label_column", ["label", "class", "category", "object_annotation_category"]
)
def test_the_usual_column_names_are_found(
    make_images: Make, path_column: str, label_column: str
) -> None:
    root = make_images(["a.png", "b.png"])
    table = write(root / "t.csv", f"id,{path_column},{label_column}\n1,a.png,cat\n")
    assert labels_by_name(read_collection(root, table)) == {"a.png": "cat", "b.png": None}


def test_csv_tsv_jsonl_parquet_frame_and_mapping_say_the_same(
    make_images: Make, tmp_path: Path
) -> None:
    root = make_images(["x/a.png", "b.png", "c.png"])
    frame = pd.DataFrame({"path": ["x/a.png", "b.png"], "label": ["cat", "dog"]})
    frame.to_csv(tmp_path / "l.csv", index=False)
    frame.to_csv(tmp_path / "l.tsv", index=False, sep="\t")
    frame.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    frame.to_json(tmp_path / "l.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "l.parquet")
    files = [
        tmp_path / name for name in ("l.csv", "l.tsv", "semicolons.csv", "l.jsonl", "l.parquet")
    ]
    for labels in (*files, frame, {"x/a.png": "cat", "b.png": "dog"}):
        found = read_collection(root, labels)
        assert labels_by_name(found) == {"b.png": "dog", "c.png": None, "x/a.png": "cat"}
        assert found.classes == ("cat", "dog")


def test_every_way_to_say_unlabeled_is_understood(make_images: Make) -> None:
    cells = ["", "NaN", "-1", "unlabeled", "Unlabelled", "UNKNOWN", " ", "cat"]
    root = make_images([f"{i}.png" for i in range(len(cells))])
    table = write(
        root / "t.csv",
        "path,label\n" + "".join(f"{i}.png,{cell}\n" for i, cell in enumerate(cells)),
    )
    found = read_collection(root, table)
    assert (found.n_labeled, found.classes) == (1, ("cat",))


def test_spaces_around_labels_do_not_count_and_other_spellings_are_pointed_out(
    make_images: Make,
) -> None:
    root = make_images(["a.png", "b.png", "c.png", "d.png"])
    labels = {"a.png": "sea gull", "b.png": " sea gull ", "c.png": "Sea-gull", "d.png": "tern"}
    found = read_collection(root, labels)
    assert found.classes == ("Sea-gull", "sea gull", "tern")
    assert found.labels.tolist() == [1, 1, 0, 2]
    assert any("'Sea-gull' and 'sea gull'" in note for note in found.notes)
    assert not any("tern" in note for note in found.notes)


def test_heic_files_that_need_a_package_are_counted_before_they_are_decoded(
    make_images: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_images(["a.png", "b.png"])
    (root / "phone.HEIC").write_bytes(b"not read here")
    monkeypatch.setattr("shoal.data.readers.layouts.find_spec", lambda name: None)
    assert any(note.startswith("1 HEIC file needs") for note in read_collection(root).notes)


def test_paths_are_relative_to_the_table_then_to_the_root(
    make_images: Make, tmp_path: Path
) -> None:
    root = make_images(["sub/a.png", "a.png", "only.png"])
    table = write(root / "sub" / "t.csv", "path,label\na.png,near\nonly.png,far\n")
    assert labels_by_name(read_collection(root, table)) == {
        "a.png": None,
        "only.png": "far",
        "sub/a.png": "near",
    }
    beside = write(
        tmp_path / "tables" / "t.csv", f"path,label\n../photos/a.png,cat\n{root}/only.png,dog\n"
    )
    assert labels_by_name(read_collection(root, beside)) == {
        "a.png": "cat",
        "only.png": "dog",
        "sub/a.png": None,
    }


def test_backslashes_and_unicode_forms_in_a_table_still_find_the_file(make_images: Make) -> None:
    root = make_images(["d/e\u0301t\u00e9.png"])  # the first é as e + accent, as macOS writes it
    table = write(root / "t.csv", "path,label\nd\\\u00e9t\u00e9.png,summer\n")
    assert labels_by_name(read_collection(root, table)) == {"d/e\u0301t\u00e9.png": "summer"}


def test_class_names_are_kept_untouched(make_images: Make) -> None:
    names = [
        "Gray Seal / pup",
        "Ärger, komma",
        "名前",
        'quo"te',
        "../up",
        "new\u2028line",
        "a\x0bb",
    ]
    root = make_images([f"{i}.png" for i in range(len(names))])
    quoted = "".join(
        '{}.png,"{}"\n'.format(i, name.replace('"', '""')) for i, name in enumerate(names)
    )
    found = read_collection(root, write(root / "t.csv", "path,label\n" + quoted))
    assert found.classes == tuple(sorted(names))
    assert [labels_by_name(found)[f"{i}.png"] for i in range(len(names))] == names


def test_the_order_of_rows_and_files_does_not_matter(make_images: Make) -> None:
    root = make_images([f"{i}.png" for i in (3, 1, 2)])
    rows = ["1.png,b\n", "2.png,a\n", "3.png,b\n"]
    first = read_collection(root, write(root / "t.csv", "path,label\n" + "".join(rows)))
    again = read_collection(root, write(root / "t.csv", "path,label\n" + "".join(rows[::-1])))
    assert first.names == again.names == ("1.png", "2.png", "3.png")
    np.testing.assert_array_equal(first.labels, again.labels)


# Folders


def test_a_half_sorted_folder_labels_what_is_sorted(make_images: Make) -> None:
    unlabeled = [
        f"{name}/z.png" for name in ("unlabeled", "Unlabelled", "_unlabeled", "unknown", "unsorted")
    ]
    root = make_images(["cat/a.png", "dog/deep/b.png", "loose.png", *unlabeled])
    found = read_collection(root)
    expected = dict.fromkeys(["loose.png", *unlabeled]) | {
        "cat/a.png": "cat",
        "dog/deep/b.png": "dog",
    }
    assert labels_by_name(found) == expected
    assert "read as 2 folders, each a category, the rest unlabeled" in found.describe()


def test_two_roots_are_one_collection(make_images: Make, tmp_path: Path) -> None:
    make_images(["sorted/cat/a.png", "sorted/dog/b.png", "pile/cat/c.png", "pile/d.png"])
    found = read_collection(labeled=tmp_path / "photos/sorted", unlabeled=tmp_path / "photos/pile")
    assert labels_by_name(found) == {
        "pile/cat/c.png": None,
        "pile/d.png": None,
        "sorted/cat/a.png": "cat",
        "sorted/dog/b.png": "dog",
    }
    assert found.source(0) == tmp_path / "photos" / "pile" / "cat" / "c.png"
    assert found.folders == ("sorted", "pile")
    assert read_collection(tmp_path / "photos").folders == (".",)
    assert read_collection([str(tmp_path / "photos/pile/d.png")]).folders == ()


# Hugging Face


def test_metadata_of_hugging_face_is_read(make_images: Make) -> None:
    root = make_images(["a.png", "b.png", "c.png"])
    write(
        root / "metadata.jsonl",
        '{"file_name": "a.png", "label": 0}\n{"file_name": "b.png", "label": 1}\n',
    )
    found = read_collection(root)
    assert labels_by_name(found) == {"a.png": "0", "b.png": "1", "c.png": None}
    assert "Hugging Face" in found.layout


def test_metadata_beside_class_folders_wins_and_warns(make_images: Make) -> None:
    root = make_images(["cat/a.png", "dog/b.png"])
    write(root / "metadata.csv", "file_name,label\ncat/a.png,lion\ndog/b.png,wolf\n")
    found = read_collection(root)
    assert found.classes == ("lion", "wolf")
    assert read_collection(root, "folders").classes == ("cat", "dog")


def test_metadata_per_split_is_joined(make_images: Make) -> None:
    root = make_images(["train/a.png", "test/a.png"])
    write(root / "train" / "metadata.csv", "file_name,label\na.png,cat\n")
    write(root / "test" / "metadata.csv", "file_name,label\na.png,dog\n")
    assert labels_by_name(read_collection(root)) == {"test/a.png": "dog", "train/a.png": "cat"}


def test_two_metadata_files_that_contradict_each_other_are_refused(make_images: Make) -> None:
    root = make_images(["a.png"])
    write(root / "metadata.csv", "file_name,label\na.png,cat\n")
    write(root / "metadata.jsonl", '{"file_name": "a.png", "label": "dog"}\n')
    with pytest.raises(DataError, match=r"metadata\.jsonl, line 1: .* metadata\.csv, line 2"):
        read_collection(root)


def test_ecotaxa_exports_are_read(make_images: Make) -> None:
    root = make_images(["p1.png", "p2.png"])
    header = "object_id\timg_file_name\tobject_annotation_category\n[t]\t[t]\t[t]\n"
    rows = f"{header}o1\tp1.png\tCopepoda<Maxillopoda\n"
    found = read_collection(root, write(root / "ecotaxa.tsv", rows))
    assert labels_by_name(found) == {"p1.png": "Copepoda<Maxillopoda", "p2.png": None}
    assert "object_annotation_category" in found.layout


# Data in memory, from Python


def test_a_list_of_paths_is_read(make_images: Make) -> None:
    root = make_images(["x/a.png", "y/b.png"])
    found = read_collection([root / "y/b.png", str(root / "x/a.png")], ["dog", None])
    assert labels_by_name(found) == {"x/a.png": None, "y/b.png": "dog"}
    assert found.root == root


def test_a_table_may_itself_list_the_images(make_images: Make) -> None:
    root = make_images(["a.png", "b.png", "c.png"])
    table = write(root / "some.csv", f"path,label\nb.png,cat\n{root}/a.png,\n")
    assert labels_by_name(read_collection(table)) == {"a.png": None, "b.png": "cat"}
    frame = pd.DataFrame({"path": [str(root / "c.png")], "label": ["dog"]})
    assert labels_by_name(read_collection(frame)) == {"c.png": "dog"}


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 5, 4, 1), (3, 5, 4, 3), (3, 5, 4, 4)])
def test_an_array_of_images_is_read(shape: tuple[int, ...]) -> None:
    found = read_collection(np.zeros(shape, dtype=np.uint8), np.array([1, 0, -1]))
    assert list(labels_by_name(found).values()) == ["1", "0", None]


def test_a_list_of_pil_images_is_read() -> None:
    images = [Image.new("RGB", (4, 5)), Image.new("L", (9, 2)), np.zeros((3, 3), dtype=np.uint8)]
    found = read_collection(images, np.array(["cat", -1, None], dtype=object))
    assert list(labels_by_name(found).values()) == ["cat", None, None]
    assert found.source(1) is images[1]


@pytest.mark.parametrize(
    ("source", "labels", "message"),
    [
        (np.zeros((2, 5, 4), dtype=np.uint8), [1], "found 2 and 1"),
        ([], None, "found 0 and 0"),
        (None, None, "expected a folder, a table"),
        ({"a": 1}, None, "found dict, expected a folder"),
    ],
)
def test_images_in_memory_that_cannot_be_used_are_refused(
    source: object, labels: object, message: str
) -> None:
    with pytest.raises((DataError, UsageError), match=message):
        read_collection(source, labels)


# Tables and folders as people write them


def test_paths_of_a_table_may_start_at_the_working_directory(
    make_images: Make, tmp_path: Path, monkeypatch
) -> None:
    root = make_images(["a.png", "b.png"])
    monkeypatch.chdir(root.parent)
    table = write(tmp_path / "tables" / "t.csv", f"path,label\n{root.name}/a.png,cat\n")
    assert labels_by_name(read_collection(root, table)) == {"a.png": "cat", "b.png": None}
    assert labels_by_name(read_collection(table)) == {"a.png": "cat"}


def test_the_column_of_labels_is_named(make_images: Make) -> None:
    root = make_images(["a.png", "b.png"])
    table = write(root / "t.csv", "file,Scientific name\na.png,Ardea cinerea\n")
    for found in (read_collection(root, table), read_collection(table)):
        assert found.classes == ("Ardea cinerea",)
        assert "'Scientific name'" in found.layout


def test_the_first_sheet_of_a_workbook_is_a_table(make_images: Make, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    root = make_images(["a.png", "b.png", "c.png"])
    book = openpyxl.Workbook()
    for row in (["path", None, "label"], ["a.png", "x", 3], [], ["b.png", None, None]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    found = read_collection(root, tmp_path / "t.xlsx")
    assert labels_by_name(found) == {"a.png": "3", "b.png": None, "c.png": None}
    book.active.append(["a.png", None, "heron"])
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match=r"t.xlsx, row 5: a.png is labeled"):
        read_collection(root, tmp_path / "t.xlsx")
    (tmp_path / "bad.xlsx").write_bytes(b"PK\x03\x04 no workbook")
    with pytest.raises(DataError, match=r"bad.xlsx: cannot be read"):
        read_collection(root, tmp_path / "bad.xlsx")


def test_a_workbook_without_its_package_names_the_package(
    make_images: Make, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(MissingError, match="pip install openpyxl"):
        read_collection(make_images(["a.png"]), tmp_path / "t.xlsx")


def test_the_level_of_nested_folders_is_noted_and_can_be_chosen(make_images: Make) -> None:
    names = ["Ardea/alba/1.png", "Ardea/cinerea/2.png", "Egretta/3.png", "unknown/x/4.png"]
    root = make_images(names)
    found = read_collection(root)
    assert found.classes == ("Ardea", "Egretta")
    assert "folders:2" in found.notes[0]
    found = read_collection(root, "folders:2")
    labels = dict(zip(names, ["alba", "cinerea", None, None], strict=True))
    assert labels_by_name(found) == labels
    assert not found.notes
    make_images(["Egretta/alba/5.png"])
    assert read_collection(root, "folders:2").classes == (
        "Ardea/alba",
        "Ardea/cinerea",
        "Egretta/alba",
    )


def test_a_folder_of_save_to_disk_is_named(tmp_path: Path) -> None:
    for name in ("dataset_info.json", "state.json", "data-00000-of-00001.arrow"):
        write(tmp_path / "train" / name, "{}")
    with pytest.raises(DataError, match="save_to_disk"):
        read_collection(tmp_path)
