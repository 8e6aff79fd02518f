"""Folder names from which categories can be recovered, and links to images."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.discovery.export.export_job import (
    fold,
    folder_names,
    link_image,
    original,
    shortened,
)
from shoal.errors import DataError, ShoalError


@pytest.mark.parametrize(
    "category", ["cat", "Ærfugl, hunn", "50 %", "100%", "a b", "cone", "a%2Fb", "novel-001"]
)
def test_valid_names_are_unchanged(category: str) -> None:
    assert folder_names([category]) == {category: category}


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        *[
            ("a/b", "a%2Fb"),
            ("..", "%2E%2E"),
            (".", "%2E"),
            ("../../etc", "%2E.%2F..%2Fetc"),
        ],
        *[
            ("C:\\x", "C%3A%5Cx"),
            ("new\nline", "new%0Aline"),
            ("Larus sp.", "Larus sp%2E"),
            ("name. ", "name.%20"),
        ],
        *[
            ("CON", "%43ON"),
            ("Nul.x", "%4Eul.x"),
            ("lpt1 .x", "%6Cpt1 .x"),
            (".x", "%2Ex"),
            ("..y", "%2E.y"),
        ],
    ],
)
def test_forbidden_reserved_and_hidden_names_are_escaped(category: str, expected: str) -> None:
    assert folder_names([category]) == {category: expected}


@given(
    st.lists(st.text("aA%/.2fF: \0éÉ", min_size=1, max_size=6), min_size=2, max_size=8, unique=True)
)
def test_names_are_valid_and_unique_ignoring_case(categories: list[str]) -> None:
    names = folder_names(categories, taken=["a", "export.csv"])
    assert len(names) == len(categories)
    assert len({fold(name) for name in names.values()} | {"a"}) == len(names) + 1
    for name in names.values():
        assert not {*"/:\0"} & set(name)
        assert not name.startswith(".")
        assert not name.endswith((".", " "))


def test_names_that_the_export_uses_are_changed_ignoring_case() -> None:
    found = folder_names(["export.csv", "EXPORT.CSV", "exports.csv"], taken=["export.csv"])
    assert found["exports.csv"] == "exports.csv"
    assert {"export.csv", "EXPORT.CSV"}.isdisjoint(found.values())


def test_long_names_are_cut_and_remain_unique() -> None:
    first, second = (f"{'é' * 200}{end}.png" for end in "ab")
    assert shortened("é" * 127) == "é" * 127
    assert shortened(first) != shortened(second)
    assert shortened(first).endswith(".png")
    assert len(shortened(first).encode()) <= 255


@pytest.mark.parametrize("path", ["../secret.png", "a/../../secret.png", "/etc/passwd", "."])
def test_an_image_outside_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.png").write_bytes(b"x")
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match="leads out of"):
        original(tmp_path / "photos", path)


def refuse(*_arguments: object) -> None:
    raise OSError("no links here")


def test_images_are_linked_symbolically_else_hard_else_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.png"
    source.write_bytes(b"pixels")
    link_image(source, tmp_path / "1" / "a.png")
    assert (tmp_path / "1" / "a.png").is_symlink()
    monkeypatch.setattr(os, "symlink", refuse)
    link_image(source, tmp_path / "2" / "a.png")
    assert (tmp_path / "2" / "a.png").stat().st_ino == source.stat().st_ino
    monkeypatch.setattr(os, "link", refuse)
    link_image(source, tmp_path / "3" / "a.png")
    assert (tmp_path / "3" / "a.png").stat().st_ino != source.stat().st_ino
    assert (tmp_path / "3" / "a.png").read_bytes() == source.read_bytes() == b"pixels"


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "a.png"
    there = tmp_path / "b.png"
    source.write_bytes(b"new")
    there.write_bytes(b"old")
    for copy in (False, True):
        with pytest.raises(ShoalError, match="exists already"):
            link_image(source, there, copy=copy)
    assert there.read_bytes() == b"old"
