"""What `shoal compare` can be told: the methods with the settings of each, how often, and for how
long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from shoal.arrays import as_count, as_number
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.errors import UsageError
from shoal.methods.registry import DEFAULT_METHOD, get_method
from shoal.methods.setting_changes import has_setting, refuse_change
from shoal.runs import ANSWERS

FROZEN = ANSWERS[0]
"""The name of the row without training."""

DEFAULT_METHODS = ("cms", "simgcd", "gcd")

NOT_HERE = {
    "recipe",
    "method",
    "method_settings",
    "train",
    "depths",
    "max_minutes",
}
"""Settings of `shoal discover` that mean nothing in a comparison, or something else."""

SAME_FOR_ALL = ("encoder", "input_size")
"""Settings of methods in which they must not differ: then the images, the first answer and K are
the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonSettings:
    """What is compared; a comparison's config.yaml holds all of it."""

    methods: tuple[DiscoverySettings, ...]
    """As `shoal discover` would run each; the first is the encoder as it comes, which trains
    nothing."""
    draws: int = 1
    """How often labels are kept anew, and every method trained; more say more about chance."""
    max_minutes: float | None = None
    """Most minutes that all trainings together may take by what is measured before them: then all
    take fewer epochs."""

    def __post_init__(self) -> None:
        as_count(self.draws, name="draws", least=1)
        if self.max_minutes is not None and not as_number(self.max_minutes, name="max_minutes") > 0:
            raise UsageError(f"max_minutes: found {self.max_minutes}, expected a number above 0")

    @property
    def first(self) -> DiscoverySettings:
        """The settings of the frozen encoder, which decide whatever is the same for all methods."""
        return self.methods[0]

    @property
    def seed(self) -> int:
        """Decides every draw."""
        return self.first.seed


def name_of(settings: DiscoverySettings) -> str:
    """What a row is called: the method, or 'frozen' for the encoder as it comes."""
    return settings.method if settings.train else FROZEN


def title_of(name: str) -> str:
    """What a row is called in a table and in a sentence."""
    return "the encoder as it came" if name == FROZEN else get_method(name).title


def choose_comparison(
    methods: str | Sequence[str] | None = None,
    *,
    draws: int = 1,
    max_minutes: float | None = None,
    epochs: int | None = None,
    changes: Mapping[str, Any] | None = None,
    **given: Any,
) -> ComparisonSettings:
    """The settings of each method by name, and of the encoder as it comes.

    `given` are arguments of `choose_settings`, for all of them. `changes` are settings by dotted
    name: for every method that has the setting or, with a method's name in front, for that one;
    what none of them has is refused.
    """
    names = read_methods(methods)
    changes = dict(changes or {})
    _check_changes(changes, names)
    for taken in (*sorted(NOT_HERE), "answer", "recipe", "protocol"):
        if given.get(taken) is not None:
            raise UsageError(
                f"{taken}: found {given[taken]!r}, but a comparison takes the default recipe of "
                "each method"
            )
    chosen = [_choose(name, epochs, changes, given) for name in names]
    of_default = {
        name: value for name, value in changes.items() if not name.startswith(f"{DEFAULT_METHOD}.")
    }
    frozen = replace(_choose(DEFAULT_METHOD, None, of_default, given), train=False)
    for settings in chosen:
        _check_same(frozen, settings)
    return ComparisonSettings(methods=(frozen, *chosen), draws=draws, max_minutes=max_minutes)


def read_methods(methods: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of methods, from 'cms,gcd' or a list; each one once, and two at least."""
    given = DEFAULT_METHODS if methods is None else methods
    if not isinstance(given, str) and not (
        isinstance(given, Sequence) and all(isinstance(one, str) for one in given)
    ):
        raise UsageError(
            f"methods: found {given!r}, expected names, as in cms,gcd or ['cms', 'gcd']"
        )
    names = tuple(given.replace(",", " ").split()) if isinstance(given, str) else tuple(given)
    for name in names:
        get_method(name)
        if names.count(name) > 1:
            raise UsageError(f"methods: found {name} {names.count(name)} times, expected each once")
    if len(names) < 2:
        only = f"only {names[0]}" if names else "none"
        raise UsageError(
            f"methods: found {only}, expected two or more, as in cms,gcd; `shoal discover --method "
            "NAME` compares one with the encoder as it comes"
        )
    return names


def _choose(
    name: str, epochs: int | None, changes: Mapping[str, Any], given: Mapping[str, Any]
) -> DiscoverySettings:
    own = {change: value for change, value in changes.items() if is_for(name, change)}
    trained: dict[str, Any] = {"epochs": epochs} if get_method(name).trains else {}
    settings = choose_settings(method=name, **trained, changes=own, **given)
    return replace(settings, train=True, depths=(), max_minutes=None)


def is_for(method: str, change: str) -> bool:
    """Whether a method takes a change by its dotted name."""
    return change in _fields() or has_setting(method, change)


def _fields() -> set[str]:
    return {one.name for one in fields(DiscoverySettings)} - NOT_HERE


def _check_changes(changes: Mapping[str, Any], names: Sequence[str]) -> None:
    for change in changes:
        if not any(is_for(name, change) for name in names):
            raise UsageError(refuse_change(change, names[0], "--set", beside=_fields()))


def _check_same(first: DiscoverySettings, other: DiscoverySettings) -> None:
    for name in SAME_FOR_ALL:
        ours = getattr(first.of_method, name)
        theirs = getattr(other.of_method, name)
        if ours != theirs:
            raise UsageError(
                f"{name}: found {theirs} for {other.method} and {ours} for the encoder as it "
                f"comes; give one for all with --{name.replace('_', '-')}"
            )
