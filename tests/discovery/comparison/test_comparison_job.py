"""Whole comparisons on noisy colors with a tiny encoder."""

import json
import math
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from method_runs import CPU
from patched_method import collapsing
from photo_runs import press_ctrl_c
from shoal.data.pixels.loading import load_pixels
from shoal.discovery.assign import Assigner
from shoal.discovery.comparison import compare as job
from shoal.discovery.comparison.compare import ComparisonJob
from shoal.discovery.comparison.evaluation import Comparison, split_labels
from shoal.discovery.discovery_settings import choose_comparison
from shoal.discovery.reporter import Reporter
from shoal.discovery.run_job import run_job
from shoal.discovery.trained import trained_result
from shoal.errors import UsageError
from shoal.methods.cms import Cms
from shoal.methods.registry import get_method
from shoal.runs import Run, locked
from shoal.training.inputs import Task

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = "cms,simgcd"
TIMED = ("seconds", "path", "page", "run")


@pytest.fixture(scope="module")
def settings(options):
    return choose_comparison(METHODS, **options)


def do(collection, folder: Path, settings, **options) -> Comparison:
    job = ComparisonJob(
        collection=collection,
        settings=settings.frozen,
        comparison=settings,
        command_for=lambda config: f"run {config.name}",
        run=Run(folder),
        device=torch.device("cpu"),
        **options,
    )
    run_job(job)
    return Comparison.open(folder)


@pytest.fixture
def compared(collection, settings, tmp_path: Path):
    """Run a comparison."""

    def run(settings=settings, **options) -> Comparison:
        return do(collection, tmp_path / "run", settings, **options)

    return run


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The messages of the comparison `whole`."""
    return []


@pytest.fixture(scope="module")
def whole(collection, settings, lines, tmp_path_factory) -> Comparison:
    """A finished comparison that tests only read."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole") / "run"
    return do(collection, folder, settings, reporter=Reporter(lines.append))


def untimed(found: Comparison) -> dict[str, object]:
    """Return the content without times and paths."""
    plain = {name: value for name, value in found.to_dict().items() if name not in TIMED}
    plain["rows"] = [
        {name: value for name, value in row.items() if name not in TIMED} for row in plain["rows"]
    ]
    return plain


def predicted(found: Comparison, method: str, part: str = "") -> list[int]:
    return [
        row.category_id for row in Run.open(found.path / "methods" / f"{method}{part}").assignments
    ]


@pytest.mark.slow
def test_every_method_is_trained_on_the_same_labels_without_the_held_out_ones(
    collection, settings, whole, lines
) -> None:
    found = whole
    split = split_labels(collection, settings.frozen)
    seen = [
        "" if label < 0 else split.collection.classes[label] for label in split.collection.labels
    ]
    assert {row.method for row in found.rows} == {"frozen", "cms", "simgcd"}
    for row in found.rows:
        run = Run.open(row.run)
        assert [image.label_given for image in run.assignments] == seen
        assert split.hidden_names[0] not in {category.category for category in run.categories}
        assert split.hidden_names[0] not in (run.path / "assignments.csv").read_text(
            encoding="utf-8"
        )
        assert row.n_clusters == [found.n_clusters["values"][0]]
        assert (run.path / "report.html").is_file()
    assert found.held_out["n_images"] == len(split.rows)
    assert found == Comparison.open(found.path)
    assert sum(line.startswith("2 training runs") for line in lines) == 1
    assert sum("preparing views" in line for line in lines) <= 1
    assert not list(found.path.glob("trial-*"))


@pytest.mark.slow
def test_scores_match_the_table_of_held_out_labels(collection, settings, whole) -> None:
    """A held-out image of a known category is correct if it is in the category of that name."""
    lines = [
        line.split(",")
        for line in (whole.path / "held_out.csv").read_text(encoding="utf-8").splitlines()
    ]
    head = lines[0]
    rows = lines[1:]
    split = split_labels(collection, settings.frozen)
    assert [row[1] for row in rows] == [collection.names[at] for at in split.rows]
    for each in whole.rows:
        at = head.index(f"{each.method}_correct")
        right = [row[at] == "true" for row in rows]
        assert each.accuracy.all == pytest.approx(np.mean(right))
        assert each.accuracy.novel == pytest.approx(
            np.mean([r for r, n in zip(right, split.is_novel, strict=True) if n])
        )
        for row, is_right, is_novel in zip(rows, right, split.is_novel, strict=True):
            assert is_novel or is_right == (row[at - 1] == row[2])


@pytest.mark.slow
def test_a_method_gives_the_same_result_as_without_a_comparison(
    collection, settings, whole
) -> None:
    found = whole
    split = split_labels(collection, settings.frozen)
    for each in settings.methods[1:]:
        pixels = load_pixels(collection, each.pixel_size)
        n_clusters = found.n_clusters["values"][0]
        task = Task(pixels=pixels, labels=split.collection.labels, n_clusters=n_clusters)
        method = get_method(each.method)
        learned = method.represent(task, each.method_settings, device=CPU)
        alone = method.cluster(learned, task.labels, each.method_settings, n_clusters)
        pairs = set(zip(predicted(found, each.method), alone.clusters.tolist(), strict=True))
        assert len(pairs) == len(set(alone.clusters.tolist())), "another partition"
        assert len({one for one, _ in pairs}) == len(pairs)
        own = Run(found.path / "methods" / each.method).metrics
        assert [row["loss"] for row in own] == [row["loss"] for row in learned.metrics]


@pytest.mark.slow
def test_scrambled_held_out_labels_change_scores_but_no_prediction(
    whole, compared, monkeypatch
) -> None:
    real = job.split_labels

    def scramble(*arguments):
        split = real(*arguments)
        return replace(split, labels=np.random.default_rng(0).permutation(split.labels))

    monkeypatch.setattr(job, "split_labels", scramble)
    scrambled = compared()
    for row in whole.rows:
        assert predicted(whole, row.method) == predicted(scrambled, row.method)
    shares = [{row.method: row.accuracy.all for row in one.rows} for one in (whole, scrambled)]
    assert shares[0] != shares[1]
    assert whole.n_clusters == scrambled.n_clusters


@pytest.mark.slow
def test_the_trunk_runs_once_over_images_and_views(compared, tmp_path: Path, monkeypatch) -> None:
    """One pool contains every view that either method uses."""
    from shoal.methods import method

    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "empty"))  # no views cached by other tests
    made = []
    real = method.pool_views
    monkeypatch.setattr(
        method, "pool_views", lambda *a, **o: made.append(o["only"]) or real(*a, **o)
    )
    monkeypatch.setattr(
        "shoal.training.trainer.pool_views", lambda *a, **o: pytest.fail("a pool of its own")
    )
    monkeypatch.setattr(
        "shoal.training.model.cache_tokens", lambda *a, **o: pytest.fail("tokens of its own")
    )
    compared()
    assert len(made) == 1


@pytest.mark.slow
def test_repeats_hold_out_other_labels_and_are_evaluated_together(
    collection, settings, compared
) -> None:
    found = compared(settings=replace(settings, repeats=2))
    splits = [split_labels(collection, settings.frozen, repeat) for repeat in range(2)]
    assert found.held_out["n_images"] == sum(len(split.rows) for split in splits)
    assert found.held_out["categories"] == [list(split.hidden_names) for split in splits]
    for repeat, name in enumerate(("", "-2")):
        run = Run.open(found.path / "methods" / f"cms{name}")
        assert (
            sum(bool(row.label_given) for row in run.assignments)
            == splits[repeat].collection.n_labeled
        )
    assert len(found.best.n_clusters) == 2


@pytest.mark.slow
def test_a_method_with_collapsed_embeddings_is_left_out_with_a_reason(
    compared, monkeypatch
) -> None:
    real = trained_result.get_method

    def get(name: str):
        return collapsing(real(name)) if name == "cms" else real(name)

    monkeypatch.setattr(trained_result, "get_method", get)
    found = compared()
    assert {row.method for row in found.rows} == {"frozen", "simgcd"}
    assert "cannot be clustered" in found.unfinished["cms"]
    assert found.unfinished["cms"] in found.in_words()
    assert found == Comparison.open(found.path)


@pytest.mark.slow
def test_a_diverged_method_is_left_out_and_the_others_are_ranked(
    whole, compared, monkeypatch
) -> None:
    real = Cms.loss

    def overflowing(model, batch):
        losses = real(model, batch)
        return losses | {"loss": losses["loss"] * (math.inf if batch.epoch else 1)}

    monkeypatch.setattr(Cms, "loss", overflowing)
    found = compared()
    assert {row.method for row in found.rows} == {"frozen", "simgcd"}
    assert "epoch 2" in found.unfinished["cms"]
    assert "--set cms.training.lr=0.00" in found.unfinished["cms"]
    assert predicted(found, "simgcd") == predicted(whole, "simgcd")
    assert not list(found.path.glob("trial-*"))
    assert found == compared(resume=True)


@pytest.mark.slow
def test_ctrl_c_compares_the_finished_methods_and_resume_continues(
    whole, compared, monkeypatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(job, "train", asked_in(2, job.train))
        found = compared()
    assert {row.method for row in found.rows} == {"frozen", "cms"}
    assert list(found.unfinished) == ["simgcd"]
    assert Run(found.path).is_stopped
    assert untimed(compared(resume=True)) == untimed(whole)


def asked_in(n: int, train_on):
    """Simulate Ctrl-C when training number `n` begins."""
    begun: list[str] = []

    def train(*arguments, **options):
        begun.append("training")
        if len(begun) == n:
            press_ctrl_c()
        return train_on(*arguments, **options)

    return train


@pytest.mark.slow
def test_a_finished_comparison_is_returned_unless_forced(
    whole, compared, settings, tmp_path: Path
) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    found = Comparison.open(tmp_path / "run")
    lines = []
    again = compared(reporter=Reporter(lines.append))
    assert again == found
    assert lines[-1] == f"{found.path} is finished; there is nothing left to do"
    with pytest.raises(UsageError, match=r"repeats: 2, was 1"):
        compared(settings=replace(settings, repeats=2), resume=True)
    (found.path / "methods" / "notes.txt").write_text("mine")
    old = (found.path / "provenance.json").read_bytes()
    compared(force=True)
    assert (found.path / "provenance.json").read_bytes() != old
    assert (found.path / "methods" / "notes.txt").read_text() == "mine"


def test_a_locked_folder_is_refused_before_any_work(compared, tmp_path: Path) -> None:
    is_held = threading.Event()
    is_over = threading.Event()

    def hold() -> None:
        with locked(tmp_path / "run"):
            is_held.set()
            is_over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    with pytest.raises(UsageError, match="is being written by"):
        compared()
    is_over.set()
    holder.join()


@pytest.mark.slow
def test_the_time_limit_stops_a_comparison_and_a_resume_gives_the_same_result(
    compared, whole, settings
) -> None:
    found = compared(settings=replace(settings, max_minutes=1e-6))
    assert list(found.unfinished) == ["cms", "simgcd"]
    found = compared(settings=replace(settings, max_minutes=1e6), resume=True)
    assert [row.method for row in found.rows] == [row.method for row in whole.rows]


@pytest.mark.slow
def test_new_images_are_assigned_by_the_classifier_of_the_method(
    collection, whole, tmp_path: Path
) -> None:
    """The images of the run are assigned to their categories. If the outputs of the classifier
    stand for other categories, images are assigned to these, even if another one is nearer."""
    folder = shutil.copytree(whole.path / "methods" / "simgcd", tmp_path / "run")
    own = predicted(whole, "simgcd")
    file = folder / "model.json"
    for change in (lambda at: at, lambda at: max(own) - at):
        about = json.loads(
            (whole.path / "methods" / "simgcd" / "model.json").read_text(encoding="utf-8")
        )
        about["classifier"] = [change(at) if at >= 0 else at for at in about["classifier"]]
        file.write_text(json.dumps(about), encoding="utf-8")
        rows, _ = Assigner(Run.open(folder), device="cpu", outlier_share=0).assign_images(
            collection
        )
        assert [row.category_id for row in rows] == [change(at) for at in own]
