"""The networks of a finished run: its encoder and, if it was trained, its model."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.blend import blend
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.results import TRAINED
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import ImageRows, embed
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.registry import get_method
from shoal.runs import Run, damaged
from shoal.settings import Plain
from shoal.training.checkpoint import load_weights, read_checkpoint
from shoal.training.model import Model, TaskShape


@dataclass(frozen=True, kw_only=True)
class Networks:
    """The networks that embed images as a run did: the frozen encoder, the model, or both."""

    frozen: Encoder | None
    """The frozen encoder, if its embeddings are used."""
    model: Model | None = None
    """The trained model, if there is one."""
    frozen_weight: float = 1.0
    """The weight of the frozen embeddings in the blend with the trained ones."""
    classifier: Ints | None = None
    """The category id of each output of the model's classifier, -1 for an output without images;
    None without a classifier."""

    def embed(self, pixels: ImageRows) -> Tensor:
        """Return unit embeddings (M, D), computed as the run's were."""
        if self.model is None:
            assert self.frozen is not None
            return embed(pixels, self.frozen)
        trained = self.model.embed(pixels)
        if self.frozen is None:
            return trained
        return blend(embed(pixels, self.frozen), trained, self.frozen_weight)

    def predict(self, embeddings: Tensor) -> Ints:
        """Return the category ids (M,) that the classifier predicts for unit embeddings (M, D), -1
        for an output without images of the run."""
        assert self.model is not None
        assert self.classifier is not None
        with torch.inference_mode():
            outputs = self.model.predict(embeddings.float())
        assert outputs is not None
        numbers = outputs.cpu().numpy()
        is_used = numbers < len(self.classifier)
        return np.where(is_used, self.classifier[np.where(is_used, numbers, 0)], -1)


def has_model(run: Run) -> bool:
    """Whether the result of the run was trained."""
    return run.provenance.get("result") == TRAINED or run.has("model.json")


def load_networks(run: Run, settings: DiscoverySettings, device: torch.device) -> Networks:
    """Load the encoder of a run and, for a trained result, the model with its weights."""
    chosen = settings.method_settings
    about: Plain = {"frozen_weight": 1.0}
    model = None
    try:
        if has_model(run):
            about = run.json("model")
            if not 0 <= about["frozen_weight"] <= 1:
                raise UsageError("frozen_weight: expected a number in [0, 1]")
            chosen = replace(settings.trained, n_tail_blocks=about["n_tail_blocks"])
            model = get_method(settings.method).build(chosen, TaskShape(**about["shape"]))
            file = run.path / "model.safetensors"
            load_weights(model, read_checkpoint(file)[0], str(file))
            model = model.to(device).eval()
        frozen = None
        if about["frozen_weight"] > 0:
            frozen = load_encoder(
                chosen.encoder,
                n_tail_blocks=about.get("n_tail_blocks"),
                input_size=chosen.input_size,
            ).to(device)
    except UsageError as error:  # a damaged config.yaml or model.json, not a mistake of the user
        raise damaged(run.path, str(error)) from error
    return Networks(
        frozen=frozen,
        model=model,
        frozen_weight=float(about["frozen_weight"]),
        classifier=np.array(about["classifier"]) if about.get("classifier") else None,
    )
