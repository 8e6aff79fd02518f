"""Protocols: whose choices a method follows where this package, the paper and the released code differ.

What of the released code reads hidden labels is not here: `shoal.reproduce` alone can do that, and says so.
"""

from dataclasses import replace
from typing import Any

from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.errors import UnknownName

PROTOCOLS: dict[str, dict[str, Any]] = {
    "shoal": {"inference": {"rule": DEFAULT_RULE, "estimate_shifts": 1}},
    "paper": {
        "inference": {"rule": "paper", "estimate_shifts": 0},
        "loss": {"denominator": "paper", "detach_norm": False},
        "head": {"kind": "paper"},
        "training": {"bank": "images", "max_gradient": None, "views": {"pool": None}},
    },
    "reference": {
        "inference": {"rule": "paper", "estimate_shifts": 0},
        "loss": {"denominator": "reference", "detach_norm": True},
        "head": {"kind": "bottleneck"},
        "training": {"bank": "views", "max_gradient": None, "views": {"pool": None, "jitter": 0.0, "hue": 0.0}},
    },
}
"""Settings by name, block by block: this package's estimate of K; the paper's equations, new views in every step, and
gradients of any length; the released code's losses, head, bank of two views per image, and views whose colours are left
alone. A method other than CMS takes the estimate of K, the views and the gradients from it: losses and head are its
own."""

SHARED = ("max_gradient", "views")
"""What every method that trains takes from a protocol's block on training."""


def get_protocol(name: str) -> dict[str, Any]:
    """Look a protocol up by its name: the settings it decides, block by block."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def follow_protocol(settings: Any, protocol: str, method: str) -> Any:
    """The settings of a method with what a protocol decides."""
    blocks = get_protocol(protocol)
    if method != "cms":
        training = {name: value for name, value in blocks.get("training", {}).items() if name in SHARED}
        blocks = {"inference": blocks["inference"]}
        if training and hasattr(settings, "training"):
            blocks["training"] = training
    return _changed(settings, blocks)


def _changed(settings: Any, values: dict[str, Any]) -> Any:
    new = {
        name: _changed(getattr(settings, name), value) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return replace(settings, **new)
