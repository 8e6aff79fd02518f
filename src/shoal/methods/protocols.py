"""Protocols: settings for which this package, the CMS paper and the released code differ.

Selection by hidden labels, as in the released code, is not part of them: only `shoal reproduce` can
do that.
"""

from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.errors import UnknownName
from shoal.methods.method import S
from shoal.methods.registry import get_method
from shoal.methods.setting_changes import change_settings
from shoal.settings import Plain

PAPER: Plain = {
    "inference.rule": "paper",
    "inference.estimate_shifts": 0,
    "training.max_gradient": None,
    "training.views.pool": None,
}

PROTOCOLS: dict[str, Plain] = {
    "shoal": {"inference.rule": DEFAULT_RULE, "inference.estimate_shifts": 1},
    "paper": PAPER,
    "reference": PAPER | {"training.views.jitter": 0.0},
}
"""Values of settings, by dotted name, for every method that has them. 'shoal' has this package's
estimate of K; 'paper' the CMS paper's, new views in every step and no gradient clipping;
'reference' also the released code's views, which leave colors unchanged. `Method.protocols` adds
values for losses, heads and banks."""


def get_protocol(name: str) -> Plain:
    """Return the values of settings of a protocol, by dotted name."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def follow_protocol(settings: S, protocol: str, method: str) -> S:
    """Return the settings of a method with the values of a protocol, and those that the method adds
    to it."""
    added = get_method(method).protocols.get(protocol, {})
    return change_settings(settings, method, {**get_protocol(protocol), **added})
