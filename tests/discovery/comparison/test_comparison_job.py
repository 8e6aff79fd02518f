"""Whole comparisons on noisy colors with a tiny encoder."""

import json
import math
import shutil
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from patched_method import collapsing
from photo_runs import press_ctrl_c, stop
from shoal.data.pixels import load_pixels
from shoal.discovery.assign import Assigner
from shoal.discovery.comparison import comparison_job as job
from shoal.discovery.comparison.comparison_job import ComparisonJob
from shoal.discovery.comparison.comparison_result import Comparison
from shoal.discovery.comparison.comparison_settings import choose_comparison
from shoal.discovery.comparison.label_draw import withhold_labels
from shoal.discovery.reporter import Reporter
from shoal.discovery.run_job import run_job
from shoal.discovery.trained import training
from shoal.errors import UsageError
from shoal.methods.cms import Cms
from shoal.methods.registry import get_method
from shoal.runs import Run, locked
from shoal.training.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = "cms,simgcd"
TIMED = ("seconds", "path", "page", "run")


@pytest.fixture(scope="module")
def settings(options):
    return choose_comparison(METHODS, **options)


def do(collection, folder: Path, settings, **options) -> Comparison:
    job = ComparisonJob(
        collection=collection,
        settings=settings.first,
        compared=settings,
        command_for=lambda method: f"run {method}",
        run=Run(folder),
        encoder_device=torch.device("cpu"),
        **options,
    )
    run_job(job)
    return Comparison.open(folder)


@pytest.fixture
def compared(collection, settings, tmp_path: Path):
    """Compare; settings, reporter and more may be given."""

    def run(settings=settings, **options) -> Comparison:
        return do(collection, tmp_path / "run", settings, **options)

    return run


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """What the comparison `whole` has said."""
    return []


@pytest.fixture(scope="module")
def whole(collection, settings, heard, tmp_path_factory) -> Comparison:
    """A comparison that is left alone, for those who read it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole") / "run"
    return do(collection, folder, settings, reporter=Reporter(heard.append))


def untimed(found: Comparison) -> dict[str, object]:
    """Everything but times and places."""
    plain = {name: value for name, value in found.to_dict().items() if name not in TIMED}
    plain["rows"] = [
        {name: value for name, value in row.items() if name not in TIMED} for row in plain["rows"]
    ]
    return plain


def predicted(found: Comparison, method: str, draw: str = "") -> list[int]:
    return [
        row.category_id for row in Run.open(found.path / "methods" / f"{method}{draw}").assignments
    ]


@pytest.mark.slow
def test_every_method_is_a_run_that_was_given_the_same_labels_and_none_that_judges(
    collection, settings, whole, heard
) -> None:
    found = whole
    kept = withhold_labels(collection, settings.first)
    seen = ["" if label < 0 else kept.given.classes[label] for label in kept.given.labels]
    assert {row.method for row in found.rows} == {"frozen", "cms", "simgcd"}
    for row in found.rows:
        run = Run.open(row.run)
        assert [image.label_given for image in run.assignments] == seen
        assert kept.hidden_names[0] not in {category.category for category in run.categories}
        assert kept.hidden_names[0] not in (run.path / "assignments.csv").read_text(
            encoding="utf-8"
        )
        assert row.n_clusters == (found.n_clusters["asked"][0],)
        assert (run.path / "report.html").is_file()
    assert found.kept["n_images"] == len(kept.rows)
    assert found == Comparison.open(found.path)
    assert sum(line.startswith("2 trainings") for line in heard) == 1
    assert sum("preparing views" in line for line in heard) <= 1
    assert not list(found.path.glob("trial-*"))


@pytest.mark.slow
def test_a_score_is_that_of_the_table_of_kept_labels(collection, settings, whole) -> None:
    """kept.csv has what each method did with each kept image; a known one is right in the category
    of its name."""
    lines = [
        line.split(",")
        for line in (whole.path / "kept.csv").read_text(encoding="utf-8").splitlines()
    ]
    head = lines[0]
    rows = lines[1:]
    kept = withhold_labels(collection, settings.first)
    assert [row[1] for row in rows] == [collection.names[at] for at in kept.rows]
    for each in whole.rows:
        at = head.index(f"{each.method}_right")
        right = [row[at] == "true" for row in rows]
        assert each.accuracy.all == pytest.approx(np.mean(right))
        assert each.accuracy.novel == pytest.approx(
            np.mean([r for r, n in zip(right, kept.is_novel, strict=True) if n])
        )
        for row, is_right, is_novel in zip(rows, right, kept.is_novel, strict=True):
            assert is_novel or is_right == (row[at - 1] == row[2])


@pytest.mark.slow
def test_a_method_answers_as_it_does_alone(collection, settings, whole) -> None:
    found = whole
    kept = withhold_labels(collection, settings.first)
    for each in settings.methods[1:]:
        pixels = load_pixels(collection, each.pixel_size)
        asked = found.n_clusters["asked"][0]
        task = Task(pixels=pixels, labels=kept.given.labels, n_clusters=asked)
        alone = get_method(each.method).run(task, each.of_method, device=torch.device("cpu"))
        pairs = set(zip(predicted(found, each.method), alone.clusters.tolist(), strict=True))
        assert len(pairs) == len(set(alone.clusters.tolist())), "another partition"
        assert len({one for one, _ in pairs}) == len(pairs)
        own = Run(found.path / "methods" / each.method).metrics
        assert [row["loss"] for row in own] == [row["loss"] for row in alone.metrics]


@pytest.mark.slow
def test_scrambled_kept_labels_change_scores_and_no_prediction(
    whole, compared, monkeypatch
) -> None:
    real = job.withhold_labels

    def scramble(*arguments):
        kept = real(*arguments)
        return replace(kept, labels=np.random.default_rng(0).permutation(kept.labels))

    monkeypatch.setattr(job, "withhold_labels", scramble)
    scrambled = compared()
    for row in whole.rows:
        assert predicted(whole, row.method) == predicted(scrambled, row.method)
    shares = [{row.method: row.accuracy.all for row in one.rows} for one in (whole, scrambled)]
    assert shares[0] != shares[1]
    assert whole.n_clusters == scrambled.n_clusters


@pytest.mark.slow
def test_the_trunk_goes_over_the_images_and_views_once(compared, monkeypatch) -> None:
    """In whole views: those that either method looks at."""
    from shoal.methods import trunk

    made = []
    real = trunk.pool_views
    monkeypatch.setattr(
        trunk, "pool_views", lambda *a, **o: made.append(o["only"]) or real(*a, **o)
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
def test_several_draws_keep_other_labels_and_judge_together(collection, settings, compared) -> None:
    found = compared(settings=replace(settings, draws=2))
    kept = [withhold_labels(collection, settings.first, draw) for draw in range(2)]
    assert found.kept["n_images"] == sum(len(one.rows) for one in kept)
    assert found.kept["categories"] == [list(one.hidden_names) for one in kept]
    for draw, name in enumerate(("", "-2")):
        run = Run.open(found.path / "methods" / f"cms{name}")
        assert sum(bool(row.label_given) for row in run.assignments) == kept[draw].given.n_labeled
    assert len(found.best.n_clusters) == 2


@pytest.mark.slow
def test_a_method_that_leaves_nothing_to_cluster_is_the_last_row_and_says_why(
    compared, monkeypatch
) -> None:
    real = training.get_method

    def get(name: str):
        return collapsing(real(name)) if name == "cms" else real(name)

    monkeypatch.setattr(training, "get_method", get)
    found = compared()
    assert (found.rows[-1].method, found.rows[-1].rank) == ("cms", "–")
    assert "nothing to cluster" in found.rows[-1].failed
    assert any(sentence.startswith("CMS has no answer: ") for sentence in found.sentences)
    assert "nothing to cluster" in found.in_words()
    assert "nothing to cluster" in found.page.read_text(encoding="utf-8")
    assert found == Comparison.open(found.path)


@pytest.mark.slow
def test_a_method_whose_training_goes_wrong_is_the_last_row_and_the_others_stay(
    whole, compared, monkeypatch
) -> None:
    real = Cms.loss

    def overflowing(model, batch):
        losses = real(model, batch)
        return losses | {"loss": losses["loss"] * (math.inf if batch.epoch else 1)}

    monkeypatch.setattr(Cms, "loss", overflowing)
    found = compared()
    assert (found.rows[-1].method, found.rows[-1].rank) == ("cms", "–")
    assert (
        "epoch 2, step 1: the loss or its gradient is not a finite number" in found.rows[-1].failed
    )
    assert "--set cms.training.lr=0.00" in found.rows[-1].failed
    assert predicted(found, "simgcd") == predicted(whole, "simgcd")
    assert not list(found.path.glob("trial-*"))
    assert found == compared(resume=True)


def stop_in(bar: str, at: int):
    """Raise KeyboardInterrupt when the progress of something reaches `at`, the second time it
    begins."""
    seen: list[str] = []

    @contextmanager
    def show(what, outlook):
        seen.append(what)
        yield (
            lambda done, total: (
                stop() if seen.count(bar) == 2 and what == bar and done >= at else None
            )
        )

    return Reporter(show=show)


@pytest.mark.slow
def test_interrupted_in_the_second_method_and_resumed_equals_uninterrupted(
    whole, compared, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        compared(reporter=stop_in("training", 12))
    cut = tmp_path / "run"
    assert Run(cut / "methods" / "cms").is_finished
    assert not (cut / "methods" / "simgcd").exists()
    before = (cut / "methods" / "cms" / "provenance.json").read_bytes()
    with pytest.raises(UsageError, match="holds an unfinished run; give --resume"):
        compared()
    resumed = compared(resume=True)
    assert (cut / "methods" / "cms" / "provenance.json").read_bytes() == before
    assert untimed(resumed) == untimed(whole)
    for part in ("assignments.csv", "embeddings.npy", "model.safetensors"):
        names = [folder / "methods" / "simgcd" / part for folder in (cut, whole.path)]
        assert names[0].read_bytes() == names[1].read_bytes()
    assert sorted(file.name for file in cut.iterdir()) == sorted(
        file.name for file in whole.path.iterdir()
    )


@pytest.mark.slow
def test_ctrl_c_once_compares_what_is_finished_and_resume_goes_on(
    whole, compared, monkeypatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(job, "train", asked_in(2, job.train))
        found = compared()
    assert {row.method for row in found.rows} == {"frozen", "cms"}
    assert found.unfinished == ("simgcd",)
    assert "Not finished: SimGCD; the same command with --resume continues." in found.sentences
    assert Run(found.path).is_stopped
    assert untimed(compared(resume=True)) == untimed(whole)


def asked_in(n: int, train_on):
    """Press Ctrl-C when the training number `n` begins."""
    begun: list[str] = []

    def train(*arguments, **options):
        begun.append("training")
        if len(begun) == n:
            press_ctrl_c()
        return train_on(*arguments, **options)

    return train


@pytest.mark.slow
def test_ctrl_c_before_the_first_training_compares_nothing_and_resume_goes_on(
    whole, compared
) -> None:
    def press(line: str) -> None:
        if line.startswith("2 trainings"):
            press_ctrl_c()

    found = compared(reporter=Reporter(press))
    assert {row.method for row in found.rows} == {"frozen"}
    assert Run(found.path).is_stopped
    assert untimed(compared(resume=True)) == untimed(whole)


@pytest.mark.slow
def test_a_finished_comparison_is_left_as_it_is_or_overwritten_by_force(
    whole, compared, settings, tmp_path: Path
) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    found = Comparison.open(tmp_path / "run")
    heard = []
    with pytest.raises(UsageError, match="holds a finished run"):
        compared()
    again = compared(resume=True, reporter=Reporter(heard.append))
    assert again == found
    assert heard[-1] == f"{found.path} is finished, there is nothing left to do"
    with pytest.raises(UsageError, match=r"made with other settings: draws: 2, was 1"):
        compared(settings=replace(settings, draws=2), resume=True)
    (found.path / "methods" / "notes.txt").write_text("mine")
    old = (found.path / "provenance.json").read_bytes()
    compared(force=True)
    assert (found.path / "provenance.json").read_bytes() != old
    assert (found.path / "methods" / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_held_is_refused_before_anything_is_done(compared, tmp_path: Path) -> None:
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
def test_minutes_that_are_over_stop_it_and_a_resume_ends_as_if_there_were_no_limit(
    compared, whole, settings
) -> None:
    found = compared(settings=replace(settings, max_minutes=1e-6))
    assert found.unfinished == ("cms", "simgcd")
    found = compared(settings=replace(settings, max_minutes=1e6), resume=True)
    assert [row.method for row in found.rows] == [row.method for row in whole.rows]


@pytest.mark.slow
def test_later_images_go_where_the_methods_classifier_puts_them(
    collection, whole, tmp_path: Path
) -> None:
    """The same images again; and where outputs mean other categories, they go to these, whatever
    lies nearest."""
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
