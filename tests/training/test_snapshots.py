"""How the snapshot is chosen."""

from dataclasses import replace

import torch

from shoal.training import loop
from shoal.training.inputs import ImageInputs
from shoal.training.loop import train
from shoal.training.validation import Validation, ValidationSet


def test_a_validation_set_chooses_snapshot_and_k_without_changing_the_weights(toy):
    """The validation set is evaluated after each epoch; the second epoch is the best."""
    data = toy.data(with_validation=False)
    others = toy.data(n_images=20).pixels
    shown = []

    def score(embeddings, predicted, n_clusters):
        shown.append(embeddings)
        assert predicted is None is n_clusters
        return Validation(accuracy=[0.1, 0.9, 0.3][len(shown) - 1], n_clusters=len(shown))

    networks = toy.networks()
    validated = train(
        replace(data, validation_set=ValidationSet(pixels=others, score=score)),
        *networks,
        toy.settings(),
    )
    assert (validated.epoch, validated.validation) == (2, Validation(accuracy=0.9, n_clusters=2))
    assert [embeddings.shape for embeddings in shown] == [(20, 10)] * 3
    (model,) = networks
    images = ImageInputs(others, model.encoder)
    expected = images.embed(lambda given: model.head(model.encoder(given)), model.device)
    torch.testing.assert_close(shown[1], expected, atol=1e-3, rtol=0)  # tokens are float16
    plain = train(data, *toy.networks(), toy.settings())
    assert [row["loss"] for row in validated.metrics] == [row["loss"] for row in plain.metrics]


def test_the_best_snapshot_of_a_stopped_run_is_written(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SMALL_BYTES", 0)

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
