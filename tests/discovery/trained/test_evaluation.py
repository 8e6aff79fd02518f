"""When a trial is evaluated and ended: a hand-made rise and fall, and what a resumed trial
remembers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal.clustering.blend import TriedWeight
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.evaluation import TrialStopping, best_epoch, known_cuts, read_rights
from shoal.errors import DataError
from shoal.methods.clusters import Discovery
from shoal.runs import Run


def first(n_right: int) -> np.ndarray:
    """Of 100 images the first so many are right."""
    return np.arange(100) < n_right


def stopping(run: Run, counts: dict[int, int], *, n_epochs: int = 4) -> TrialStopping:
    """Early stopping where so many of 100 images are right after each epoch, and 50 without
    training."""
    frozen = TriedWeight(weight=1.0, n_shifts=1, right=first(50))
    choices = iter(
        Choice(hidden=(), tried=[TriedWeight(weight=0.65, n_shifts=1, right=first(n)), frozen])
        for n in counts.values()
    )
    evaluation = SimpleNamespace(compare=lambda embeddings, predicted, weights: next(choices))
    return TrialStopping(evaluation=evaluation, trial=run, n_epochs=n_epochs, say=lambda line: None)


def ask(run: Run, counts: dict[int, int], *, n_epochs: int = 4) -> list[tuple[bool, bool]]:
    """Whether each of these epochs is the best so far, and whether training is then over."""
    stop = stopping(run, counts, n_epochs=n_epochs)
    verdicts = [stop(epoch, torch.zeros(0), None) for epoch in counts]
    return [(verdict.is_best, verdict.is_over) for verdict in verdicts]


@pytest.mark.parametrize(
    ("n_epochs", "expected"), [(25, [6, 12, 19]), (4, [1, 2, 3]), (2, [1]), (1, [])]
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
    found = Discovery(clusters=cut, n_clusters=n_clusters, embeddings=embeddings, cuts=(cut, cut))
    assert len(known_cuts(found)) == n_taken


@pytest.mark.parametrize(
    ("counts", "kept"),
    [((60, 70, 80), 3), ((80, 80, 80), 3), ((80, 60, 76), 3), ((80, 70, 75), 1), ((60, 80, 70), 2)],
)
def test_the_last_epoch_is_the_best_unless_an_earlier_one_is_significantly_better(
    counts, kept
) -> None:
    """Five of five images apart are more than 2 · √5 of them, four of four are not more than 2 ·
    √4."""
    assert best_epoch({i + 1: first(count) for i, count in enumerate(counts)}) == kept


def test_an_epoch_at_which_nothing_could_be_clustered_says_nothing() -> None:
    assert best_epoch({1: first(60), 2: None}) == 2
    assert best_epoch({2: None, 3: first(60)}) == 3


def test_a_damaged_file_is_named(tmp_path) -> None:
    (tmp_path / "judged.json").write_text('{"first": [1]}')
    with pytest.raises(DataError, match=r"judged\.json"):
        read_rights(Run(tmp_path))


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
    assert list(read_rights(run)) == [2]
