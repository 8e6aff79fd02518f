"""The README stays short, and pages are written in lines that a terminal shows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/results/*.md"), ROOT / "CHANGELOG.md"]
)


def prose(page: Path) -> list[str]:
    """The lines of a page outside of code and tables, which cannot be wrapped."""
    kept = []
    is_code = False
    for line in page.read_text(encoding="utf-8").splitlines():
        is_code ^= line.lstrip().startswith("```")
        if not is_code and not line.startswith(("|", "    ", "#")):
            kept.append(line)
    return kept


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > 140] == []


def test_every_record_has_a_table_and_is_quoted() -> None:
    records = sorted(ROOT.glob("benchmarks/results/*.md"))
    pages = "".join(
        page.read_text(encoding="utf-8") for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]
    )
    assert records
    assert [record.name for record in records if record.name not in pages] == []
    assert [one.name for one in records if "\n|---" not in one.read_text(encoding="utf-8")] == []


def test_files_of_the_package_that_pages_name_are_there() -> None:
    pages = [*ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
    packages = {path.name for path in (ROOT / "src" / "shoal").iterdir()}
    named = {
        name
        for page in pages
        for name in re.findall(
            r"`(?:src/shoal/)?([a-z_/0-9]+\.py)", page.read_text(encoding="utf-8")
        )
        if name.partition("/")[0] in packages
    }
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / "src" / "shoal" / name).exists()) == []


def test_files_that_pages_name_without_a_folder_are_there() -> None:
    tracked = {
        path.name
        for folder in ("src", "tests", "benchmarks", "examples")
        for path in ROOT.glob(f"{folder}/**/*.py")
    }
    pages = [*ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
    named = {
        name
        for page in pages
        for name in re.findall(r"`([a-z_0-9]+\.py)`", page.read_text(encoding="utf-8"))
    }
    assert named
    assert sorted(named - tracked) == []
