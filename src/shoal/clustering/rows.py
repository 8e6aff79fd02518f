"""Tensors that belong together, row by row."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """A dataclass of tensors that each have a row for the same things."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with every tensor changed."""
        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def take(self, rows: Tensor | slice) -> Self:
        """Return some of the rows."""
        return self.each(lambda tensor: tensor[rows])

    def put(self, rows: Tensor | slice, values: Self) -> None:
        """Overwrite some of the rows."""
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(values, field.name)
