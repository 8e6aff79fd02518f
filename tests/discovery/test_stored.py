"""Discovery on images in a bucket or in shards gives the same result as on a folder."""

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from photo_runs import discover_images, stop
from shoal.data.readers import read_collection
from shoal.data.storage import file_system
from shoal.discovery import api as discovering
from shoal.discovery.assign import Assigner
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.export.formats import export_run
from shoal.discovery.reviewed.refinement import Refinement
from shoal.errors import UsageError
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server.page_data import Originals
from stores import object_store, upload, use_store, web_server, write_parquets, write_tars

pytest.importorskip("s3fs", reason="no s3fs; pip install s3fs")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with object_store() as address:
        yield address


@pytest.fixture(autouse=True)
def use(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_store(store, monkeypatch)
    yield
    file_system.cache_clear()


@pytest.fixture
def untrained(photos) -> DiscoverySettings:
    return replace(choose_settings(config=photos.config, n_clusters=5), train=False)


def labels_of(photos) -> dict[str, str]:
    with photos.labels.open(newline="") as table:
        return {row["path"]: row["label"] for row in csv.DictReader(table)}


def discover(source, labels, out: Path, settings: DiscoverySettings, **options) -> Run:
    return discover_images(read_collection(source, labels), out, settings, **options)


def assigned(run: Run) -> bytes:
    return (run.path / "assignments.csv").read_bytes()


def test_a_bucket_and_shards_give_the_same_assignments_as_the_folder(
    photos, tmp_path: Path, settings
) -> None:
    labels = labels_of(photos)
    expected = assigned(discover(photos.folder, photos.labels, tmp_path / "local", settings))
    address = upload(photos.folder, "same")
    places = {
        "bucket": (address, photos.labels),
        "tar": (write_tars(photos.folder, labels, tmp_path / "tars"), None),
        "parquet": (write_parquets(photos.folder, labels, tmp_path / "parquets"), None),
        "tar-bucket": (upload(tmp_path / "tars", "same"), None),
    }
    for name, (source, given) in places.items():
        assert assigned(discover(source, given, tmp_path / name, settings)) == expected, name


def test_a_run_on_a_bucket_resumes_and_refuses_images_that_changed(
    photos, tmp_path: Path, untrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = upload(photos.folder, "resumed")
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(discovering, "make_frozen_result", stop)
        with pytest.raises(KeyboardInterrupt):
            discover(address, photos.labels, out, untrained)
    first, second = sorted(photos.truth)[:2]
    image = (photos.folder / first).read_bytes()
    file_system("s3").pipe_file(f"resumed/photos/{first}", (photos.folder / second).read_bytes())
    with pytest.raises(UsageError, match="other images or labels"):
        discover(address, photos.labels, out, untrained, resume=True)
    file_system("s3").pipe_file(f"resumed/photos/{first}", image)
    found = discover(address, photos.labels, out, untrained, resume=True)
    assert assigned(found) == assigned(
        discover(photos.folder, photos.labels, tmp_path / "local", untrained)
    )


def test_unreadable_images_are_listed_in_skipped_csv(
    photos, tmp_path: Path, untrained, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = upload(photos.folder, "lost")
    lost = sorted(photos.truth)[7]
    monkeypatch.setenv("SHOAL_TRIES", "2")
    with web_server(upstream=store) as web:
        use_store(web.address, monkeypatch)
        web.n_drops = 1
        web.always = (f"/{lost}",)
        run = discover(address, photos.labels, tmp_path / "run", untrained)
    rows = list(csv.DictReader((run.path / "skipped.csv").read_text().splitlines()))
    assert [row["path"] for row in rows] == [lost]
    assert rows[0]["reason"].startswith("the connection was lost (tried 2 times)")
    assert len(run.assignments) == len(photos.truth) - 1


@pytest.mark.parametrize("kind", ["bucket", "tar", "parquet"])
def test_the_review_finds_original_images(kind: str, photos, tmp_path: Path, untrained) -> None:
    places = {
        "bucket": lambda: upload(photos.folder, "reviewed"),
        "tar": lambda: write_tars(photos.folder, {}, tmp_path / "tars"),
        "parquet": lambda: write_parquets(photos.folder, {}, tmp_path / "parquets"),
    }
    run = discover(places[kind](), labels_of(photos), tmp_path / "run", untrained)
    paths = [row.path for row in run.assignments]
    originals = Originals(Run.open(run.path), [*paths[:3], "../secret.png"])
    assert not originals.missing
    for row in range(3):
        shown = Image.open(io.BytesIO(originals.get(row, 512)))
        file = photos.folder / paths[row]
        with Image.open(file) as there:
            assert shown.size == there.size
    with pytest.raises(Exception, match=r"leads out of the collection|no longer in"):
        originals.get(3, 512)


def test_new_images_of_a_bucket_are_assigned(photos, tmp_path: Path, untrained) -> None:
    run = discover(photos.folder, photos.labels, tmp_path / "run", untrained)
    names = sorted(photos.truth)[:2]
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for name in names:
        (inbox / name).write_bytes((photos.folder / name).read_bytes())
    address = upload(inbox, "later")
    assigner = Assigner(Run.open(run.path), device="cpu")
    here, _ = assigner.assign(inbox)
    there, _ = assigner.assign(address)
    assert there == here
    one, _ = assigner.assign(f"{address}/{names[0]}")
    assert [row.path for row in one] == names[:1]


def test_a_review_of_a_bucket_can_be_refined_and_exports_need_a_folder(
    photos, tmp_path: Path, untrained
) -> None:
    run = discover(upload(photos.folder, "refined"), photos.labels, tmp_path / "run", untrained)
    with pytest.raises(UsageError, match="cannot be linked"):
        export_run(run, "imagefolder", tmp_path / "sorted")
    export_run(run, "imagefolder", tmp_path / "sorted", images=photos.folder)
    assert len(list((tmp_path / "sorted").rglob("*.png"))) == len(photos.truth)
    Review(Run.open(run.path)).act(verbs.rename, 0, "scarlet", by="me")
    images = Refinement.open(run.path).images()
    assert images.names == tuple(sorted(photos.truth))
    assert images.where == "s3://refined/photos"
