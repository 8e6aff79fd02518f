"""docs/cli.md is the output of `--help`, and links between pages work."""

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_reference_is_the_output_of_help(load_script: Callable[[str], ModuleType]) -> None:
    """The layout of help depends on the version of typer; the reference has the layout of the
    pinned version."""
    make_cli = load_script("make_cli.py")
    pinned = re.search(r"(?m)^typer==(\S+)", (ROOT / "constraints.txt").read_text())
    assert pinned is not None
    if version("typer") != pinned[1]:
        pytest.skip(f"typer {version('typer')}, but the reference was written with {pinned[1]}")
    assert make_cli.TARGET.read_text(encoding="utf-8") == make_cli.render(), (
        "docs/cli.md is out of date; run make docs"
    )


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]), ids=str
)
def test_links_between_pages_are_not_broken(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [
        link for link in links if not link.startswith("http") and not (page.parent / link).exists()
    ]
    assert not broken
