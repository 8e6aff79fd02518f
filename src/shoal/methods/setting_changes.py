"""Changes of settings by dotted name, 'training.epochs' or 'cms.training.epochs': read, checked and applied.

One without a method's name in front is for every method that has the setting, and passed over by the others; with the
name, it is for that method alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import yaml

from shoal.errors import UsageError, did_you_mean
from shoal.methods.registry import METHODS, get_method
from shoal.settings import from_dict, to_dict


def read_pairs(texts: Iterable[str], flag: str, form: str) -> dict[str, str]:
    """Read 'NAME=VALUE', as a flag that may be given several times takes them. A name may come once."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{flag}: found {text!r}, expected {form}")
        if name in pairs:
            raise UsageError(f"{flag} {name}: found more than once, expected once")
        pairs[name] = value
    return pairs


def read_changes(texts: Iterable[str]) -> dict[str, Any]:
    """Read what --set takes; the values are YAML."""
    return {
        name: _value(name, text) for name, text in read_pairs(texts, "--set", "NAME=VALUE").items()
    }


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(
            f"--set {name}: found {text!r}, expected a number, text or list as in YAML"
        ) from error


def plain_name(name: str) -> str:
    """A dotted name without the method in front."""
    return name if _named_method(name) is None else name.partition(".")[2]


def has_setting(method: str, name: str) -> bool:
    """Whether a change is one of this method's settings."""
    if _named_method(name) not in (None, method):
        return False
    *groups, last = plain_name(name).split(".")
    return last in (_group(to_dict(get_method(method).settings()), groups) or {})


def change_settings(
    settings: Any, method: str, changes: Mapping[str, Any], *, where: str = "settings"
) -> Any:
    """The settings of a method with other values, by dotted name.

    What only other methods have is passed over, one that trains nothing has no `training`; what no method has, and what
    the method named in front has not, is refused.
    """
    plain = to_dict(settings)
    for name, value in changes.items():
        if has_setting(method, name):
            *groups, last = plain_name(name).split(".")
            group = _group(plain, groups)
            assert group is not None
            if isinstance(group[last], dict):
                raise UsageError(
                    f"{where}: {name}: found {value!r} for a group of settings, expected one of them by name, as in "
                    f"{name}.{next(iter(group[last]))}"
                )
            group[last] = value
        elif name.startswith(f"{method}.") or not any(
            has_setting(other, name) for other in METHODS
        ):
            raise UsageError(refuse_change(name, method, where))
    return from_dict(get_method(method).settings, plain, where=where)


def refuse_change(name: str, method: str, where: str, *, beside: Collection[str] = ()) -> str:
    """Why a change is refused: the whole name of a setting whose last part was meant, where there is one.

    Else the names beside it where the group of settings exists, else how they are named. With a method in front it is
    that method's settings that are meant, whichever is run.

    `beside` are names outside of any group that stand beside those of the method, which then is the only one.
    """
    named = _named_method(name)
    if named is not None and has_setting(named, name):
        return f"{where}: {name}: found a setting of {named}, which is not run here; leave it out, or run that method"
    *groups, last = plain_name(name).split(".")
    asked = list(METHODS)
    before = ""
    if named is not None:
        asked = [named]
        before = f"{named}."
        beside = ()
    elif beside:
        asked = [method]
    plain = [to_dict(get_method(other).settings()) for other in asked]
    whole = {*beside, *(f"{before}{one}" for settings in plain for one in _whole_names(settings))}
    if meant := _meant(last, whole, bool(groups)):
        return f"{where}: unknown setting {name!r}; did you mean {' or '.join(map(repr, meant))}?"
    known = {key for settings in plain for key in _group(settings, groups) or {}}
    if known:
        known |= set() if groups else set(beside)
        group_names = "".join(f"{group}: " for group in ([named] if named else []) + groups)
        return f"{where}: {group_names}unknown setting {last!r}{did_you_mean(last, known)}"
    if named is not None:
        return f"{where}: no such setting {name!r}; {named} has: {', '.join(sorted(plain[0]))}"
    return f"{where}: no such setting {name!r}; name it as the recipes do, as in training.epochs"


def _named_method(name: str) -> str | None:
    """The method in front of a dotted name."""
    first, dot, _ = name.partition(".")
    return first if dot and first in METHODS else None


def _meant(last: str, names: Collection[str], is_exact: bool) -> list[str]:
    """Dotted names with this last part or, unless it must be exact, with one that is spelled nearly so."""
    parts = {name.rpartition(".")[2] for name in names}
    near = [last] if is_exact else get_close_matches(last, parts, n=1, cutoff=0.8)
    return sorted(name for name in names if name.rpartition(".")[2] in near)[:3]


def _whole_names(plain: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The dotted names of all settings."""
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from _whole_names(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def _group(plain: Any, groups: list[str]) -> dict[str, Any] | None:
    """The dictionary at a path of groups; None where there is none."""
    for group in groups:
        plain = plain.get(group)
        if not isinstance(plain, dict):
            return None
    values: dict[str, Any] = plain
    return values
