"""Protocols: whose choices a method follows where this package, the paper and the released code differ.

What of the released code reads hidden labels is not here: `shoal.reproduce` alone can do that, and says so.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.errors import UnknownName
from shoal.methods.registry import get_method

PROTOCOLS: dict[str, dict[str, Any]] = {
    "shoal": {"inference": {"rule": DEFAULT_RULE, "estimate_shifts": 1}},
    "paper": {
        "inference": {"rule": "paper", "estimate_shifts": 0},
        "training": {"max_gradient": None, "views": {"pool": None}},
    },
    "reference": {
        "inference": {"rule": "paper", "estimate_shifts": 0},
        "training": {"max_gradient": None, "views": {"pool": None, "jitter": 0.0, "hue": 0.0}},
    },
}
"""Settings by name, block by block, of every method that has them: this package's estimate of K; the paper's, new views
in every step, and gradients of any length; the released code's views, whose colors are left alone. Losses, heads and
banks are a method's own: its `protocols` say what follows for them."""


def get_protocol(name: str) -> dict[str, Any]:
    """Look a protocol up by its name: the settings it decides, block by block."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def follow_protocol(settings: Any, protocol: str, method: str) -> Any:
    """The settings of a method with what a protocol decides of all methods, and then of this one."""
    shared = {
        name: block for name, block in get_protocol(protocol).items() if hasattr(settings, name)
    }
    return _changed(_changed(settings, shared), get_method(method).protocols.get(protocol, {}))


def _changed(settings: Any, values: Mapping[str, Any]) -> Any:
    new = {
        name: _changed(getattr(settings, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return replace(settings, **new)
