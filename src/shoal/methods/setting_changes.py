"""Changes of settings by dotted name, 'training.epochs' or 'cms.training.epochs': read, checked and
applied.

One without a method's name in front is for every method that has the setting, and passed over by
the others; with the name, it is for that method alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache

import yaml

from shoal.errors import UsageError
from shoal.methods.method import S
from shoal.methods.registry import METHODS, get_method
from shoal.settings import from_dict, to_dict


def read_pairs(texts: Iterable[str], flag: str, form: str) -> dict[str, str]:
    """Read 'NAME=VALUE', as a flag that may be given several times takes them. A name may come
    once."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{flag}: found {text!r}, expected {form}")
        if name in pairs:
            raise UsageError(f"{flag} {name}: found more than once, expected once")
        pairs[name] = value
    return pairs


def read_changes(texts: Iterable[str]) -> dict[str, object]:
    """Read what --set takes; the values are YAML."""
    changes: dict[str, object] = {}
    for name, text in read_pairs(texts, "--set", "NAME=VALUE").items():
        try:
            changes[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(
                f"--set {name}: found {text!r}, expected a number, text or list as in YAML"
            ) from error
    return changes


def plain_name(name: str) -> str:
    """A dotted name without the method in front."""
    return name if _named_method(name) is None else name.partition(".")[2]


def has_setting(method: str, name: str) -> bool:
    """Whether a change is one of this method's settings, or of a group of them."""
    return _named_method(name) in (None, method) and plain_name(name) in _names(method)


def change_settings(
    settings: S, method: str, changes: Mapping[str, object], *, where: str = "settings"
) -> S:
    """The settings of a method with other values, by dotted name.

    What only other methods have is passed over, one that trains nothing has no `training`; what no
    method has, and what the method named in front has not, is refused.
    """
    plain = to_dict(settings)
    for name, value in changes.items():
        if has_setting(method, name):
            *groups, last = plain_name(name).split(".")
            group = plain
            for one in groups:
                group = group[one]
            if isinstance(group[last], dict):
                raise UsageError(
                    f"{where}: {name}: found {value!r} for a group of settings, expected one of "
                    f"them by name, as in {name}.{next(iter(group[last]))}"
                )
            group[last] = value
        elif name.startswith(f"{method}.") or not any(
            has_setting(other, name) for other in METHODS
        ):
            raise UsageError(refuse_change(name, method, where))
    return from_dict(type(settings), plain, where=where)


def refuse_change(name: str, method: str, where: str, *, beside: Collection[str] = ()) -> str:
    """Why a change is refused, and which settings may have been meant.

    `beside` are names outside of any group that stand beside those of the method, which then is the
    only one.
    """
    named = _named_method(name)
    if named is not None and has_setting(named, name):
        return (
            f"{where}: {name}: found a setting of {named}, which is not run here; leave it out, "
            "or run that method"
        )
    if named is not None:
        known = {f"{named}.{one}" for one in _names(named)}
    elif beside:
        known = {*beside, *_names(method)}
    else:
        known = {one for other in METHODS for one in _names(other)}
    last_parts = {one.rpartition(".")[2] for one in known}
    near = get_close_matches(name.rpartition(".")[2], last_parts, n=1, cutoff=0.8)
    meant = sorted(one for one in known if one.rpartition(".")[2] in near)[:3]
    hint = "name it as the recipes do, as in training.epochs"
    if meant:
        hint = f"did you mean {' or '.join(map(repr, meant))}?"
    return f"{where}: unknown setting {name!r}; {hint}"


def _named_method(name: str) -> str | None:
    """The method in front of a dotted name."""
    first, dot, _ = name.partition(".")
    return first if dot and first in METHODS else None


@cache
def _names(method: str) -> frozenset[str]:
    """The dotted names of all settings of a method, and of all groups."""
    return frozenset(_dotted(to_dict(get_method(method).settings())))


def _dotted(plain: Mapping[str, object], before: str = "") -> Iterator[str]:
    for name, value in plain.items():
        yield f"{before}{name}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{before}{name}.")
