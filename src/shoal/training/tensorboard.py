"""Metrics for TensorBoard, where that optional package is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.errors import missing_package


def tensorboard_writer() -> type[Any]:
    """The class that writes event files; a missing package is an error that says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_package("tensorboard", "tensorboard", "writing TensorBoard files") from error
    return SummaryWriter


def event_writer(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Open an event file in `folder`; what comes back takes an epoch's row of metrics (`on_epoch` of `train`)."""
    writer = tensorboard_writer()(str(folder))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch" and value is not None:
                writer.add_scalar(name, value, row["epoch"])
        writer.flush()

    return write
