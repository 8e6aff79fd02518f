"""A frozen trunk run by OpenVINO: converted once, kept in the cache, compiled for this processor.

Images go through it in chunks of one size, the last one filled up, so an image's tokens are the
same bits whatever batch it comes in. N images, T the shape of one image's tokens.
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
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.distributed import is_main
from shoal.encoders.engines import PRECISIONS
from shoal.errors import MissingError, ShoalError
from shoal.files import cache_folder, make_folder, writing

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

    def __init__(self, model: Any, size: int, engine: str, n_threads: int) -> None:
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

    def compile_and_probe(model: Any) -> tuple[OpenVINOTrunk, float]:
        compiled = OpenVINOTrunk(model, size, engine, n_threads)
        probe = probe_images(size)
        return compiled, _difference(compiled(probe), trunk, tail, probe)

    try:
        file = converted_file(trunk, size)
        if (proven := _PROVEN.get((file, engine, n_threads))) is not None:
            return proven
        compiled = None
        error = math.inf
        tolerance = TOLERANCES[PRECISIONS[engine]]
        with suppress(
            OSError, RuntimeError
        ):  # another account's cannot be looked at, a damaged one not be read
            if file.is_file():
                compiled, error = compile_and_probe(file)
        if not error <= tolerance:  # nor is NaN
            compiled, error = compile_and_probe(convert(trunk, size, file))
    except (ImportError, RuntimeError) as problem:
        why = " ".join(str(problem).split())[-160:]
    else:
        if compiled is not None and error <= tolerance:
            _PROVEN[file, engine, n_threads] = compiled
            return compiled
        why = f"its features differ from torch's by {error:.1e}"
    if is_wanted:
        raise MissingError(
            f"engine {engine!r}: OpenVINO cannot run this encoder ({why}); use the engine 'torch'"
        )
    if is_main():
        _warn_once(f"encoder: OpenVINO cannot run it ({why}), so torch does")
    return None


def probe_images(size: int) -> Tensor:
    """Two normalized images (2, 3, size, size) of waves, to compare features on."""
    return torch.linspace(-1, 1, 2 * 3 * size * size).mul(size).sin().view(2, 3, size, size)


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)


@torch.no_grad()
def _difference(tokens: Tensor, trunk: nn.Module, tail: nn.Module, probe: Tensor) -> float:
    ours, theirs = (F.normalize(tail(inputs).float(), dim=1) for inputs in (tokens, trunk(probe)))
    return float((ours - theirs).abs().max())


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


def convert(trunk: nn.Module, size: int, file: Path) -> Any:
    """Convert a trunk to OpenVINO's format, and keep it in `file` where one may write there."""
    model = _converted(trunk, torch.zeros(CHUNK, 3, size, size))
    with suppress(ShoalError, RuntimeError):  # OpenVINO's own error on a full disk
        _keep(model, file)
    return model


def _keep(model: Any, file: Path) -> None:
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
def _converted(trunk: nn.Module, example: Tensor) -> Any:
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
