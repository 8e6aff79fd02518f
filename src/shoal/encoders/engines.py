"""Choose the engine that runs a frozen trunk on a CPU: torch or OpenVINO.

A run uses the same engine from start to end.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from shoal.errors import MissingError, UnknownName

TORCH = "torch"

PRECISIONS = {"openvino": "f32", "openvino-f16": "f16"}
"""OpenVINO's engines and the precision of their matrix products."""

ENGINES = (TORCH, *PRECISIONS)

MEASURED = ("x86_64", "AMD64", "aarch64")
"""Types of processors on which OpenVINO is faster and its results equal torch's within noise
(benchmarks/results), with float16 only on the last one."""

ABSENT = "OpenVINO is not installed or cannot be loaded; pip install openvino"

_wanted: ContextVar[str | None] = ContextVar("engine", default=None)


@contextmanager
def use_engine(name: str | None) -> Iterator[None]:
    """Use an engine for the encoders that are loaded in this block; None chooses one."""
    token = _wanted.set(name)
    try:
        yield
    finally:
        _wanted.reset(token)


def wanted_engine() -> str | None:
    """Return the engine of `use_engine`, or of $SHOAL_ENGINE, or nothing if neither is set."""
    engine = _wanted.get() or os.environ.get("SHOAL_ENGINE")
    if engine:
        check_engine(engine)
    return engine


def choose_engine() -> tuple[str, str]:
    """Return the engine for trunks on this machine's CPU, and the reason for the choice."""
    wanted = wanted_engine()
    if wanted:
        return wanted, "set by the user"
    if not has_openvino():
        return TORCH, ABSENT
    machine = platform.machine()
    if machine not in MEASURED:
        return TORCH, f"OpenVINO was not measured on {machine}"
    if machine == "aarch64" and has_float16():
        return "openvino-f16", "OpenVINO is installed, and the processor supports float16"
    return "openvino", "OpenVINO is installed"


def check_engine(name: str) -> None:
    """Refuse an engine that is unknown or that this machine does not have."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    if name == TORCH:
        return
    if not has_openvino():
        raise MissingError(f"engine {name!r}: {ABSENT}")
    if name == "openvino-f16" and not has_float16():
        raise MissingError(
            f"engine {name!r}: this processor does not support float16; use 'openvino' or 'torch'"
        )


@cache
def has_openvino() -> bool:
    """Return whether OpenVINO is installed and can be loaded with its CPU plugin."""
    try:
        has_float16()
    except Exception:  # a broken installation may raise anything
        return False
    return True


def has_float16() -> bool:
    from openvino import Core

    return "FP16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
