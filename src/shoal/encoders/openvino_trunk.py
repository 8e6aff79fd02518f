"""Run a frozen trunk with OpenVINO: converted once, cached, and compiled for this processor.

Images are processed in chunks of a fixed size, the last one padded, so the tokens of an image do
not depend on its batch. N images, T the shape of one image's tokens.
"""

import functools
import hashlib
import logging
import math
import platform
import secrets
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.distributed import is_main
from shoal.encoders.engines import PRECISIONS
from shoal.encoders.weights import digest_weights
from shoal.errors import ShoalError
from shoal.files import cache_folder, make_folder, writing
from shoal.text import one_line

if TYPE_CHECKING:
    from openvino import Model

CHUNK = 4 if platform.machine() in ("x86_64", "AMD64") else 16
"""Images per inference; few on x86, so that feature maps stay in the processor's cache. In float32
the tokens do not depend on it."""

VERSION = 1
"""Version of the conversion; a new one invalidates cached trunks."""

TOLERANCES = {"f32": 1e-5, "f16": 0.02, "bf16": 0.05}
"""Largest difference from torch's unit features of a probe, by precision; that of a wrong
conversion is far larger."""


log = logging.getLogger(__name__)


class OpenVINOTrunk:
    """The trunk of an encoder as a function of normalized images (N, 3, S, S), without
    gradients."""

    def __init__(self, model: "Model | Path", size: int, engine: str, n_threads: int) -> None:
        """Compile a converted model, or the one in a file."""
        from openvino import Core

        core = Core()
        options = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[engine],
            "INFERENCE_NUM_THREADS": n_threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # else several processes would share the same cores
        }
        if isinstance(model, Path):
            model = core.read_model(model)
        self._request = core.compile_model(model, "CPU", options).create_infer_request()
        self._chunk = np.zeros((CHUNK, 3, size, size), dtype=np.float32)
        self._lock = Lock()  # encoders in several threads may share this trunk

    def __call__(self, images: Tensor) -> Tensor:
        """Return the tokens (N, T) in float32."""
        parts = [self._run(images[start : start + CHUNK]) for start in range(0, len(images), CHUNK)]
        return torch.cat(parts)

    def _run(self, images: Tensor) -> Tensor:
        with self._lock:
            self._chunk[: len(images)] = images.numpy()
            tokens = self._request.infer({0: self._chunk}, share_inputs=True, share_outputs=True)[0]
            # A copy: the next chunk is written to the same memory.
            return torch.from_numpy(tokens[: len(images)].copy())


_COMPILED: WeakValueDictionary[tuple[Path, str, int], OpenVINOTrunk] = WeakValueDictionary()
"""Trunks in use in this process by file, engine and number of threads: compiling one takes a
second."""


def compile_trunk(
    trunk: nn.Module, tail: nn.Module, size: int, engine: str
) -> OpenVINOTrunk | None:
    """Return the trunk in OpenVINO if its features of a probe equal torch's, else None and warn.

    Encoders with the same weights share the trunk.
    """
    n_threads = torch.get_num_threads()
    tolerance = TOLERANCES[PRECISIONS[engine]]
    probe = probe_images(size)
    try:
        file = converted_file(trunk, size)
        compiled = _COMPILED.get((file, engine, n_threads))
        if compiled is not None:
            return compiled
        with torch.no_grad():
            expected = _features(tail, trunk(probe))

        def difference(compiled: OpenVINOTrunk) -> float:
            return float((_features(tail, compiled(probe)) - expected).abs().max())

        error = math.nan
        with suppress(OSError, RuntimeError):  # a cached file may be missing, damaged or private
            compiled = OpenVINOTrunk(file, size, engine, n_threads)
            error = difference(compiled)
        if compiled is None or not error <= tolerance:  # NaN too
            compiled = OpenVINOTrunk(convert(trunk, size, file), size, engine, n_threads)
            error = difference(compiled)
        if error <= tolerance:
            _COMPILED[file, engine, n_threads] = compiled
            return compiled
        why = f"its features differ from torch's by {error:.1e}"
    except (ImportError, RuntimeError) as problem:
        why = one_line(problem, 160)
    if is_main():
        warn_once(f"encoder: OpenVINO cannot run it ({why}), so torch does")
    return None


def probe_images(size: int) -> Tensor:
    """Return two normalized images (2, 3, size, size) of waves, to compare features."""
    return torch.linspace(-1, 1, 2 * 3 * size * size).mul(size).sin().view(2, 3, size, size)


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning once per process: a run loads its encoder more than once."""
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


def convert(trunk: nn.Module, size: int, file: Path) -> "Model":
    """Convert a trunk to OpenVINO's format, and cache it in `file` if that can be written."""
    model = _converted(trunk, torch.zeros(CHUNK, 3, size, size))
    with suppress(ShoalError, RuntimeError):  # OpenVINO's own error on a full disk
        _save(model, file)
    return model


def _save(model: "Model", file: Path) -> None:
    """Write a converted model; the folder of `file` is replaced in one step."""
    from openvino import save_model

    parent = file.parent.parent
    make_folder(parent)
    with writing(parent):
        draft = parent / f".{secrets.token_hex(8)}"
        draft.mkdir()  # with default permissions: other accounts may read it
        try:
            save_model(model, draft / file.name, compress_to_fp16=False)
            shutil.rmtree(file.parent, ignore_errors=True)
            draft.rename(file.parent)
        except OSError:
            if not file.is_file():  # else another process has written it
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@torch.no_grad()
def _converted(trunk: nn.Module, example: Tensor) -> "Model":
    """Convert a trunk without openvino.convert_model, which sends telemetry."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with warnings.catch_warnings(action="ignore"):  # tracing warns that sizes become constants
        traced = torch.jit.trace(trunk, example, check_trace=False)  # type: ignore[no-untyped-call]
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # must live until the conversion ends
        model = frontend.convert(frontend.load(decoder))
    model.reshape(list(example.shape))
    return model
