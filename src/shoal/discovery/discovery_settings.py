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


@dataclass(frozen=True, kw_only=True)
class DiscoverySettings:
    """What `shoal discover` can be told; a run's config.yaml holds all of it."""

    n_clusters: int | None = None
    """How many categories there are; none: estimated from the labels."""
    train: bool | None = None
    """Whether to train. None: only where held-out labels could show that it helps. False: the frozen encoder's
    embeddings are clustered."""
    validation_share: float = 0.2
    """Share of the labeled and of the unlabeled images set aside to choose the snapshot, and K by the paper's rule."""
    hidden_share: float = 0.2
    """Share of the known categories whose labels are kept from training, to see whether it helps with categories it has
    no labels of; where it does not, the frozen encoder's answer stands. 0: none, and the trained answer stands."""
    depths: tuple[int, ...] = ()
    """How many of the encoder's last blocks are trained: each number is tried, and labels that training does not see
    choose. None given: the recipe's and, with the default encoder on a GPU, five."""
    max_minutes: float | None = None
    """Minutes after which training is stopped, as by Ctrl-C, with the best result so far; none: it is not."""
    must_link: bool = True
    """Whether the labeled images of a category begin as one cluster, and no cluster holds two; not in the paper."""
    try_average: bool = True
    """Whether clusters may be joined by average linkage where labels say that is better; not in the paper."""
    split_mixtures: bool = True
    """Whether a known category that likely holds a novel one is split where K is estimated; not in the paper."""
    pixel_size: int = 256
    """Side at which decoded images are kept."""
    seed: int = 0
    """Decides every draw."""
    recipe: str = "default"
    """The name of the recipe, or the path of the file, that the method's settings were begun with."""
    method: str = DEFAULT_METHOD
    """The name of a method; config.yaml holds its settings under that name."""
    method_settings: Any = field(
        default=None,
        metadata=named_by(
            "method", lambda: {name: method.settings for name, method in METHODS.items()}
        ),
    )
    """Encoder, training, inference and what else the method has; its default recipe if not given."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            raise UsageError(
                f"validation_share: found {self.validation_share}, expected a number between 0 and 1"
            )
        if not 0 <= self.hidden_share < 1:
            raise UsageError(
                f"hidden_share: found {self.hidden_share}, expected a number in [0, 1), 0 for none"
            )
        if any(depth < 0 for depth in self.depths) or len(set(self.depths)) < len(self.depths):
            raise UsageError(
                f"depths: found {list(self.depths)}, expected different numbers of blocks, such as 1 and 5"
            )
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise UsageError(f"max_minutes: found {self.max_minutes}, expected a number above 0")
        if not 8 <= self.pixel_size <= MAX_SIZE:
            raise UsageError(f"pixel_size: found {self.pixel_size}, expected 8 to {MAX_SIZE:,}")
        check_seed(self.seed)
        get_method(self.method)
        if self.method_settings is None:
            object.__setattr__(self, "method_settings", load_recipe(self.recipe, self.method))

    @cached_property
    def of_method(self) -> Any:
        """The settings of the method, a `MethodSettings`, with this seed, must-links and linkages as asked for here."""
        chosen = self.method_settings.with_seed(self.seed)
        inference = replace(
            chosen.inference,
            must_link=self.must_link,
            try_average=self.try_average,
            split_mixtures=self.split_mixtures,
        )
        return replace(chosen, inference=inference)

    def at_depth(self, n_tail_blocks: int | None) -> "DiscoverySettings":
        """The same with so many of the encoder's last blocks trained."""
        return replace(
            self, method_settings=replace(self.method_settings, n_tail_blocks=n_tail_blocks)
        )

    def with_epochs(self, epochs: int) -> "DiscoverySettings":
        """The same with so many epochs of training."""
        training = replace(self.method_settings.training, epochs=epochs)
        return replace(self, method_settings=replace(self.method_settings, training=training))

    @property
    def shift(self) -> ShiftSettings:
        """The mean shift; its neighbors also say how sure an assignment is."""
        shift: ShiftSettings = self.of_method.inference.shift
        return shift

    @property
    def is_trained(self) -> bool:
        """Whether anything may be trained."""
        return self.train is not False and get_method(self.method).trains


def shorter_on_cpu(given: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe to add to the arguments of `choose_settings` on a CPU; none where these say how to train."""
    usual = {"encoder": DEFAULT_ENCODER, "protocol": "shoal"}
    is_usual = all(given.get(name) in (None, value) for name, value in usual.items())
    is_free = all(given.get(name) is None for name in ("recipe", "config", "epochs"))
    is_changed = any(name.startswith("training.") for name in given.get("changes") or {})
    has_short = SHORT_RECIPE in recipe_names(given.get("method") or DEFAULT_METHOD)
    return {"recipe": SHORT_RECIPE} if is_usual and is_free and not is_changed and has_short else {}


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
    """Settings from a recipe by name, or from a YAML file such as another run's config.yaml, then single values.

    A method that is not the config's takes only the encoder, its input size and the range of K from it. `given` are
    fields of `DiscoverySettings`; None leaves a value as it is. `n_clusters`, also in a file and in `changes`, may be a
    range, (30, 50) or '30-50', that the estimate keeps to: it becomes `min_clusters` and `max_clusters` of the method's
    `inference`. `protocol` is a name in `PROTOCOLS`; the paper and the released code hide no category from training, so
    that their protocols do not either. `answer` is 'better', which hides some to compare, or 'trained', which hides
    none and lets the trained answer stand. `changes` are any settings by dotted name, as in {"training.lr": 0.1}; they
    come last.
    """
    if recipe is not None and config is not None:
        raise UsageError(
            "recipe and config: found both, expected one; a config already holds what a recipe sets"
        )
    base = (
        _from_plain(read_yaml(config), where=str(config))
        if config is not None
        else DiscoverySettings()
    )
    chosen = base.method if method is None else method
    settings = base.method_settings
    if recipe is not None or chosen != base.method:
        before = settings
        recipe = recipe or "default"
        base = replace(base, recipe=recipe)
        settings = load_recipe(recipe, chosen)
        if config is not None:  # of its own method's settings another method takes these
            settings = _change(
                settings, chosen, encoder=before.encoder, input_size=before.input_size
            )
            settings = _in_range(
                settings, (before.inference.min_clusters, before.inference.max_clusters)
            )
    settings = _change(settings, chosen, encoder=encoder, epochs=epochs, input_size=input_size)
    if protocol is not None:
        settings = follow_protocol(settings, protocol, chosen)
        if protocol != "shoal":
            base = replace(
                base, hidden_share=0.0, must_link=False, try_average=False, split_mixtures=False
            )
    if answer is not None:
        base = replace(base, hidden_share=_share_to_hide(answer, base.hidden_share))
    _check_names(given)
    number, numbers = read_n_clusters(given.get("n_clusters"))
    if numbers is not None:
        base = replace(base, n_clusters=None)
        settings = _in_range(settings, numbers)
    values = {
        name: value for name, value in {**given, "n_clusters": number}.items() if value is not None
    }
    try:
        result = replace(base, method=chosen, method_settings=settings, **values)
    except TypeError:
        from_dict(
            DiscoverySettings, values, where="settings"
        )  # names the one that is of another type
        raise
    result = _with_changes(result, changes or {})
    _check_training(
        result, {"epochs": epochs, "answer": answer, "train": values.get("train")}, config
    )
    return result


def _check_names(given: Mapping[str, Any]) -> None:
    names = {one.name for one in fields(DiscoverySettings)} - {"method_settings"}
    for name in given:
        if name not in names:
            raise UsageError(f"unknown setting {name!r}{did_you_mean(name, names | OWN_SETTINGS)}")


def _with_changes(settings: DiscoverySettings, changes: Mapping[str, Any]) -> DiscoverySettings:
    """The same with other values by dotted name: fields of `DiscoverySettings`, or settings of its method."""
    own = {one.name for one in fields(DiscoverySettings)} - {"recipe", "method", "method_settings"}
    of_method = {name: value for name, value in changes.items() if name not in own}
    for name in of_method:
        if not has_setting(settings.method, name):
            raise UsageError(refuse_change(name, settings.method, "--set", beside=own))
    changed = change_settings(settings.method_settings, settings.method, of_method, where="--set")
    plain = {**to_dict(settings), **{name: value for name, value in changes.items() if name in own}}
    return _from_plain({**plain, settings.method: to_dict(changed)}, where="--set")


def _from_plain(plain: Any, *, where: str) -> DiscoverySettings:
    """Settings from a mapping in which `n_clusters` may be a range, too: '30-50' or [30, 50]."""
    given = plain.get("n_clusters") if isinstance(plain, Mapping) else None
    if not isinstance(given, str | list | tuple):
        return from_dict(DiscoverySettings, plain, where=where)
    try:
        number, numbers = read_n_clusters(given)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    settings = from_dict(DiscoverySettings, {**plain, "n_clusters": number}, where=where)
    if numbers is None:
        return settings
    return replace(settings, method_settings=_in_range(settings.method_settings, numbers))


def _in_range(settings: Any, ends: tuple[int | None, int | None]) -> Any:
    """The settings of a method, with an estimate that keeps to a range."""
    return replace(
        settings, inference=replace(settings.inference, min_clusters=ends[0], max_clusters=ends[1])
    )


def _check_training(
    result: DiscoverySettings, given: dict[str, Any], config: Path | str | None
) -> None:
    """Refuse what was said about training where nothing is to be trained."""
    said_of_training = {name: value for name, value in given.items() if value not in (None, False)}
    said = [
        f"{name}: asked for" if value is True else f"{name}: found {value!r}"
        for name, value in said_of_training.items()
    ]
    if result.is_trained or not said:
        return
    if not get_method(result.method).trains:
        raise UsageError(f"{said[0]}, but the method {result.method} trains nothing; leave it out")
    how = (
        "leave out that or --no-train"
        if given["train"] is False
        else f"give --train, which {config} turns off"
    )
    raise UsageError(f"{said[0]}, but nothing is to be trained; {how}")


def _share_to_hide(answer: str, share: float) -> float:
    """The share of categories to hide for an answer: none, or what was chosen, the default where that was none."""
    if answer not in ("better", "trained"):
        raise UsageError(
            f"answer: found {answer!r}, expected better or trained; --no-train is the one without training"
        )
    return 0.0 if answer == "trained" else share or DiscoverySettings().hidden_share


def _change(
    settings: Any,
    method: str,
    *,
    encoder: str | None = None,
    epochs: int | None = None,
    input_size: int | None = None,
) -> Any:
    """Single values of a method's settings."""
    if encoder is not None:
        settings = with_encoder(settings, encoder)
    # The latter is no setting of a method without training.
    given = {"input_size": input_size, "training.epochs": epochs}
    return change_settings(
        settings, method, {name: value for name, value in given.items() if value is not None}
    )
