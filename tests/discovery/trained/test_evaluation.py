"""When training is evaluated and stopped, also after a resume."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.reporter import SILENT
from shoal.discovery.trained.evaluation import (
    Choice,
    Evaluation,
    HeldOutAccuracy,
    best_epoch,
)
from shoal.errors import DataError
from shoal.runs import Run


def first(n_right: int) -> np.ndarray:
    """Return (100,): the first `n_right` images are correct."""
    return np.arange(100) < n_right


def stopping(run: Run, counts: dict[int, int | None], *, n_epochs: int = 4) -> Evaluation:
    """Return early stopping with a given number of correct images of 100 after each epoch, and 50
    without training; None: collapsed."""
    frozen = HeldOutAccuracy(n_shifts=1, is_correct=first(50))
    choices = iter(
        Choice(
            hidden=(),
            frozen=frozen,
            trained=None if n is None else HeldOutAccuracy(n_shifts=1, is_correct=first(n)),
        )
        for n in counts.values()
    )
    job = SimpleNamespace(run=run, reporter=SILENT, settings=choose_settings(epochs=n_epochs))
    evaluation = Evaluation(job=job, images=None, held_out=None, frozen_discovery=None)
    evaluation.__dict__["compare"] = lambda embeddings, predicted: next(choices)
    return evaluation


def ask(run: Run, counts: dict[int, int | None], *, n_epochs: int = 4) -> list[tuple[bool, bool]]:
    """Return whether each epoch is the best so far, and whether training then stops."""
    stop = stopping(run, counts, n_epochs=n_epochs)
    verdicts = [stop(epoch, torch.zeros(0), None) for epoch in counts]
    return verdicts


@pytest.mark.parametrize(
    ("n_epochs", "expected"), [(25, [6, 12, 19]), (4, [1, 2, 3]), (2, [1]), (1, [])]
)
def test_training_is_evaluated_after_a_quarter_a_half_and_three_quarters(
    tmp_path, n_epochs, expected
) -> None:
    assert stopping(Run(tmp_path), {}, n_epochs=n_epochs).epochs == expected


@pytest.mark.parametrize(
    ("counts", "kept"),
    [((60, 70, 80), 3), ((80, 80, 80), 3), ((80, 60, 76), 3), ((80, 70, 75), 1), ((60, 80, 70), 2)],
)
def test_the_last_epoch_is_the_best_unless_an_earlier_one_is_significantly_better(
    counts, kept
) -> None:
    """Five of five differing images are significant, four of four are not."""
    assert best_epoch({i + 1: first(count) for i, count in enumerate(counts)}) == kept


def test_a_damaged_file_is_named(tmp_path) -> None:
    (tmp_path / "evaluations.json").write_text('{"first": [1]}')
    with pytest.raises(DataError, match=r"evaluations\.json"):
        ask(Run(tmp_path), {1: 60})


def test_training_that_gets_worse_is_stopped_also_after_a_resume(tmp_path) -> None:
    whole = Run(tmp_path / "whole")
    parts = Run(tmp_path / "parts")
    for run in (whole, parts):
        run.path.mkdir()
    going = (True, False)
    assert ask(whole, {1: 60, 2: 80, 3: 70}) == [going, going, (False, True)]
    assert ask(parts, {1: 60, 2: 80}) == [going, going]
    assert ask(parts, {2: 80, 3: 70}) == [going, (False, True)], "asked again after 2"
    assert (whole.path / "evaluations.json").read_bytes() == (
        parts.path / "evaluations.json"
    ).read_bytes()


def test_an_improving_training_continues_and_a_hopeless_or_perfect_one_stops(tmp_path) -> None:
    assert ask(Run(tmp_path), {1: 60, 2: 70, 3: 75}) == [(True, False)] * 3
    assert ask(Run(tmp_path), {1: 100}) == [(True, True)]
    assert ask(Run(tmp_path), {1: 40}) == [(True, True)], "significantly worse than 50"
    assert ask(Run(tmp_path), {1: None}) == [(True, True)], "collapsed"


def test_the_evaluation_at_a_user_stop_is_not_stored(tmp_path) -> None:
    run = Run(tmp_path)
    assert ask(run, {2: 80, 3: 60}, n_epochs=8) == [(True, False), (False, True)]
    assert list(run.json("evaluations")) == ["2"]
