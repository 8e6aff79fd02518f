"""What `shoal discover` can be told, and how flags, files and recipes come together."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shoal.clustering.mean_shift import ShiftSettings
from shoal.errors import UsageError, did_you_mean
from shoal.methods.catalog import DEFAULT_METHOD, get_method, load_recipe
from shoal.methods.cms import CmsSettings
from shoal.settings import load_settings

OWN_SETTINGS = frozenset({"recipe", "config", "encoder", "epochs", "input_size"})
"""What `choose_settings` takes beside the fields of `DiscoverySettings`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoverySettings:
    """What `shoal discover` can be told; a run's config.yaml holds all of it."""

    n_clusters: int | None = None
    """How many categories there are; none: estimated from the labels."""
    train: bool = True
    """Whether to train; without, the frozen encoder's embeddings are clustered."""
    validation_share: float = 0.2
    """Share of the labeled and of the unlabeled images set aside to choose K and the snapshot."""
    pixel_size: int = 256
    """Side at which decoded images are kept."""
    stability: int = 0
    """How often the estimate of K is repeated on random parts of the collection."""
    seed: int = 0
    """Decides every draw."""
    method: str = DEFAULT_METHOD
    """A name in the catalog of methods."""
    cms: CmsSettings = field(default_factory=load_recipe)
    """Encoder, head, training and inference."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            raise UsageError(f"validation_share: found {self.validation_share}, expected a number between 0 and 1")
        if self.stability < 0 or self.pixel_size < 8:
            raise UsageError("stability and pixel_size: expected at least 0 and 8")
        get_method(self.method)

    @property
    def shift(self) -> ShiftSettings:
        """The mean shift of training and inference."""
        return self.cms.inference.shift

    def seeded(self) -> CmsSettings:
        """The method's settings with this seed."""
        return replace(self.cms, training=replace(self.cms.training, seed=self.seed))


def choose_settings(
    *,
    recipe: str | None = None,
    config: Path | str | None = None,
    encoder: str | None = None,
    epochs: int | None = None,
    input_size: int | None = None,
    **given: Any,
) -> DiscoverySettings:
    """Settings from a recipe by name, or from a YAML file such as another run's config.yaml, then single values.

    `given` are fields of `DiscoverySettings`; None leaves a value as it is.
    """
    if recipe is not None and config is not None:
        raise UsageError("recipe and config: found both, expected one; a config already holds what a recipe sets")
    base = load_settings(DiscoverySettings, config) if config is not None else DiscoverySettings()
    cms = base.cms if recipe is None else load_recipe(recipe)
    if encoder is not None and encoder != cms.encoder:
        cms = replace(cms, encoder=encoder, n_tail_blocks=None)  # how many blocks to train depends on the encoder
    if input_size is not None:
        cms = replace(cms, input_size=input_size)
    if epochs is not None:
        cms = replace(cms, training=replace(cms.training, epochs=epochs))
    names = {one.name for one in fields(DiscoverySettings)} - {"cms"}
    for name in given:
        if name not in names:
            raise UsageError(f"unknown setting {name!r}{did_you_mean(name, names | OWN_SETTINGS)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(base, cms=cms, **chosen)
