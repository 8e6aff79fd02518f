"""The methods by name."""

from dataclasses import dataclass
from typing import Any

from shoal.errors import UnknownName
from shoal.methods.cms import CmsSettings, cms
from shoal.methods.method import Method


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodInfo:
    """A method, its settings and what it is."""

    run: Method
    settings: type[Any]
    about: str


METHODS: dict[str, MethodInfo] = {
    "cms": MethodInfo(run=cms, settings=CmsSettings, about="contrastive mean-shift learning (CVPR 2024)"),
}

DEFAULT_METHOD = "cms"


def get_method(name: str) -> MethodInfo:
    """Look a method up by its name."""
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]
