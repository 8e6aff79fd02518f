"""What embeds images as a finished run did: its encoder, and where it was trained its model with the weights."""

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
from shoal.runs import ANSWERS, RunView, damaged
from shoal.training.checkpoint import load_weights, read_checkpoint
from shoal.training.model import Model, TaskShape


@dataclass(frozen=True, eq=False, kw_only=True)
class Networks:
    """What embeds images as a run did: the encoder as it comes, what was trained, or both at once."""

    frozen: Encoder | None
    """The encoder as it comes, where it has a part."""
    model: Model[Any] | None = None
    """What was trained, where something was."""
    frozen_weight: float = 1.0
    """The weight of the encoder as it comes beside the model."""
    classifier: Ints | None = None
    """The category of each output of the model's classifier, -1 for one without images; None where it has none."""

    def embed(self, pixels: ImageRows) -> Tensor:
        """Unit embeddings (M, D) as the run made them."""
        if self.model is None:
            assert self.frozen is not None
            return embed(pixels, self.frozen)
        trained = self.model.embed(pixels)
        return (
            trained
            if self.frozen is None
            else blend(embed(pixels, self.frozen), trained, self.frozen_weight)
        )

    def predict(self, embeddings: Tensor) -> Ints | None:
        """(M,) categories of unit embeddings by the model's classifier, -1 for an output that no image of the run has.

        None where the run was not answered by a classifier.
        """
        if self.model is None or self.classifier is None:
            return None
        with torch.inference_mode():
            outputs = self.model.predict(embeddings.float())
        assert outputs is not None
        numbers = outputs.cpu().numpy()
        return np.where(
            numbers < len(self.classifier),
            self.classifier[np.minimum(numbers, len(self.classifier) - 1)],
            -1,
        )


def read_model(run: RunView) -> dict[str, Any] | None:
    """What model.json says of a run's model; None where nothing trained is used. A part that is missing is refused."""
    parts = ("model.safetensors", "model.json")
    answer = run.provenance.get("answer")  # an earlier version did not write it
    if answer not in (None, *ANSWERS):
        raise damaged(
            run.path / "provenance.json",
            f"answer: found {answer!r}, expected {' or '.join(ANSWERS)}",
        )
    is_trained = any(map(run.has, parts)) if answer is None else answer == TRAINED
    if not is_trained:
        return None
    for part in parts:
        if not run.has(part):
            raise DataError(
                f"{run.path / part}: not in this run, which was trained; put back a copy of it, or make the run again "
                "with --force"
            )
    model = run.json("model")
    if not 0 <= model["frozen_weight"] <= 1:
        raise damaged(
            run.path / "model.json",
            f"frozen_weight is {model['frozen_weight']:g}, and not from 0 to 1",
        )
    return model


def load_networks(run: RunView, settings: DiscoverySettings, device: torch.device) -> Networks:
    """The encoder of a run and, where it was trained, the model with its weights, which runs where is computed."""
    how = read_model(run)
    try:
        return _frozen(settings, device) if how is None else _trained(run, settings, how, device)
    except UsageError as error:  # of a value that no user has typed
        is_of_model = (
            how is not None and "n_tail_blocks" in how and str(error).startswith("n_tail_blocks")
        )
        raise damaged(
            run.path / ("model.json" if is_of_model else "config.yaml"), str(error)
        ) from error


def _frozen(settings: DiscoverySettings, device: torch.device) -> Networks:
    chosen = settings.of_method
    return Networks(
        frozen=move_encoder(load_encoder(chosen.encoder, input_size=chosen.input_size), device)
    )


def _trained(
    run: RunView, settings: DiscoverySettings, how: dict[str, Any], device: torch.device
) -> Networks:
    file = run.path / "model.safetensors"
    chosen = settings.of_method
    weight = float(how["frozen_weight"])
    chosen = replace(chosen, n_tail_blocks=how.get("n_tail_blocks", chosen.n_tail_blocks))
    shape = how.get("shape") or {"n_images": len(run.assignments), "n_known": 0}
    model = get_method(settings.method).build(
        chosen,
        TaskShape(
            n_images=shape["n_images"], n_known=shape["n_known"], n_clusters=shape.get("n_clusters")
        ),
    )
    load_weights(model, read_checkpoint(file).tensors, str(file))
    frozen = None
    if weight > 0:
        frozen = load_encoder(
            chosen.encoder, n_tail_blocks=chosen.n_tail_blocks, input_size=chosen.input_size
        )
    return Networks(
        frozen=None if frozen is None else move_encoder(frozen, device),
        model=model.to(computing_device(device)).eval(),
        frozen_weight=weight,
        classifier=np.array(how["classifier"]) if how.get("classifier") else None,
    )
