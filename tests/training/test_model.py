"""What a method may change: networks, learning rate and predictions."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.errors import DataError
from shoal.methods.classifier import CosineClassifier, labeled_cross_entropy, n_outputs
from shoal.training.loop import load_weights, read_checkpoint, train
from shoal.training.model import Model, TaskShape
from shoal.training.train_settings import ViewSettings
from shoal.training.trainer import Trainer

SHAPE = TaskShape(n_images=48, n_known=2, n_clusters=4)


class Classifier(Model):
    """A classifier whose learning rate is halved after the first epoch."""

    def __init__(self, encoder):
        super().__init__(encoder, None, SHAPE)
        self.classifier = CosineClassifier(encoder.feature_dim, n_outputs(SHAPE))

    def forward(self, inputs):
        features = F.normalize(self.encoder.tail(inputs).float(), dim=1)
        return {"cosines": self.classifier(features)}

    def lr_at(self, epoch, settings):
        return settings.lr if epoch == 0 else settings.lr / 2

    def loss(self, batch):
        logits = batch.gather(batch.outputs["cosines"]) / 0.1
        return {"loss": labeled_cross_entropy(logits, batch.labels)}

    def predict(self, embeddings):
        return self.classifier(embeddings).argmax(dim=1)


def test_the_learning_rate_is_that_of_the_method(toy):
    trainer = Trainer(toy.data(), Classifier(toy.encoder()), toy.settings(lr=0.01))
    trainer.prepare()
    for epoch, expected in enumerate([0.01, 0.005, 0.005]):
        assert trainer.run_epoch(epoch)["lr"] == trainer.optimizer.lr == expected


def test_a_model_with_a_classifier_is_validated_by_its_predictions(toy):
    """A classifier that always predicts the same cluster has the largest labeled class's share as
    accuracy."""
    data = toy.data()
    trainer = Trainer(data, Classifier(toy.encoder()), toy.settings())
    trainer.prepare()
    trainer.model.predict = lambda embeddings: torch.zeros(len(embeddings), dtype=torch.long)
    labels = data.labels[data.validation]
    labeled = labels[labels >= 0]
    assert trainer.validate("pairs").accuracy == pytest.approx(
        np.bincount(labeled).max() / len(labeled)
    )


class Prompted(Model):
    """A learned pattern that is added to every image before the frozen trunk."""

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


def test_parameters_before_the_trunk_are_trained_saved_and_used(toy, tmp_path):
    trained = Prompted(toy.encoder())
    found = train(toy.data(), trained, toy.settings(views=ViewSettings(pool=3)), folder=tmp_path)
    assert float(trained.prompt.detach().abs().max()) > 0
    stored = read_checkpoint(tmp_path / f"best-{found.epoch}.safetensors")[0]
    assert torch.equal(stored["prompt"], trained.prompt)
    again = Prompted(toy.encoder())
    again.load_tensors(stored)
    torch.testing.assert_close(again.embed(toy.data().pixels), found.embeddings)


def test_weights_of_another_method_are_refused(toy):
    tensors = Prompted(toy.encoder()).saved_tensors()
    with pytest.raises(DataError):
        load_weights(Classifier(toy.encoder()), tensors, "here")
