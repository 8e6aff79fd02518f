"""What is said of a training, and by whom."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from patched_method import collapsing
from photo_runs import press_ctrl_c, run_on
from shoal.clustering.blend import USUAL_WEIGHT, choose_weight
from shoal.data.readers import read_collection
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained import train_and_answer, training_job, trials
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.trial_judge import JudgedEpoch, JudgingImages, TrialJudge
from shoal.methods.registry import get_method, load_recipe
from shoal.runs import Run
from shoal.training.loop import train

pytestmark = pytest.mark.usefixtures("one_thread")


def with_training(settings: DiscoverySettings, **values) -> DiscoverySettings:
    return replace(
        settings,
        method_settings=replace(
            settings.method_settings, training=replace(settings.method_settings.training, **values)
        ),
    )


@pytest.mark.slow
def test_a_process_that_helps_says_nothing(
    photos, settings, tmp_path: Path, monkeypatch, caplog
) -> None:
    """The batch is larger than the collection, of which the main process speaks; the helper takes the smaller one."""
    asked = []
    method = SimpleNamespace(
        needs_n_clusters=False,
        represent=lambda task, chosen, **options: asked.append(chosen.training.batch_size),
    )
    monkeypatch.setattr(trials, "get_method", lambda name: method)
    flags = iter([True, False, False])  # training begins, and nothing comes after it
    monkeypatch.setattr(trials, "flag_from_main", lambda value, device: next(flags))
    collection = read_collection(photos.folder, photos.labels)
    with caplog.at_level(logging.DEBUG):
        trials.share_training(
            collection,
            Run(tmp_path / "run"),
            with_training(settings, batch_size=1000),
            torch.device("cpu"),
            False,
        )
    assert asked == [len(collection)]
    assert [record.message for record in caplog.records if record.name.startswith("shoal")] == []


def notes(photos, out: Path, settings: DiscoverySettings) -> list[str]:
    heard: list[str] = []
    run_on(photos, out, replace(settings, n_clusters=5), reporter=Reporter(heard.append))
    return [line for line in heard if "collapsed" in line]


def test_a_training_that_collapses_says_so_once_and_what_to_try(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """Every epoch shows it, and so do the embeddings in the end."""
    monkeypatch.setattr("shoal.training.bank.COLLAPSED", -1.0)
    (said,) = notes(photos, tmp_path / "run", with_training(settings, epochs=3))
    assert said.startswith(
        "note: training seems to have collapsed: all embeddings point nearly the same way"
    )
    assert said in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")


def test_where_no_label_can_judge_the_frozen_encoder_counts_beside_the_trained_one(
    photos, settings, tmp_path
) -> None:
    """As much as it usually should; alone where the trained answer is asked for, and all where training collapses."""
    weights = {}
    for name, hidden_share in (("usual", settings.hidden_share), ("trained", 0.0)):
        wanted = replace(with_training(settings, epochs=1), n_clusters=5, hidden_share=hidden_share)
        weights[name] = run_on(photos, tmp_path / name, wanted).json("model").get("frozen_weight")
    assert weights == {"usual": USUAL_WEIGHT, "trained": 0.0}


def test_the_last_epoch_is_looked_at_too(photos, settings, tmp_path: Path, monkeypatch) -> None:
    """The bank of the only epoch is from before any training, so what was learned is judged by its embeddings."""
    monkeypatch.setattr(training_job, "collapse_statistics", lambda rows: {"bank_cosine": 1.0})
    assert len(notes(photos, tmp_path / "run", with_training(settings, epochs=1))) == 1


def test_a_head_as_it_was_drawn_is_no_collapse() -> None:
    """Before training its embeddings point nearly the same way, too."""
    heard: list[str] = []
    reporter = Reporter(heard.append, detail=heard.append)
    tell = training_job._epoch_listener(
        Run(Path("run")), reporter, False, training_job._collapse_watch(heard.append)
    )
    row = {"loss": 1.0, "validation_accuracy": None, "seconds": 1.0, "bank_cosine": 1.0}
    tell(row | {"epoch": 1})
    assert len(heard) == 1
    tell(row | {"epoch": 2})
    assert "collapsed" in heard[-1]


def test_a_training_that_leaves_nothing_to_cluster_lets_the_first_answer_stand(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """Training is replaced by one whose embeddings are two points; five categories were asked for."""
    real = training_job.get_method
    monkeypatch.setattr(training_job, "get_method", lambda name: collapsing(real(name)))
    heard: list[str] = []
    wanted = replace(with_training(settings, epochs=1), n_clusters=5)
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append))
    assert run.is_finished
    (said,) = [line for line in heard if "nothing to cluster" in line]
    assert "2 distinct rows" in said
    assert said.endswith("so the first answer stands")
    assert run.n_clusters == 5
    assert not (run.path / "frozen").exists()
    assert not (run.path / "trained").exists()
    assert not run.has("choice.json")
    assert not run.has("model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gcd", "dccl"])
def test_with_the_papers_rule_a_method_that_counts_itself_does_so(
    photos, settings, tmp_path: Path, method
) -> None:
    """With any other the number is that of the first answer, and so is its interval."""
    cms = settings.of_method
    own = load_recipe(method=method)
    common = {
        "encoder": cms.encoder,
        "input_size": cms.input_size,
        "head": cms.head,
        "training": cms.training,
    }
    for rule in ("paper", "pairs"):
        chosen = replace(own, **common, inference=replace(cms.inference, rule=rule))
        run = run_on(
            photos,
            tmp_path / rule,
            DiscoverySettings(method=method, pixel_size=16, method_settings=chosen),
        )
        found = run.json("estimate")
        assert not found["is_given"]
        assert (found["rule"] == get_method(method).number(chosen)) == (rule == "paper")
        assert (found["interval"] is None) == (rule == "paper")


def test_a_trial_that_cannot_help_is_ended_and_nothing_is_left_to_resume(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(Choice, "is_hopeless", True)
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    heard: list[str] = []
    wanted = replace(with_training(settings, epochs=4), n_clusters=5, hidden_share=0.4)
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append))
    (said,) = [line for line in heard if "training is ended" in line]
    assert said.startswith("training is ended after 1 of 4 epochs: of ")
    assert run.is_finished
    assert not run.is_stopped, "there is nothing to resume"


@pytest.mark.slow
def test_a_trial_that_fell_is_ended_and_the_last_training_takes_as_many_epochs_as_were_best(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """The judge is told that everything is right after one epoch and nothing after two."""
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    seen: list[int] = []

    monkeypatch.setattr(Choice, "is_hopeless", False)
    real = TrialJudge.compare

    def compare(self, embeddings, predicted, weights):
        found = real(self, embeddings, predicted, weights)
        seen.append(len(weights))
        n_images = found.n_images
        trials = [
            replace(one, right=np.full(n_images, len(seen) == 1 and one.weight < 1))
            for one in found.tried
        ]
        return replace(found, tried=trials, units=None)

    monkeypatch.setattr(TrialJudge, "compare", compare)
    heard: list[str] = []
    wanted = replace(with_training(settings, epochs=4), n_clusters=5, hidden_share=0.4)
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append))
    assert any(
        line.startswith("training is ended after 2 of 4 epochs: it put more") for line in heard
    )
    assert "training again, with the labels that were kept from it, for 1 of 4 epochs" in heard
    assert run.json("choice")["epochs"] == 1
    assert len(run.metrics) == 1
    assert run.is_finished
    assert not run.is_stopped


def keep_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a category of two or more, and keep what was trained whatever the judging labels say."""
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    monkeypatch.setattr(Choice, "is_hopeless", False)
    monkeypatch.setattr(JudgedEpoch, "is_full", False)
    best = property(lambda self: choose_weight([trial for trial in self.tried if trial.weight < 1]))
    monkeypatch.setattr(Choice, "chosen", best)


WATCHED = "head/layers.0.weight"


def watch_weights(monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Some weights as each training begins with them, and as it ends."""
    begins = []
    ends = []

    def seen(data, model, *rest, **options):
        begins.append(model.saved_tensors()[WATCHED].clone())
        trained = train(data, model, *rest, **options)
        ends.append(model.saved_tensors()[WATCHED].clone())
        return trained

    monkeypatch.setattr("shoal.methods.method.train", seen)
    return begins, ends


def test_after_a_trial_of_five_epochs_training_goes_on_from_it_and_interrupted_it_gives_the_same_bytes(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    keep_training(monkeypatch)
    begins, ends = watch_weights(monkeypatch)
    heard: list[str] = []
    wanted = replace(with_training(settings, epochs=5), n_clusters=5, hidden_share=0.4)
    whole = run_on(photos, tmp_path / "whole", wanted, reporter=Reporter(heard.append))
    assert "training goes on for 2 epochs, with the labels that were kept from it" in heard
    assert len(whole.metrics) == 2
    assert whole.provenance["trial_epochs"] == 5
    assert torch.equal(begins[1], ends[0]), "the last training begins with the trial's weights"
    assert not torch.equal(begins[1], begins[0])

    first_epochs: list[str] = []

    def interrupt(line: str) -> None:
        first_epochs.extend([line] if line.startswith("epoch 1:") else [])
        if len(first_epochs) == 2:  # the first of the last training is done
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on(photos, tmp_path / "cut", wanted, reporter=Reporter(detail=interrupt))
    resumed = run_on(photos, tmp_path / "cut", wanted, resume=True)
    for name in ("model.safetensors", "assignments.csv", "choice.json"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    assert [row["loss"] for row in resumed.metrics] == [row["loss"] for row in whole.metrics]


def stopping_at(line: str):
    """A reporter of a person who presses Ctrl-C when a detail begins so."""
    return Reporter(detail=lambda said: press_ctrl_c() if said.startswith(line) else None)


@pytest.mark.parametrize(("n_epochs", "is_used"), [(2, False), (3, True)])
def test_what_two_epochs_have_taught_is_not_used(
    photos, settings, tmp_path: Path, monkeypatch, n_epochs, is_used
) -> None:
    keep_training(monkeypatch)
    wanted = replace(with_training(settings, epochs=6), n_clusters=5, hidden_share=0.4)
    run = run_on(photos, tmp_path / "run", wanted, reporter=stopping_at(f"epoch {n_epochs}:"))
    assert run.provenance["stopped_early"] == {"epochs": n_epochs, "of": 6}
    assert run.has("model.safetensors") is is_used
    assert not list(run.path.glob("**/*.tokens*")), "what the trunk computed is deleted"


def test_a_stopped_trial_is_judged_as_it_ended(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """All is right after two epochs and nothing after three, where it is stopped: then the first answer stands."""
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    monkeypatch.setattr(Choice, "is_hopeless", False)
    real = TrialJudge.compare

    def compare(self, embeddings, predicted, weights):
        found = real(self, embeddings, predicted, weights)
        is_early = len(weights) == 1
        right = [
            np.full(found.n_images, is_early if one.weight < 1 else not is_early)
            for one in found.tried
        ]
        return replace(
            found,
            tried=[replace(one, right=now) for one, now in zip(found.tried, right, strict=True)],
        )

    monkeypatch.setattr(TrialJudge, "compare", compare)
    wanted = replace(with_training(settings, epochs=6), n_clusters=5, hidden_share=0.4)
    run = run_on(photos, tmp_path / "run", wanted, reporter=stopping_at("epoch 3:"))
    assert run.json("choice")["kept"] == "frozen"
    assert run.json("choice")["epochs"] == 3
    assert run.provenance["answer"] == "frozen"


def test_a_trial_that_is_no_better_does_not_stand_where_the_training_after_it_is_stopped(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """All is right with training and without: it stands when it is whole."""
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    real = TrialJudge.compare

    def compare(self, embeddings, predicted, weights):
        found = real(self, embeddings, predicted, weights)
        return replace(
            found,
            tried=[replace(one, right=np.ones(found.n_images, dtype=bool)) for one in found.tried],
        )

    def press(line: str) -> None:
        if line.startswith("training goes on"):
            press_ctrl_c()

    monkeypatch.setattr(TrialJudge, "compare", compare)
    wanted = replace(with_training(settings, epochs=5), n_clusters=5, hidden_share=0.4)
    heard: list[str] = []
    run = run_on(
        photos,
        tmp_path / "run",
        wanted,
        reporter=Reporter(lambda line: (heard.append(line), press(line))),
    )
    assert (run.provenance["answer"], run.json("choice")["kept"]) == ("frozen", "frozen")
    assert [
        line.endswith("no difference, the first answer stands")
        for line in heard
        if "put right" in line
    ][-1]
    assert (run.path / "trained" / "assignments.csv").exists()
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    assert (resumed.provenance["answer"], resumed.json("choice")["kept"]) == ("trained", "trained")


def test_of_a_stopped_training_that_nothing_judges_the_first_answer_stands(
    photos, settings, tmp_path: Path
) -> None:
    wanted = replace(with_training(settings, epochs=6), n_clusters=5)
    run = run_on(photos, tmp_path / "run", wanted, reporter=stopping_at("epoch 3:"))
    assert run.provenance["answer"] == "frozen"
    assert (run.path / "trained" / "assignments.csv").exists()
    asked = replace(wanted, hidden_share=0.0)  # --answer trained
    run = run_on(photos, tmp_path / "asked", asked, reporter=stopping_at("epoch 3:"))
    assert run.provenance["answer"] == "trained"


def test_of_a_last_training_that_collapsed_nothing_is_taken(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    keep_training(monkeypatch)
    _, ends = watch_weights(monkeypatch)
    heard: list[str] = []

    def collapsed(rows):
        return any("training goes on" in line for line in heard)

    monkeypatch.setattr("shoal.discovery.trained.trials.is_collapsed", collapsed)
    wanted = replace(with_training(settings, epochs=5), n_clusters=5, hidden_share=0.4)
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append))
    assert any("nothing is taken of the training with all labels" in line for line in heard)
    kept = load_file(run.path / "model.safetensors")[WATCHED]
    assert torch.equal(kept, ends[0].cpu()), "the weights of the trial"
    assert not torch.equal(kept, ends[1].cpu())


def test_a_resumed_run_is_told_of_all_that_is_left(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """The trial is done: what is left is the training with all labels, and the views that both look at."""
    keep_training(monkeypatch)
    wanted = replace(with_training(settings, epochs=5), n_clusters=5, hidden_share=0.4)

    def interrupt(line: str) -> None:
        if line.startswith("training goes on"):
            raise KeyboardInterrupt

    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_on(
            photos,
            tmp_path / "run",
            wanted,
            reporter=Reporter(lambda line: (heard.append(line), interrupt(line))),
        )
    run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append), resume=True)
    whole, left = (
        re.search(r"\(([\d,]+) views and ([\d,]+) steps\)", line)
        for line in heard
        if "(" in line and "steps)" in line
    )
    assert whole[1] == left[1]
    assert int(left[2]) * 7 == int(whole[2]) * 2 > 0, "2 epochs of 5 + 2"


@pytest.mark.parametrize("is_usual", [True, False])
def test_nothing_is_trained_unasked_where_all_judging_images_are_right_without_it(
    photos, settings, tmp_path: Path, monkeypatch, is_usual: bool
) -> None:
    keep_training(monkeypatch)
    real = JudgingImages.judge_frozen
    all_right = np.ones(1, dtype=bool)
    monkeypatch.setattr(
        JudgingImages,
        "judge_frozen",
        lambda images: [replace(one, right=all_right) for one in real(images)],
    )
    monkeypatch.setattr(DiscoverySettings, "is_short", is_usual)
    heard: list[str] = []
    wanted = replace(settings, n_clusters=5, hidden_share=0.4)
    if not is_usual:
        monkeypatch.setattr(train_and_answer, "_answer_by_trial", lambda job, *_: (job.first, None))
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append))
    assert any(line.startswith("nothing is trained: all of the ") for line in heard) is is_usual
    assert run.is_finished
    assert not run.has("model.safetensors")


def test_where_nothing_can_judge_because_rows_are_alike_the_first_answer_stands(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    keep_training(monkeypatch)
    monkeypatch.setattr(JudgingImages, "judge_frozen", lambda images: [])
    heard: list[str] = []
    wanted = replace(settings, n_clusters=5, hidden_share=0.4)
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append))
    assert any("too much alike, so the first answer stands" in line for line in heard)
    assert run.is_finished
    assert not run.has("model.safetensors")
