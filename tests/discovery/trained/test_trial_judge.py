"""The judge of a trial: moments, a hand-made rise and fall, and what a resumed trial remembers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal.clustering.blend import TriedWeight
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.trial_judge import (
    JudgedEpoch,
    TrialJudge,
    best_moment,
    known_cuts,
    moments,
    read_judged,
    write_judged,
)
from shoal.errors import DataError
from shoal.methods.clusters import Discovery
from shoal.runs import Run


def judged(epoch: int, n_right: int, n_frozen: int = 50) -> JudgedEpoch:
    """Of 100 images the first so many are right with training, the first `n_frozen` without."""
    return JudgedEpoch(epoch=epoch, tried=trials(n_right, n_frozen))


def trials(n_right: int, n_frozen: int = 50) -> list[TriedWeight]:
    counts = ((0.0, 0), (0.65, n_right), (1.0, n_frozen))
    return [
        TriedWeight(weight=weight, n_shifts=1, right=np.arange(100) < n) for weight, n in counts
    ]


@pytest.mark.parametrize(
    ("n_epochs", "expected"), [(25, [6, 12, 19]), (4, [1, 2, 3]), (3, [1, 2]), (2, []), (1, [])]
)
def test_a_trial_is_judged_after_a_quarter_a_half_and_three_quarters_unless_it_is_short(
    n_epochs, expected
) -> None:
    assert moments(n_epochs) == expected


@pytest.mark.parametrize(
    ("n_images", "n_clusters", "n_taken"), [(12, 3, 2), (12, 4, 0), (4_002, 3, 0)]
)
def test_the_clusters_of_the_first_answer_are_taken_where_all_images_and_the_same_number_are_looked_at(
    n_images, n_clusters, n_taken
) -> None:
    cut = np.arange(n_images) % 3
    about = {
        "clusters": cut,
        "n_clusters": n_clusters,
        "embeddings": np.ones((n_images, 2), dtype=np.float32),
    }
    assert len(known_cuts(Discovery(**about, cuts=(cut, cut)))) == n_taken


@pytest.mark.parametrize(
    ("counts", "kept"),
    [((60, 70, 80), 3), ((80, 80, 80), 3), ((80, 60, 76), 3), ((80, 70, 75), 1), ((60, 80, 70), 2)],
)
def test_the_last_moment_stands_unless_an_earlier_one_is_better_by_two_errors(counts, kept) -> None:
    """Five of five images apart are more than 2 · √5 of them, four of four are not more than 2 · √4."""
    found = best_moment([judged(i + 1, count) for i, count in enumerate(counts)])
    assert found.epoch == kept


def test_images_of_one_hidden_category_are_one_reason_to_prefer_an_earlier_moment() -> None:
    moments_of = [judged(1, 80), judged(2, 70)]
    assert best_moment(moments_of).epoch == 1
    assert best_moment(moments_of, np.array([0] * 50 + [1] * 50)).epoch == 2


def test_a_moment_at_which_nothing_could_be_clustered_is_not_the_best() -> None:
    """Where training has collapsed, only the frozen encoder was judged."""
    collapsed = JudgedEpoch(epoch=2, tried=trials(0)[-1:])
    assert best_moment([judged(1, 60), collapsed]).epoch == 2
    assert best_moment([collapsed, judged(3, 60)]).epoch == 3


def test_what_was_judged_is_read_back_as_it_was_written(tmp_path) -> None:
    run = Run(tmp_path)
    before = [judged(1, 60), judged(2, 70)]
    assert read_judged(run) == []
    write_judged(run, before)
    after = read_judged(run)
    assert [one.epoch for one in after] == [1, 2]
    for a, b in zip(before, after, strict=True):
        for one, other in zip(a.tried, b.tried, strict=True):
            assert (one.weight, one.n_shifts) == (other.weight, other.n_shifts)
            np.testing.assert_array_equal(one.right, other.right)


def test_a_damaged_file_is_named(tmp_path) -> None:
    (tmp_path / "judged.json").write_text('{"moments": [{"epoch": "x"}]}')
    with pytest.raises(DataError, match=r"judged\.json"):
        read_judged(Run(tmp_path))


def make_judge(said: list[str]) -> TrialJudge:
    job = SimpleNamespace(n_epochs=4, reporter=SimpleNamespace(say=said.append))
    return TrialJudge(job=job, images=None, frozen=[], seconds=0.0)  # type: ignore[arg-type]


def ask(judge: TrialJudge, run: Run, monkeypatch, counts: dict[int, int]) -> list[bool]:
    """What the judge says after each of these epochs, where so many images are right then."""
    answers = []
    for epoch, n_right in counts.items():
        found = Choice(hidden=(), tried=trials(n_right))
        monkeypatch.setattr(
            TrialJudge, "compare", lambda self, embeddings, predicted, weights, found=found: found
        )
        answers.append(judge.watch(run)(epoch, torch.zeros(0), None))
    return answers


def test_a_trial_that_helped_more_before_is_ended_and_resumed_or_not_the_epoch_before_is_kept(
    tmp_path, monkeypatch
) -> None:
    """A new judge with the same folder is what a resumed run has."""
    said: list[str] = []
    whole = Run(tmp_path / "whole")
    parts = Run(tmp_path / "parts")
    for run in (whole, parts):
        run.path.mkdir()
    assert ask(make_judge(said), whole, monkeypatch, {1: 60, 2: 80, 3: 70}) == [True, True, False]
    assert said == [
        "training is ended after 3 of 4 epochs: it put more of the images right that judge it after 2 (80.0 %) "
        "than now (70.0 %)"
    ]
    assert ask(make_judge([]), parts, monkeypatch, {1: 60, 2: 80}) == [True, True]
    assert ask(make_judge([]), parts, monkeypatch, {2: 80, 3: 70}) == [True, False], (
        "asked again after 2"
    )
    assert (whole.path / "judged.json").read_bytes() == (parts.path / "judged.json").read_bytes()
    choice, n_epochs = make_judge([]).best(Choice(hidden=("a",), tried=trials(70)), 3, parts)
    assert (n_epochs, choice.trained, choice.hidden) == (2, 0.8, ("a",))


def test_a_trial_that_rises_to_its_end_is_kept_with_all_weights(tmp_path, monkeypatch) -> None:
    run = Run(tmp_path)
    assert ask(make_judge([]), run, monkeypatch, {1: 60, 2: 70, 3: 75}) == [True] * 3
    last = Choice(hidden=(), tried=trials(80))
    assert make_judge([]).best(last, 4, run) == (last, 4)


def test_a_trial_that_puts_all_judging_images_right_is_ended_once_it_has_taught_anything(
    tmp_path, monkeypatch
) -> None:
    said: list[str] = []
    judge = make_judge(said)
    judge.job.n_epochs = 8
    assert ask(judge, Run(tmp_path), monkeypatch, {2: 100, 4: 100, 6: 100}) == [True, True, False]
    assert said == ["training is ended after 6 of 8 epochs: all images that judge it are right"]
