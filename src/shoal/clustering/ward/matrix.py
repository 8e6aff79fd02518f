"""The matrix as a caller gives it: checked, on the device to compute on, and what brings it near zero and one."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import as_embeddings, name_rows
from shoal.device import choose_device, computing_device
from shoal.errors import DataError

LARGEST = 1e150
"""Numbers beyond this have squares near the end of float64."""


def as_rows(X: Any, device: str | torch.device | None) -> Tensor:
    """A checked float32 or float64 tensor on the device to compute on; not copied where it need not be."""
    if isinstance(X, Tensor):
        if X.layout != torch.strided or X.is_quantized or X.device.type == "meta":
            raise DataError(
                "X: found a sparse, quantized or empty tensor, expected plain numbers; X.to_dense() or so"
            )
        tensor = X.detach().resolve_conj().resolve_neg()
        if tensor.is_floating_point() and tensor.dtype not in (
            torch.float16,
            torch.float32,
            torch.float64,
        ):
            tensor = tensor.float()  # numpy has no bfloat16, nor anything shorter
        if tensor.device.type == "cuda" and device is None:
            return _checked_on_device(tensor)
        home = computing_device(tensor.device) if device is None else choose_device(device)
        return torch.as_tensor(
            np.require(as_embeddings(tensor.cpu().numpy()), requirements="C")
        ).to(home)
    # torch warns of read-only memory, so that is copied.
    return torch.as_tensor(np.require(as_embeddings(X), requirements=["C", "W"])).to(
        choose_device(device)
    )


def _checked_on_device(tensor: Tensor) -> Tensor:
    """What `as_embeddings` checks, without leaving the GPU."""
    if tensor.ndim != 2 or tensor.numel() == 0 or tensor.is_complex():
        as_embeddings(
            tensor[:1].cpu().numpy() if tensor.is_complex() else np.zeros(tensor.shape)
        )  # says what is wrong
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float() if tensor.dtype == torch.float16 else tensor.double()
    is_bad = ~torch.isfinite(tensor).all(1)
    if bool(is_bad.any()):
        raise DataError(
            f"X: NaN or infinity in {name_rows(is_bad.cpu().numpy())}; remove or repair them"
        )
    return tensor


def origin_and_scale(rows: Tensor) -> tuple[Tensor, float]:
    """(D,) what is taken off all rows, and a power of two that brings the largest entry that is left near 1."""
    low = rows.amin(0).double()
    high = rows.amax(0).double()
    origin = _origin(rows[0], low, high)
    return origin, _scale(low - origin, high - origin)


def _origin(row: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(D,) float64: a row's entry in columns far from zero, of one sign and within a factor of two, else 0.

    Differences within such a column are exact (Sterbenz), so what is taken off changes no distance; left on, it would
    take bits from every centroid: times, coordinates and the like.
    """
    is_far = ((low > 0) & (high <= 2 * low)) | ((high < 0) & (low >= 2 * high))
    return torch.where(is_far, row.double(), 0.0)


def _scale(low: Tensor, high: Tensor) -> float:
    """A power of two that brings the largest entry between 1/2 and 1: exact, and no square can overflow after it."""
    largest = float(torch.maximum(high, -low).max())
    if largest > LARGEST:
        raise DataError(
            f"X: found entries of {largest:.3g}, expected at most {LARGEST:g}; divide X by a constant"
        )
    return 2.0 ** -max(math.frexp(largest)[1], -1000) if largest else 1.0
