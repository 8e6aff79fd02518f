"""What a figure is asked while it is made, without anything drawn."""

from collections.abc import Iterator
from typing import Any


class NoFigure:
    """Stands in for a figure of matplotlib, its axes and all that they give."""

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
