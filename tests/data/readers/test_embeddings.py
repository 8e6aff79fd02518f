"""Ready embeddings arrive whole, under their names, and never unpickle anything."""

import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest

from shoal import files
from shoal.data.readers import embeddings as embeddings_module
from shoal.data.readers import numpy_files, read_embeddings
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


def test_a_quote_that_a_later_row_closes_swallows_no_embeddings(tmp_path: Path) -> None:
    table = tmp_path / "x.csv"
    rows = ['cat,0.1,0.2,"wet', "dog,0.3,0.4,", 'dog,0.5,0.6,dry"', "dog,0.7,0.8,"]
    table.write_text("\n".join(["label,embedding_0,embedding_1,note", *rows]), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"x.csv, line 2: .* ends on line 4, and line 3 in it looks like a row"
    ):
        read_embeddings(table)


def test_npz_with_names_and_labels_is_sorted_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=X, y=np.array(["dog", "cat", "-1"]), paths=np.array(PATHS))
    found = read_embeddings(tmp_path / "x.npz")
    np.testing.assert_array_equal(found.x, X[SORTED])
    assert found.names == ("a.png", "b.png", "c.png")
    assert found.classes == ("cat", "dog")
    np.testing.assert_array_equal(found.labels, [0, 1, -1])
    np.savez(tmp_path / "y.npz", X=X, y=np.array([7, 3, -1]))
    assert read_embeddings(tmp_path / "y.npz").classes == ("3", "7")
    np.savez(tmp_path / "z.npz", X=X, y=np.array([10, 2, -1]))
    assert read_embeddings(tmp_path / "z.npz").classes == (
        "2",
        "10",
    )  # by number, as the estimator has them


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_large_npz_is_mapped_into_memory_unless_it_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, order: Literal["C", "F"]
) -> None:
    x = np.asarray(X, dtype=dtype, order=order)
    np.savez(tmp_path / "x.npz", before=np.arange(5), X=x, paths=np.array(sorted(PATHS)))
    np.savez_compressed(tmp_path / "small.npz", X=x, paths=np.array(sorted(PATHS)))
    read = read_embeddings(tmp_path / "x.npz")
    monkeypatch.setattr(numpy_files, "MAPPED_BYTES", 1)
    mapped = read_embeddings(tmp_path / "x.npz")
    small = read_embeddings(tmp_path / "small.npz")
    assert [isinstance(found.x.base, np.memmap) for found in (read, mapped, small)] == [
        False,
        True,
        False,
    ]
    for found in (read, mapped, small):
        assert (found.x.dtype, found.names) == (dtype, ("a.png", "b.png", "c.png"))
        np.testing.assert_array_equal(found.x, x)


def test_rows_of_a_large_file_are_sorted_in_a_mapped_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "x.npz", X=X, paths=np.array(PATHS))
    monkeypatch.setattr(embeddings_module, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(files, "MAX_SCRATCH_BYTES", 0)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    found = read_embeddings(tmp_path / "x.npz")
    assert isinstance(found.x.base, np.memmap)
    np.testing.assert_array_equal(found.x, X[SORTED])
    assert list((tmp_path / "cache").iterdir()) == []


def test_parquet_with_numbered_columns_is_read_as_csv_is(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "filename": ["b", "a"],
            "embedding_2": [3.0, 6.0],
            "embedding_1": [1, 4],
            "label": ["x", None],
        }
    )
    frame.to_parquet(tmp_path / "x.parquet")
    frame.to_csv(tmp_path / "x.csv", index=False)
    found = read_embeddings(tmp_path / "x.parquet")
    assert found.x.tolist() == read_embeddings(tmp_path / "x.csv").x.tolist() == [[4, 6], [1, 3]]
    assert (list(found.names), found.labels.tolist()) == (["a", "b"], [-1, 0])


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


def test_numbered_csv_columns_are_read_in_numeric_order(tmp_path: Path) -> None:
    wide = np.arange(36.0).reshape(3, 12)
    columns = {f"embedding_{i}": wide[:, i] for i in reversed(range(12))}
    pd.DataFrame({"filename": PATHS, **columns}).to_csv(tmp_path / "x.csv", index=False)
    found = read_embeddings(tmp_path / "x.csv")
    np.testing.assert_array_equal(found.x, wide[SORTED])
    assert found.names == ("a.png", "b.png", "c.png")


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="never unpickled"):
        read_embeddings(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", X=X, y=np.array(["a", None, 1], dtype=object))
    with pytest.raises(DataError, match="never unpickled"):
        read_embeddings(tmp_path / "x.npz")


def test_embeddings_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    def refused(file: str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            read_embeddings(tmp_path / file)

    refused("nowhere.npy", "no such file")
    (tmp_path / "x.pt").write_bytes(b"x")
    refused("x.pt", "expected .npy, .npz, .parquet, .csv")
    (tmp_path / "text.npy").write_bytes(b"not an array")
    refused(
        "text.npy", "is not a .npy file, it starts with b'not an array'; write it with numpy.save"
    )
    (tmp_path / "empty.npy").write_bytes(b"")
    refused("empty.npy", "is not a .npy file, it starts with b''")
    with (tmp_path / "archive.npy").open("wb") as file:
        np.savez(file, X=X)
    refused("archive.npy", r"is not a .npy file, it starts with b'PK")
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    refused("cut.npy", "cannot be read as a numpy file")
    (tmp_path / "text.npz").write_bytes(b"not an archive")
    refused(
        "text.npz",
        "is not a .npz file, it starts with b'not an archive'; write it with numpy.savez",
    )
    np.save(tmp_path / "array.npy", X)
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    refused("array.npz", "is not a .npz file, it starts with b..x93NUMPY")
    np.savez(tmp_path / "no.npz", Z=X)
    refused("no.npz", r"found Z \(3, 4\), expected an array X")
    np.savez(tmp_path / "short.npz", X=X, y=np.array([1, 2]))
    refused(
        "short.npz",
        "y: found 2 for 3 rows of embeddings, expected one per row in their order; add or remove entries",
    )
    np.savez(tmp_path / "column.npz", X=X, y=np.array([[1], [2], [-1]]))
    refused(
        "column.npz",
        r"y: found shape \(3, 1\), expected \(3,\), one per row of embeddings; reshape it",
    )
    np.savez(tmp_path / "wide.npz", X=X, y=np.array([[1, 0], [2, 0], [-1, 0]]))
    refused(
        "wide.npz",
        r"y: found shape \(3, 2\), expected \(3,\), one per row of embeddings; give one column",
    )
    np.savez(tmp_path / "single.npz", X=X, y=np.array(1))
    refused("single.npz", r"y: found shape \(\), expected \(3,\), one per row")
    np.savez(tmp_path / "below.npz", X=X, y=np.array([0, -2, -1]))
    refused("below.npz", "labels: found -2, expected 0 or more")
    pd.DataFrame({"path": ["a", "b"], "emb": [[1.0], [2.0]], "label": [["x"], ["y"]]}).to_parquet(
        tmp_path / "l.parquet"
    )
    refused("l.parquet", r"labels: found \['x'\], expected a number or a text")
    np.savez(tmp_path / "twice.npz", X=X, paths=np.array(["a", "b", "a"]))
    refused("twice.npz", "'a' names rows 0 and 2")
    np.save(tmp_path / "nan.npy", np.array([[1.0, np.nan]]))
    refused("nan.npy", "NaN or infinity")
    np.savez(tmp_path / "zeros.npz", X=X * [[1], [1], [0]], paths=np.array(["c", "b", "a"]))
    refused("zeros.npz", r"only zeros in row 2 \(1 of 3\), the first 'a'")
    pd.DataFrame({"path": ["a", None], "emb": [[1.0], [2.0]]}).to_parquet(
        tmp_path / "nameless.parquet"
    )
    refused("nameless.parquet", r"names: found none in row 1 \(1 of 2\)")
    pd.DataFrame({"path": ["a", "b"], "emb": [[1.0], [1.0, 2.0]]}).to_parquet(
        tmp_path / "ragged.parquet"
    )
    refused("ragged.parquet", r"rows of \[1, 2\] numbers")
    pd.DataFrame({"path": ["a", "b"], "emb": [[1.0], None]}).to_parquet(tmp_path / "null.parquet")
    refused("null.parquet", r"rows of \[0, 1\] numbers")
    pd.DataFrame({"path": ["a"], "x": [1.0]}).to_parquet(tmp_path / "plain.parquet")
    refused("plain.parquet", "expected a list column emb or embedding or vector")
    (tmp_path / "words.csv").write_text("filename,embedding_0\na,b\n")
    refused("words.csv", "not a number")
    (tmp_path / "none.csv").write_text("filename,x\na,1\n")
    refused("none.csv", "expected embedding_0")


def test_an_array_that_is_asked_for_by_name_must_be_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=X, species=np.array(["dog", "cat", ""]))
    assert read_embeddings(tmp_path / "x.npz", label_column="species").classes == ("cat", "dog")
    with pytest.raises(DataError, match="no array 'kind'; found X, species"):
        read_embeddings(tmp_path / "x.npz", label_column="kind")


@pytest.mark.slow
def test_rows_named_by_number_keep_their_order_past_a_million(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1_000_001, 1), dtype=np.float32))
    found = read_embeddings(tmp_path / "x.npy")
    assert found.names[-2:] == ("row-0999999", "row-1000000")
    assert found.rows[-1] == 1_000_000


def test_names_stored_as_bytes_are_text(tmp_path: Path) -> None:
    names = [name.encode() for name in ("b\u00e9.png", "a.png", "c.png")]
    classes = [b"dog", b"cat", b"-1"]
    np.savez(tmp_path / "x.npz", X=X, y=np.array(classes), paths=np.array(names))
    pd.DataFrame({"path": names, "label": classes, "emb": list(X)}).to_parquet(
        tmp_path / "x.parquet"
    )
    for file in ("x.npz", "x.parquet"):
        found = read_embeddings(tmp_path / file)
        assert found.names == ("a.png", "b\u00e9.png", "c.png")
        assert (found.classes, found.labels.tolist()) == (("cat", "dog"), [0, 1, -1])
    np.savez(tmp_path / "x.npz", X=X, paths=np.array([b"\xff", b"a", b"b"]))
    with pytest.raises(DataError, match=r"paths: found b'\\xff', which is no UTF-8"):
        read_embeddings(tmp_path / "x.npz")


@pytest.mark.parametrize("numbers", [(0, 2), (1, 2, 4), (2,)])
def test_numbered_columns_leave_none_out(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    frame = pd.DataFrame({f"embedding_{i}": X[:, 0] for i in numbers})
    frame.to_csv(tmp_path / "x.csv")
    frame.to_parquet(tmp_path / "x.parquet")
    for file in ("x.csv", "x.parquet"):
        with pytest.raises(
            DataError, match=rf"found embedding_{numbers[-1]} where embedding_\d would"
        ):
            read_embeddings(tmp_path / file)


def test_numpy_files_that_make_numpy_trip_are_refused_by_name(tmp_path: Path) -> None:
    """A header that breaks off in its Python text, a version that nobody writes, a member without its start."""
    np.save(tmp_path / "x.npy", np.ones((12, 4)))
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole.replace(b"(12, 4), }", b"(12, 4), ("))
    np.savez(tmp_path / "x.npz", X=np.ones((12, 4)))
    archive = bytearray((tmp_path / "x.npz").read_bytes())
    archive[archive.rindex(b"PK\x01\x02") + 6] = 130  # the version needed to read it: 13.0
    (tmp_path / "x.npz").write_bytes(archive)
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as made:
        made.writestr("X.npy", whole[6:])
    for name in ("x.npy", "x.npz", "y.npz"):
        with pytest.raises(
            DataError, match=rf"{name}: cannot be read as a numpy file .*; save it again"
        ):
            read_embeddings(tmp_path / name)
