"""Images read by address from a real web server have the same pixels, even if it drops requests."""

import csv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.data.readers.tables import image_finder
from shoal.data.storage import Address, Lost, file_system, read_stored
from shoal.errors import DataError, MissingError
from stores import web_server, write_parquets, write_tars

pytest.importorskip("aiohttp", reason="no aiohttp; pip install aiohttp")

Make = Callable[[list[str]], Path]
NAMES = ["a.png", "b c.png", "sub/c.png", "sub/d.png"]
SIZE = 8


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHOAL_TRIES", "3")
    monkeypatch.setenv("SHOAL_TRY_WAIT_S", "0.01")


@pytest.fixture
def web(make_images):
    folder = make_images(NAMES)
    (folder / "labels.csv").write_text("path,label\na.png,x\nsub/c.png,y\n")
    with web_server(folder) as found:
        yield found


def table_of(web, file, names=NAMES):
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(
            [("path", "label"), *((f"{web.address}/{name}", "") for name in names)]
        )
    return file


def test_a_table_of_addresses_gives_the_pixels_of_the_files(web, tmp_path):
    local = load_pixels(read_collection(tmp_path / "photos", False), SIZE, n_workers=1)
    found = read_collection(table_of(web, tmp_path / "t.csv"))
    assert found.names == tuple(NAMES)
    assert found.where == f"{web.address}/"
    np.testing.assert_array_equal(load_pixels(found, SIZE, n_workers=1)[:], local[:])
    web.asked.clear()
    load_pixels(read_collection(table_of(web, tmp_path / "t.csv")), SIZE, n_workers=1)
    assert set(web.asked.values()) == {
        1
    }  # a second run requests the state of each image, but no image


def test_a_remote_table_names_images_beside_it(web, tmp_path):
    found = read_collection(f"{web.address}/labels.csv")
    assert (found.names, found.classes) == (("a.png", "sub/c.png"), ("x", "y"))
    labeled = read_collection(
        tmp_path / "photos", f"{web.address}/labels.csv"
    )  # remote labels, local images
    assert labeled.labels.tolist() == [0, -1, 1, -1]


def test_a_table_may_name_images_of_a_bucket_by_their_whole_addresses():
    find = image_finder(NAMES, Address("s3:/bucket/photos"), Address("s3:/bucket"))
    paths = ["s3://bucket/photos/sub/c.png", "a.png", "photos/b c.png"]
    assert [find(path, "t.csv") for path in paths] == ["sub/c.png", "a.png", "b c.png"]
    with pytest.raises(DataError):
        find("s3://bucket/other/a.png", "t.csv")


@pytest.mark.usefixtures("decoded_in_threads")
def test_connections_that_are_dropped_are_tried_again(web, tmp_path):
    local = load_pixels(read_collection(tmp_path / "photos", False), SIZE, n_workers=1)
    found = read_collection(table_of(web, tmp_path / "t.csv"))
    web.asked.clear()
    web.n_drops = 2
    pixels = load_pixels(found, SIZE, n_workers=1)
    assert not pixels.skipped
    assert set(web.asked.values()) == {3}  # two dropped connections, then an answer
    np.testing.assert_array_equal(pixels[:], local[:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_shard_on_the_web_is_read_in_ranges(kind, make_images, tmp_path):
    folder = make_images(NAMES)
    labels = {"a.png": "x", "sub/c.png": "y"}
    (write_tars if kind == "tar" else write_parquets)(
        folder, labels, tmp_path / "shards", n_shards=1
    )
    file = next((tmp_path / "shards").iterdir())
    expected = load_pixels(read_collection(folder, False), SIZE, n_workers=1)
    with web_server(tmp_path / "shards") as web:
        found = read_collection(f"{web.address}/{file.name}")
        assert (found.names, found.classes) == (tuple(NAMES), ("x", "y"))
        np.testing.assert_array_equal(load_pixels(found, SIZE, n_workers=1)[:], expected[:])


def test_a_row_after_a_lost_connection_is_read_anew(make_images, tmp_path, monkeypatch):
    names = [f"{i:02d}.png" for i in range(24)]
    folder = make_images(names)
    write_parquets(folder, {}, tmp_path / "shards", n_shards=1)
    # A row group is read in many parts.
    monkeypatch.setattr("shoal.data.storage.BUFFER_BYTES", 256)
    monkeypatch.setenv("SHOAL_TRIES", "1")
    with web_server(tmp_path / "shards") as web:
        file = f"{web.address}/train-00000-of-00001.parquet"
        assert read_stored(f"row:0:image.bytes:{file}") == (folder / names[0]).read_bytes()
        web.always = (".parquet",)
        with pytest.raises(Lost):
            read_stored(f"row:9:image.bytes:{file}")
        web.always = ()
        assert read_stored(f"row:9:image.bytes:{file}") == (folder / names[9]).read_bytes()
        with ThreadPoolExecutor(8) as threads:  # concurrently, like the review page
            found = list(
                threads.map(lambda i: read_stored(f"row:{i}:image.bytes:{file}"), [*range(24)] * 3)
            )
    assert found == [(folder / name).read_bytes() for name in names] * 3


def test_a_server_without_ranges_cannot_give_a_shard(make_images, tmp_path):
    write_parquets(make_images(NAMES), {}, tmp_path / "shards", n_shards=1)
    file = next((tmp_path / "shards").iterdir())
    with (
        web_server(tmp_path / "shards", has_ranges=False) as web,
        pytest.raises(DataError, match=file.name),
    ):
        read_collection(f"{web.address}/{file.name}")


def test_an_address_that_leads_somewhere_else_is_refused(web, tmp_path):
    with pytest.raises(DataError, match=r"t.csv, line 2"):
        read_collection(table_of(web, tmp_path / "t.csv", ["sub/../../x.png"]))
    (tmp_path / "t.csv").write_text(f"path,label\n{web.address}/a.png,\nb c.png,\n")
    with pytest.raises(DataError):
        read_collection(tmp_path / "t.csv")


def test_what_is_not_there_and_who_does_not_answer_are_told_apart(web, tmp_path):
    with pytest.raises(DataError, match=r"t.csv"):
        read_collection(table_of(web, tmp_path / "t.csv", [*NAMES, "no.png", "none.png"]))
    with pytest.raises(DataError, match=r"http://127.0.0.1:1/x.tar"):
        read_collection("http://127.0.0.1:1/x.tar")
    with pytest.raises(DataError):
        read_collection(f"{web.address}/x.tar")
    with pytest.raises(DataError):
        read_collection(f"{web.address}/sub")


def test_a_missing_package_is_named(monkeypatch):
    import fsspec

    def refuse(scheme):
        raise ImportError(scheme)

    file_system.cache_clear()
    monkeypatch.setattr(fsspec, "get_filesystem_class", refuse)
    with pytest.raises(MissingError, match=r"s3fs"):
        read_collection("s3://birds/all")
    with pytest.raises(MissingError, match=r"gcsfs"):
        read_collection("gs://birds/all")
    with pytest.raises(DataError):
        read_collection("ftp://example.org/birds")
    file_system.cache_clear()
