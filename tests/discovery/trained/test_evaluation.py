"""When a trial is evaluated and ended: a hand-made rise and fall, and what a resumed trial remembers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal.clustering.blend import TriedWeight
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.evaluation import (
    EvaluatedEpoch,
    TrialStopping,
    best_epoch,
    known_cuts,
    read_evaluated,
    write_evaluated,
)
from shoal.errors import DataError
from shoal.methods.clusters import Discovery
from shoal.runs import Run


def evaluated(epoch: int, n_right: int) -> EvaluatedEpoch:
    """Of 100 images the first so many are right."""
    return EvaluatedEpoch(epoch=epoch, right=np.arange(100) < n_right)


def stopping(run: Run, counts: dict[int, int], *, n_epochs: int = 4) -> TrialStopping:
    """Early stopping where so many of 100 images are right after each epoch, and 50 without training."""
    choices = iter(
        Choice(
            hidden=(),
            tried=[
                TriedWeight(weight=weight, n_shifts=1, right=np.arange(100) < n)
                for weight, n in ((0.65, n_right), (1.0, 50))
            ],
        )
        for n_right in counts.values()
    )
    evaluation = SimpleNamespace(compare=lambda embeddings, predicted, weights: next(choices))
    return TrialStopping(evaluation=evaluation, trial=run, n_epochs=n_epochs, say=lambda line: None)


def ask(run: Run, counts: dict[int, int], *, n_epochs: int = 4) -> list[tuple[bool, bool]]:
    """Whether each of these epochs is the best so far, and whether training is then over."""
    stop = stopping(run, counts, n_epochs=n_epochs)
    verdicts = [stop(epoch, torch.zeros(0), None) for epoch in counts]
    return [(verdict.is_best, verdict.is_over) for verdict in verdicts]


@pytest.mark.parametrize(
    ("n_epochs", "expected"), [(25, [6, 12, 19]), (4, [1, 2, 3]), (3, [1, 2]), (2, [1]), (1, [])]
)
def test_a_trial_is_evaluated_after_a_quarter_a_half_and_three_quarters(
    tmp_path, n_epochs, expected
) -> None:
    assert stopping(Run(tmp_path), {}, n_epochs=n_epochs).epochs == expected


@pytest.mark.parametrize(
    ("n_images", "n_clusters", "n_taken"), [(12, 3, 2), (12, 4, 0), (4_002, 3, 0)]
)
def test_the_first_clusters_are_taken_where_all_images_and_the_same_number_are_looked_at(
    n_images, n_clusters, n_taken
) -> None:
    cut = np.arange(n_images) % 3
    embeddings = np.ones((n_images, 2), dtype=np.float32)
    first = Discovery(clusters=cut, n_clusters=n_clusters, embeddings=embeddings, cuts=(cut, cut))
    assert len(known_cuts(first)) == n_taken


@pytest.mark.parametrize(
    ("counts", "kept"),
    [((60, 70, 80), 3), ((80, 80, 80), 3), ((80, 60, 76), 3), ((80, 70, 75), 1), ((60, 80, 70), 2)],
)
def test_the_last_epoch_is_the_best_unless_an_earlier_one_is_significantly_better(
    counts, kept
) -> None:
    """Five of five images apart are more than 2 · √5 of them, four of four are not more than 2 · √4."""
    found = best_epoch([evaluated(i + 1, count) for i, count in enumerate(counts)])
    assert found.epoch == kept


def test_an_epoch_at_which_nothing_could_be_clustered_is_not_the_best() -> None:
    collapsed = EvaluatedEpoch(epoch=2, right=None)
    assert best_epoch([evaluated(1, 60), collapsed]).epoch == 2
    assert best_epoch([collapsed, evaluated(3, 60)]).epoch == 3


def test_what_was_found_is_read_back_as_it_was_written(tmp_path) -> None:
    run = Run(tmp_path)
    before = [evaluated(1, 60), EvaluatedEpoch(epoch=2, right=None)]
    assert read_evaluated(run) == []
    write_evaluated(run, before)
    first, second = read_evaluated(run)
    assert (first.epoch, second.epoch, second.right) == (1, 2, None)
    np.testing.assert_array_equal(first.right, before[0].right)


def test_a_damaged_file_is_named(tmp_path) -> None:
    (tmp_path / "judged.json").write_text('{"moments": [{"epoch": "x"}]}')
    with pytest.raises(DataError, match=r"judged\.json"):
        read_evaluated(Run(tmp_path))


def test_a_trial_that_has_fallen_is_ended_whether_it_was_interrupted_or_not(tmp_path) -> None:
    whole = Run(tmp_path / "whole")
    parts = Run(tmp_path / "parts")
    for run in (whole, parts):
        run.path.mkdir()
    going = (True, False)
    assert ask(whole, {1: 60, 2: 80, 3: 70}) == [going, going, (False, True)]
    assert ask(parts, {1: 60, 2: 80}) == [going, going]
    assert ask(parts, {2: 80, 3: 70}) == [going, (False, True)], "asked again after 2"
    assert (whole.path / "judged.json").read_bytes() == (parts.path / "judged.json").read_bytes()


def test_a_trial_that_rises_goes_on_and_one_that_cannot_help_or_rise_is_ended(tmp_path) -> None:
    assert ask(Run(tmp_path), {1: 60, 2: 70, 3: 75}) == [(True, False)] * 3
    assert ask(Run(tmp_path), {1: 100}) == [(True, True)]
    assert ask(Run(tmp_path), {1: 40}) == [(True, True)], "significantly worse than 50"


def test_where_a_user_stops_is_evaluated_and_not_remembered(tmp_path) -> None:
    run = Run(tmp_path)
    assert ask(run, {2: 80, 3: 60}, n_epochs=8) == [(True, False), (False, True)]
    assert [one.epoch for one in read_evaluated(run)] == [2]
