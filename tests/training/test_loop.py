import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from several_processes import finish_processes, start_processes
from shoal.clustering.mean_shift import ShiftSettings
from shoal.encoders.vision import to_device
from shoal.errors import ShoalError, UsageError
from shoal.training import loop
from shoal.training.inputs import Task
from shoal.training.loop import read_checkpoint, train
from shoal.training.model import Model, TaskShape
from shoal.training.train_settings import ViewSettings

KEEP = (
    "loss",
    "loss_supervised",
    "loss_shifted",
    "gradient",
    "validation_accuracy",
    "n_clusters",
    "bank_rank",
)


def weights(networks):
    return [value.detach().clone() for network in networks for value in network.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def numbers(trained):
    return [{name: row[name] for name in KEEP} for row in trained.metrics]


def test_training_lowers_the_loss_and_changes_only_tail_and_head(toy):
    networks = toy.networks()
    data = toy.data()
    trunk = weights([networks[0].encoder.trunk])
    trained = train(data, *networks, toy.settings(epochs=8))
    losses = [row["loss"] for row in trained.metrics]
    assert losses[-1] < losses[0] - 0.1
    assert same(trunk, weights([networks[0].encoder.trunk]))
    assert trained.embeddings.shape == (48, 10)
    assert [row["epoch"] for row in trained.metrics] == list(range(1, 9))


def test_weights_depend_on_the_seed_only(toy):
    runs = []
    for seed in (0, 0, 1):
        networks = toy.networks()
        torch.rand(7)  # the global generator must not matter
        train(toy.data(), *networks, toy.settings(seed=seed))
        runs.append(weights(networks))
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_the_model_ends_with_the_best_snapshot(toy):
    """A run that ends at the best epoch has the weights that the longer run restores."""
    longer = toy.networks()
    trained = train(toy.data(), *longer, toy.settings(epochs=6, min_lr=1.0))
    shorter = toy.networks()
    again = train(toy.data(), *shorter, toy.settings(epochs=trained.epoch, min_lr=1.0))
    assert again.epoch == trained.epoch
    assert same(weights(longer), weights(shorter))
    assert torch.equal(trained.embeddings, again.embeddings)
    best = max(row["validation_accuracy"] for row in trained.metrics)
    assert trained.validation.accuracy == best
    assert trained.metrics[trained.epoch - 1]["validation_accuracy"] == best


# Networks trained without an interruption, by the kind of their head, and what training found
LEFT_ALONE = {}
KILLED = [("paper", 2), ("paper", 8), ("paper", 15), ("bottleneck", 8)]


@pytest.mark.parametrize(("kind", "dies_after"), KILLED, ids=str)
def test_a_run_killed_at_any_step_resumes_to_the_same_bits(toy, tmp_path, dies_after, kind):
    if kind not in LEFT_ALONE:
        networks = toy.networks(kind)
        LEFT_ALONE[kind] = (
            networks,
            train(toy.data(), *networks, toy.settings(), folder=tmp_path / "whole"),
        )
    whole, expected = LEFT_ALONE[kind]

    seen = []

    def die(unit, done, total):
        seen.append(done)
        if len(seen) == dies_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            toy.data(),
            *toy.networks(kind),
            toy.settings(),
            folder=tmp_path / "killed",
            progress=die,
        )
    resumed = toy.networks(kind)
    found = train(toy.data(), *resumed, toy.settings(), folder=tmp_path / "killed", resume=True)
    assert same(weights(whole), weights(resumed))
    assert torch.equal(found.embeddings, expected.embeddings)
    assert numbers(found) == numbers(expected)
    rows = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [1, 2, 3]


def test_large_checkpoints_are_written_less_often_and_a_killed_run_resumes_to_the_same_bits(
    toy, tmp_path, monkeypatch
):
    whole = toy.networks()
    resumed = toy.networks()
    expected = train(toy.data(), *whole, toy.settings(), folder=tmp_path / "whole")
    monkeypatch.setattr(loop, "SMALL_BYTES", 0)
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 1e9)

    def die(row):
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toy.data(), *toy.networks(), toy.settings(), folder=tmp_path / "cut", on_epoch=die)
    assert (
        read_checkpoint(tmp_path / "cut" / "checkpoint.safetensors")[1]["metrics"][-1]["epoch"] == 1
    )
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 2
    found = train(toy.data(), *resumed, toy.settings(), folder=tmp_path / "cut", resume=True)
    assert same(weights(whole), weights(resumed))
    assert torch.equal(found.embeddings, expected.embeddings)
    assert numbers(found) == numbers(expected)
    held = [sorted(file.name for file in (tmp_path / name).iterdir()) for name in ("whole", "cut")]
    assert held[0] == held[1]
    for name in (name for name in held[0] if name.startswith("best")):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_resuming_with_other_settings_images_or_loss_is_refused(toy, tmp_path):
    train(toy.data(), *toy.networks(), toy.settings(epochs=1), folder=tmp_path)
    changed = toy.settings(epochs=1, lr=0.01)
    with pytest.raises(UsageError, match=r"training\.lr: 0\.01, was 0\.05"):
        train(toy.data(), *toy.networks(), changed, folder=tmp_path, resume=True)
    data = toy.data()
    other = Task(pixels=255 - data.pixels, labels=data.labels, validation=data.validation)
    with pytest.raises(UsageError, match=r"data\.images"):
        train(other, *toy.networks(), toy.settings(epochs=1), folder=tmp_path, resume=True)
    with pytest.raises(UsageError, match=r"method\.loss\.temperature"):
        train(
            toy.data(),
            *toy.networks(temperature=0.5),
            toy.settings(epochs=1),
            folder=tmp_path,
            resume=True,
        )


class Broken(Model):
    def __init__(self, encoder):
        super().__init__(encoder, None, TaskShape(n_images=48, n_known=2, n_clusters=None))

    def forward(self, inputs):
        return {"features": self.represent(inputs)}

    def loss(self, batch):
        loss = batch.outputs["features"].sum()
        return {"loss": loss * (float("nan") if batch.epoch == 1 else 1)}

    def identity(self):
        return {}


def test_a_nan_loss_stops_training_with_a_remedy(toy):
    with pytest.raises(ShoalError, match="epoch 2"):
        train(toy.data(), Broken(toy.encoder()), toy.settings())


def test_without_labels_the_supervised_loss_is_zero_and_the_last_snapshot_is_used(toy):
    task = replace(toy.data(labeled=False), n_clusters=4)
    trained = train(task, *toy.networks(), toy.settings())
    assert all(row["loss_supervised"] == 0 for row in trained.metrics)
    assert all(math.isfinite(row["loss"]) for row in trained.metrics)
    assert trained.epoch == 3
    assert trained.validation.n_clusters == 4


def test_without_validation_images_the_last_snapshot_is_used(toy):
    trained = train(toy.data(with_validation=False), *toy.networks(), toy.settings())
    assert trained.epoch == 3
    assert trained.validation.n_clusters is None
    assert trained.metrics[0]["validation_accuracy"] is None


@pytest.mark.parametrize("trains_on_validation", [True, False])
def test_the_loss_does_not_see_labels_of_validation_images(toy, trains_on_validation):
    """Scrambling labels of validation images, and their pixels if they are not trained on, changes
    no weight."""
    data = replace(toy.data(), trains_on_validation=trains_on_validation)
    rng = np.random.default_rng(5)
    pixels = data.pixels.copy()
    labels = data.labels.copy()
    labels[data.validation] = rng.permutation(labels[data.validation])
    if not trains_on_validation:
        pixels[data.validation] = rng.integers(0, 256, size=pixels[data.validation].shape)
    found = []
    for each in (data, replace(data, pixels=pixels, labels=labels)):
        networks = toy.networks()
        train(each, *networks, toy.settings(epochs=1))
        found.append(weights(networks))
    assert not np.array_equal(labels, data.labels)
    assert same(*found)


@pytest.mark.parametrize(("bank", "pool"), [("images", 3), ("views", None)])
def test_training_with_a_pool_or_a_bank_of_views_resumes_to_the_same_weights(
    toy, tmp_path, bank, pool
):
    settings = toy.settings(views=ViewSettings(pool=pool))
    networks = toy.networks(bank=bank, denominator="reference")
    whole = train(toy.data(), *networks, settings, folder=tmp_path / "whole")
    expected = weights(networks)
    killed = toy.networks(bank=bank, denominator="reference")
    with pytest.raises(KeyboardInterrupt):
        train(toy.data(), *killed, settings, folder=tmp_path / "cut", on_epoch=_stop_at(2))
    networks = toy.networks(bank=bank, denominator="reference")
    resumed = train(toy.data(), *networks, settings, folder=tmp_path / "cut", resume=True)
    assert same(weights(networks), expected)
    assert torch.equal(resumed.embeddings, whole.embeddings)


def _stop_at(epoch):
    def stop(row):
        if row["epoch"] == epoch:
            raise KeyboardInterrupt

    return stop


def test_pixels_in_host_memory_give_the_same_weights(toy, monkeypatch):
    on_host = toy.networks()
    train(toy.data(), *on_host, toy.settings(epochs=2))
    monkeypatch.setattr("shoal.training.trainer.resident", to_device)
    on_device = toy.networks()
    train(toy.data(), *on_device, toy.settings(epochs=2))
    assert same(weights(on_device), weights(on_host))


def test_tokens_and_views_in_mapped_files_give_the_same_weights(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_ENGINE", "torch")  # others store their compiled trunk in the cache
    settings = toy.settings(epochs=2, views=ViewSettings(pool=2))
    in_memory = toy.networks()
    train(toy.data(), *in_memory, settings)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    monkeypatch.setattr("shoal.training.inputs.SHARE_OF_MEMORY", 0)
    monkeypatch.setattr("shoal.files.MAX_SCRATCH_BYTES", 0)
    on_disk = toy.networks()
    train(toy.data(), *on_disk, settings)
    assert same(weights(in_memory), weights(on_disk))
    assert not list(tmp_path.iterdir())


def test_temporary_files_of_a_killed_run_are_removed_on_resume(toy, tmp_path):
    (tmp_path / ".checkpoint.safetensors.77.tmp").write_bytes(b"half of it")
    train(toy.data(), *toy.networks(), toy.settings(epochs=1), folder=tmp_path, resume=True)
    held = sorted(file.name for file in tmp_path.iterdir())
    assert held == ["best-1.safetensors", "checkpoint.safetensors", "metrics.jsonl"]


@pytest.mark.parametrize(("bank", "most"), [("images", 47), ("views", 95)])
def test_too_many_neighbors_are_refused_with_the_name_of_the_setting(toy, bank, most):
    with pytest.raises(UsageError, match=r"inference\.shift\.n_neighbors"):
        train(
            toy.data(),
            *toy.networks(shift=ShiftSettings(n_neighbors=most + 1), bank=bank),
            toy.settings(),
        )
    networks = toy.networks(shift=ShiftSettings(n_neighbors=most), bank=bank)
    trained = train(toy.data(), *networks, toy.settings(epochs=1))
    assert len(trained.metrics) == 1


TWO = """
import json, sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from conftest import make_data, make_networks, make_settings
from shoal.clustering.mean_shift import ShiftSettings
from shoal.distributed import processes, is_main
from shoal.training.loop import train
torch.set_num_threads(1)
with processes(torch.device("cpu")):
    networks = make_networks("bottleneck", {shift})
    trained = train(make_data(), *networks, make_settings(batch_size=7), folder=Path({out!r}))
    if is_main():
        weights = [value.detach() for n in networks for value in n.parameters()]
        torch.save(weights, {out!r} + "/weights.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", [{"aggregation": "attention"}, {"retrieval": "random"}], ids=str
)
def test_two_processes_train_like_one(toy, tmp_path, variant):
    """With a batch of 7, which does not split evenly, a sharded bank, attention and random
    neighbors."""
    shift = ShiftSettings(n_neighbors=3, **variant)
    running = start_processes(
        TWO.format(tests=str(Path(__file__).parent), out=str(tmp_path), shift=shift)
    )
    networks = toy.networks("bottleneck", shift)
    alone = train(toy.data(), *networks, toy.settings(batch_size=7))
    finish_processes(running)
    together = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for one, two in zip(alone.metrics, together, strict=True):
        assert [two[name] for name in KEEP] == pytest.approx([one[name] for name in KEEP], rel=1e-3)
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    for one, two in zip(
        weights(networks), torch.load(tmp_path / "weights.pt", weights_only=True), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_training_on_a_gpu_is_close_to_training_on_a_cpu(toy):
    losses = []
    for device in ("cpu", "cuda"):
        networks = [network.to(device) for network in toy.networks()]
        losses.append([row["loss"] for row in train(toy.data(), *networks, toy.settings()).metrics])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
