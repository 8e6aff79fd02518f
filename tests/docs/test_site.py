"""Links of the repository are rewritten for the site, which has every page in its menu."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed; make docs installs it")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("link", "depth", "expected"),
    [
        ("docs/guide.md#with-training", 0, "guide.md#with-training"),
        ("docs/images/report.png", 0, "images/report.png"),
        ("../README.md", 0, "index.md"),
        ("CONTRIBUTING.md", 0, "contributing.md"),
        ("../benchmarks/results/a.md", 0, "records/a.md"),
        ("benchmarks/results", 0, "records/index.md"),
        ("../../docs/paper.md", 1, "../paper.md"),
        ("paper.md#choosing-k", 0, "paper.md#choosing-k"),
        ("https://example.org/docs/x.md", 0, "https://example.org/docs/x.md"),
    ],
)
def test_a_link_leads_to_the_page_of_the_site(
    load_script: Callable[[str], ModuleType], link: str, depth: int, expected: str
) -> None:
    pages = load_script("site/pages.py")
    assert pages.site_link(link, depth) == expected


def test_every_page_of_docs_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f" {page.name}" not in menu]
    assert not missing
