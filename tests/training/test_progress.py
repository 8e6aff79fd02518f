"""What a training says of its progress, and how it is told to stop."""

from dataclasses import replace

import pytest
import torch

from shoal.training.epoch_draws import EpochDraws
from shoal.training.loop import StopTraining, train
from shoal.training.tokens import cache_tokens
from shoal.training.validation import Judge, Validation
from shoal.training.views import ViewSettings


def test_progress_counts_what_the_trunk_looks_at_and_then_every_step_of_the_run(toy):
    """48 images are three batches of 2 x 8 for the trunk, and six steps in each of three epochs."""
    seen = []
    train(toy.data(), *toy.networks(), toy.settings(), progress=lambda *counts: seen.append(counts))
    assert seen == [("views", i, 48) for i in (16, 32, 48)] + [
        ("steps", i, 18) for i in range(1, 19)
    ]


def _stop_after_2(row):
    if row["epoch"] == 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_resumed", [False, True])
def test_progress_counts_a_pool_of_views_and_what_an_earlier_run_has_done(
    toy, tmp_path, is_resumed
):
    """A judge has 20 images, of a pool of 3 views some are looked at; of tokens that are there already nothing."""
    data = toy.data()
    judge = Judge(
        pixels=data.pixels[:20], score=lambda embeddings, k: Validation(accuracy=1.0, n_clusters=4)
    )
    settings = toy.settings(views=ViewSettings(pool=3))
    if is_resumed:
        with pytest.raises(KeyboardInterrupt):
            train(
                replace(data, judge=judge),
                *toy.networks(),
                settings,
                folder=tmp_path,
                on_epoch=_stop_after_2,
            )
    seen = []
    tokens = cache_tokens(data.pixels, toy.encoder())
    train(
        replace(data, judge=judge, tokens=tokens),
        *toy.networks(),
        settings,
        folder=tmp_path,
        resume=is_resumed,
        progress=lambda *counts: seen.append(counts),
    )
    n_views = len(EpochDraws(data.training_labels, settings).pooled_views(data.training))
    assert 16 < n_views < 144, "not all of them"
    after_judge = [16, 20, *range(36, 20 + n_views, 16), 20 + n_views]
    expected = [("views", i, 20 + n_views) for i in after_judge]
    assert seen == expected + [("steps", i, 18) for i in range(1 + 12 * is_resumed, 19)]


def test_training_that_is_stopped_gives_the_best_snapshot_so_far_and_can_be_resumed(toy, tmp_path):
    whole = toy.networks()
    expected = train(toy.data(), *whole, toy.settings(snapshot="last"), folder=tmp_path / "whole")

    def stop(unit, done, total):
        if (unit, done) == ("steps", 8):
            raise StopTraining

    stopped = train(
        toy.data(),
        *toy.networks(),
        toy.settings(snapshot="last"),
        folder=tmp_path / "run",
        progress=stop,
    )
    assert (stopped.epoch, [row["epoch"] for row in stopped.metrics]) == (1, [1])
    assert not torch.equal(stopped.embeddings, expected.embeddings)
    resumed = toy.networks()
    found = train(
        toy.data(), *resumed, toy.settings(snapshot="last"), folder=tmp_path / "run", resume=True
    )
    assert torch.equal(whole[0].head.layers[0].weight, resumed[0].head.layers[0].weight)
    assert torch.equal(found.embeddings, expected.embeddings)


@pytest.mark.parametrize(("unit", "at"), [("views", 16), ("steps", 5)])
def test_training_that_is_stopped_before_an_epoch_is_finished_says_so(toy, tmp_path, unit, at):
    def stop(seen, done, total):
        if (seen, done) == (unit, at):
            raise StopTraining

    with pytest.raises(StopTraining):
        train(toy.data(), *toy.networks(), toy.settings(), folder=tmp_path, progress=stop)
    assert not list(tmp_path.glob("tokens.npy*"))


class Killed(Exception):
    pass


def test_a_run_killed_while_it_is_asked_is_asked_again_when_it_is_resumed(toy, tmp_path):
    def dies(epoch, embeddings, predicted):
        if epoch == 2:
            raise Killed
        return True

    settings = toy.settings(snapshot="last")
    with pytest.raises(Killed):
        train(toy.data(), *toy.networks(), settings, folder=tmp_path / "killed", goes_on=dies)
    enough = lambda epoch, embeddings, predicted: epoch < 2  # noqa: E731
    resumed = train(
        toy.data(),
        *toy.networks(),
        settings,
        folder=tmp_path / "killed",
        resume=True,
        goes_on=enough,
    )
    whole = train(toy.data(), *toy.networks(), settings, folder=tmp_path / "whole", goes_on=enough)
    assert len(resumed.metrics) == len(whole.metrics) == 2
    assert torch.equal(resumed.embeddings, whole.embeddings)


def test_training_ends_where_no_more_is_needed_and_a_resumed_run_does_not_go_on(toy, tmp_path):
    asked = []

    def enough(epoch, embeddings, predicted):
        asked.append((epoch, embeddings.shape, predicted))
        return epoch < 2

    settings = toy.settings(snapshot="last")
    ended = train(toy.data(), *toy.networks(), settings, folder=tmp_path, goes_on=enough)
    assert asked == [(1, (48, 10), None), (2, (48, 10), None)]
    assert (ended.epoch, len(ended.metrics), ended.is_done) == (2, 2, True)
    again = train(
        toy.data(), *toy.networks(), settings, folder=tmp_path, resume=True, goes_on=enough
    )
    assert (again.epoch, again.is_done, len(asked)) == (2, True, 2)
    assert torch.equal(again.embeddings, ended.embeddings)
