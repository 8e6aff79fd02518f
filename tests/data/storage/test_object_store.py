"""A bucket on a real S3 server gives the same collection as the folder that was uploaded to it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.data.storage import file_system
from stores import object_store, upload, use_store, web_server

pytest.importorskip("s3fs", reason="no s3fs; pip install s3fs")
pytestmark = pytest.mark.slow

Make = Callable[[list[str]], Path]
NAMES = ["cat/a.png", "cat/b c.png", "dog/é.png", "dog/d.png", "e.png"]
LABELS = {"cat/a.png": "tabby", "dog/d.png": "poodle"}
SIZE = 8


@pytest.fixture(scope="module")
def store():
    with object_store() as address:
        yield address


@pytest.fixture(autouse=True)
def use(store, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    use_store(store, monkeypatch)
    yield
    file_system.cache_clear()


def facts(found):
    return found.names, found.labels.tolist(), found.classes


def test_a_bucket_is_the_same_collection_as_its_folder(make_images, tmp_path):
    folder = make_images(NAMES)
    (folder / ".hidden.png").write_bytes(b"x")
    (tmp_path / "labels.csv").write_text(
        "path,label\n" + "".join(f"{name},{one}\n" for name, one in LABELS.items())
    )
    (folder / "labels.csv").write_text((tmp_path / "labels.csv").read_text())
    address = upload(folder, "same")
    for labels in (None, False, tmp_path / "labels.csv"):
        assert facts(read_collection(address, labels)) == facts(read_collection(folder, labels))
    found = read_collection(address, f"{address}/labels.csv")
    assert facts(found) == facts(read_collection(folder, folder / "labels.csv"))
    expected = load_pixels(read_collection(folder), SIZE, n_workers=2)
    np.testing.assert_array_equal(load_pixels(found, SIZE, n_workers=2)[:], expected[:])


def test_a_second_run_reads_no_image_and_a_changed_one_is_read_again(
    make_images, store, monkeypatch
):
    folder = make_images(NAMES)
    address = upload(folder, "twice")
    with web_server(upstream=store) as web:
        use_store(web.address, monkeypatch)
        first = load_pixels(read_collection(address), SIZE)
        web.asked.clear()
        again = load_pixels(read_collection(address), SIZE)
        np.testing.assert_array_equal(again[:], first[:])
        assert not [path for path in web.asked if ".png" in path]
    use_store(store, monkeypatch)
    file_system("s3").pipe_file("twice/photos/e.png", (folder / "cat/a.png").read_bytes())
    changed = load_pixels(read_collection(address), SIZE)
    np.testing.assert_array_equal(changed[4], changed[0])


def test_dropped_connections_change_nothing_and_lost_ones_are_named(
    make_images, store, tmp_path, monkeypatch
):
    address = upload(make_images(NAMES), "drops")
    expected = load_pixels(read_collection(address), SIZE)[:]
    monkeypatch.setenv("SHOAL_TRIES", "4")
    with web_server(upstream=store) as web:
        use_store(web.address, monkeypatch)
        web.n_drops = 3
        found = read_collection(address)
        np.testing.assert_array_equal(
            load_pixels(found, SIZE, cache=tmp_path / "anew")[:], expected
        )
        web.n_drops = 0
        web.always = ("/cat/a.png",)
        skipped = load_pixels(found, SIZE, cache=tmp_path / "again").skipped
    assert list(skipped) == ["cat/a.png"]
    assert "the connection was lost (tried 4 times)" in skipped["cat/a.png"]


def test_a_wrong_bucket_a_wrong_place_and_missing_credentials_are_one_sentence(
    make_images, monkeypatch
):
    upload(make_images(NAMES), "here")

    def error_of(address):
        ended = CliRunner().invoke(app, ["discover", address, "--dry-run"])
        assert ended.exit_code == 3, ended.output
        return ended.output.strip()

    for address in ("s3://not-here/x", "s3://here/nothing"):
        assert error_of(address).startswith(f"error: {address}: cannot be read or found")
    file_system.cache_clear()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "set AWS_ACCESS_KEY_ID" in error_of("s3://here/photos")


def test_hostile_keys_are_left_out_with_the_reason(make_images):
    folder = make_images(NAMES)
    address = upload(folder, "hostile")
    store = file_system("s3")
    for key in ("a/../../b.png", "bell\x07.png", "x//y.png"):
        store.pipe_file(f"hostile/photos/{key}", (folder / "e.png").read_bytes())
    found = read_collection(address)
    assert found.names == tuple(sorted(NAMES))
    assert len(found.left_out) >= 2
    assert all(reason for reason in found.left_out.values())
