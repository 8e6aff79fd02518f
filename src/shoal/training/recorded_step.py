"""A step of training as one CUDA graph.

A step of a small network is hundreds of kernels of a few microseconds each, and Python takes longer
to launch them than the GPU to run them. A graph launches all of them in one call. Their order and
their arguments are those of the recorded step, so weights are the same.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from shoal.distributed import is_started
from shoal.training.model import Model, Tensors

Step = Callable[[Tensor, Tensor], Tensors]
"""Takes rows (B,) and the parameters of their views (2B, 7); returns losses."""

MIN_STEPS = 8
"""Fewest steps in an epoch for which recording pays off; it takes as long as two steps."""


def is_recordable(model: Model) -> bool:
    """Return whether a step of a model only launches kernels, given a pool of views on the GPU."""
    return model.device.type == "cuda" and model.is_recordable and not is_started()


class RecordedStep:
    """A recorded step for inputs of one shape; it reads the current values of all other tensors.

    `previous` is the recording that this one replaces, whose memory and stream it reuses.
    """

    def __init__(
        self,
        step: Step,
        rows: Tensor,
        view_parameters: Tensor,
        previous: "RecordedStep | None" = None,
    ) -> None:
        self._rows = rows.clone()
        self._view_parameters = view_parameters.clone()
        self._graph = torch.cuda.CUDAGraph()
        if previous is None:
            # Recording cannot reuse the memory that earlier steps have freed.
            torch.cuda.empty_cache()
            self.pool: Any = torch.cuda.graph_pool_handle()
            self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        else:
            self.pool = previous.pool
            self.stream = previous.stream
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self._graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                self._losses = step(self._rows, self._view_parameters)
            except BaseException:  # also Ctrl-C, after which writing the result needs the GPU
                with suppress(RuntimeError):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        current.wait_stream(self.stream)

    def __call__(self, rows: Tensor, view_parameters: Tensor) -> Tensors:
        """Run the step on other inputs of the same shape."""
        self._rows.copy_(rows)
        self._view_parameters.copy_(view_parameters)
        self._graph.replay()
        return {name: value.clone() for name, value in self._losses.items()}
