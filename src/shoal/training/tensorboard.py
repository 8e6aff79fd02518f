"""Metrics for TensorBoard, where that optional package is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.errors import missing_package


def tensorboard(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Open an event file in `folder`; what comes back takes an epoch's row of metrics (`on_epoch` of `train`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_package("tensorboard", "tensorboard", "writing TensorBoard files") from error
    writer: Any = SummaryWriter(str(folder))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch" and value is not None:
                writer.add_scalar(name, value, row["epoch"])
        writer.flush()

    return write
