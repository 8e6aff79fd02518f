"""What embeds images as a finished run did: its encoder, and where it was trained its model with
the weights."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.blend import blend
from shoal.device import computing_device
from shoal.discovery.answers import TRAINED
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import ImageRows, embed, move_encoder
from shoal.encoders.vision import Encoder
from shoal.errors import DataError, UsageError
from shoal.methods.registry import get_method
from shoal.runs import ANSWERS, Run, damaged
from shoal.training.checkpoint import load_weights, read_checkpoint
from shoal.training.model import Model, TaskShape


@dataclass(frozen=True, eq=False, kw_only=True)
class Networks:
    """What embeds images as a run did: the encoder as it comes, what was trained, or both at
    once."""

    frozen: Encoder | None
    """The encoder as it comes, where it has a part."""
    model: Model[Any] | None = None
    """What was trained, where something was."""
    frozen_weight: float = 1.0
    """The weight of the encoder as it comes beside the model."""
    classifier: Ints | None = None
    """The category of each output of the model's classifier, -1 for one without images; None where
    it has none."""

    def embed(self, pixels: ImageRows) -> Tensor:
        """Unit embeddings (M, D) as the run made them."""
        if self.model is None:
            assert self.frozen is not None
            return embed(pixels, self.frozen)
        trained = self.model.embed(pixels)
        if self.frozen is None:
            return trained
        return blend(embed(pixels, self.frozen), trained, self.frozen_weight)

    def predict(self, embeddings: Tensor) -> Ints | None:
        """(M,) categories of unit embeddings by the model's classifier, -1 for an output that no
        image of the run has.

        None where the run was not answered by a classifier.
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
    """What model.json says of a run's model; None where nothing trained is used. A part that is
    missing is refused."""
    answer = run.provenance.get("answer")
    if answer not in (None, *ANSWERS):
        what = f"answer: found {answer!r}, expected {' or '.join(ANSWERS)}"
        raise damaged(run.path / "provenance.json", what)
    if answer != TRAINED:
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
        what = f"frozen_weight is {weight:g}, and not from 0 to 1"
        raise damaged(run.path / "model.json", what)
    return model


def load_networks(run: Run, settings: DiscoverySettings, device: torch.device) -> Networks:
    """The encoder of a run and, where it was trained, the model with its weights, which runs where
    is computed."""
    about = read_model(run)
    chosen = settings.of_method
    try:
        if about is None:
            encoder = load_encoder(chosen.encoder, input_size=chosen.input_size)
            return Networks(frozen=move_encoder(encoder, device))
        return _trained(run, settings, about, device)
    except UsageError as error:  # of a value that no user has typed
        is_of_model = about is not None and str(error).startswith("n_tail_blocks")
        part = "model.json" if is_of_model else "config.yaml"
        raise damaged(run.path / part, str(error)) from error


def _trained(
    run: Run, settings: DiscoverySettings, about: dict[str, Any], device: torch.device
) -> Networks:
    file = run.path / "model.safetensors"
    chosen = replace(settings.trained, n_tail_blocks=about["n_tail_blocks"])
    model = get_method(settings.method).build(chosen, TaskShape(**about["shape"]))
    load_weights(model, read_checkpoint(file).tensors, str(file))
    frozen = None
    if about["frozen_weight"] > 0:
        frozen = load_encoder(
            chosen.encoder, n_tail_blocks=chosen.n_tail_blocks, input_size=chosen.input_size
        )
        frozen = move_encoder(frozen, device)
    classifier = about.get("classifier")
    return Networks(
        frozen=frozen,
        model=model.to(computing_device(device)).eval(),
        frozen_weight=float(about["frozen_weight"]),
        classifier=np.array(classifier) if classifier else None,
    )
