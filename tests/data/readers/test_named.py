"""Labels for data that already have names, such as embeddings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shoal.data.readers import label_embeddings, read_embeddings, read_labels
from shoal.errors import DataError

NAMES = ("a/1.jpg", "a/2.jpg", "b/3.jpg")


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def test_names_are_found_as_they_stand_or_as_paths(tmp_path: Path) -> None:
    table = write(
        tmp_path / "t.csv", "path,label\n./a/1.jpg,cat\na\\2.jpg,dog\nelsewhere.jpg,owl\n"
    )
    classes, notes = read_labels(table, NAMES)
    assert classes == {"a/1.jpg": "cat", "a/2.jpg": "dog"}
    assert "t.csv, line 4: elsewhere.jpg" in notes[0]


@pytest.mark.parametrize("above", ["photos/", "C:\\birds\\photos\\", "/home/me/photos/"])
def test_paths_may_start_with_folders_that_all_share(tmp_path: Path, above: str) -> None:
    table = write(tmp_path / "t.csv", f"path,label\n{above}a/1.jpg,cat\n{above}b/3.jpg,dog\n,owl\n")
    classes, notes = read_labels(table, NAMES)
    assert classes == {"a/1.jpg": "cat", "b/3.jpg": "dog"}
    assert len(notes) == 2, "a row without a path, and the dropped folder"
    one_folder = write(tmp_path / "one.csv", f"path,label\n{above}a/2.jpg,cat\n")
    assert read_labels(one_folder, NAMES)[0] == {"a/2.jpg": "cat"}


def test_folders_that_differ_are_not_dropped(tmp_path: Path) -> None:
    """The image of the run might be either."""
    table = write(tmp_path / "t.csv", "path,label\ntrain/1.jpg,cat\ntest/1.jpg,dog\n")
    with pytest.raises(DataError):
        read_labels(table, ("1.jpg",))


@pytest.mark.parametrize("file", ["t.csv", "t.npy"])
def test_labels_without_paths_follow_the_rows_of_the_embeddings_file(
    tmp_path: Path, file: str
) -> None:
    """The first label, cat, is that of the file's first row, 'b', although 'a' is first when names
    are sorted."""
    np.savez(tmp_path / "x.npz", X=np.eye(3), paths=np.array(["b", "a", "c"]))
    write(tmp_path / "t.csv", "label\ncat\ndog\n-1\n")
    np.save(tmp_path / "t.npy", np.array(["cat", "dog", "-1"]))
    found = label_embeddings(read_embeddings(tmp_path / "x.npz"), tmp_path / file)
    assert (found.names, found.classes, found.labels.tolist()) == (
        ("a", "b", "c"),
        ("cat", "dog"),
        [1, 0, -1],
    )


def test_two_classes_for_one_name_are_refused_with_both_places(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,label\na/1.jpg,cat\n./a/1.jpg,dog\n")
    with pytest.raises(DataError, match=r"line 2.*line 3|line 3.*line 2"):
        read_labels(table, NAMES)
    same = write(tmp_path / "same.csv", "path,label\na/1.jpg,cat\na/1.jpg,cat\n")
    assert read_labels(same, NAMES)[0] == {"a/1.jpg": "cat"}


@pytest.mark.parametrize("file", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "t.npy"])
def test_whole_numbers_beside_missing_ones_are_the_same_classes_in_every_file(
    tmp_path: Path, file: str
) -> None:
    """pandas stores them as floats and writes 3 as 3.0."""
    frame = pd.DataFrame({"label": [10.0, None, 3.0]})
    {
        "t.csv": lambda: frame.to_csv(tmp_path / file, index=False),
        "t.tsv": lambda: frame.to_csv(tmp_path / file, index=False, sep="\t"),
        "t.jsonl": lambda: frame.to_json(tmp_path / file, orient="records", lines=True),
        "t.parquet": lambda: frame.to_parquet(tmp_path / file),
        "t.npy": lambda: np.save(tmp_path / file, frame["label"].to_numpy()),
    }[file]()
    np.savez(tmp_path / "x.npz", X=np.eye(3))
    found = label_embeddings(read_embeddings(tmp_path / "x.npz"), tmp_path / file)
    assert (found.classes, found.labels.tolist()) == (("3", "10"), [1, -1, 0])


def test_embeddings_take_the_labels_of_a_table_instead_of_their_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=np.eye(3), y=np.array(["old", "", ""]), paths=np.array(NAMES))
    given = read_embeddings(tmp_path / "x.npz")
    table = write(tmp_path / "t.csv", "path,label\nb/3.jpg,dog\na/2.jpg,cat\nc/4.jpg,cat\n")
    found = label_embeddings(given, table)
    assert found.classes == ("cat", "dog")
    assert found.labels.tolist() == [-1, 0, 1]
    assert found.names == given.names
    assert found.x is given.x
    assert "c/4.jpg" in found.describe()
    write(table, "path,label\nb/3.jpg,dog\nc/4.jpg,cat\nc/5.jpg,cat\n")
    with pytest.raises(DataError, match="2 of 3"):
        label_embeddings(given, table)
    assert label_embeddings(given, table, allow_missing=True).classes == ("dog",)
