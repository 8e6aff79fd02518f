"""Choose the engine that runs a frozen trunk on a CPU, torch or OpenVINO, and run it with OpenVINO.

A run uses the same engine from start to end. For OpenVINO a trunk is converted once, cached, and
compiled for this processor. Images are processed in chunks of a fixed size, the last one padded, so
the tokens of an image do not depend on its batch. N images, T the shape of one image's tokens.
"""

import hashlib
import logging
import os
import platform
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.distributed import is_main
from shoal.encoders.weights import digest_weights
from shoal.errors import MissingError, UnknownName, one_line
from shoal.files import cache_folder

if TYPE_CHECKING:
    from openvino import Model

TORCH = "torch"

# OpenVINO's engines and the precision of their matrix products
PRECISIONS = {"openvino": "f32", "openvino-f16": "f16"}

ENGINES = (TORCH, *PRECISIONS)

# Types of processors on which OpenVINO is faster and its results equal torch's within noise
# (benchmarks/results), with float16 only on the last one
MEASURED = ("x86_64", "AMD64", "aarch64")

ABSENT = "OpenVINO is not installed or cannot be loaded; pip install openvino"

_wanted: ContextVar[str | None] = ContextVar("engine", default=None)


# Images per inference; few on x86, so that feature maps stay in the processor's cache. In float32
# the tokens do not depend on it.
CHUNK = 4 if platform.machine() in ("x86_64", "AMD64") else 16

# Version of the conversion; a new one invalidates cached trunks
VERSION = 1

# Largest difference from torch's unit features of a probe, by engine; that of a wrong conversion is
# far larger
TOLERANCES = {"openvino": 1e-5, "openvino-f16": 0.02}


@contextmanager
def use_engine(name: str | None) -> Iterator[None]:
    """Use an engine for the encoders that are loaded in this block; None chooses one."""
    token = _wanted.set(name)
    try:
        yield
    finally:
        _wanted.reset(token)


def wanted_engine() -> str | None:
    """Return the engine of `use_engine`, or of $SHOAL_ENGINE, or None if neither is set; refuse one
    that is unknown or that this machine does not have."""
    engine = _wanted.get() or os.environ.get("SHOAL_ENGINE") or None
    if engine is None or engine == TORCH:
        return engine
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if not has_openvino():
        raise MissingError(f"engine {engine!r}: {ABSENT}")
    if engine == "openvino-f16" and not has_float16():
        raise MissingError(
            f"engine {engine!r}: this processor does not support float16; use 'openvino' or 'torch'"
        )
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


log = logging.getLogger(__name__)


class OpenVINOTrunk:
    """The trunk of an encoder as a function of normalized images (N, 3, S, S), without
    gradients."""

    def __init__(self, model: "Model | Path", engine: str, n_threads: int) -> None:
        """Compile a converted model, or the one in a file."""
        from openvino import Core

        options = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[engine],
            "INFERENCE_NUM_THREADS": n_threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # else several processes would share the same cores
        }
        self.engine = engine
        self._compiled = Core().compile_model(model, "CPU", options)
        self._lock = Lock()  # encoders in several threads may share this trunk

    def __call__(self, images: Tensor) -> Tensor:
        """Return the tokens (N, T) in float32."""
        tokens = []
        for chunk in torch.split(images, CHUNK):
            padded = F.pad(chunk, (0, 0, 0, 0, 0, 0, 0, CHUNK - len(chunk)))
            with self._lock:
                tokens.append(torch.from_numpy(self._compiled(padded.numpy())[0])[: len(chunk)])
        return torch.cat(tokens)


# Trunks in use in this process by file, engine and number of threads: compiling one takes a second
_COMPILED: WeakValueDictionary[tuple[Path, str, int], OpenVINOTrunk] = WeakValueDictionary()


def compile_trunk(
    trunk: nn.Module, tail: nn.Module, size: int, engine: str
) -> OpenVINOTrunk | None:
    """Return the trunk in OpenVINO if its features of a probe equal torch's, else None and warn.

    Encoders with the same weights share the trunk.
    """
    n_threads = torch.get_num_threads()
    probe = probe_images(size)

    def checked(model: "Model | Path") -> OpenVINOTrunk:
        compiled = OpenVINOTrunk(model, engine, n_threads)
        error = float((_features(tail, compiled(probe)) - expected).abs().max())
        if not error <= TOLERANCES[engine]:  # NaN too
            raise RuntimeError(f"its features differ from torch's by {error:.1e}")
        _COMPILED[file, engine, n_threads] = compiled
        return compiled

    try:
        file = converted_file(trunk, size)
        compiled = _COMPILED.get((file, engine, n_threads))
        if compiled is not None:
            return compiled
        with torch.no_grad():
            expected = _features(tail, trunk(probe))
        with suppress(OSError, RuntimeError):  # a cached file may be missing, damaged or private
            return checked(file)
        return checked(convert(trunk, size, file))
    except (ImportError, RuntimeError) as problem:
        warn_once(f"encoder: OpenVINO cannot run it ({one_line(problem, 160)}), so torch does")
    return None


def probe_images(size: int) -> Tensor:
    """Return two normalized images (2, 3, size, size) of waves, to compare features."""
    return torch.linspace(-1, 1, 2 * 3 * size * size).mul(size).sin().view(2, 3, size, size)


@cache
def warn_once(text: str) -> None:
    """Log a warning once in the first process: a run loads its encoder more than once."""
    if is_main():
        log.warning(text)


@torch.no_grad()
def _features(tail: nn.Module, tokens: Tensor) -> Tensor:
    return F.normalize(tail(tokens).float(), dim=1)


def converted_file(trunk: nn.Module, size: int) -> Path:
    """Return the cache file of a converted trunk, by its weights, structure and image size."""
    from openvino import get_version

    versions = f"{VERSION} {get_version()} {torch.__version__} {CHUNK} {size}"
    identity = f"{versions} {trunk} {digest_weights(trunk)}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cache_folder() / "engines" / digest / "trunk.xml"


@torch.no_grad()
def convert(trunk: nn.Module, size: int, file: Path) -> "Model":
    """Convert a trunk to OpenVINO's format, and cache it in `file` if that can be written.

    openvino.convert_model would send telemetry.
    """
    from openvino import save_model
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    example = torch.zeros(CHUNK, 3, size, size)
    with warnings.catch_warnings(action="ignore"):  # tracing warns that sizes become constants
        traced = torch.jit.trace(trunk, example, check_trace=False)  # type: ignore[no-untyped-call]
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # must live until the conversion ends
        model = frontend.convert(frontend.load(decoder))
    model.reshape(list(example.shape))
    parent = file.parent.parent
    # RuntimeError: OpenVINO on a full disk. The folder of `file` is replaced in one step.
    with suppress(OSError, RuntimeError):
        parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=parent, prefix=".") as draft:
            save_model(model, Path(draft, "trunk", file.name), compress_to_fp16=False)
            shutil.rmtree(file.parent, ignore_errors=True)
            Path(draft, "trunk").rename(file.parent)
    return model
