from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from shoal.errors import UsageError
from shoal.settings import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Temperature,
    differences,
    dump_settings,
    from_dict,
    load_settings,
    to_dict,
)


@dataclass(frozen=True, kw_only=True)
class Shift:
    n_neighbors: int = 8
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha must lie in [0, 1], got {self.alpha}")


@dataclass(frozen=True, kw_only=True)
class Everything:
    name: str
    shift: Shift = field(default_factory=Shift)
    n_clusters: int | None = None
    rule: Literal["paper", "other"] = "paper"
    sizes: tuple[int, ...] = ()
    train: bool = True


def test_settings_survive_yaml_and_back(tmp_path: Path) -> None:
    settings = Everything(
        name="Möwe: 1", shift=Shift(alpha=5e-05), n_clusters=9, sizes=(1, 2), train=False
    )
    (tmp_path / "config.yaml").write_text(dump_settings(settings), encoding="utf-8")
    assert load_settings(Everything, tmp_path / "config.yaml") == settings
    assert list(to_dict(settings)) == ["name", "shift", "n_clusters", "rule", "sizes", "train"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"name": "a", "n_cluster": 3}, "unknown setting 'n_cluster'; did you mean 'n_clusters'?"),
        (
            {"name": "a", "shift": {"alfa": 1}},
            "shift: unknown setting 'alfa'; did you mean 'alpha'?",
        ),
        (
            {"name": "a", "shift": {"alpha": "much"}},
            "shift: alpha: found 'much', expected a number",
        ),
        ({"name": "a", "shift": {"alpha": "5e-5"}}, "such as 0.1 or 5.0e-05"),
        ({"name": "a", "shift": {"alpha": 2}}, "shift: alpha must lie in [0, 1], got 2.0"),
        ({"name": "a", "shift": {"n_neighbors": True}}, "found True, expected a whole number"),
        ({"name": "a", "shift": {"n_neighbors": 1.5}}, "found 1.5, expected a whole number"),
        ({"name": "a", "n_clusters": "x"}, "n_clusters: found 'x', expected a whole number"),
        ({"name": "a", "rule": "papre"}, "rule: found 'papre'; did you mean 'paper'?"),
        ({"name": "a", "sizes": 3}, "sizes: found 3, expected a list"),
        ({"name": "a", "sizes": [1, "b"]}, "sizes[1]: found 'b'"),
        ({"name": 3}, "name: found 3, expected text"),
        ({}, "missing 1 required keyword-only argument: 'name'"),
        ([1], "expected keys and values of Everything"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(found: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_dict(Everything, found, where="run.yaml")
    assert str(caught.value).startswith("run.yaml: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a: [", "as YAML"), (b"\xff\xfe\x00", "UTF-8"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "x.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        load_settings(Everything, file)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("")
    assert load_settings(Shift, tmp_path / "x.yaml") == Shift()


def test_differences_are_listed_by_their_place() -> None:
    assert differences(Everything(name="a", shift=Shift(alpha=0.1)), Everything(name="b")) == [
        "name: 'a', was 'b'",
        "shift.alpha: 0.1, was 0.5",
    ]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    count: Count = 1
    weight: NonNegative = 0.0
    width: Positive = 0.5
    share: Fraction = 1.0
    temperature: Temperature = 10.0


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("count", 0),
        ("weight", -0.5),
        ("width", 0.0),
        ("share", 1.5),
        ("temperature", 11.0),
        ("share", float("nan")),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_name(name: str, bad: float) -> None:
    with pytest.raises(UsageError, match=f"{name}: found {bad}"):
        from_dict(Numbers, {name: bad})
