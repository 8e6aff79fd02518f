"""Files of embeddings for `shoal cluster` and other programs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal import files
from shoal.data.readers import read_collection, read_embeddings
from shoal.discovery.run_job import check_target, embed_collection, write_embeddings
from shoal.errors import DataError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def found(photos, tiny_encoder):
    (photos.folder / "broken.png").write_bytes(b"")
    collection = read_collection(photos.folder, photos.labels)
    return embed_collection(collection, str(tiny_encoder), pixel_size=16, device="cpu")


def test_written_embeddings_are_read_with_names_and_labels(found, photos, tmp_path: Path) -> None:
    file = tmp_path / "features.npz"
    write_embeddings(found[0], file)
    read = read_embeddings(file)
    assert read.names == tuple(sorted(photos.truth))
    np.testing.assert_array_equal(read.x, found[0].x)
    np.testing.assert_array_equal(read.labels, found[0].labels)
    assert read.classes == ("blue", "green", "red")


def test_a_large_collection_gives_the_same_bytes_through_a_mapped_file(
    photos, tiny_encoder, found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_embeddings(found[0], tmp_path / "whole.npz")
    monkeypatch.setattr(files, "MAX_SCRATCH_BYTES", 0)
    collection = read_collection(photos.folder, photos.labels)
    blocks, _ = embed_collection(collection, str(tiny_encoder), pixel_size=16, device="cpu")
    assert isinstance(blocks.x.base, np.memmap)
    write_embeddings(blocks, tmp_path / "blocks.npz")
    assert (tmp_path / "blocks.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_rows_are_unit_and_unreadable_images_are_listed(found) -> None:
    assert found[0].x.shape == (60, 16)
    np.testing.assert_allclose(np.linalg.norm(found[0].x, axis=1), 1, rtol=1e-5)
    assert list(found[1]) == ["broken.png"]


def test_images_with_zero_features_are_named_with_a_remedy(tmp_path: Path) -> None:
    """At 32 px all features of a gray picture are zero in the default encoder; at 64 px they are
    not."""
    for i in range(4):
        Image.new("RGB", (40, 40), (128, 128, 128)).save(tmp_path / f"gray{i}.png")
    collection = read_collection(tmp_path)
    named = r"gray0.png, gray1.png, gray2.png, …: .*4 of 4 images.*input_size"
    with pytest.raises(DataError, match=named):
        embed_collection(collection, input_size=32, pixel_size=40, device="cpu")
    embedded, _ = embed_collection(collection, input_size=64, pixel_size=40, device="cpu")
    assert embedded.x.any(axis=1).all()


def test_an_existing_file_is_replaced_only_if_forced(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(UsageError, match="force=True"):
        check_target(tmp_path / "x.npz", force=False)
    check_target(tmp_path / "x.npz", force=True)
