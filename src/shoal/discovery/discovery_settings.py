"""Settings of `shoal discover` and `shoal compare`: how flags, files and recipes are combined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, TypedDict

from shoal.arrays import as_count, as_number
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.n_clusters import read_n_clusters
from shoal.device import AnyDevice, check_seed
from shoal.discovery.reporter import Reporter
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.encoders.vision import MAX_SIZE
from shoal.errors import UsageError, did_you_mean
from shoal.files import AnyPath
from shoal.methods.method import MethodSettings, TrainedSettings
from shoal.methods.registry import (
    DEFAULT_METHOD,
    METHODS,
    change_settings,
    describe_unknown_setting,
    follow_protocol,
    get_method,
    has_setting,
    load_recipe,
    plain_name,
    recipe_names,
    with_encoder,
)
from shoal.runs import RESULTS
from shoal.settings import (
    BelowOne,
    Plain,
    Range,
    from_dict,
    read_yaml,
    to_dict,
)

ShareBetween = Annotated[float, Range("a number between 0 and 1", lambda value: 0 < value < 1)]
PixelSize = Annotated[int, Range(f"8 to {MAX_SIZE:,}", lambda value: 8 <= value <= MAX_SIZE)]
Minutes = Annotated[
    float | None, Range("a number above 0", lambda value: value is None or value > 0)
]

# The recipes of the default method for a device
CPU_RECIPE = "cpu"
GPU_RECIPE = "gpu"

# The name of the row without training
FROZEN = RESULTS[0]

DEFAULT_METHODS = ("cms", "simgcd", "gcd")

# Fields of `DiscoverySettings` that cannot be set in a comparison
EXCLUDED = {"recipe", "method", "method_settings", "train", "max_minutes"}

# Settings that must be the same for all methods, which share images, frozen embeddings and K
SHARED_SETTINGS = ("encoder", "input_size")


@dataclass(frozen=True, kw_only=True)
class DiscoverySettings:
    """The settings of `shoal discover`, as a run's config.yaml holds them."""

    n_clusters: int | None = None
    """The number of categories; None: estimated from the labels."""
    train: bool | None = None
    """Whether to train. None: only if held-out labels could show that it helps. False: the frozen
    embeddings are clustered."""
    validation_share: ShareBetween = 0.2
    """Share of the labeled and of the unlabeled images in the validation set, which chooses the
    snapshot, and K by the CMS paper's rule."""
    hidden_share: BelowOne = 0.2
    """Share of the known categories whose labels are all held out, to evaluate training on novel
    categories; the trained result is used only if it is significantly better. 0: none, and the
    trained result is used."""
    max_minutes: Minutes = None
    """Minutes that the job may take: training is stopped in time, as by Ctrl-C, with the best
    result so far; None: no limit."""
    must_link: bool = True
    """Whether the labeled images of a category start as one cluster, and no cluster may hold two
    known categories; for the frozen result also whether variance within the known categories is
    reduced; not in the CMS paper."""
    try_average: bool = True
    """Whether average linkage is used if it is more accurate on the labels than Ward's; not in the
    CMS paper."""
    split_mixtures: bool = True
    """Whether a known category that likely contains a novel one is split when K is estimated; not
    in the CMS paper."""
    pixel_size: PixelSize = 256
    """Side of the decoded images in the cache."""
    seed: int = 0
    """The seed of every random choice."""
    recipe: str = "default"
    """The name of the recipe, or the path of the file, that the method's settings come from."""
    method: str = DEFAULT_METHOD
    """The name of a method; config.yaml holds its settings under that name."""
    method_settings: MethodSettings = field(
        default=None,  # type: ignore[assignment]  # __post_init__ loads the recipe
        metadata={
            "named_by": "method",
            "classes": {name: each.settings for name, each in METHODS.items()},
        },
    )
    """Encoder, training, inference and the method's own settings; those of the recipe if not given.
    The seed, must-links and linkages in it are always those of the fields above."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        get_method(self.method)
        chosen = self.method_settings or load_recipe(self.recipe, self.method)
        if isinstance(chosen, TrainedSettings):
            chosen = replace(chosen, training=replace(chosen.training, seed=self.seed))
        inference = replace(
            chosen.inference,
            must_link=self.must_link,
            try_average=self.try_average,
            split_mixtures=self.split_mixtures,
        )
        object.__setattr__(self, "method_settings", replace(chosen, inference=inference))

    @property
    def trained(self) -> TrainedSettings:
        assert isinstance(self.method_settings, TrainedSettings)
        return self.method_settings

    @property
    def n_tail_blocks(self) -> int | None:
        """The number of trained blocks; None: as the encoder's catalog entry says."""
        return self.trained.n_tail_blocks if get_method(self.method).trains else None

    @property
    def shift(self) -> ShiftSettings:
        """The mean shift, whose neighbors also give the confidence of an assignment."""
        return self.method_settings.inference.shift

    @property
    def is_trained(self) -> bool:
        return self.train is not False and get_method(self.method).trains


# The fields of `DiscoverySettings` itself
FIELDS = frozenset(each.name for each in fields(DiscoverySettings)) - {"method_settings"}


class SharedArguments(TypedDict, total=False):
    """The settings among the arguments of `compare`; None leaves a setting unchanged."""

    n_clusters: int | str | Sequence[int] | None
    encoder: str | None
    epochs: int | None
    seed: int | None
    input_size: int | None
    config: AnyPath | None
    changes: Mapping[str, Any] | None
    validation_share: float | None
    hidden_share: float | None
    must_link: bool | None
    try_average: bool | None
    split_mixtures: bool | None
    pixel_size: int | None


class SettingArguments(SharedArguments, total=False):
    """The settings among the arguments of `discover`."""

    method: str | None
    train: bool | None
    max_minutes: float | None
    recipe: str | None
    protocol: str | None


class DiscoverArguments(SettingArguments, total=False):
    """The arguments of `discover` that `refine` passes on, and their types."""

    labeled: AnyPath | None
    unlabeled: AnyPath | None
    path_column: str | None
    label_column: str | None
    allow_missing: bool
    boxes: Any
    min_confidence: float | None
    margin: float
    whole_images: bool
    out: AnyPath | None
    device: AnyDevice
    resume: bool
    force: bool
    verbose: bool
    reporter: Reporter | None


def with_device_recipe(arguments: Mapping[str, Any], recipe: str) -> Plain:
    """Return the arguments of `choose_settings` with a recipe for a device, unless they choose the
    method's settings otherwise.

    The schedule of the CPU's recipe is not combined with other training settings.
    """
    default = {"encoder": DEFAULT_ENCODER, "protocol": "shoal", "recipe": None, "config": None}
    is_default = all(arguments.get(name) in (None, value) for name, value in default.items())
    changes = arguments.get("changes") or {}
    sets_training = any(name.startswith("training.") for name in changes)
    if recipe == CPU_RECIPE and (sets_training or arguments.get("epochs") is not None):
        return dict(arguments)
    if is_default and recipe in recipe_names(arguments.get("method") or DEFAULT_METHOD):
        return {**arguments, "recipe": recipe}
    return dict(arguments)


def choose_settings(
    *,
    recipe: str | None = None,
    config: AnyPath | None = None,
    method: str | None = None,
    encoder: str | None = None,
    epochs: int | None = None,
    input_size: int | None = None,
    protocol: str | None = None,
    changes: Mapping[str, Any] | None = None,
    **values: Any,
) -> DiscoverySettings:
    """Combine a recipe or a config file with single settings.

    Parameters
    ----------
    recipe
        The name of a recipe.
    config
        A YAML file such as the config.yaml of a run. If it is for a method other than `method`,
        only the encoder, the input size and the range of K are taken from its method settings.
    method, encoder, epochs, input_size
        Single settings of the method.
    protocol
        A name in `PROTOCOLS`. Those of the CMS paper and the released code hold out no categories.
    changes
        Any settings by dotted name, as in {"training.lr": 0.1}; applied last.
    **values
        Fields of `DiscoverySettings`; None leaves a value unchanged. `n_clusters`, in a file and in
        `changes` too, may be a range, (30, 50) or '30-50', which limits the estimate.
    """
    if recipe is not None and config is not None:
        raise UsageError(
            "recipe and config: found both, expected one; a config already holds what a recipe sets"
        )
    accepted = ("images", "labels", "review", *DiscoverArguments.__annotations__)
    for name in values.keys() - FIELDS:
        raise UsageError(
            f"unknown argument {name!r}{did_you_mean(name, accepted)}; "
            "any other setting is given as changes={'training.lr': 0.1}"
        )
    kept: Plain = {}
    if config is None:
        settings = DiscoverySettings()
    else:
        settings = _from_plain(read_yaml(config), where=str(config))
    if recipe is not None or method not in (None, settings.method):
        before = settings.method_settings
        settings = DiscoverySettings(
            **{name: getattr(settings, name) for name in FIELDS - {"recipe", "method"}},
            recipe=recipe or "default",
            method=method or settings.method,
        )
        if config is not None:
            encoder = encoder or before.encoder
            kept = {
                "input_size": before.input_size,
                "inference.min_clusters": before.inference.min_clusters,
                "inference.max_clusters": before.inference.max_clusters,
            }
    chosen = settings.method_settings
    if encoder is not None:
        chosen = with_encoder(chosen, encoder)
    if protocol is not None:
        chosen = follow_protocol(chosen, protocol, settings.method)
    settings = replace(settings, method_settings=chosen)
    if protocol not in (None, "shoal"):
        settings = replace(
            settings, hidden_share=0.0, must_link=False, try_average=False, split_mixtures=False
        )
    arguments = kept | values | {"input_size": input_size or kept.get("input_size")}
    if get_method(settings.method).trains:
        arguments["training.epochs"] = epochs
    arguments = {name: value for name, value in arguments.items() if value is not None}
    settings = _with_changes(settings, arguments | dict(changes or {}))
    _check_training(settings, epochs=epochs, train=values.get("train"))
    return settings


def _with_changes(settings: DiscoverySettings, changes: Mapping[str, Any]) -> DiscoverySettings:
    """Return the settings with changed values, by dotted names of their fields or the method's."""
    changeable = FIELDS - {"recipe", "method"}
    job_changes = {name: value for name, value in changes.items() if name in changeable}
    method_changes = {name: value for name, value in changes.items() if name not in changeable}
    for name in method_changes:
        if not has_setting(settings.method, name):
            reason = describe_unknown_setting(name, settings.method, "--set", further=changeable)
            raise UsageError(reason)
    chosen = change_settings(
        settings.method_settings, settings.method, method_changes, where="--set"
    )
    settings = replace(settings, method_settings=chosen)
    if not job_changes:
        return settings
    return _from_plain({**to_dict(settings), **job_changes}, where="settings")


def _from_plain(plain: Any, *, where: str) -> DiscoverySettings:
    """Return settings from a mapping in which `n_clusters` may be a range, '30-50' or [30, 50]."""
    n_clusters = plain.get("n_clusters") if isinstance(plain, Mapping) else None
    if not isinstance(n_clusters, str | list | tuple):
        return from_dict(DiscoverySettings, plain, where=where)
    try:
        number, ends = read_n_clusters(n_clusters)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    settings = from_dict(DiscoverySettings, {**plain, "n_clusters": number}, where=where)
    if ends is None:
        return settings
    chosen = settings.method_settings
    inference = replace(chosen.inference, min_clusters=ends[0], max_clusters=ends[1])
    return replace(settings, method_settings=replace(chosen, inference=inference))


def _check_training(settings: DiscoverySettings, **arguments: Any) -> None:
    """Raise for arguments about training if nothing is trained."""
    found = [f"{name}: found {value!r}" for name, value in arguments.items() if value]
    if settings.is_trained or not found:
        return
    if not get_method(settings.method).trains:
        raise UsageError(
            f"{found[0]}, but the method {settings.method} does not train; leave it out"
        )
    raise UsageError(f"{found[0]}, but training is disabled; leave it out, or give --train")


# Fields of `DiscoverySettings` that are set for all methods together
COMMON_FIELDS = {field.name for field in fields(DiscoverySettings)} - EXCLUDED


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """The settings of a comparison, as in its config.yaml."""

    methods: tuple[DiscoverySettings, ...]
    """Settings as for `shoal discover`; the first are those of the frozen encoder."""
    repeats: int = 1
    """Number of repetitions, each with other held-out labels and new training runs."""
    max_minutes: float | None = None
    """Stop training after this many minutes; the finished methods are compared."""

    def __post_init__(self) -> None:
        as_count(self.repeats, name="repeats", least=1)
        if self.max_minutes is not None and not as_number(self.max_minutes, name="max_minutes") > 0:
            raise UsageError(f"max_minutes: found {self.max_minutes}, expected a number above 0")

    @property
    def frozen(self) -> DiscoverySettings:
        """The settings of the frozen encoder, with those that all methods share."""
        return self.methods[0]


def name_of(settings: DiscoverySettings) -> str:
    return settings.method if settings.train else FROZEN


def title_of(name: str) -> str:
    return "frozen encoder" if name == FROZEN else get_method(name).title


def choose_comparison(
    methods: str | Sequence[str] | None = None,
    *,
    repeats: int = 1,
    max_minutes: float | None = None,
    epochs: int | None = None,
    changes: Mapping[str, Any] | None = None,
    **shared: Any,
) -> ComparisonSettings:
    """Return the settings of each method by name, and of the frozen encoder.

    `shared` are arguments of `choose_settings`, for all of them. `changes` are settings by dotted
    name: for every method that has the setting or, with a method's name in front, for that method.
    """
    names = read_methods(methods)
    changes = dict(changes or {})
    for change in changes:
        if not any(is_for(name, change) for name in names):
            raise UsageError(
                describe_unknown_setting(change, names[0], "--set", further=COMMON_FIELDS)
            )
        if change != plain_name(change) and plain_name(change) in SHARED_SETTINGS:
            raise UsageError(f"--set {change}: must be the same for all methods; set it for all")
    for name in (*sorted(EXCLUDED), "protocol"):
        if shared.pop(name, None) is not None:
            raise UsageError(f"{name}: a comparison takes the default recipe of each method")
    chosen = [_choose(name, epochs, changes, shared) for name in names]
    # Changes of the default method alone are not for the frozen encoder.
    common = {
        name: value for name, value in changes.items() if not name.startswith(f"{DEFAULT_METHOD}.")
    }
    frozen = replace(_choose(DEFAULT_METHOD, None, common, shared), train=False)
    return ComparisonSettings(methods=(frozen, *chosen), repeats=repeats, max_minutes=max_minutes)


def read_methods(methods: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return names of methods from 'cms,gcd' or a list: two or more, each once."""
    if methods is None:
        return DEFAULT_METHODS
    if isinstance(methods, str):
        methods = methods.replace(",", " ").split()
    for name in methods:
        get_method(name)
    if len(methods) < 2 or len(set(methods)) < len(methods):
        raise UsageError(
            f"methods: found {', '.join(methods) or 'none'}, expected two or more different ones, "
            "as in cms,gcd; `shoal discover --method NAME` compares one with the frozen encoder"
        )
    return tuple(methods)


def _choose(method: str, epochs: int | None, changes: Plain, shared: Plain) -> DiscoverySettings:
    if not get_method(method).trains:
        epochs = None
    changes = {name: value for name, value in changes.items() if is_for(method, name)}
    settings = choose_settings(method=method, epochs=epochs, changes=changes, **shared)
    return replace(settings, train=True, max_minutes=None)


def is_for(method: str, change: str) -> bool:
    return change in COMMON_FIELDS or has_setting(method, change)
