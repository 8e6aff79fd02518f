"""Embeddings are read completely and with their names, and nothing is ever unpickled."""

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shoal.data.readers import read_embeddings
from shoal.errors import DataError

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
PATHS = ["b.png", "a.png", "c.png"]
SORTED = [1, 0, 2]


def test_npy_rows_keep_their_order(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    found = read_embeddings(tmp_path / "x.npy")
    np.testing.assert_array_equal(found.x, X)
    assert found.names == ("row-000000", "row-000001", "row-000002")
    assert found.describe() == "3 embeddings of 4 numbers, none labeled, 3 unlabeled"
    np.savez(tmp_path / "x.npz", X=X, y=np.array(["dog", "-1", "-1"]))
    one = read_embeddings(tmp_path / "x.npz")
    assert one.describe() == "3 embeddings of 4 numbers, 1 labeled in 1 category, 2 unlabeled"


def test_npz_with_names_and_labels_is_sorted_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=X, y=np.array(["dog", "cat", "-1"]), paths=np.array(PATHS))
    found = read_embeddings(tmp_path / "x.npz")
    np.testing.assert_array_equal(found.x, X[SORTED])
    assert found.names == ("a.png", "b.png", "c.png")
    assert found.classes == ("cat", "dog")
    np.testing.assert_array_equal(found.labels, [0, 1, -1])


@pytest.mark.parametrize("name", ["path", "uuid", "file_name"])
@pytest.mark.parametrize("vector", ["emb", "embedding", "vector"])
def test_parquet_with_a_list_column_is_read(tmp_path: Path, name: str, vector: str) -> None:
    frame = pd.DataFrame({name: PATHS, vector: list(X), "label": ["dog", None, "cat"]})
    frame.to_parquet(tmp_path / "x.parquet")
    found = read_embeddings(tmp_path / "x.parquet")
    np.testing.assert_array_equal(found.x, X[SORTED])
    assert found.x.dtype == np.float32
    assert found.names == ("a.png", "b.png", "c.png")
    np.testing.assert_array_equal(found.labels, [-1, 1, 0])


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="unpickled"):
        read_embeddings(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", X=X, y=np.array(["a", None, 1], dtype=object))
    with pytest.raises(DataError, match="unpickled"):
        read_embeddings(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("nowhere.npy", None),
        ("x.pt", b"x"),
        ("text.npy", b"not an array"),
        ("cut.npy", b"\x93NUMPY\x01\x00"),
        ("text.npz", b"not an archive"),
        ("nan.npy", np.array([[1.0, np.nan]])),
        ("no.npz", {"Z": X}),
        ("short.npz", {"X": X, "y": np.array([1, 2])}),
        ("wide.npz", {"X": X, "y": np.array([[1, 0], [2, 0], [-1, 0]])}),
        ("twice.npz", {"X": X, "paths": np.array(["a", "b", "a"])}),
        ("zeros.npz", {"X": X * [[1], [1], [0]], "paths": np.array(["c", "b", "a"])}),
        ("bytes.npz", {"X": X, "paths": np.array([b"\xff", b"a", b"b"])}),
        ("l.parquet", {"path": ["a", "b"], "emb": [[1.0], [2.0]], "label": [["x"], ["y"]]}),
        ("nameless.parquet", {"path": ["a", None], "emb": [[1.0], [2.0]]}),
        ("ragged.parquet", {"path": ["a", "b"], "emb": [[1.0], [1.0, 2.0]]}),
        ("null.parquet", {"path": ["a", "b"], "emb": [[1.0], None]}),
        ("plain.parquet", {"path": ["a"], "x": [1.0]}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_embeddings_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, file: str, content: object
) -> None:
    if isinstance(content, bytes):
        (tmp_path / file).write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(tmp_path / file, content)
    elif isinstance(content, dict) and file.endswith(".npz"):
        np.savez(tmp_path / file, **content)
    elif isinstance(content, dict):
        pd.DataFrame(content).to_parquet(tmp_path / file)
    with pytest.raises(DataError, match=file):
        read_embeddings(tmp_path / file)


def test_an_array_that_is_asked_for_by_name_must_be_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=X, species=np.array(["dog", "cat", ""]))
    assert read_embeddings(tmp_path / "x.npz", label_column="species").classes == ("cat", "dog")
    with pytest.raises(DataError, match="'kind'"):
        read_embeddings(tmp_path / "x.npz", label_column="kind")


def test_numpy_files_that_make_numpy_trip_are_refused_by_name(tmp_path: Path) -> None:
    """A header with an unclosed parenthesis, an unsupported version, and an archive member without
    its first bytes."""
    np.save(tmp_path / "x.npy", np.ones((12, 4)))
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole.replace(b"(12, 4), }", b"(12, 4), ("))
    np.savez(tmp_path / "x.npz", X=np.ones((12, 4)))
    archive = bytearray((tmp_path / "x.npz").read_bytes())
    archive[archive.rindex(b"PK\x01\x02") + 6] = 130  # ZIP version needed to extract: 13.0
    (tmp_path / "x.npz").write_bytes(archive)
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as made:
        made.writestr("X.npy", whole[6:])
    for name in ("x.npy", "x.npz", "y.npz"):
        with pytest.raises(DataError, match=name):
            read_embeddings(tmp_path / name)
