"""The networks of a finished run: its encoder and, if it was trained, its model."""

from dataclasses import dataclass, replace
from typing import Any

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
from shoal.errors import DataError, UsageError
from shoal.methods.registry import get_method
from shoal.runs import RESULTS, Run, damaged
from shoal.training.checkpoint import load_weights, read_checkpoint
from shoal.training.model import Model, TaskShape


@dataclass(frozen=True, eq=False, kw_only=True)
class Networks:
    """The networks that embed images as a run did: the frozen encoder, the model, or both."""

    frozen: Encoder | None
    """The frozen encoder, if its embeddings are used."""
    model: Model[Any] | None = None
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

    def predict(self, embeddings: Tensor) -> Ints | None:
        """Return the category ids (M,) that the classifier predicts for unit embeddings (M, D).

        -1 for an output without images of the run; None without a classifier.
        """
        if self.model is None or self.classifier is None:
            return None
        with torch.inference_mode():
            outputs = self.model.predict(embeddings.float())
        assert outputs is not None
        numbers = outputs.cpu().numpy()
        is_used = numbers < len(self.classifier)
        return np.where(is_used, self.classifier[np.where(is_used, numbers, 0)], -1)


def read_model(run: Run) -> dict[str, Any] | None:
    """Return the content of model.json; None for a frozen result. Raise if a file is missing."""
    result = run.provenance.get("result")
    if result not in (None, *RESULTS):
        what = f"result: found {result!r}, expected {' or '.join(RESULTS)}"
        raise damaged(run.path / "provenance.json", what)
    if result != TRAINED:
        return None
    for part in ("model.safetensors", "model.json"):
        if not run.has(part):
            raise DataError(
                f"{run.path / part}: not in this run, which was trained; put back a copy of it, or "
                "make the run again with --force"
            )
    model = run.json("model")
    weight = model["frozen_weight"]
    if not 0 <= weight <= 1:
        what = f"frozen_weight: found {weight:g}, expected a number in [0, 1]"
        raise damaged(run.path / "model.json", what)
    return model


def load_networks(run: Run, settings: DiscoverySettings, device: torch.device) -> Networks:
    """Load the encoder of a run and, for a trained result, the model with its weights."""
    stored = read_model(run)
    chosen = settings.method_settings
    try:
        if stored is None:
            encoder = load_encoder(chosen.encoder, input_size=chosen.input_size)
            return Networks(frozen=encoder.to(device))
        return _load_trained(run, settings, stored, device)
    except UsageError as error:  # a damaged file, not a mistake of the user
        is_in_model = stored is not None and str(error).startswith("n_tail_blocks")
        part = "model.json" if is_in_model else "config.yaml"
        raise damaged(run.path / part, str(error)) from error


def _load_trained(
    run: Run, settings: DiscoverySettings, stored: dict[str, Any], device: torch.device
) -> Networks:
    """Load the networks of a trained result; `stored` is the content of model.json."""
    file = run.path / "model.safetensors"
    chosen = replace(settings.trained, n_tail_blocks=stored["n_tail_blocks"])
    model = get_method(settings.method).build(chosen, TaskShape(**stored["shape"]))
    load_weights(model, read_checkpoint(file)[0], str(file))
    frozen = None
    if stored["frozen_weight"] > 0:
        frozen = load_encoder(
            chosen.encoder, n_tail_blocks=chosen.n_tail_blocks, input_size=chosen.input_size
        )
        frozen = frozen.to(device)
    classifier = stored.get("classifier")
    return Networks(
        frozen=frozen,
        model=model.to(device).eval(),
        frozen_weight=float(stored["frozen_weight"]),
        classifier=np.array(classifier) if classifier else None,
    )
