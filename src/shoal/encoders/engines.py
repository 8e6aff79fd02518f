"""Engines: what runs a frozen trunk on a CPU, torch or OpenVINO, and which of them is chosen.

A trunk that never changes need not run in a training framework. A run keeps to the engine that it
was begun with.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from shoal.errors import MissingError, UnknownName

TORCH = "torch"

PRECISIONS = {"openvino": "f32", "openvino-f16": "f16", "openvino-bf16": "bf16"}
"""OpenVINO's engines, and the precision that each multiplies in."""

NATIVE = {"f16": "FP16", "bf16": "BF16"}
"""What OpenVINO calls the ability of a processor to multiply in 16 bits."""

ENGINES = (TORCH, *PRECISIONS)

FASTEST = {"x86_64": "openvino", "AMD64": "openvino", "aarch64": "openvino-f16"}
"""The fastest engine by kind of processor whose answers are torch's within noise
(benchmarks/results); on others torch runs trunks. In bfloat16 fewer images of Flowers-102 are
right."""

ABSENT = "OpenVINO is not installed, or does not load"

_wanted: ContextVar[str | None] = ContextVar("engine", default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """An engine by name, and why it is this one."""

    engine: str
    why: str


@contextmanager
def use_engine(name: str | None) -> Iterator[None]:
    """Give encoders that are loaded in this block a certain engine; None: the one that is chosen by
    itself."""
    if name is not None:
        check_engine(name)
    token = _wanted.set(name)
    try:
        yield
    finally:
        _wanted.reset(token)


def wanted_engine() -> str | None:
    """The engine of the block that this is called in, else that of $SHOAL_ENGINE; None: to be
    chosen."""
    given = _wanted.get() or os.environ.get("SHOAL_ENGINE")
    if given:
        check_engine(given)
    return given or None


def choose_engine() -> EngineChoice:
    """The engine for trunks on this machine's CPU: the same on every call."""
    wanted = wanted_engine()
    if wanted:
        return EngineChoice(engine=wanted, why="asked for")
    if not has_openvino():
        return EngineChoice(engine=TORCH, why=f"{ABSENT}; pip install openvino")
    machine = platform.machine()
    if machine not in FASTEST:
        return EngineChoice(engine=TORCH, why=f"OpenVINO was not measured on {machine}")
    engine = FASTEST[machine]
    if not _is_native(engine):
        engine = "openvino"
    return EngineChoice(
        engine=engine, why=f"OpenVINO is installed; 16 bits: {native_precisions() or 'none'}"
    )


def check_engine(name: str) -> None:
    """Refuse an engine that does not exist, or that this machine does not have."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    if name == TORCH:
        return
    if not has_openvino():
        raise MissingError(f"engine {name!r}: {ABSENT}; pip install openvino")
    if not _is_native(name):
        raise MissingError(
            f"engine {name!r}: this processor does not multiply {PRECISIONS[name]}; use 'openvino' "
            "or 'torch'"
        )


def _is_native(engine: str) -> bool:
    """Whether the processor multiplies in the precision of an engine."""
    return PRECISIONS[engine] in ("f32", *native_precisions())


@cache
def has_openvino() -> bool:
    """Whether OpenVINO is installed and loads, with the part that runs on CPUs."""
    try:
        native_precisions()
    except Exception:  # however it is broken, torch runs trunks
        return False
    return True


def native_precisions() -> list[str]:
    """The 16-bit precisions that the processor has in hardware."""
    from openvino import Core

    abilities = Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [precision for precision, name in NATIVE.items() if name in abilities]
