"""A batch of views through the networks: cut, trunk, tail and head; compiled where that is asked for.

b views, C the side of a crop, T tokens of a view, D entries of an embedding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from shoal.encoders.embed import autocast
from shoal.encoders.head import Head
from shoal.encoders.vision import Encoder
from shoal.errors import MissingError
from shoal.training.views import ViewSettings, cut_views, finish_views

HOW: dict[str, dict[str, Any]] = {"cuda": {"mode": "reduce-overhead"}, "cpu": {}}
"""How networks are compiled, by device; on a GPU into fused kernels that are replayed as CUDA graphs."""


class Forward:
    """The forward pass of a step, in the three parts that a step takes it in.

    Compiled, the parts after the cut are fused, and on a GPU replayed as CUDA graphs: a small network is then limited
    by its arithmetic, and not by how fast Python can launch it. The cut stays outside, because a graph copies its
    inputs, and its input is every pixel of the collection. So do all random numbers, which come as `draws`, the losses,
    which look up neighbors in a bank that changes, and the optimizer.
    """

    def __init__(self, encoder: Encoder, head: Head, views: ViewSettings, *, is_compiled: bool = False) -> None:
        self.encoder, self.head, self.views = encoder, head, views
        self._has_graphs = is_compiled and encoder.device.type == "cuda"
        self._tokens: Callable[[Tensor], Tensor] = encoder.trunk if is_compiled else encoder.run_trunk
        self._run_trunk: Callable[[Tensor, Tensor], Tensor] = self._trunk
        self._run_tail: Callable[[Tensor], tuple[Tensor, Tensor]] = self._tail
        if is_compiled:
            self._warm_up()
            # A batch cut short gets a graph of its own: one for any size would be recorded anew for each anyway.
            how = {"dynamic": False, **HOW[encoder.device.type]}
            self._run_trunk = torch.compile(self._trunk, **how)
            self._run_tail = torch.compile(self._tail, **how)

    def begin(self) -> None:
        """Begin a step: what the last one has left in the memory of a graph may be overwritten."""
        if self._has_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def cut(self, pixels: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """Cut views of images `rows` (b,) of `pixels`: (b, C, C, 3) uint8."""
        return cut_views(pixels, rows, draws, self.views)

    @torch.no_grad()  # and not inference mode, whose tensors the tail's backward could not keep
    def tokens(self, cut: Tensor, draws: Tensor) -> Tensor:
        """Colour what was cut and run the trunk over it: (b, T, …)."""
        with explain_compiler():
            return self._run_trunk(cut, draws)

    def embeddings(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tail's features (b, F) and the head's embeddings (b, D), with gradients."""
        with explain_compiler():
            return self._run_tail(tokens)

    @torch.no_grad()
    def _warm_up(self) -> None:
        """Run the trunk once: what it keeps for later calls must not be made inside of a graph, which reuses memory."""
        size = self.encoder.input_format.size
        with autocast(self.encoder.device):
            self.encoder.trunk(torch.zeros(1, 3, size, size, device=self.encoder.device))

    def _trunk(self, cut: Tensor, draws: Tensor) -> Tensor:
        views = finish_views(cut, draws, self.encoder, self.views)  # (b, 3, I, I)
        with autocast(self.encoder.device):
            return self._tokens(views)

    def _tail(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(self.encoder.device):
            features: Tensor = self.encoder.tail(tokens)
            embeddings: Tensor = self.head(features)
        return features, embeddings


@contextmanager
def explain_compiler() -> Iterator[None]:
    """Turn a failure of torch's compiler, which first works when a network is first run, into one that says what to do.

    Costs nothing where nothing is compiled, and does not hide what goes wrong inside of the networks.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error).__module__.split(".")[:2] not in (["torch", "_dynamo"], ["torch", "_inductor"]):
            raise
        first = str(error).strip().splitlines()[0]
        raise MissingError(
            f"training.compile: torch could not compile the networks ({first}); install a C++ compiler (on Debian and "
            "Ubuntu: apt install g++ and, for a GPU, python3-dev), or set training.compile: false"
        ) from error
