"""Files of embeddings for `shoal cluster` and other programs."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal import files
from shoal.data.readers import read_collection, read_embeddings
from shoal.discovery.embed_collection import check_target, embed_collection, write_embeddings
from shoal.errors import DataError, MissingError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def found(photos, tiny_encoder):
    (photos.folder / "broken.png").write_bytes(b"")
    collection = read_collection(photos.folder, photos.labels)
    return embed_collection(collection, str(tiny_encoder), pixel_size=16, device="cpu")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_written_embeddings_are_read_with_names_and_labels(
    found, photos, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"features{suffix}"
    write_embeddings(found, file)
    read = read_embeddings(file)
    assert read.names == tuple(sorted(photos.truth))
    np.testing.assert_array_equal(read.x, found.x)
    np.testing.assert_array_equal(read.labels, found.collection.labels)
    assert read.classes == ("blue", "green", "red")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_float16_is_preserved(photos, tiny_encoder, found, tmp_path: Path, suffix: str) -> None:
    collection = read_collection(photos.folder, photos.labels)
    half = embed_collection(
        collection, str(tiny_encoder), pixel_size=16, device="cpu", dtype="float16"
    )
    np.testing.assert_array_equal(half.x, found.x.astype(np.float16))
    write_embeddings(half, tmp_path / f"x{suffix}")
    read = read_embeddings(tmp_path / f"x{suffix}").x
    assert read.dtype == np.float16
    np.testing.assert_array_equal(read, half.x)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_a_large_collection_gives_the_same_bytes_through_a_mapped_file(
    photos, tiny_encoder, found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    write_embeddings(found, tmp_path / f"whole{suffix}")
    monkeypatch.setattr(files, "MAX_SCRATCH_BYTES", 0)
    collection = read_collection(photos.folder, photos.labels)
    blocks = embed_collection(collection, str(tiny_encoder), pixel_size=16, device="cpu")
    assert isinstance(blocks.x.base, np.memmap)
    write_embeddings(blocks, tmp_path / f"blocks{suffix}")
    assert (tmp_path / f"blocks{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def test_rows_are_unit_and_unreadable_images_are_listed(found) -> None:
    assert found.x.shape == (60, 16)
    np.testing.assert_allclose(np.linalg.norm(found.x, axis=1), 1, rtol=1e-5)
    assert [skip.name for skip in found.skipped] == ["broken.png"]


def test_images_with_zero_features_are_named_with_a_remedy(tmp_path: Path) -> None:
    """At 32 px all features of a gray picture are zero in the default encoder; at 64 px they are
    not."""
    for i in range(4):
        Image.new("RGB", (40, 40), (128, 128, 128)).save(tmp_path / f"gray{i}.png")
    collection = read_collection(tmp_path)
    named = r"gray0.png, gray1.png, gray2.png, …: .*4 of 4 images.*input_size"
    with pytest.raises(DataError, match=named):
        embed_collection(collection, input_size=32, pixel_size=40, device="cpu")
    assert (
        embed_collection(collection, input_size=64, pixel_size=40, device="cpu").x.any(axis=1).all()
    )


def test_an_existing_file_is_replaced_only_if_forced(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(UsageError, match="force=True"):
        check_target(tmp_path / "x.npz", force=False)
    check_target(tmp_path / "x.npz", force=True)


def test_parquet_without_pyarrow_names_the_package(found, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError):
        write_embeddings(found, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()
