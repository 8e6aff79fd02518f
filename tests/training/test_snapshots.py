"""Which snapshot is kept, and who chooses it."""

from dataclasses import replace

import pytest
import torch

from shoal.training import checkpoint
from shoal.training.loop import train
from shoal.training.tokens import ImageInputs, cache_tokens
from shoal.training.trainer import Trainer
from shoal.training.validation import Judge, Validation


def falling(toy):
    """Data whose judge finds each epoch worse than the one before, and K larger by one."""
    looks = []

    def score(embeddings, n_clusters):
        looks.append(embeddings)
        return Validation(accuracy=1 - 0.1 * len(looks), n_clusters=2 + len(looks))

    return replace(
        toy.data(with_validation=False),
        judge=Judge(pixels=toy.data(n_images=20).pixels, score=score),
    )


def test_the_last_snapshot_is_kept_where_that_is_asked_for_with_the_k_it_validates(toy):
    best, last = (
        train(falling(toy), *toy.networks(), toy.settings(snapshot=kind))
        for kind in ("best", "last")
    )
    assert [row["loss"] for row in best.metrics] == [row["loss"] for row in last.metrics]
    assert (best.epoch, best.validation.n_clusters) == (1, 3)
    assert (last.epoch, last.validation.n_clusters) == (3, 5)
    assert not torch.equal(best.embeddings, last.embeddings)


@pytest.mark.parametrize(("snapshot", "n_embedded"), [("last", 4), ("best", 5)])
def test_images_are_embedded_once_between_two_epochs_and_again_for_an_earlier_snapshot(
    toy, monkeypatch, snapshot, n_embedded
):
    """For the first bank and after each of three epochs; the second is the best by the accuracies
    given here."""
    accuracies = iter((0.5, 0.9, 0.6))
    embedded = []
    real = Trainer._embed
    monkeypatch.setattr(
        Trainer,
        "validate",
        lambda self, *_: (self.embed_all(), Validation(accuracy=next(accuracies), n_clusters=4))[1],
    )
    monkeypatch.setattr(
        Trainer, "_embed", lambda self, tokens: (embedded.append(tokens), real(self, tokens))[1]
    )
    model, *others = toy.networks()
    trained = train(toy.data(), model, *others, toy.settings(epochs=3, snapshot=snapshot))
    assert trained.epoch == (3 if snapshot == "last" else 2)
    assert len(embedded) == n_embedded
    # Other batches may round a token to the next float16; two epochs lie much further apart.
    tokens = cache_tokens(toy.data().pixels, model.encoder)
    expected = model.compact(tokens.embed(model.represent, model.device))
    torch.testing.assert_close(trained.embeddings, expected, rtol=0, atol=1e-3)


def test_a_run_that_keeps_its_last_snapshot_is_resumed_to_the_same(toy, tmp_path):
    settings = toy.settings(snapshot="last")
    expected = train(toy.data(), *toy.networks(), settings, folder=tmp_path / "whole")

    def die(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toy.data(), *toy.networks(), settings, folder=tmp_path / "cut", on_epoch=die)
    found = train(toy.data(), *toy.networks(), settings, folder=tmp_path / "cut", resume=True)
    assert found.epoch == expected.epoch == settings.epochs
    assert torch.equal(found.embeddings, expected.embeddings)
    assert [file.name for file in (tmp_path / "cut").glob("best-*")] == ["best-3.safetensors"]


def test_a_judge_of_other_images_chooses_the_snapshot_and_k_and_changes_no_step(toy):
    """It is shown the embeddings of its own images after each epoch, and says that the second epoch
    is the best."""
    data = toy.data(with_validation=False)
    others = toy.data(n_images=20).pixels
    shown = []

    def score(embeddings, n_clusters):
        shown.append(embeddings)
        assert n_clusters is None
        return Validation(accuracy=[0.1, 0.9, 0.3][len(shown) - 1], n_clusters=len(shown))

    networks = toy.networks()
    judged = train(
        replace(data, judge=Judge(pixels=others, score=score)), *networks, toy.settings()
    )
    assert (judged.epoch, judged.validation) == (2, Validation(accuracy=0.9, n_clusters=2))
    assert [embeddings.shape for embeddings in shown] == [(20, 10)] * 3
    (model,) = networks
    images = ImageInputs(others, model.encoder, 20)
    expected = images.embed(lambda given: model.head(model.encoder(given)), model.device)
    torch.testing.assert_close(shown[1], expected, atol=1e-3, rtol=0)  # tokens are kept in float16
    plain = train(data, *toy.networks(), toy.settings())
    assert [row["loss"] for row in judged.metrics] == [row["loss"] for row in plain.metrics]


def test_the_best_snapshot_of_a_stopped_run_is_in_the_folder(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SMALL_BYTES", 0)

    done = []
    settings = toy.settings(snapshot="last")
    found = train(
        toy.data(),
        *toy.networks(),
        settings,
        folder=tmp_path,
        on_epoch=done.append,
        stop=lambda: len(done) == 2,
    )
    assert found.epoch == 2
    assert (tmp_path / "best-2.safetensors").is_file()
    assert train(toy.data(), *toy.networks(), settings, folder=tmp_path, resume=True).epoch == 3
    assert [file.name for file in tmp_path.glob("best-*")] == ["best-3.safetensors"]
