"""What a method may be made of: each part trained, saved, resumed to the same bytes, and shared by
processes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from several_processes import finish_processes, start_processes
from shoal.methods.classifier import (
    CosineClassifier,
    entropy_of_mean,
    labeled_cross_entropy,
    n_outputs,
)
from shoal.training.checkpoint import read_checkpoint
from shoal.training.loop import train
from shoal.training.model import Model, TaskShape, numbered_labels, shape_of
from shoal.training.sgd import Sgd
from shoal.training.trainer import Trainer
from shoal.training.views import ViewSettings

SHAPE = TaskShape(n_images=48, n_known=2, n_clusters=4)


class Everything(Model):
    """Three views, a teacher that follows by EMA, a memory, centers made once an epoch, two stages.

    In the second stage the learning rate begins anew. The classifier does not decay.
    """

    n_views = 3

    def __init__(self, encoder, shape=SHAPE):
        super().__init__(encoder, None, shape)
        self.classifier = CosineClassifier(encoder.feature_dim, n_outputs(shape))
        self.teacher = CosineClassifier(encoder.feature_dim, n_outputs(shape)).requires_grad_(False)
        self.teacher.load_state_dict(self.classifier.state_dict())
        self.register_buffer("memory", torch.zeros(shape.n_images, encoder.feature_dim))
        self.centers = None

    def forward(self, inputs):
        features = F.normalize(self.encoder.tail(inputs).float(), dim=1)
        return {"features": features, "cosines": self.classifier(features)}

    def lr_at(self, epoch, settings):
        return settings.lr_at(epoch if epoch == 0 else epoch - 1)

    def begin_epoch(self, epoch):
        rows = epoch.embed()
        drawn = torch.randint(len(rows), (4,), generator=epoch.generator)
        self.centers = rows[drawn].clone()
        return {"n_labeled": float((epoch.labels >= 0).sum())}

    def loss(self, batch):
        features = batch.gather(batch.outputs["features"])
        logits = batch.gather(batch.outputs["cosines"]) / 0.1
        targets = (self.teacher(features) / 0.05).softmax(dim=1).detach()
        taught = (
            -(targets.roll(batch.n_images, dims=0) * logits.log_softmax(dim=1)).sum(dim=1).mean()
        )
        near = (features @ self.centers.T).max(dim=1).values.mean()
        kept = (features * self.memory[batch.gather(batch.images)]).sum(dim=1).mean()
        stage = near if batch.epoch == 0 else kept
        total = (
            taught
            + labeled_cross_entropy(logits, batch.labels)
            - stage
            - entropy_of_mean(logits.softmax(dim=1))
        )
        return {"loss": total}

    def after_step(self, batch):
        self.teacher.weight.lerp_(self.classifier.weight, 0.1)
        images, features = (
            batch.gather(rows)[: batch.n_images]
            for rows in (batch.images, batch.outputs["features"])
        )
        self.memory[images] = features.detach()

    def predict(self, embeddings):
        return self.classifier(embeddings).argmax(dim=1)

    def make_optimizer(self, settings):
        return Sgd(
            list(self.encoder.tail.parameters()),
            undecayed=list(self.classifier.parameters()),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )

    def identity(self):
        return {"name": "everything"}


def make_model(toy):
    torch.manual_seed(3)
    return Everything(toy.encoder())


def settings(toy, **changes):
    return toy.settings(lr=0.01, batch_size=7, **changes)


@pytest.mark.parametrize("pool", [None, 3])
@pytest.mark.parametrize("dies_after", [1, 2])
def test_killed_and_resumed_every_part_ends_in_the_same_bytes(toy, tmp_path, dies_after, pool):
    chosen = settings(toy, views=ViewSettings(pool=pool))
    whole = make_model(toy)
    expected = train(toy.data(n_clusters=4), whole, chosen, folder=tmp_path / "whole")

    def die(row):
        if row["epoch"] == dies_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            toy.data(n_clusters=4), make_model(toy), chosen, folder=tmp_path / "cut", on_epoch=die
        )
    resumed = make_model(toy)
    found = train(toy.data(n_clusters=4), resumed, chosen, folder=tmp_path / "cut", resume=True)
    ours = resumed.saved_tensors()
    theirs = whole.saved_tensors()
    assert {"teacher/weight", "classifier/weight", "memory"} <= ours.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert np.array_equal(found.predicted, expected.predicted)
    best = f"best-{found.epoch}.safetensors"
    assert (tmp_path / "cut" / best).read_bytes() == (tmp_path / "whole" / best).read_bytes()


def test_the_method_decides_on_the_learning_rate(toy):
    chosen = settings(toy)
    trainer = Trainer(toy.data(), make_model(toy), chosen)
    trainer.prepare()
    for epoch, expected in enumerate([0.01, 0.01, chosen.lr_at(1)]):
        assert trainer.run_epoch(epoch)["lr"] == trainer.optimizer.lr == expected


def test_a_snapshot_with_a_classifier_is_judged_by_its_predictions(toy):
    """A classifier that puts all images into one cluster gets the share of the largest labeled
    class right."""
    data = toy.data()
    trainer = Trainer(data, make_model(toy), settings(toy))
    trainer.prepare()
    trainer.model.predict = lambda embeddings: torch.zeros(len(embeddings), dtype=torch.long)
    labels = data.labels[data.validation]
    labeled = labels[labels >= 0]
    assert trainer.validate().accuracy == pytest.approx(np.bincount(labeled).max() / len(labeled))


TWO = """
import sys, torch
from pathlib import Path
sys.path[:0] = [{training!r}, {tests!r}]
import conftest as toy
from test_model import Everything
from shoal.distributed import processes, is_main
from shoal.training.loop import train
torch.set_num_threads(1)
with processes(torch.device("cpu")):
    torch.manual_seed(3)
    model = Everything(toy.make_encoder())
    settings = toy.make_settings(lr=0.01, batch_size=7)
    train(toy.make_data(n_clusters=4), model, settings, folder=Path({out!r}))
    if is_main():
        torch.save(model.saved_tensors(), {out!r} + "/weights.pt")
"""


@pytest.mark.slow
def test_two_processes_train_as_one_does(toy, tmp_path):
    folders = {"tests": str(Path(__file__).parent.parent), "training": str(Path(__file__).parent)}
    running = start_processes(TWO.format(out=str(tmp_path), **folders))
    model = make_model(toy)
    alone = train(toy.data(n_clusters=4), model, settings(toy))
    finish_processes(running)
    together = [
        json.loads(row)["loss"] for row in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert together == pytest.approx([row["loss"] for row in alone.metrics], rel=1e-3)
    for name, value in torch.load(tmp_path / "weights.pt", weights_only=True).items():
        torch.testing.assert_close(value, model.saved_tensors()[name], rtol=1e-2, atol=1e-3)


class Prompted(Model):
    """A pattern that is learned and added to every image, before the frozen trunk."""

    reads_images = True

    def __init__(self, encoder, shape=SHAPE):
        super().__init__(encoder, None, shape)
        self.prompt = torch.nn.Parameter(torch.zeros(3, 14, 14))

    def represent(self, inputs):
        return self.encoder(inputs + self.prompt)

    def forward(self, inputs):
        return {"features": F.normalize(self.represent(inputs), dim=1)}

    def loss(self, batch):
        first, second = batch.gather(batch.outputs["features"]).chunk(2)
        return {"loss": -(first * second).sum(dim=1).mean()}

    def identity(self):
        return {"name": "prompted"}


def test_what_is_learned_before_the_trunk_is_trained_saved_and_used(toy, tmp_path):
    trained = Prompted(toy.encoder())
    found = train(toy.data(), trained, toy.settings(views=ViewSettings(pool=3)), folder=tmp_path)
    assert float(trained.prompt.detach().abs().max()) > 0
    kept = read_checkpoint(tmp_path / f"best-{found.epoch}.safetensors").tensors
    assert torch.equal(kept["prompt"], trained.prompt)
    again = Prompted(toy.encoder())
    again.load_tensors(kept)
    torch.testing.assert_close(again.embed(toy.data().pixels), found.embeddings)


def test_weights_of_another_method_are_refused(toy):
    with pytest.raises(RuntimeError):
        make_model(toy).load_tensors(Prompted(toy.encoder()).saved_tensors())


def test_labels_are_numbered_without_gaps_and_a_task_has_a_shape(toy):
    assert numbered_labels(np.array([7, -1, 3, 7])).tolist() == [1, -1, 0, 1]
    assert shape_of(toy.data(n_clusters=4)) == SHAPE
