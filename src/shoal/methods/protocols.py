"""Protocols: whose choices a method follows where this package, the paper and the released code
differ.

What of the released code reads hidden labels is not here: `shoal.reproduce` alone can do that, and
says so.
"""

from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.errors import UnknownName
from shoal.methods.method import S
from shoal.methods.registry import get_method
from shoal.methods.setting_changes import change_settings

PAPER: dict[str, object] = {
    "inference.rule": "paper",
    "inference.estimate_shifts": 0,
    "training.max_gradient": None,
    "training.views.pool": None,
}

PROTOCOLS: dict[str, dict[str, object]] = {
    "shoal": {"inference.rule": DEFAULT_RULE, "inference.estimate_shifts": 1},
    "paper": PAPER,
    "reference": PAPER | {"training.views.jitter": 0.0, "training.views.hue": 0.0},
}
"""Settings by name, by their dotted names, of every method that has them: this package's estimate
of K; the paper's, new views in every step, and gradients of any length; the released code's views,
whose colors are left alone. Losses, heads and banks are a method's own: its `protocols` say what
follows for them."""


def get_protocol(name: str) -> dict[str, object]:
    """Look a protocol up by its name: the settings it decides, by dotted name."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def follow_protocol(settings: S, protocol: str, method: str) -> S:
    """The settings of a method with what a protocol decides of all methods, and then of this
    one."""
    own = get_method(method).protocols.get(protocol, {})
    return change_settings(settings, method, {**get_protocol(protocol), **own})
