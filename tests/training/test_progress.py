"""Progress, stopping and early stopping of a training run."""

from dataclasses import dataclass, field

import pytest
import torch

from shoal.training.loop import StopTraining, train


def test_progress_counts_every_step_of_the_run(toy):
    """Six steps in each of three epochs."""
    seen = []
    train(toy.data(), *toy.networks(), toy.settings(), progress=lambda *counts: seen.append(counts))
    assert seen == [("steps", start + i, 18) for start in (0, 6, 12) for i in range(7)]


class Stopper:
    """Requests a stop when the progress of a unit reaches a number."""

    def __init__(self, unit, at):
        self.wanted = (unit, at)
        self.is_asked = False

    def progress(self, unit, done, total):
        self.is_asked = self.is_asked or (unit, done) == self.wanted

    def __call__(self):
        return self.is_asked


def run(toy, folder, **options):
    (model,) = toy.networks()
    settings = toy.settings(snapshot="last")
    return model, train(toy.data(), model, settings, folder=folder, **options)


def test_stopped_training_returns_the_best_snapshot_and_can_be_resumed(toy, tmp_path):
    whole, expected = run(toy, tmp_path / "whole")
    stop = Stopper("steps", 8)
    _, stopped = run(toy, tmp_path / "run", progress=stop.progress, stop=stop)
    assert (stopped.epoch, [row["epoch"] for row in stopped.metrics]) == (1, [1])
    assert not stopped.is_done
    assert not torch.equal(stopped.embeddings, expected.embeddings)
    resumed, found = run(toy, tmp_path / "run", resume=True)
    assert torch.equal(whole.head.layers[0].weight, resumed.head.layers[0].weight)
    assert torch.equal(found.embeddings, expected.embeddings)


def test_training_stopped_before_the_first_epoch_raises(toy, tmp_path):
    stop = Stopper("steps", 5)
    with pytest.raises(StopTraining):
        run(toy, tmp_path, progress=stop.progress, stop=stop)


class Killed(Exception):
    pass


@dataclass
class Scores:
    """Early stopping by one score per epoch: the highest is the best, and a lower one ends
    training."""

    scores: dict[int, float]
    epochs: tuple[int, ...] = (1, 2)
    dies_at: int | None = None
    asked: list[int] = field(default_factory=list)

    def __call__(self, epoch, embeddings, predicted):
        if epoch == self.dies_at:
            raise Killed
        self.asked.append(epoch)
        assert embeddings.shape == (48, 10)
        before = [self.scores[one] for one in self.epochs if one < epoch]
        is_best = self.scores[epoch] >= max(before, default=0)
        return is_best, not is_best or self.scores[epoch] == 1


def test_a_run_killed_during_an_evaluation_repeats_it_on_resume(toy, tmp_path):
    scores = {1: 0.5, 2: 1.0}
    with pytest.raises(Killed):
        run(toy, tmp_path / "killed", early_stopping=Scores(scores, dies_at=2))
    _, resumed = run(toy, tmp_path / "killed", early_stopping=Scores(scores), resume=True)
    _, whole = run(toy, tmp_path / "whole", early_stopping=Scores(scores))
    assert len(resumed.metrics) == len(whole.metrics) == 2
    assert torch.equal(resumed.embeddings, whole.embeddings)


def test_early_stopping_ends_training_also_after_a_resume(toy, tmp_path):
    stopping = Scores({1: 0.5, 2: 1.0})
    _, ended = run(toy, tmp_path, early_stopping=stopping)
    assert stopping.asked == [1, 2]
    assert (ended.epoch, len(ended.metrics), ended.is_done) == (2, 2, True)
    _, again = run(toy, tmp_path, early_stopping=stopping, resume=True)
    assert (again.epoch, again.is_done, stopping.asked) == (2, True, [1, 2])
    assert torch.equal(again.embeddings, ended.embeddings)


@pytest.mark.parametrize("last", [0.4, 0.9])
def test_the_best_epoch_is_used_however_training_ends(toy, tmp_path, last):
    """Training stops after two of three epochs; the second is worse than the first, or better."""
    _, one = run(toy, tmp_path / "one", early_stopping=Scores({1: 1.0}))
    best = 1 if last < 0.5 else 2
    _, ended = run(toy, tmp_path / "ended", early_stopping=Scores({1: 0.5, 2: last, 3: 0.95}))
    assert (ended.epoch, len(ended.metrics)) == ((1, 2) if best == 1 else (3, 3))
    stop = Stopper("steps", 15)
    stopping = Scores({1: 0.5, 2: last}, epochs=(1,))
    _, stopped = run(
        toy, tmp_path / "cut", early_stopping=stopping, progress=stop.progress, stop=stop
    )
    assert (stopped.epoch, len(stopped.metrics), stopped.is_done) == (best, 2, False)
    assert torch.equal(stopped.embeddings, one.embeddings) == (best == 1)
    files = [file.name for file in (tmp_path / "cut").glob("best-*")]
    assert max(files) == f"best-{best}.safetensors"
    stopping = Scores({1: 0.5, 2: 0.0, 3: 0.9}, epochs=(1,))
    _, resumed = run(toy, tmp_path / "cut", early_stopping=stopping, resume=True)
    _, whole = run(toy, tmp_path / "whole", early_stopping=stopping)
    assert (resumed.epoch, resumed.is_done) == (whole.epoch, True) == (3, True)
    assert torch.equal(resumed.embeddings, whole.embeddings)
