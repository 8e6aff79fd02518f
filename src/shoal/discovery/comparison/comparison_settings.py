"""Settings of `shoal compare`: the settings of each method, the repeats, and the time limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from shoal.arrays import as_count, as_number
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.errors import UsageError
from shoal.methods.registry import (
    DEFAULT_METHOD,
    describe_unknown_setting,
    get_method,
    has_setting,
    plain_name,
)
from shoal.runs import RESULTS
from shoal.settings import Plain

# The name of the row without training
FROZEN = RESULTS[0]

DEFAULT_METHODS = ("cms", "simgcd", "gcd")

# Fields of `DiscoverySettings` that cannot be set in a comparison
EXCLUDED = {"recipe", "method", "method_settings", "train", "max_minutes"}

# Fields of `DiscoverySettings` that are set for all methods together
COMMON_FIELDS = {field.name for field in fields(DiscoverySettings)} - EXCLUDED

# Settings that must be the same for all methods, which share images, frozen embeddings and K
SHARED_SETTINGS = ("encoder", "input_size")


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """The settings of a comparison, as in its config.yaml."""

    # Settings as for `shoal discover`; the first are those of the frozen encoder
    methods: tuple[DiscoverySettings, ...]
    # Number of repetitions, each with other held-out labels and new training runs
    repeats: int = 1
    # Stop training after this many minutes; the finished methods are compared
    max_minutes: float | None = None

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
