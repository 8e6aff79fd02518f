"""A frozen trunk run by OpenVINO: converted once, kept in the cache, compiled for this processor.

Images go through it in chunks of one size, the last one filled up, so an image's tokens are the
same bits whatever batch it comes in. N images, T the shape of one image's tokens.
"""

import functools
import hashlib
import logging
import platform
import secrets
import shutil
import warnings
from contextlib import nullcontext, suppress
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
from shoal.encoders.weights import in_a_line
from shoal.errors import MissingError, ShoalError
from shoal.files import cache_folder, make_folder, writing

if TYPE_CHECKING:
    from openvino import Model

CHUNK = 4 if platform.machine() in ("x86_64", "AMD64") else 16
"""Images that go through the trunk together; few on x86, where their maps stay in the processor's
cache. The tokens are the same bits for other numbers in float32."""

VERSION = 1
"""Of how trunks are converted; another number makes kept ones useless."""

TOLERANCES = {"f32": 1e-5, "f16": 0.02, "bf16": 0.05}
"""How far unit features of a probe may lie from torch's, by precision; a trunk converted wrongly is
far beyond."""


log = logging.getLogger(__name__)


class OpenVINOTrunk:
    """The trunk of an encoder as a function of normalized images (N, 3, S, S), on the CPU, without
    gradients."""

    def __init__(self, model: "Model | Path", size: int, engine: str, n_threads: int) -> None:
        """Compile a converted model, or the file of one."""
        from openvino import Core

        core = Core()
        options = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[engine],
            "INFERENCE_NUM_THREADS": n_threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # or processes of one machine run it on the same cores
        }
        read = core.read_model(model) if isinstance(model, Path) else model
        self._request = core.compile_model(read, "CPU", options).create_infer_request()
        self._chunk = np.zeros((CHUNK, 3, size, size), dtype=np.float32)
        self._lock = Lock()  # encoders of several threads may share it

    def __call__(self, images: Tensor) -> Tensor:
        """Tokens (N, T), float32."""
        parts = [self._run(images[start : start + CHUNK]) for start in range(0, len(images), CHUNK)]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def _run(self, images: Tensor) -> Tensor:
        with self._lock:
            self._chunk[: len(images)] = images.numpy()
            tokens = self._request.infer({0: self._chunk}, share_inputs=True, share_outputs=True)[0]
            return torch.from_numpy(tokens[: len(images)].copy())  # its memory is the next chunk's


_PROVEN: WeakValueDictionary[tuple[Path, str, int], OpenVINOTrunk] = WeakValueDictionary()
"""Trunks that encoders of this process run, by file, engine and threads: compiling one takes a
second."""


def compile_trunk(
    trunk: nn.Module, tail: nn.Module, size: int, engine: str, *, is_wanted: bool
) -> OpenVINOTrunk | None:
    """The trunk in OpenVINO, once a probe has shown that the features stay; None, with a warning,
    where they do not.

    Where the engine `is_wanted`, and not just chosen, that is an error. Encoders with the same
    weights share it.
    """
    n_threads = torch.get_num_threads()
    tolerance = TOLERANCES[PRECISIONS[engine]]
    probe = probe_images(size)
    try:
        file = converted_file(trunk, size)
        if (proven := _PROVEN.get((file, engine, n_threads))) is not None:
            return proven
        with torch.no_grad():
            expected = _features(tail, trunk(probe))
        for is_kept in (True, False):
            # Another account's file cannot be looked at, a damaged one not be read.
            with suppress(OSError, RuntimeError) if is_kept else nullcontext():
                model = file if is_kept else convert(trunk, size, file)
                compiled = OpenVINOTrunk(model, size, engine, n_threads)
                error = float((_features(tail, compiled(probe)) - expected).abs().max())
                if error <= tolerance:
                    _PROVEN[file, engine, n_threads] = compiled
                    return compiled
        why = f"its features differ from torch's by {error:.1e}"
    except (ImportError, RuntimeError) as problem:
        why = in_a_line(problem, 160)
    if is_wanted:
        raise MissingError(
            f"engine {engine!r}: OpenVINO cannot run this encoder ({why}); use the engine 'torch'"
        )
    if is_main():
        warn_once(f"encoder: OpenVINO cannot run it ({why}), so torch does")
    return None


def probe_images(size: int) -> Tensor:
    """Two normalized images (2, 3, size, size) of waves, to compare features on."""
    return torch.linspace(-1, 1, 2 * 3 * size * size).mul(size).sin().view(2, 3, size, size)


@functools.cache
def warn_once(text: str) -> None:
    """Say it once in a process: a run loads its encoder more than once."""
    log.warning(text)


@torch.no_grad()
def _features(tail: nn.Module, tokens: Tensor) -> Tensor:
    return F.normalize(tail(tokens).float(), dim=1)


def converted_file(trunk: nn.Module, size: int) -> Path:
    """Where the converted trunk is kept: in the cache, by its weights, its structure and the size
    of its images."""
    from openvino import get_version

    digest = hashlib.sha256(
        f"{VERSION} {get_version()} {torch.__version__} {CHUNK} {size} {trunk}".encode()
    )
    for name, value in sorted(trunk.state_dict().items()):
        digest.update(name.encode() + np.ascontiguousarray(value.cpu().numpy()).tobytes())
    return cache_folder() / "engines" / digest.hexdigest()[:16] / "trunk.xml"


def convert(trunk: nn.Module, size: int, file: Path) -> "Model":
    """Convert a trunk to OpenVINO's format, and keep it in `file` where one may write there."""
    model = _converted(trunk, torch.zeros(CHUNK, 3, size, size))
    with suppress(ShoalError, RuntimeError):  # OpenVINO's own error on a full disk
        _keep(model, file)
    return model


def _keep(model: "Model", file: Path) -> None:
    """Write a converted model; the folder of `file`, replaced where it is there, appears whole or
    not at all."""
    from openvino import save_model

    parent = file.parent.parent
    make_folder(parent)
    with writing(parent):
        draft = parent / f".{secrets.token_hex(8)}"
        draft.mkdir()  # as open to other accounts as folders are
        try:
            save_model(model, draft / file.name, compress_to_fp16=False)
            shutil.rmtree(file.parent, ignore_errors=True)
            draft.rename(file.parent)
        except OSError:
            if not file.is_file():  # else another process was faster
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@torch.no_grad()
def _converted(trunk: nn.Module, example: Tensor) -> "Model":
    """The model itself. Not by openvino.convert_model, which reports its use over the network."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with warnings.catch_warnings(action="ignore"):  # sizes become constants, as is meant
        traced = torch.jit.trace(trunk, example, check_trace=False)  # type: ignore[no-untyped-call]
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)
        model = frontend.convert(
            frontend.load(decoder)
        )  # which asks the decoder, so it must live until then
    model.reshape(list(example.shape))
    return model
