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

PRECISIONS = {"openvino": "f32", "openvino-f16": "f16", "openvino-bf16": "bf16"}
"""OpenVINO's engines and the precision of their matrix products."""

NATIVE = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}
"""OpenVINO's names of precisions in hardware."""

ENGINES = (TORCH, *PRECISIONS)

FASTEST = {"x86_64": "openvino", "AMD64": "openvino", "aarch64": "openvino-f16"}
"""The fastest engine by type of processor whose results equal torch's within noise
(benchmarks/results). On Flowers-102, bfloat16 lowers accuracy."""

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
    if machine not in FASTEST:
        return TORCH, f"OpenVINO was not measured on {machine}"
    native = native_precisions()
    engine = FASTEST[machine]
    if PRECISIONS[engine] not in native:
        engine = "openvino"
    return engine, f"OpenVINO is installed; the processor supports {', '.join(native)}"


def check_engine(name: str) -> None:
    """Refuse an engine that is unknown or that this machine does not have."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    if name == TORCH:
        return
    if not has_openvino():
        raise MissingError(f"engine {name!r}: {ABSENT}")
    if PRECISIONS[name] not in native_precisions():
        raise MissingError(
            f"engine {name!r}: this processor does not support {PRECISIONS[name]}; use 'openvino' "
            "or 'torch'"
        )


@cache
def has_openvino() -> bool:
    """Return whether OpenVINO is installed and can be loaded with its CPU plugin."""
    try:
        native_precisions()
    except Exception:  # a broken installation may raise anything
        return False
    return True


def native_precisions() -> list[str]:
    """Return the precisions that the processor supports in hardware."""
    from openvino import Core

    abilities = Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [precision for precision, name in NATIVE.items() if name in abilities]
