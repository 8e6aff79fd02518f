"""A batch of views through the networks: cut or from a pool, trunk, the model's forward; compiled where asked for.

b views, W of each image, C the side of a crop, T tokens of a view, X columns of an output.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from shoal.encoders.embed import ImageRows, autocast
from shoal.errors import MissingError
from shoal.training.model import Model
from shoal.training.tokens import take
from shoal.training.view_pool import ViewPool
from shoal.training.views import ViewSettings, cut_views, finish_views

HOW: dict[str, dict[str, Any]] = {"cuda": {"mode": "reduce-overhead"}, "cpu": {}}
"""How networks are compiled, by device; on a GPU into fused kernels that are replayed as CUDA graphs."""


class Forward:
    """The forward pass of a step, over views of `pixels`, or those of a `pool`, where there is one.

    Compiled, the parts after the cut are fused, and on a GPU replayed as CUDA graphs: a small network is then limited
    by its arithmetic, and not by how fast Python can launch it. The cut stays outside, because a graph copies its
    inputs, and its input is every pixel of the collection. So do all random numbers, which come as `view_draws`, the
    losses, which look up neighbors in a bank that changes, and the optimizer.
    """

    def __init__(self, model: Model, views: ViewSettings, *, is_compiled: bool = False) -> None:
        encoder = model.encoder
        self.model = model
        self.encoder = encoder
        self.views = views
        self.pixels: ImageRows
        self.pool: ViewPool | None = None
        self._has_graphs = is_compiled and encoder.device.type == "cuda"
        self._tokens: Callable[[Tensor], Tensor] = (
            encoder.trunk if is_compiled else encoder.run_trunk
        )
        self._run_trunk: Callable[[Tensor, Tensor], Tensor] = self._trunk
        self._run_model: Callable[[Tensor], dict[str, Tensor]] = self._model
        if is_compiled:
            self._warm_up()
            # A batch cut short gets a graph of its own: one for any size would be recorded anew for each anyway.
            how = {"dynamic": False, **HOW[encoder.device.type]}
            self._run_trunk = torch.compile(self._trunk, **how)
            self._run_model = torch.compile(self._model, **how)

    def run(
        self, images: Tensor, view_draws: Tensor, n_views: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The model's inputs of views of `images` (b,), the first of all, then the second …, and its outputs."""
        inputs = self.inputs(images, view_draws, n_views)
        return inputs, self.outputs(inputs)

    def inputs(self, images: Tensor, view_draws: Tensor, n_views: int = 2) -> Tensor:
        """The trunk's tokens (b, T, …) of views of `images` (b,); or the views, where the model reads them."""
        if (
            self._has_graphs
        ):  # what the last step has left in the memory of a graph may be overwritten
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        if self.pool is not None:
            return self.pool.take(images, view_draws, n_views)
        source, rows = take(self.pixels, images, self.encoder.device)
        return self.tokens(self.cut(source, rows, view_draws), view_draws)

    def cut(self, pixels: Tensor, rows: Tensor, view_draws: Tensor) -> Tensor:
        """Cut views of images `rows` (b,) of `pixels`: (b, C, C, 3) uint8."""
        return cut_views(pixels, rows, view_draws, self.views)

    @torch.no_grad()  # and not inference mode, whose tensors the model's backward could not keep
    def tokens(self, cut: Tensor, view_draws: Tensor) -> Tensor:
        """Color what was cut and run the trunk over it, unless the model reads images: (b, T, …)."""
        if self.model.reads_images:
            return finish_views(cut, view_draws, self.encoder, self.views)
        with explain_compiler():
            return self._run_trunk(cut, view_draws)

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """What the model makes of its inputs, (b, X) each, with gradients."""
        with explain_compiler():
            return self._run_model(inputs)

    @torch.no_grad()
    def _warm_up(self) -> None:
        """Run the trunk once: what it keeps for later calls must not be made inside of a graph, which reuses memory."""
        size = self.encoder.input_format.size
        with autocast(self.encoder.device):
            self.encoder.trunk(torch.zeros(1, 3, size, size, device=self.encoder.device))

    def _trunk(self, cut: Tensor, view_draws: Tensor) -> Tensor:
        views = finish_views(cut, view_draws, self.encoder, self.views)  # (b, 3, I, I)
        with autocast(self.encoder.device):
            return self._tokens(views)

    def _model(self, inputs: Tensor) -> dict[str, Tensor]:
        with autocast(self.encoder.device):
            return self.model.forward(inputs)


@contextmanager
def explain_compiler() -> Iterator[None]:
    """Turn a failure of torch's compiler, which first works when a network is first run, into one that says what to do.

    Costs nothing where nothing is compiled, and does not hide what goes wrong inside of the networks.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error).__module__.split(".")[:2] not in (
            ["torch", "_dynamo"],
            ["torch", "_inductor"],
        ):
            raise
        first = str(error).strip().splitlines()[0]
        raise MissingError(
            f"training.compile: torch could not compile the networks ({first}); install a C++ compiler (on Debian and "
            "Ubuntu: apt install g++ and, for a GPU, python3-dev), or set training.compile: false"
        ) from error
