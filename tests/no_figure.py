"""A stand-in for a matplotlib figure that draws nothing."""

from collections.abc import Iterator
from typing import Any


class NoFigure:
    """Replacement for a matplotlib figure, its axes, and everything that their methods return."""

    def __init__(self, *size: float) -> None: ...

    def __getattr__(self, name: str) -> "NoFigure":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> "NoFigure":
        return self

    def __getitem__(self, key: Any) -> "NoFigure":
        return self

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "this test looks at a figure: ask for `unchanged_photos`, whose figures are drawn"
        )

    def get_xlim(self) -> tuple[float, float]:
        return 0.0, 1.0

    get_ylim = get_xlim

    def transform(self, values: list[float]) -> list[float]:
        return values
