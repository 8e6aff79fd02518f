"""A step of training as one CUDA graph.

A step of a small network is hundreds of kernels of a few microseconds each, and Python takes longer
to launch them than the GPU to run them. Recorded, they are launched at once. Their order and their
arguments are those of the step that was recorded, so weights come out the same.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from shoal.distributed import is_started
from shoal.training.model import Model

Step = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""Takes rows (B,) and what their views look like (V·B, 7); gives losses."""

FEWEST = 8
"""Steps of an epoch from which on recording one, which takes as long as two, pays."""


def is_recordable(model: Model[Any]) -> bool:
    """Whether the host does nothing in a step but to launch kernels, where a pool of views is on
    the GPU."""
    return model.device.type == "cuda" and model.is_recordable and not is_started()


class RecordedStep:
    """A step that was taken once before, with inputs of one shape; whatever else it reads is what
    is there now.

    `before` is the recording that this one takes the place of, whose memory and stream it uses.
    """

    def __init__(
        self, step: Step, rows: Tensor, view_draws: Tensor, before: "RecordedStep | None" = None
    ) -> None:
        self._rows = rows.clone()
        self._view_draws = view_draws.clone()
        self._graph = torch.cuda.CUDAGraph()
        if before is None:
            # what the step before has left cannot be used while another is recorded
            torch.cuda.empty_cache()
            self.pool: Any = torch.cuda.graph_pool_handle()
            self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        else:
            self.pool = before.pool
            self.stream = before.stream
        stream = self.stream
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                self._losses = step(self._rows, self._view_draws)
            except BaseException:  # Ctrl-C too: the answer that is written then needs the GPU
                with suppress(RuntimeError):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        current.wait_stream(stream)

    def __call__(self, rows: Tensor, view_draws: Tensor) -> dict[str, Tensor]:
        """Take the step with other inputs of the same shape."""
        self._rows.copy_(rows)
        self._view_draws.copy_(view_draws)
        self._graph.replay()
        return {name: value.clone() for name, value in self._losses.items()}
