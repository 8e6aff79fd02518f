"""What `shoal discover` can be told, and how flags, files and recipes come together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.n_clusters import read_n_clusters
from shoal.device import check_seed
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.encoders.vision import MAX_SIZE
from shoal.errors import UsageError, did_you_mean
from shoal.methods.method import MethodSettings, TrainedSettings
from shoal.methods.protocols import follow_protocol
from shoal.methods.registry import (
    DEFAULT_METHOD,
    METHODS,
    get_method,
    load_recipe,
    recipe_names,
    with_encoder,
)
from shoal.methods.setting_changes import change_settings, has_setting, refuse_change
from shoal.settings import from_dict, named_by, read_yaml, to_dict

OWN_SETTINGS = frozenset(
    {"recipe", "config", "encoder", "epochs", "input_size", "protocol", "answer", "changes"}
)
"""What `choose_settings` takes beside the fields of `DiscoverySettings`."""

SHORT_RECIPE = "cpu"
"""The recipe of the default method for a CPU."""


def _settings_classes() -> dict[str, type[MethodSettings]]:
    return {name: method.settings for name, method in METHODS.items()}


@dataclass(frozen=True, kw_only=True)
class DiscoverySettings:
    """What `shoal discover` can be told; a run's config.yaml holds all of it."""

    n_clusters: int | None = None
    """How many categories there are; none: estimated from the labels."""
    train: bool | None = None
    """Whether to train. None: only where held-out labels could show that it helps. False: the
    frozen encoder's embeddings are clustered."""
    validation_share: float = 0.2
    """Share of the labeled and of the unlabeled images set aside to choose the snapshot, and K by
    the paper's rule."""
    hidden_share: float = 0.2
    """Share of the known categories whose labels are kept from training, to see whether it helps
    with categories it has no labels of; where it does not, the frozen encoder's answer stands. 0:
    none, and the trained answer stands."""
    depths: tuple[int, ...] = ()
    """How many of the encoder's last blocks are trained: each number is tried, and labels that
    training does not see choose. None given: the recipe's and, with the default encoder on a GPU,
    five."""
    max_minutes: float | None = None
    """Minutes after which training is stopped, as by Ctrl-C, with the best result so far; none: it
    is not."""
    must_link: bool = True
    """Whether the labeled images of a category begin as one cluster, and no cluster holds two; not
    in the paper."""
    try_average: bool = True
    """Whether clusters may be joined by average linkage where labels say that is better; not in the
    paper."""
    split_mixtures: bool = True
    """Whether a known category that likely holds a novel one is split where K is estimated; not in
    the paper."""
    pixel_size: int = 256
    """Side at which decoded images are kept."""
    seed: int = 0
    """Decides every draw."""
    recipe: str = "default"
    """The name of the recipe, or the path of the file, that the method's settings were begun
    with."""
    method: str = DEFAULT_METHOD
    """The name of a method; config.yaml holds its settings under that name."""
    method_settings: MethodSettings | None = field(
        default=None, metadata=named_by("method", _settings_classes)
    )
    """Encoder, training, inference and what else the method has; its default recipe if not
    given."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            self._refuse("validation_share", "a number between 0 and 1")
        if not 0 <= self.hidden_share < 1:
            self._refuse("hidden_share", "a number in [0, 1), 0 for none")
        if any(depth < 0 for depth in self.depths) or len(set(self.depths)) < len(self.depths):
            self._refuse("depths", "different numbers of blocks, such as 1 and 5")
        if self.max_minutes is not None and not self.max_minutes > 0:
            self._refuse("max_minutes", "a number above 0")
        if not 8 <= self.pixel_size <= MAX_SIZE:
            self._refuse("pixel_size", f"8 to {MAX_SIZE:,}")
        check_seed(self.seed)
        get_method(self.method)
        if self.method_settings is None:
            object.__setattr__(self, "method_settings", load_recipe(self.recipe, self.method))

    def _refuse(self, name: str, expected: str) -> None:
        raise UsageError(f"{name}: found {getattr(self, name)}, expected {expected}")

    @cached_property
    def of_method(self) -> MethodSettings:
        """The settings of the method with this seed, must-links and linkages as asked for here."""
        assert self.method_settings is not None
        chosen = self.method_settings.with_seed(self.seed)
        inference = replace(
            chosen.inference,
            must_link=self.must_link,
            try_average=self.try_average,
            split_mixtures=self.split_mixtures,
        )
        return replace(chosen, inference=inference)

    @property
    def trained(self) -> TrainedSettings:
        """The same of a method that trains."""
        chosen = self.of_method
        assert isinstance(chosen, TrainedSettings)
        return chosen

    @property
    def n_tail_blocks(self) -> int | None:
        """How many of the encoder's last blocks are trained; None: what the encoder's catalog entry
        says."""
        return self.trained.n_tail_blocks if get_method(self.method).trains else None

    @property
    def shift(self) -> ShiftSettings:
        """The mean shift; its neighbors also say how sure an assignment is."""
        return self.of_method.inference.shift

    @property
    def is_trained(self) -> bool:
        """Whether anything may be trained."""
        return self.train is not False and get_method(self.method).trains


def shorter_on_cpu(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `choose_settings` for a CPU: with the short recipe, where they say nothing
    of training."""
    usual = {"encoder": DEFAULT_ENCODER, "protocol": "shoal"}
    is_usual = all(given.get(name) in (None, value) for name, value in usual.items())
    is_free = all(given.get(name) is None for name in ("recipe", "config", "epochs"))
    is_changed = any(name.startswith("training.") for name in given.get("changes") or {})
    has_short = SHORT_RECIPE in recipe_names(given.get("method") or DEFAULT_METHOD)
    if is_usual and is_free and not is_changed and has_short:
        return {**given, "recipe": SHORT_RECIPE}
    return dict(given)


def choose_settings(
    *,
    recipe: str | None = None,
    config: Path | str | None = None,
    method: str | None = None,
    encoder: str | None = None,
    epochs: int | None = None,
    input_size: int | None = None,
    protocol: str | None = None,
    answer: str | None = None,
    changes: Mapping[str, Any] | None = None,
    **given: Any,
) -> DiscoverySettings:
    """Settings from a recipe by name, or from a YAML file such as another run's config.yaml, then
    single values.

    A method that is not the config's takes only the encoder, its input size and the range of K from
    it. `given` are fields of `DiscoverySettings`; None leaves a value as it is. `n_clusters`, also
    in a file and in `changes`, may be a range, (30, 50) or '30-50', that the estimate keeps to: it
    becomes `min_clusters` and `max_clusters` of the method's `inference`. `protocol` is a name in
    `PROTOCOLS`; the paper and the released code hide no category from training, so that their
    protocols do not either. `answer` is 'better', which hides some to compare, or 'trained', which
    hides none and lets the trained answer stand. `changes` are any settings by dotted name, as in
    {"training.lr": 0.1}; they come last.
    """
    if recipe is not None and config is not None:
        raise UsageError(
            "recipe and config: found both, expected one; a config already holds what a recipe sets"
        )
    own = {one.name for one in fields(DiscoverySettings)} - {"method_settings"}
    for name in given:
        if name not in own:
            raise UsageError(f"unknown setting {name!r}{did_you_mean(name, own | OWN_SETTINGS)}")
    plain = {} if config is None else read_yaml(config)
    settings = _from_plain(plain, where="settings" if config is None else str(config))
    if recipe is not None or method not in (None, settings.method):
        settings = _with_method(settings, recipe, method, keeps_encoder=config is not None)
    chosen = settings.method_settings
    assert chosen is not None
    if encoder is not None:
        chosen = with_encoder(chosen, encoder)
    # The latter is no setting of a method without training.
    single = {"input_size": input_size, "training.epochs": epochs}
    single = {name: value for name, value in single.items() if value is not None}
    chosen = change_settings(chosen, settings.method, single)
    if protocol is not None:
        chosen = follow_protocol(chosen, protocol, settings.method)
    settings = replace(settings, method_settings=chosen)
    if protocol not in (None, "shoal"):
        settings = replace(
            settings, hidden_share=0.0, must_link=False, try_average=False, split_mixtures=False
        )
    if answer is not None:
        settings = _with_answer(settings, answer)
    values = {name: value for name, value in given.items() if value is not None}
    settings = _with_values(settings, values, where="settings")
    settings = _with_changes(settings, changes or {})
    _check_training(settings, epochs=epochs, answer=answer, train=given.get("train"))
    return settings


def _with_method(
    settings: DiscoverySettings, recipe: str | None, method: str | None, *, keeps_encoder: bool
) -> DiscoverySettings:
    """The same with another recipe, or another method, which may take the encoder and the range of
    K over."""
    before = settings.of_method
    recipe = recipe or "default"
    name = method or settings.method
    chosen: MethodSettings = load_recipe(recipe, name)
    if keeps_encoder:
        chosen = with_encoder(chosen, before.encoder)
        chosen = replace(chosen, input_size=before.input_size or chosen.input_size)
        chosen = _in_range(chosen, before.inference.min_clusters, before.inference.max_clusters)
    return replace(settings, recipe=recipe, method=name, method_settings=chosen)


def _with_answer(settings: DiscoverySettings, answer: str) -> DiscoverySettings:
    """The same with no category hidden, or as many as were, the default share where that was
    none."""
    if answer == "trained":
        return replace(settings, hidden_share=0.0)
    if answer != "better":
        raise UsageError(
            f"answer: found {answer!r}, expected better or trained; --no-train is the one without "
            "training"
        )
    return replace(settings, hidden_share=settings.hidden_share or DiscoverySettings.hidden_share)


def _with_changes(settings: DiscoverySettings, changes: Mapping[str, Any]) -> DiscoverySettings:
    """The same with other values by dotted name: fields of `DiscoverySettings`, or settings of its
    method."""
    own = {one.name for one in fields(DiscoverySettings)} - {"recipe", "method", "method_settings"}
    of_method = {name: value for name, value in changes.items() if name not in own}
    for name in of_method:
        if not has_setting(settings.method, name):
            raise UsageError(refuse_change(name, settings.method, "--set", beside=own))
    assert settings.method_settings is not None
    chosen = change_settings(settings.method_settings, settings.method, of_method, where="--set")
    values = {name: value for name, value in changes.items() if name in own}
    return _with_values(replace(settings, method_settings=chosen), values, where="--set")


def _with_values(
    settings: DiscoverySettings, values: Mapping[str, Any], *, where: str
) -> DiscoverySettings:
    """The same with other values of its own fields."""
    return _from_plain({**to_dict(settings), **values}, where=where) if values else settings


def _from_plain(plain: Any, *, where: str) -> DiscoverySettings:
    """Settings from a mapping in which `n_clusters` may be a range, too: '30-50' or [30, 50]."""
    given = plain.get("n_clusters") if isinstance(plain, Mapping) else None
    if not isinstance(given, str | list | tuple):
        return from_dict(DiscoverySettings, plain, where=where)
    try:
        number, ends = read_n_clusters(given)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    settings = from_dict(DiscoverySettings, {**plain, "n_clusters": number}, where=where)
    if ends is None:
        return settings
    chosen = settings.method_settings
    assert chosen is not None
    return replace(settings, method_settings=_in_range(chosen, *ends))


def _in_range(settings: MethodSettings, low: int | None, high: int | None) -> MethodSettings:
    """The settings of a method, with an estimate that keeps to a range."""
    inference = replace(settings.inference, min_clusters=low, max_clusters=high)
    return replace(settings, inference=inference)


def _check_training(settings: DiscoverySettings, **given: Any) -> None:
    """Refuse what was said about training where nothing is to be trained."""
    said = [f"{name}: found {value!r}" for name, value in given.items() if value]
    if settings.is_trained or not said:
        return
    if not get_method(settings.method).trains:
        raise UsageError(
            f"{said[0]}, but the method {settings.method} trains nothing; leave it out"
        )
    raise UsageError(f"{said[0]}, but nothing is to be trained; leave it out, or give --train")
