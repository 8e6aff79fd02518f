"""A folder of images in, its categories out, independent of file order, workers and hidden
labels."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from photo_runs import discover_images, run_on
from shoal.data.pixels.loading import load_pixels
from shoal.data.pixels.workers import worker_pool
from shoal.data.readers import read_collection
from shoal.discovery.assign import Assigner
from shoal.discovery.discovered_run import score_run
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained.evaluation import Choice, Evaluation, HeldOutAccuracy
from shoal.encoders.catalog import load_encoder
from shoal.encoders.vision import embed
from shoal.errors import DataError, UsageError
from shoal.methods.gcd import GcdSettings
from shoal.methods.method import MethodSettings
from shoal.methods.registry import follow_protocol, get_method
from shoal.report.summary import summarize_run
from shoal.runs import Run
from shoal.training.inputs import Task

pytestmark = pytest.mark.usefixtures("one_thread")


def tables(run: Run) -> tuple[bytes, bytes]:
    return (run.path / "assignments.csv").read_bytes(), (run.path / "categories.csv").read_bytes()


def test_five_colors_are_found_with_three_known(photos, settings, tmp_path: Path) -> None:
    messages: list[str] = []
    run = run_on(
        photos,
        tmp_path / "run",
        replace(settings, n_clusters=5),
        reporter=Reporter(messages.append),
    )
    score = score_run(run, photos.truth)
    assert score.accuracy.all > 0.9, score.in_words()
    assert [category.category for category in run.categories[:3]] == ["blue", "green", "red"]
    assert [category.is_novel for category in run.categories] == [False] * 3 + [True] * 2
    assert messages[2].startswith("Frozen result: Found 5 categories")
    held = {file.name for file in run.path.iterdir()}
    assert {
        "config.yaml",
        "provenance.json",
        "metrics.jsonl",
        "model.safetensors",
        "embeddings.npy",
    } <= held
    assert {
        "shifted.npy",
        "frozen.npy",
        "tree.npy",
        "estimate.json",
        "shifts.json",
        "thumbnails.bin",
    } <= held
    assert not [
        name for name in held if "checkpoint" in name or "best-" in name or name.endswith(".tmp")
    ]
    assert len(run.metrics) == 2
    assert run.provenance["root"] == str(photos.folder)


@pytest.fixture
def known_colors(photos):
    """The same photos with every color known, so that one of five can be held out."""
    rows = [f"{name},{color}" for i, (name, color) in enumerate(photos.truth.items()) if i % 2]
    photos.labels.write_text("\n".join(["path,label", *rows]))
    return photos


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["frozen", "trained"])
def test_the_frozen_result_is_used_if_training_is_worse_on_held_out_labels(
    known_colors, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    seen = []

    def compare(images, *args, **options):
        seen.append((images.held_out.hidden, len(images.held_out.rows)))
        frozen, trained = (
            HeldOutAccuracy(n_shifts=1, is_correct=np.full(10, name == kept))
            for name in ("frozen", "trained")
        )
        return Choice(hidden=("red",), frozen=frozen, trained=trained)

    monkeypatch.setattr(Evaluation, "compare", compare)
    messages: list[str] = []
    run = run_on(known_colors, tmp_path / "run", settings, reporter=Reporter(messages.append))
    assert len(seen[0][0]) == 1
    lost = "trained" if kept == "frozen" else "frozen"
    assert run.json("choice")["result"] == kept
    other = Run.open(run.path / lost)
    assert messages[-1].endswith(str(other.path))
    assert not (run.path / kept).exists()
    for found, name in ((run, kept), (other, lost)):
        assert found.has("model.safetensors") == (name == "trained")
        assert np.array_equal(found.array("embeddings"), run.array("frozen")) == (name == "frozen")
        rows, _ = Assigner(found, device="cpu").assign_images(
            read_collection(known_colors.folder, False)
        )
        assert (
            sum(
                new.category_id != old.category_id
                for new, old in zip(rows, found.assignments, strict=True)
            )
            <= 1
        )
        assert len(list(found.thumbnails(range(60)))) == 60


def test_unreadable_images_do_not_overwrite_a_finished_run(
    photos, settings, tmp_path: Path
) -> None:
    settings = replace(settings, train=False)
    run = run_on(photos, tmp_path / "run", settings)
    before = tables(run)
    for file in sorted(photos.folder.iterdir()):
        file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DataError, match="can be decoded"):
        run_on(photos, run.path, settings, force=True)
    assert tables(Run.open(run.path)) == before


@pytest.mark.parametrize("method", ["gcd", "agglomerative"])
def test_other_methods_find_the_colors_and_assign_new_images(
    photos, settings, tmp_path: Path, method: str
) -> None:
    cms = settings.method_settings
    common = {"encoder": cms.encoder, "input_size": cms.input_size, "inference": cms.inference}
    own = GcdSettings(**common, head=cms.head, training=cms.training)
    chosen = own if method == "gcd" else MethodSettings(**common)
    settings = DiscoverySettings(
        method=method,
        n_clusters=5,
        pixel_size=16,
        method_settings=chosen,
        train=None if method == "agglomerative" else True,
    )
    run = run_on(photos, tmp_path / "run", settings)
    assert score_run(run, photos.truth).accuracy.all > 0.9
    assert run.has("model.safetensors") == (method == "gcd")
    assert len(run.metrics) == (2 if method == "gcd" else 0)
    again = Assigner(run, device="cpu").networks.embed(
        load_pixels(read_collection(photos.folder, False), 16)
    )
    assert np.allclose(again.numpy(), run.array("embeddings"), atol=1e-6)


def test_rows_of_all_files_are_the_same_images(photos, settings, tmp_path: Path) -> None:
    run = run_on(photos, tmp_path / "run", replace(settings, train=False))
    rows = run.assignments
    assert [row.path for row in rows] == sorted(photos.truth)
    assert len(run.array("embeddings")) == len(run.array("shifted")) == len(rows) == 60
    assert run.array("tree").shape == (59, 4)
    assert len(list(run.thumbnails(range(60)))) == 60
    given = [f"{row.path},{row.label_given}" for row in rows if row.label_given]
    assert given == sorted(photos.labels.read_text().splitlines()[1:])
    frozen = np.array(run.array("frozen"))
    encoder = load_encoder(settings.method_settings.encoder)
    pixels = load_pixels(read_collection(photos.folder, False), 16)
    assert np.allclose(frozen, embed(pixels, encoder).numpy(), atol=1e-6)


@pytest.mark.slow
def test_a_seed_gives_the_same_bytes_for_any_file_order_and_number_of_workers(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The photos are copied in another order, which changes inodes and times, and decoded by
    another number of processes."""
    monkeypatch.setattr(
        "shoal.data.pixels.workers.worker_pool", worker_pool
    )  # real processes, unlike in other tests with photos
    with monkeypatch.context() as patched:
        patched.setattr("shoal.discovery.run_job.load_pixels", partial(load_pixels, n_workers=2))
        first = run_on(photos, tmp_path / "first", settings)
    copy = tmp_path / "elsewhere" / "photos"
    copy.mkdir(parents=True)
    for name in sorted(photos.truth, reverse=True):
        shutil.copy(photos.folder / name, copy / name)
    rows = photos.labels.read_text().splitlines()
    other = tmp_path / "other.csv"
    other.write_text("\n".join([rows[0], *reversed(rows[1:])]))
    decoded_by = []
    monkeypatch.setattr(
        "shoal.discovery.run_job.load_pixels",
        lambda *a, **k: (decoded_by.append(1), load_pixels(*a, n_workers=1, **k))[1],
    )
    second = run_on(replace(photos, folder=copy, labels=other), tmp_path / "second", settings)
    assert tables(first) == tables(second)
    assert first.provenance["fingerprint"] == second.provenance["fingerprint"]
    assert decoded_by == [1]


@pytest.mark.slow
def test_training_on_mapped_pixels_equals_training_on_an_array(photos, settings) -> None:
    """`Pixels` reads scattered rows of a memory map; training must support it wherever it supports
    arrays."""
    collection = read_collection(photos.folder, photos.labels)
    pixels = load_pixels(collection, 16)
    order = np.random.default_rng(0).permutation(60)
    scattered = replace(pixels, store=np.asarray(pixels[order]), rows=np.argsort(order))
    assert np.array_equal(scattered[:], pixels[:])
    found = [
        get_method("cms").represent(
            Task(pixels=given, labels=collection.labels, validation=np.arange(0, 60, 3)),
            settings.method_settings,
            device=torch.device("cpu"),
        )
        for given in (pixels[:], pixels, scattered, torch.from_numpy(pixels[:]))
    ]
    for other in found[1:]:
        assert torch.equal(found[0].embeddings, other.embeddings)


def test_unreadable_files_are_listed_and_do_not_shift_rows(
    photos, settings, tmp_path: Path
) -> None:
    (photos.folder / "aaa.png").write_bytes(b"no image")
    (photos.folder / "zzz.jpg").write_bytes(b"")
    messages: list[str] = []
    run = run_on(
        photos, tmp_path / "run", replace(settings, train=False), reporter=Reporter(messages.append)
    )
    listed = (run.path / "skipped.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in listed] == ["aaa.png", "zzz.jpg"]
    assert [row.path for row in run.assignments] == sorted(photos.truth)
    assert any("2 unreadable, listed in" in message for message in messages)


def test_images_with_zero_features_are_named(photos, settings, tmp_path, monkeypatch) -> None:
    rows = torch.tensor([7, 31])
    monkeypatch.setattr(
        "shoal.discovery.run_job.embed",
        lambda pixels, encoder, **_: torch.eye(len(pixels)).index_fill(0, rows, 0),
    )
    first, second = (sorted(photos.truth)[row] for row in rows.tolist())
    with pytest.raises(DataError, match=rf"^{first}, {second}: .*\(2 of 60 images\)"):
        run_on(photos, tmp_path / "run", settings)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["shoal", "paper"])
def test_k_is_that_of_the_frozen_result_unless_the_papers_rule_is_used(
    photos, settings, tmp_path: Path, protocol: str
) -> None:
    """The same holds for the 80 % interval."""
    followed = replace(
        settings,
        method_settings=follow_protocol(settings.method_settings, protocol, "cms"),
    )
    if protocol == "paper":  # which holds out no category
        followed = replace(followed, hidden_share=0.0)
    run = run_on(photos, tmp_path / "run", followed)
    found = run.json("estimate")
    first = Run.open(run.path / "frozen").json("estimate")
    assert (found["curve"] == first["curve"]) == (protocol == "shoal")
    if protocol == "shoal":
        assert (found["n_clusters"], found["interval"]) == (first["n_clusters"], first["interval"])


def test_without_labels_the_given_number_of_categories_is_found(
    photos, settings, tmp_path: Path
) -> None:
    collection = read_collection(photos.folder, False)
    run = discover_images(collection, tmp_path / "run", replace(settings, n_clusters=5))
    assert run.n_clusters == 5
    assert all(category.is_novel for category in run.categories)
    assert summarize_run(run).startswith("Found 5 categories: 0 known, 5 novel.")


def test_too_many_trained_blocks_are_refused_before_images_are_read(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shoal.discovery.run_job.load_pixels",
        lambda *given, **named: pytest.fail("images were read"),
    )
    too_many = replace(settings, method_settings=replace(settings.method_settings, n_tail_blocks=3))
    with pytest.raises(UsageError, match="n_tail_blocks: found 3"):
        run_on(photos, tmp_path / "run", too_many)
    assert not (tmp_path / "run").exists()
