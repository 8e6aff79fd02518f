"""Changes of settings by dotted name, such as 'training.epochs' or 'cms.training.epochs'.

A name without a method in front applies to every method that has the setting, and others ignore it;
with a method in front, it applies to that method alone.

A protocol changes the settings for which this package, the CMS paper and the released code differ.
Selection by hidden labels, as in the released code, is not part of it: only `shoal reproduce` can
do that.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import cache

import yaml

from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.errors import UnknownName, UsageError, did_you_mean
from shoal.methods.method import S
from shoal.methods.registry import METHODS, get_method
from shoal.settings import Plain, from_dict, to_dict

PAPER: Plain = {
    "inference.rule": "paper",
    "inference.estimate_shifts": 0,
    "training.max_gradient": None,
    "training.views.pool": None,
}

# Values of settings, by dotted name, for every method that has them. 'shoal' has this package's
# estimate of K; 'paper' the CMS paper's, new views in every step and no gradient clipping;
# 'reference' also the released code's views, which leave colors unchanged. `Method.protocols` adds
# values for losses, heads and banks.
PROTOCOLS: dict[str, Plain] = {
    "shoal": {"inference.rule": DEFAULT_RULE, "inference.estimate_shifts": 1},
    "paper": PAPER,
    "reference": PAPER | {"training.views.jitter": 0.0},
}


def read_pairs(texts: Iterable[str], flag: str, form: str) -> dict[str, str]:
    """Return the values of a repeatable flag that takes 'NAME=VALUE', by name."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise UsageError(f"{flag}: found {text!r}, expected {form}")
        if name in pairs:
            raise UsageError(f"{flag} {name}: found more than once, expected once")
        pairs[name] = value
    return pairs


def read_changes(texts: Iterable[str]) -> Plain:
    """Return the changes that --set gives, with values read as YAML."""
    changes: Plain = {}
    for name, text in read_pairs(texts, "--set", "NAME=VALUE").items():
        try:
            changes[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(
                f"--set {name}: found {text!r}, expected a number, text or list as in YAML"
            ) from error
    return changes


def plain_name(name: str) -> str:
    """Return a dotted name without the method in front."""
    first, _, rest = name.partition(".")
    return rest if rest and first in METHODS else name


def has_setting(method: str, name: str) -> bool:
    return name.removeprefix(f"{method}.") in _setting_names(method)


def change_settings(settings: S, method: str, changes: Plain, *, where: str = "settings") -> S:
    """Return the settings of a method with other values, by dotted name.

    Settings that only other methods have are ignored; names that no method has, and those with this
    method in front that it does not have, are refused.
    """
    plain = to_dict(settings)
    for name, value in changes.items():
        if has_setting(method, name):
            *groups, last = plain_name(name).split(".")
            group = plain
            for part in groups:
                group = group[part]
            group[last] = value
        elif name.startswith(f"{method}.") or not any(
            has_setting(other, name) for other in METHODS
        ):
            raise UsageError(describe_unknown_setting(name, method, where))
    return from_dict(type(settings), plain, where=where)


def describe_unknown_setting(
    name: str, method: str, where: str, *, further: Collection[str] = ()
) -> str:
    """Return a message for a name that is not a setting of a method nor one of `further` names,
    with similar ones."""
    known = {*further, *_setting_names(method)}
    # Groups are often left out: 'epochs' is 'training.epochs'.
    near = {setting for setting in known if setting.endswith(f".{name}")}
    return f"{where}: unknown setting {name!r}{did_you_mean(name, near or known)}"


@cache
def _setting_names(method: str) -> frozenset[str]:
    return frozenset(_dotted(to_dict(get_method(method).settings())))


def _dotted(plain: Plain) -> Iterator[str]:
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in _dotted(value))
        else:
            yield name


def get_protocol(name: str) -> Plain:
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def follow_protocol(settings: S, protocol: str, method: str) -> S:
    """Return the settings of a method with the values of a protocol, and those that the method adds
    to it."""
    added = get_method(method).protocols.get(protocol, {})
    return change_settings(settings, method, {**get_protocol(protocol), **added})
