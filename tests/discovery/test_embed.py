"""Embeddings as files that `shoal cluster` and others read back."""

import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.data.readers import read_collection, read_embeddings
from shoal.discovery.embed import check_target, embed_collection, write_embeddings
from shoal.errors import MissingError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def found(photos, tiny_encoder):
    (photos.folder / "broken.png").write_bytes(b"")
    collection = read_collection(photos.folder, photos.labels)
    return embed_collection(collection, str(tiny_encoder), pixel_size=16, device="cpu")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_what_is_written_is_read_back_with_names_and_labels(found, photos, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"features{suffix}"
    write_embeddings(found, file)
    read = read_embeddings(file)
    assert read.names == tuple(sorted(photos.truth))
    np.testing.assert_array_equal(read.x, found.x)
    np.testing.assert_array_equal(read.labels, found.collection.labels)
    assert read.classes == ("blue", "green", "red")


def test_npy_holds_the_rows_alone(found, tmp_path: Path) -> None:
    write_embeddings(found, tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), found.x)


def test_rows_are_unit_and_unreadable_images_are_listed(found) -> None:
    assert found.x.shape == (60, 16)
    np.testing.assert_allclose(np.linalg.norm(found.x, axis=1), 1, rtol=1e-5)
    assert [skip.name for skip in found.skipped] == ["broken.png"]


def test_a_file_of_another_kind_or_one_that_is_there_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"found the suffix '.txt', expected .npz, .npy, .parquet"):
        check_target(tmp_path / "x.txt", force=False)
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(UsageError, match="is there already; give --force"):
        check_target(tmp_path / "x.npz", force=False)
    check_target(tmp_path / "x.npz", force=True)


def test_parquet_without_pyarrow_says_what_to_install(found, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"shoal\[parquet\]"):
        write_embeddings(found, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()
